"""Runs of words."""

from collections import Counter
from collections.abc import Hashable, Sequence
from typing import TypeVar

ORDERS = 4

Item = TypeVar("Item", bound=Hashable)
Counts = list[Counter[tuple[Item, ...]]]
"""How often a caption has each run of 1 to 4 words, by their length."""


def count_ngrams(words: Sequence[Item]) -> Counts[Item]:
    return [Counter(zip(*(words[first:] for first in range(n)), strict=False)) for n in range(1, ORDERS + 1)]
