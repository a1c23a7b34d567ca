"""Does a captioner know where things stand to each other?"""

from collections import Counter
from collections.abc import Iterable
from typing import NamedTuple

RELATIONS = ("left", "right", "above", "below", "near", "behind", "under", "between")
"""Words that say how one thing stands to another."""


class Relations(NamedTuple):
    """accuracy: the share of people's relation words that the model would have chosen, too, 0 to 1.
    commonest: the same for always choosing the commonest one.
    num_words: how many there are."""

    accuracy: float
    commonest: float
    num_words: int


def score_relations(choices: Iterable[tuple[str, str]]) -> Relations:
    """From pairs of people's word and the model's, both one of `RELATIONS`."""
    pairs = list(choices)
    people = Counter(said for said, _ in pairs)
    right, num_words = sum(said == chosen for said, chosen in pairs), max(len(pairs), 1)
    return Relations(right / num_words, max(people.values(), default=0) / num_words, len(pairs))
