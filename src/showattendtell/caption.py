"""Caption photographs, or images of a checkpoint's data set, and draw the attention maps."""

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path

from omegaconf import DictConfig

from showattendtell.config.entry_point import entry_point, exit_process
from showattendtell.errors import UserError, printable

PAGE = "html"
PAGE_START = "<!doctype html>"
NOT_SURE = " (not sure)"


@entry_point("caption", positional="images")
def main(config: DictConfig) -> None:
    if (config.images is None) == (config.split is None):
        raise UserError(
            "give photographs, as images=photo.jpg, or a split of the checkpoint's data set, as split=test; not both"
            if config.images
            else "images is not set; give it as images=..., or images of the checkpoint's data set as split=test"
        )
    if config.split:
        return _caption_split(config)
    images = [config.images] if isinstance(config.images, str) else config.images
    missing = [image for image in images if "://" not in image and not Path(image).exists()]
    if len(missing) == len(images):  # said here, before torch is imported
        raise UserError("; ".join(f"image {image} does not exist" for image in missing))
    from showattendtell.visualization.pages import drawing

    pictures = [suffix for suffix in config.formats or ("png", PAGE) if suffix != PAGE]
    with drawing() if pictures else nullcontext(print) as draw:  # starts before torch is imported
        return _caption_photographs(config, pictures, draw)


def _caption_photographs(config: DictConfig, pictures: list[str], draw: Callable[..., None]) -> None:
    """Caption each photograph that can be read, then raise a `UserError` about the others."""
    from showattendtell.data.images import find_images
    from showattendtell.inference.pipeline import caption_all, load_captioners, warn_of_size
    from showattendtell.visualization.pages import Page, make_entry, picture_names, write_page
    from showattendtell.visualization.result_files import starts_with, writable

    files = find_images([config.images] if isinstance(config.images, str) else config.images)
    names, output = picture_names(files), Path(config.output or "captions")
    page, photographs = output / "index.html", {file.resolve() for file in files}
    for path in (output / f"{name}.{suffix}" for name in names for suffix in pictures):
        if path.resolve() in photographs:
            raise UserError(f"{path} is one of the photographs; set output to another folder")
    with_page = config.formats is None or PAGE in config.formats
    if with_page:
        writable(page, starts_with(PAGE_START))
        warn_of_size(len(files), "formats=[png] writes none")
    captioners = load_captioners(config)
    models = [captioner.name for captioner in captioners]
    entries, faults = [], list[str]()
    for number, descriptions in caption_all(captioners, files, faults):
        first = descriptions[0]
        print(printable(f"{files[number]}: {first.caption}{NOT_SURE if first.unsure else ''}"))
        for other in first.captions[1:]:
            print(f"  also: {other.caption}")
        for model, description in zip(models[1:], descriptions[1:], strict=True):
            print(f"  {model}: {description.caption}{NOT_SURE if description.unsure else ''}")
        for suffix in pictures:
            path = output / f"{names[number]}.{suffix}"
            draw(*first.as_drawn(), path)
            print(printable(f"  {path}"))
        if with_page:
            entries.append(make_entry(files[number].name, descriptions))
    if entries:
        count = "1 photograph" if len(entries) == 1 else f"{len(entries):,} photographs"
        write_page(Page(count, models, entries), page)
        print(page)
    if faults:
        raise UserError("; ".join(faults))


def _caption_split(config: DictConfig) -> None:
    """Write one page of images of the checkpoint's data set, with their reference captions.

    Raises:
        UserError: at the end, about images that cannot be read, unless `dataset.skip_unreadable` is set.
    """
    from showattendtell.config.instantiate import build
    from showattendtell.config.validation import raise_errors, validate
    from showattendtell.inference import pipeline
    from showattendtell.inference.checkpoints import next_to, reading_settings
    from showattendtell.inference.predictions import references_of
    from showattendtell.visualization.pages import Page, make_entry, write_page
    from showattendtell.visualization.result_files import starts_with, writable
    from showattendtell.visualization.tables import print_notes

    if config.formats is not None and list(config.formats) != [PAGE]:
        raise UserError(f"split={config.split} writes one {PAGE} page; leave formats out")
    first = config.checkpoint if isinstance(config.checkpoint, str) else config.checkpoint[0]
    path = writable(Path(config.output or next_to(first, f"page-{config.split}.html")), starts_with(PAGE_START))
    captioners = pipeline.load_captioners(config)
    settings = reading_settings(captioners[0].config, dataset=config.dataset)
    raise_errors(validate(settings))
    dataset = build(settings.dataset)
    split = dataset.split(config.split)
    examples = pipeline.evenly_spaced(split, config.number)
    pipeline.warn_of_size(len(examples), "a smaller number= gives a smaller one")
    references, entries, faults = references_of(examples), [], list[str]()
    for number, descriptions in pipeline.caption_all(captioners, [Path(each.path) for each in examples], faults):
        name = examples[number].image
        entries.append(make_entry(name, descriptions, references[name]))
    about = f"{dataset.name}, {len(entries):,} of {len(split):,} images of {config.split}"
    write_page(Page(about, [captioner.name for captioner in captioners], entries), path)
    print(f"written to {path}")
    if settings.dataset.get("skip_unreadable"):
        print_notes(faults)
    elif faults:
        raise UserError("; ".join(faults))


if __name__ == "__main__":
    main()
    exit_process()
