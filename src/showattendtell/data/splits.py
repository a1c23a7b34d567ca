"""The splits of a data set: those of lists, folders or a hash of the images' names."""

import hashlib
from bisect import bisect_right
from collections.abc import Iterable, Mapping
from itertools import accumulate
from pathlib import Path, PurePath

from showattendtell.data.names import Names
from showattendtell.data.parsing import SPLIT_NAMES, CaptionFile, read_list, split_of_name
from showattendtell.errors import UserError, listed

SKIP = "skip them with dataset.skip_missing=true"
"""How errors about missing captions and images end if the data set has the setting."""


def split_by_hash(images: Iterable[str], shares: Mapping[str, float]) -> dict[str, list[str]]:
    """Assign images to splits by a hash of their names.

    Args:
        shares: about the fraction of the images for each split except `train`, which gets the rest.

    Raises:
        UserError: no image is left for training, or there are fewer images than splits.
    """
    if sum(shares.values()) >= 1:
        fractions = " and ".join(f"dataset.{split}={share}" for split, share in shares.items())
        raise UserError(f"{fractions} leave no images to train on; their sum must be below 1")
    bounds, names = list(accumulate(shares.values())), [*shares, "train"]
    splits: dict[str, list[str]] = {"train": [], **{split: [] for split, share in shares.items() if share}}
    for image in images:
        splits[names[bisect_right(bounds, hash_fraction(image))]].append(image)
    for split, chosen in splits.items():
        largest = max(splits.values(), key=len)
        if not chosen and len(largest) > 1:  # of few images none may have such a hash
            moved = min(largest, key=hash_fraction)
            largest.remove(moved)
            chosen.append(moved)
        if not chosen:
            raise UserError(
                f"there are fewer images than splits, so none is left for {split}; add images, or set dataset.test=0"
            )
    return splits


def hash_fraction(image: str) -> float:
    """Return a number in [0, 1) for a name, uniformly distributed over names."""
    # the first 53 bits of the SHA-256, which a float holds exactly
    return (int.from_bytes(hashlib.sha256(image.encode()).digest()[:8]) >> 11) / 2**53


def join_restval(file: CaptionFile) -> CaptionFile:
    """Return the file with the images of `restval` appended to those of `train`."""
    splits = dict(file.splits)
    left_over = splits.pop("restval", [])
    if left_over:
        splits["train"] = [*splits.get("train", []), *left_over]
    return file._replace(splits=splits)


def with_splits(
    file: CaptionFile, folders: Iterable[Path], shares: Mapping[str, float], skip_missing: bool = False
) -> CaptionFile:
    """Return the file with its own splits, or else those of lists, of folders such as `train`, or of a hash.

    `restval` joins `train`. If there are no validation images, a hash takes some of the training images. Notes say
    what was chosen.

    Args:
        folders: that may hold lists.
        shares: fractions of the images for `val` and `test`.
        skip_missing: allow images without captions in lists.
    """
    lists = None if file.splits else next(filter(find_lists, folders), None)
    if lists:
        file = with_lists(file, lists, skip_missing)
    elif not file.splits:
        file = _by_folder(file) or _by_hash(file, shares)
    file = join_restval(file)
    train = file.splits.get("train", [])
    if file.splits.get("val") or len(train) < 2 or not shares["val"]:
        return file
    parts = split_by_hash(train, {"val": shares["val"]})
    note = f"there is no validation split, so a hash of the names takes {len(parts['val']):,} of {len(train):,} "
    return file._replace(splits={**file.splits, **parts}, notes=(*file.notes, f"{note}training images"))


def _by_folder(file: CaptionFile) -> CaptionFile | None:
    """Return the file with the splits that the folders of its images name; None if they name fewer than two."""
    splits = dict[str, list[str]]()
    for image in file.captions:
        named = filter(None, map(split_of_name, PurePath(image).parts[-2::-1]))
        splits.setdefault(next(named, ""), []).append(image)
    if len(splits.keys() - {""}) < 2:
        return None
    if "" in splits:
        raise UserError(f"the folder of image {splits[''][0]} names no split, others do; set dataset.splits to lists")
    return file._replace(
        splits=splits, notes=(*file.notes, f"the folders of the images are the splits {', '.join(splits)}")
    )


def _by_hash(file: CaptionFile, shares: Mapping[str, float]) -> CaptionFile:
    splits = split_by_hash(file.captions, shares)
    counts = ", ".join(f"{len(images):,} for {split}" for split, images in splits.items())
    note = f"no splits are given, so a hash of the images' names chooses {counts}"
    return file._replace(splits=splits, notes=(*file.notes, note))


def find_lists(folder: Path) -> dict[str, Path]:
    """Return the list of each split in a folder: `train.txt`, `Val.txt`, `dev.txt` and so on."""
    lists: dict[str, Path] = {}
    for path in sorted(folder.glob("*.[tT][xX][tT]")):
        if split := split_of_name(path.stem):
            if split in lists:
                raise UserError(f"{lists[split]} and {path.name} are both lists of {split}; remove one")
            lists[split] = path
    return {split: lists[split] for split in SPLIT_NAMES if split in lists}


def with_lists(file: CaptionFile, folder: Path, skip_missing: bool) -> CaptionFile:
    """Return the file with the splits of the lists in a folder, and a note about images that are in no list."""
    lists = find_lists(folder)
    if not lists:
        raise UserError(f"{folder} has no lists train.txt, val.txt and test.txt; add them, or leave dataset.splits out")
    known = Names(file.captions)
    splits = {}
    for split, path in lists.items():
        images = [known.find_name(image) for image in read_list(path)]
        unknown = [image for image in images if image not in file.captions]
        if unknown and not skip_missing:
            raise UserError(
                f"{path} names images without captions: {len(unknown):,} ({listed(unknown)}); add captions, or {SKIP}"
            )
        splits[split] = images
    left_out = len(file.captions.keys() - {image for images in splits.values() for image in images})
    notes = (f"images with captions that no list names are left out: {left_out:,}",) if left_out else ()
    return file._replace(splits=splits, notes=(*file.notes, *notes))
