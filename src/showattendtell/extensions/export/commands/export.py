"""Export a checkpoint as graphs that run without this package, or as a page that runs them in a browser."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from omegaconf import DictConfig

from showattendtell.config.entry_point import entry_point, exit_process
from showattendtell.errors import UserError

if TYPE_CHECKING:
    from showattendtell.extensions.export.loading import ExportModel
    from showattendtell.types import Dataset


@entry_point("export")
def main(config: DictConfig) -> None:
    import shutil

    from showattendtell.data.images import find_images
    from showattendtell.extensions.export import checking, packages
    from showattendtell.extensions.export.formats import graph_formats, write_formats, write_metadata
    from showattendtell.extensions.export.loading import load_models, quantization_images, read_dataset
    from showattendtell.inference.loading import next_to
    from showattendtell.models.kernels.parallel import plain_torch
    from showattendtell.runtime.files import cache_folder, new_folder, write_errors
    from showattendtell.visualization.tables import print_scores

    formats = graph_formats(config.formats)
    if config.split and "onnx" not in formats:
        raise UserError(f"split={config.split} scores the ONNX graphs; add onnx to formats, or leave split out")
    package = packages.check_package(config.package) if "wheel" in config.formats else None
    runtime = packages.find_runtime(config.onnxruntime_web, cache_folder()) if "web" in config.formats else None
    paths = [] if config.images is None else find_images(config.images).sources
    with plain_torch():
        model, *other_models = load_models(config)
    dataset = read_dataset(config, model)
    photographs = (paths or quantization_images(dataset)) if config.precision == "int8" else []
    with new_folder(config.output, next_to(config.checkpoint, "export"), whole=True) as output, write_errors(output):
        with plain_torch():
            metadata = write_formats(
                output, model.graphs, formats, model.metadata, list(map(model.preprocess, photographs))
            )
        images = list(map(model.preprocess, paths)) or checking.generated_images(
            model.module.encoder.preprocessing.crop, 8
        )
        found = checking.check_formats(model.module, output, formats, metadata, images)
        scores = _score(config, model, dataset, metadata, output) if config.split and dataset else {}
        if runtime:
            page_bytes = _write_page(config, [model, *other_models], photographs, runtime, output)
        if package:
            packages.write_wheel(output, package, metadata)
        if "onnx" in formats and "onnx" not in config.formats:  # they are in the page or in the wheel
            shutil.rmtree(output / "onnx")
            (output / "run_onnx.py").unlink()
        sizes = write_metadata(output, metadata)
    checking.print_files(sizes)
    checking.print_agreement(found, len(images), "photographs" if paths else "generated pictures")
    if scores:
        names = (f"({i}) {name}" for i, name in enumerate(scores, start=1))
        print_scores(list(scores.values()), {}, "\n".join([f"{config.split}, beam {checking.BEAM}", *names]))
    if runtime:
        print(
            f"the page loads {page_bytes / 1e6:.1f} MB; serve it with: python -m http.server --directory {output}/web"
        )
    print(f"written to {output}")


def _score(
    config: DictConfig, model: "ExportModel", dataset: "Dataset", metadata: Mapping[str, Any], output: Path
) -> dict[str, dict[str, float]]:
    """Return the scores of the model itself and of its ONNX graphs on a split."""
    from showattendtell.extensions.export import checking
    from showattendtell.extensions.export.formats import read_graphs

    graphs = read_graphs(metadata["graphs"], "onnx", output)
    writers = {
        "PyTorch": checking.by_pytorch(model.module, checking.BEAM, config.max_length),
        f"onnxruntime, {config.precision}": checking.by_graphs(graphs, metadata, checking.BEAM),
    }
    return checking.score_writers(writers, model, dataset, config.split)


def _write_page(
    config: DictConfig, models: Sequence["ExportModel"], photographs: Sequence[str], runtime: Path, output: Path
) -> int:
    """Write the page of the models; return the bytes that it loads. The graphs of the first are in `output`."""
    from tempfile import TemporaryDirectory

    from showattendtell.extensions.export import packages
    from showattendtell.extensions.export.formats import write_formats
    from showattendtell.inference.captioning import model_note
    from showattendtell.models.kernels.parallel import plain_torch

    first, *others = models
    web_models = [packages.read_model(first.name, first.metadata, output)]
    for other in others:
        with TemporaryDirectory() as place, plain_torch():
            inputs = list(map(other.preprocess, photographs))
            write_formats(Path(place), other.graphs, ["onnx"], other.metadata, inputs)
            web_models.append(packages.read_model(other.name, other.metadata, Path(place)))
    return packages.write_web(output / "web", web_models, runtime, model_note(config), config.webgpu)


if __name__ == "__main__":
    main()
    exit_process()
