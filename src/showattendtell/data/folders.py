"""Where a data set lies on disk: its folder, the files in it, and which of its images are there."""

import os
from collections.abc import Collection, Iterable, Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from showattendtell.errors import UserError, listed
from showattendtell.records import Dataset, Example


def open_folder(root: str, holds: str) -> Path:
    """The folder of a data set; a `UserError` where it is none."""
    folder = Path(root).expanduser()
    if not folder.is_dir():
        fault = "is a file, not a folder" if folder.exists() else "does not exist"
        raise UserError(f"the folder {root} {fault}; set dataset.root to the folder that holds {holds}")
    return folder


def find(root: Path, names: Sequence[str], what: str) -> Path:
    """The first of the names that is there; a `UserError` says what was not found where none is."""
    for name in names:
        if (root / name).exists():
            return root / name
    raise UserError(f"{what} was not found in {root}; looked for {', '.join(names)}")


def look_in(folders: Sequence[Path], name: str) -> Path:
    """A place that a setting names, looked for in the folders first; in the first of them where it is nowhere."""
    places = [*(folder / name for folder in folders), Path(name).expanduser()]
    return next((place for place in places if os.path.exists(place)), places[0])


def check_images(dataset: Dataset, skip_unreadable: bool, absent: Collection[str] = ()) -> Dataset:
    """The data set less the images that are not on disk; a `UserError` for one that is neither known to be absent nor
    allowed to be, and where none is there."""
    examples = dataset.examples()
    missing = list(_not_on_disk(examples))
    if not missing:
        return dataset
    if len(missing) == len(examples):
        raise UserError(f"none of the {len(examples):,} images is on disk, the first is {missing[0].path}; add them")
    unknown = [example for example in missing if example.image not in absent]
    if unknown and not skip_unreadable:
        raise UserError(
            f"{_count(unknown)} in the splits but not on disk, the first is {unknown[0].path}; "
            "add them, or pass over them with dataset.skip_unreadable=true"
        )
    note = f"{_count(missing)} in the splits but not on disk and passed over: {listed([e.image for e in missing], 5)}"
    return dataset.without(example.image for example in missing)._replace(notes=(*dataset.notes, note))


def _not_on_disk(examples: Iterable[Example]) -> Iterator[Example]:
    """Each folder is listed once; a file is asked for by itself only where its name is not in the list, which may spell
    it in another way."""
    listed: dict[str, set[str]] = {}
    for example in examples:
        folder, _, name = example.path.rpartition("/")
        if folder not in listed:
            listed[folder] = _files(folder)
        if name not in listed[folder] and not os.path.isfile(example.path):
            yield example


def _files(folder: str) -> set[str]:
    with suppress(OSError), os.scandir(folder) as entries:
        return {entry.name for entry in entries if entry.is_file()}
    return set()


def _count(examples: Sequence[Example]) -> str:
    return "1 image is" if len(examples) == 1 else f"{len(examples):,} images are"
