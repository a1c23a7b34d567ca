"""Diversity of captions, relative to each other and to the training captions."""

from collections.abc import Sequence
from itertools import chain, pairwise
from typing import NamedTuple

from showattendtell.metrics.tokenizers import Caption, split_captions


def diversity(hypotheses: Sequence[Caption], training: Sequence[Caption] | None = None) -> dict[str, float]:
    """Return scores by their names in results files, rates in percent: distinct-1 and -2 of Li et al. 2016, and
    `novel`, the fraction of captions that are not among the training captions, if these are given."""
    captions = [tuple(words) for words in split_captions(hypotheses)]
    words = [word for caption in captions for word in caption]
    figures = {
        "distinct_captions": float(len(set(captions))),
        "vocabulary_used": float(len(set(words))),
        "distinct1": _share_distinct(words),
        "distinct2": _share_distinct(list(chain.from_iterable(pairwise(caption) for caption in captions))),
        "words_a_caption": len(words) / max(len(captions), 1),
    }
    if training is not None:
        known = {tuple(words) for words in split_captions(training)}
        figures["novel"] = 100 * sum(caption not in known for caption in captions) / max(len(captions), 1)
    return figures


def _share_distinct(ngrams: Sequence[object]) -> float:
    return 100 * len(set(ngrams)) / max(len(ngrams), 1)


OPEN = {"a", "an", "the", "of", "with", "in", "on", "at", "to", "and", "or", "by", "from", "into", "onto", "over"}
OPEN |= {"under", "for", "near", "behind", "through", "its", "his", "her", "their", "is", "are", "while", "that", "as"}
"""Words that require a following word."""


class EndingRates(NamedTuple):
    """Endings of captions, in percent: captions without `<eos>`, and captions whose last word requires another one; and
    the mean number of words."""

    unended: float
    dangling: float
    words: float


def judge_endings(captions: Sequence[Caption], ended: Sequence[bool]) -> EndingRates:
    """Compute the rates of captions without their `<eos>`, and of whether each had one."""
    return ending_rates(*count_endings(captions, ended))


def count_endings(captions: Sequence[Caption], ended: Sequence[bool]) -> tuple[int, int, int, int]:
    """Return the numbers of captions, of unended and of dangling ones, and of all words."""
    split = split_captions(captions)
    dangling = sum(bool(words) and words[-1] in OPEN for words in split)
    return len(split), len(ended) - sum(ended), dangling, sum(map(len, split))


def ending_rates(captions: int, unended: int, dangling: int, words: int) -> EndingRates:
    number = max(1, captions)
    return EndingRates(100 * unended / number, 100 * dangling / number, words / number)
