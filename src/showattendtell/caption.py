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

    from showattendtell.accounts import restore_voices, tell_all, warn_of_size
    from showattendtell.data.images import find_images
    from showattendtell.errors import UserError
    from showattendtell.report.drawing import picture_names
    from showattendtell.report.pages import Page, make_entry, write_page

    files = find_images([config.images] if isinstance(config.images, str) else config.images)
    names, output = picture_names(files), Path(config.output)
    if PAGE in config.formats:
        warn_of_size(len(files), "formats=[png] writes none")
    voices = restore_voices(config)
    entries = []
    faults: list[str] = []
    for number, photograph, accounts in tell_all(voices, files, config.seed, faults):
        best, *others = accounts[0].captions
        print(f"{files[number]}: {' '.join(best.words)}")
        for caption in others:
            print(f"  also: {' '.join(caption.words)}")
        for voice, account in zip(voices[1:], accounts[1:], strict=True):
            print(f"  {voice.name}: {' '.join(account.captions[0].words)}")
        frame = accounts[0].seen.scaled(*photograph.size)
        for suffix in pictures:
            path = output / f"{names[number]}.{suffix}"
            draw(photograph, best.words, best.maps, best.gates, frame, path)
            print(f"  {path}")
        if PAGE in config.formats:
            entries.append(make_entry(files[number].name, photograph, accounts))
    if entries:
        page = output / "index.html"
        count = "1 photograph" if len(entries) == 1 else f"{len(entries):,} photographs"
        write_page(Page(count, [voice.name for voice in voices], entries), page)
        print(page)
    if faults:
        raise UserError("; ".join(faults))


main = entry_point("caption", run, positional="images")

if __name__ == "__main__":
    main()
    leave()
