"""Exports a checkpoint as graphs that run without this package."""

from omegaconf import DictConfig

from showattendtell.config.entry import entry_point, leave


def run(config: DictConfig) -> None:
    from pathlib import Path

    from showattendtell.checkpoint import restore
    from showattendtell.data.images import find_images, open_image
    from showattendtell.decode.search import BeamSearch
    from showattendtell.export.card import card_of
    from showattendtell.export.checking import check_formats, generated_images
    from showattendtell.export.formats import require
    from showattendtell.export.graphs import graphs_of
    from showattendtell.export.listing import print_files, print_rows
    from showattendtell.export.writing import new_folder, write_card, write_formats
    from showattendtell.model.loops import plain_torch
    from showattendtell.portable import beside, find_model, weights_file

    formats = list(dict.fromkeys(config.formats))
    require(formats)
    weights = weights_file(find_model(config.checkpoint))
    output = Path(config.output).expanduser() if config.output else beside(config.checkpoint, "export")
    model = restore(config.checkpoint, "cpu", BeamSearch(), config.attention).module
    preprocessing = model.encoder.preprocessing
    if config.images is None:
        images = generated_images(preprocessing.crop, 8)
    else:
        files = find_images([config.images] if isinstance(config.images, str) else config.images)
        images = [preprocessing(open_image(file)).unsqueeze(0).numpy() for file in files]
    with new_folder(output) as folder:
        with plain_torch():
            graphs = graphs_of(model, config.pixels, config.max_length)
            card = card_of(model, weights, config.pixels, config.max_length)
            card = write_formats(folder, graphs, formats, card)
        rows = check_formats(model, folder, formats, card, images)
        write_card(folder, card)
    print_files(card["files"])
    print_rows(rows, len(images), "generated pictures" if config.images is None else "photographs")
    print(f"written to {output}")


main = entry_point("export", run)

if __name__ == "__main__":
    main()
    leave()
