"""Diversity of captions, relative to each other and to the training captions, and statistics of their endings."""

from collections.abc import Sequence
from itertools import chain, combinations, pairwise
from statistics import fmean as mean

from pycocoevalcap.rouge.rouge import my_lcs

from showattendtell.metrics.ngrams import SentenceCIDErD
from showattendtell.metrics.tokenizers import Caption, split_captions


def diversity(hypotheses: Sequence[Caption], training: Sequence[Caption] | None = None) -> dict[str, float]:
    """Return the diversity of captions, by the names in result files; rates are in percent.

    Args:
        training: captions that the model was trained on.

    Returns:
        `distinct_captions` and `distinct_words`, numbers of different captions and words; `distinct1` and `distinct2`,
        different words and bigrams relative to all (Li et al. 2016); `mean_length`; with training captions `novelty`,
        the rate of captions that are none of them.

    Raises:
        ValueError: a string is given instead of a list of captions.
    """
    captions = [tuple(words) for words in split_captions(hypotheses)]
    words = [word for caption in captions for word in caption]
    scores = {
        "distinct_captions": float(len(set(captions))),
        "distinct_words": float(len(set(words))),
        "distinct1": _percent_distinct(words),
        "distinct2": _percent_distinct(list(chain.from_iterable(pairwise(caption) for caption in captions))),
        "mean_length": len(words) / max(len(captions), 1),
    }
    if training is not None:
        training_captions = {tuple(words) for words in split_captions(training)}
        scores["novelty"] = 100 * sum(caption not in training_captions for caption in captions) / max(len(captions), 1)
    return scores


def _percent_distinct(ngrams: Sequence[object]) -> float:
    return 100 * len(set(ngrams)) / max(len(ngrams), 1)


def disagreement(captions: Sequence[Caption]) -> float:
    """Return how much captions of one image differ, 0 to 1: the mean of 1 - 2 l / (m + n) over all pairs.

    l is the length of the longest common subsequence of two captions of m and n words, so a pair counts 1 less its
    ROUGE-L. Equal captions have 0, and so has a single one.
    """
    pairs = [
        1 - 2 * my_lcs(a, b) / (len(a) + len(b)) if a or b else 0.0
        for a, b in combinations(split_captions(captions), 2)
    ]
    return sum(pairs) / max(len(pairs), 1)


def compare_captions(
    captions: Sequence[Sequence[Caption]], references: Sequence[Sequence[Caption]]
) -> dict[str, float]:
    """Return scores of several captions of each image, by the names in result files; means over the images.

    Returns:
        `cider_best` and `cider_mean`, the highest and the mean CIDEr-D of an image's captions; `distinct_per_image`,
        the number of different captions of an image; `disagreement`, that of the function, in percent.
    """
    score = SentenceCIDErD(references).percent
    scores = [[score(one, known) for one in several] for several, known in zip(captions, references, strict=True)]
    return {
        "cider_best": mean(map(max, scores)),
        "cider_mean": mean(map(mean, scores)),
        "distinct_per_image": mean(len(set(map(tuple, split_captions(several)))) for several in captions),
        "disagreement": 100 * mean(map(disagreement, captions)),
    }


INCOMPLETE_ENDINGS = frozenset(
    "a an the of with in on at to and or by from into onto over under for near behind through its his her their is are "  # noqa: SIM905
    "while that as".split()
)
"""Words that require a following word."""


def ending_rates(captions: Sequence[Caption], ended: Sequence[bool]) -> dict[str, float]:
    """Return statistics of captions without `<eos>`, given whether each had one.

    Returns:
        In percent `unended`, captions without `<eos>`, and `dangling`, captions whose last word requires another one
        ("a dog on the"); and `words`, their mean length.
    """
    split, number = split_captions(captions), max(1, len(ended))
    return {
        "unended": 100 * (len(ended) - sum(ended)) / number,
        "dangling": 100 * sum(bool(words) and words[-1] in INCOMPLETE_ENDINGS for words in split) / number,
        "words": sum(map(len, split)) / number,
    }
