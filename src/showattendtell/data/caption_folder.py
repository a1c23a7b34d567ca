"""Captions in a text file beside each image."""

from collections import defaultdict
from pathlib import Path, PurePath

from showattendtell.data.caption_forms import CaptionFile
from showattendtell.data.text_files import read_text
from showattendtell.errors import UserError

SUFFIXES = {".jpg", ".jpeg", ".png", ".webp", ".bmp", ".gif", ".tif", ".tiff"}


def read_caption_folder(folder: Path, lists: Path | None = None) -> CaptionFile:
    """A folder, and what is below it, of images whose captions stand in a `.txt` of the same name, a caption a line.

    Args:
        lists: a folder of other texts, which may lie there as well.

    Raises `UserError` for an image without its text, a text without its image, and two images of one name.
    """
    images: defaultdict[PurePath, list[str]] = defaultdict(list)
    texts: set[PurePath] = set()
    for path in sorted(folder.rglob("*")):
        place = path.relative_to(folder)
        suffix = place.suffix.lower()
        if suffix == ".txt" and path.parent != lists:
            texts.add(place.with_suffix(""))
        elif suffix in SUFFIXES and not place.name.startswith("."):
            images[place.with_suffix("")].append(_checked(place.as_posix()))
    _check_pairs(folder, images, texts)
    lines = {image: read_text(folder / f"{stem}.txt").split("\n") for stem, [image] in images.items()}
    return CaptionFile("texts", {image: [line for line in said if line.strip()] for image, said in lines.items()})


def _checked(name: str) -> str:
    """A file's name may be of any bytes."""
    try:
        name.encode()
    except UnicodeEncodeError:
        raise UserError(f"the name of the image {name!r} is not UTF-8; rename it") from None
    return name


def _check_pairs(folder: Path, images: dict[PurePath, list[str]], texts: set[PurePath]) -> None:
    if not images:
        raise UserError(f"{folder} holds no images; set dataset.images to the folder of the images")
    twice = next((names for names in images.values() if len(names) > 1), None)
    if twice:
        raise UserError(f"{' and '.join(twice)} in {folder} share the captions of one text; rename one of them")
    silent = [names[0] for stem, names in images.items() if stem not in texts]
    if silent:
        raise UserError(
            f"{len(silent):,} of {len(images):,} images in {folder} have no text beside them, first {silent[0]}, "
            "which needs a .txt of its name with a caption a line; or give a caption file as dataset.captions=..."
        )
    alone = sorted(texts - images.keys())
    if alone:
        raise UserError(
            f"texts without an image beside them in {folder}: {len(alone):,}, the first is {alone[0]}.txt; add the "
            "images, or move the texts away"
        )
