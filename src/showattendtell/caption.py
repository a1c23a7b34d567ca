"""Captions photographs and shows where the model looked."""

from collections.abc import Callable
from contextlib import nullcontext
from typing import Any

from omegaconf import DictConfig

from showattendtell.config.entry import entry_point, leave

PAGE = "html"


def run(config: DictConfig) -> None:
    from showattendtell.report.drawing import drawing

    pictures = [suffix for suffix in config.formats if suffix != PAGE]
    with drawing() if pictures else nullcontext(_draw_nothing) as draw:  # starts before torch is imported
        _caption(config, pictures, draw)


def _draw_nothing(*what: Any) -> None: ...


def _caption(config: DictConfig, pictures: list[str], draw: Callable[..., None]) -> None:
    """Caption each photograph that can be read; a `UserError` at the end tells of the others."""
    from pathlib import Path

    from showattendtell.accounts import restore_captioners, tell_all, warn_of_size
    from showattendtell.data.images import find_images
    from showattendtell.errors import UserError
    from showattendtell.report.drawing import picture_names
    from showattendtell.report.pages import Page, make_entry, write_page

    files = find_images([config.images] if isinstance(config.images, str) else config.images)
    names, output = picture_names(files), Path(config.output)
    if PAGE in config.formats:
        warn_of_size(len(files), "formats=[png] writes none")
    captioners = restore_captioners(config)
    entries = []
    faults: list[str] = []
    for number, descriptions in tell_all(captioners, files, faults):
        told = descriptions[0]
        print(f"{files[number]}: {told.caption}")
        for other in told.captions[1:]:
            print(f"  also: {other.caption}")
        for captioner, description in zip(captioners[1:], descriptions[1:], strict=True):
            print(f"  {captioner.name}: {description.caption}")
        for suffix in pictures:
            path = output / f"{names[number]}.{suffix}"
            draw(*told.as_drawn(), path)
            print(f"  {path}")
        if PAGE in config.formats:
            accounts = [description.as_account() for description in descriptions]
            entries.append(make_entry(files[number].name, told.photograph, accounts))
    if entries:
        page = output / "index.html"
        count = "1 photograph" if len(entries) == 1 else f"{len(entries):,} photographs"
        write_page(Page(count, [captioner.name for captioner in captioners], entries), page)
        print(page)
    if faults:
        raise UserError("; ".join(faults))


main = entry_point("caption", run, positional="images")

if __name__ == "__main__":
    main()
    leave()
