"""Splits for images that come without: a hash of an image's name alone decides, so that it stays in its split when
others are added."""

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping

from showattendtell.errors import UserError


def share_out(images: Iterable[str], shares: Mapping[str, float]) -> dict[str, list[str]]:
    """About these shares of the images, by split; `train` gets the rest.

    Raises `UserError` where the shares leave nothing to train on, or a split has no image.
    """
    if sum(shares.values()) >= 1:
        told = " and ".join(f"dataset.{split}={share}" for split, share in shares.items())
        raise UserError(f"{told} leave no images to train on; their sum must be below 1")
    splits: defaultdict[str, list[str]] = defaultdict(list)
    for image in images:
        splits[_choose(place_of(image), shares)].append(image)
    wanted = ["train", *(split for split, share in shares.items() if share)]
    empty = next((split for split in wanted if not splits[split]), None)
    if empty:
        total = sum(map(len, splits.values()))
        raise UserError(f"of {total:,} images none falls to {empty} by its name; give more, or tell their splits")
    return {split: splits[split] for split in wanted}


def _choose(place: float, shares: Mapping[str, float]) -> str:
    end = 0.0
    for split, share in shares.items():
        end += share
        if place < end:
            return split
    return "train"


def place_of(image: str) -> float:
    """A number in [0, 1) for a name, evenly spread over names: the first 53 bits of its SHA-256."""
    return (int.from_bytes(hashlib.sha256(image.encode()).digest()[:8]) >> 11) / 2**53
