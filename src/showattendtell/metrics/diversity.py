"""How much captions differ from each other, and from those that were learned from."""

from collections.abc import Iterable, Sequence
from itertools import chain, pairwise

from showattendtell.metrics.measured import Words


def diversity(hypotheses: Sequence[Words], training: Iterable[Words] | None = None) -> dict[str, float]:
    """Figures under the names that result files give them, rates in percent: distinct-1 and -2 of Li et al. 2016, and
    `novel`, the share of captions that are none of the training's, where these are given."""
    captions = [tuple(words) for words in hypotheses]
    words = [word for caption in captions for word in caption]
    figures = {
        "distinct_captions": float(len(set(captions))),
        "vocabulary_used": float(len(set(words))),
        "distinct1": _share_distinct(words),
        "distinct2": _share_distinct(list(chain.from_iterable(pairwise(caption) for caption in captions))),
        "words_a_caption": len(words) / max(len(captions), 1),
    }
    if training is not None:
        known = {tuple(words) for words in training}
        figures["novel"] = 100 * sum(caption not in known for caption in captions) / max(len(captions), 1)
    return figures


def _share_distinct(ngrams: Sequence[object]) -> float:
    return 100 * len(set(ngrams)) / max(len(ngrams), 1)
