"""Export a checkpoint as graphs that run without this package, or as a page that runs them in a browser."""

from omegaconf import DictConfig

from showattendtell.config.entry_point import entry_point, exit_process


@entry_point("export")
def main(config: DictConfig) -> None:
    from itertools import chain
    from pathlib import Path
    from tempfile import TemporaryDirectory

    from showattendtell.data.images import find_images
    from showattendtell.export import checking, web, wheel
    from showattendtell.export.formats import graph_formats, new_folder, remove_graphs, write_card, write_formats
    from showattendtell.export.loading import load_models, quantisation_images, read_dataset
    from showattendtell.inference.loading import CACHE, next_to, note_about
    from showattendtell.inference.pipeline import checkpoint_groups
    from showattendtell.models.kernels.parallel import plain_torch

    formats = graph_formats(config.formats)
    package = wheel.check_package(config.package) if "wheel" in config.formats else None
    runtime = web.find_runtime(config.onnxruntime_web, Path(CACHE)) if "web" in config.formats else None
    output = Path(config.output).expanduser() if config.output else next_to(config.checkpoint, "export")
    found = [] if config.images is None else find_images(config.images).places
    with plain_torch():
        model, *others = load_models(config)
    dataset = read_dataset(config, model)
    photographs = quantisation_images(config.precision, found, dataset)
    with new_folder(output) as folder:
        with plain_torch():
            card = write_formats(folder, model.graphs, formats, model.card, model.see_all(photographs))
        images = model.see_all(found) or checking.generated_images(model.side, 8)
        rows = checking.check_formats(model.module, folder, formats, card, images)
        scores = checking.score_on_split(model, folder, card, dataset, config.split) if config.split and dataset else {}
        if runtime:
            shown = [web.read_model(model.name, model.card, folder)]
            for other in others:
                with TemporaryDirectory() as place, plain_torch():
                    write_formats(Path(place), other.graphs, ["onnx"], other.card, other.see_all(photographs))
                    shown.append(web.read_model(other.name, other.card, Path(place)))
            note = note_about(chain.from_iterable(checkpoint_groups(config)))
            page_bytes = web.write_web(folder / "web", shown, runtime, note, config.webgpu)
        if package:
            wheel.write_wheel(folder, package, card)
        if "onnx" not in config.formats:
            remove_graphs(folder, "onnx")
        sizes = write_card(folder, card)
    checking.print_files(sizes)
    checking.print_rows(rows, len(images), "photographs" if found else "generated pictures")
    checking.print_scores(scores, f"{config.split}, beam 3")
    if runtime:
        print(
            f"the page loads {page_bytes / 1e6:.1f} MB; serve it with: python -m http.server --directory {output}/web"
        )
    print(f"written to {output}")


if __name__ == "__main__":
    main()
    exit_process()
