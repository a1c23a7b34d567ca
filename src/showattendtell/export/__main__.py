"""Export a checkpoint as graphs that run without this package."""

from omegaconf import DictConfig

from showattendtell.config.entry_point import entry_point, exit_process


@entry_point("export")
def main(config: DictConfig) -> None:
    from pathlib import Path

    from showattendtell.data.images import find_images, open_image
    from showattendtell.decoding.beam_search import BeamSearch
    from showattendtell.export.checking import check_formats, generated_images, print_files, print_rows
    from showattendtell.export.formats import metadata_of, new_folder, require, write_card, write_formats
    from showattendtell.export.graphs import graphs_of
    from showattendtell.inference.loading import find_model, load_model, next_to, weights_file
    from showattendtell.models.kernels.parallel import plain_torch

    formats = list(dict.fromkeys(config.formats))
    require(formats)
    weights = weights_file(find_model(config.checkpoint))
    output = Path(config.output).expanduser() if config.output else next_to(config.checkpoint, "export")
    model, _, _, calibration = load_model(config.checkpoint, "cpu", BeamSearch(), config.attention)
    preprocessing = model.encoder.preprocessing
    if config.images is None:
        images = generated_images(preprocessing.crop, 8)
    else:
        found = find_images([config.images] if isinstance(config.images, str) else config.images)
        images = [preprocessing(open_image(file)).unsqueeze(0).numpy() for file in found.places]
    with new_folder(output) as folder:
        with plain_torch():
            graphs = graphs_of(model, config.pixels, config.max_length, calibration)
            card = metadata_of(model, weights, config.pixels, config.max_length, calibration)
            card = write_formats(folder, graphs, formats, card)
        rows = check_formats(model, folder, formats, card, images)
        write_card(folder, card)
    print_files(card["files"])
    print_rows(rows, len(images), "generated pictures" if config.images is None else "photographs")
    print(f"written to {output}")


if __name__ == "__main__":
    main()
    exit_process()
