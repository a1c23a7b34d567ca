"""Whether captions end as sentences do."""

from collections.abc import Sequence
from typing import NamedTuple

from showattendtell.metrics.measured import Words

OPEN = {"a", "an", "the", "of", "with", "in", "on", "at", "to", "and", "or", "by", "from", "into", "onto", "over"}
OPEN |= {"under", "for", "near", "behind", "through", "its", "his", "her", "their", "is", "are", "while", "that", "as"}
"""Words that another one has to follow."""


class Endings(NamedTuple):
    """Of captions, in percent: how many never came to their end, and how many end in a word that another has to follow;
    and how many words they have in the mean."""

    unended: float
    dangling: float
    words: float


def judge_endings(captions: Sequence[Words], ended: Sequence[bool]) -> Endings:
    """Of captions without their `<eos>`, and whether they had one."""
    number = max(1, len(captions))
    dangling = sum(bool(words) and words[-1] in OPEN for words in captions)
    return Endings(100 * (len(ended) - sum(ended)) / number, 100 * dangling / number, sum(map(len, captions)) / number)
