"""Baselines of an evaluation: captions that are chosen without a model, and scored in the same way."""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from showattendtell.datamodules.datasets import ImageSource
from showattendtell.decoding.confidence import unit_mean
from showattendtell.inference.evaluator import Captions, EvaluationRun, RunMetric, RunScores
from showattendtell.inference.predictions import evenly_spaced, read_grids
from showattendtell.metrics.bootstrap import corpus_scores
from showattendtell.metrics.ngrams import Ngram, SentenceCIDErD, Weighted, count_ngrams
from showattendtell.metrics.tokenizers import Words
from showattendtell.results.tables import print_scores
from showattendtell.types import Example

MOST_IMAGES = 10_000
"""Maximum number of training images, evenly spaced, whose captions are candidates for the constant caption."""

SHORTLIST = 20
"""Number of candidates for the constant caption that are compared exactly."""


class BaselinesMetric(RunMetric):
    """Scores of captions without a model, next to those of the model.

    `baselines` has by name
    - `constant`: the training caption with the highest mean CIDEr-D against all training captions, for every image
    - `nearest`: a caption of the nearest training image, by the cosine of the mean grids of the first model's
      encoder; of its captions the one that agrees best with the others
    """

    def check(self, run: EvaluationRun) -> None:
        """Raise `UserError` if there are no training captions."""
        run.dataset.split("train")

    def measure(self, run: EvaluationRun, captions: Captions, figures: Mapping[str, Any]) -> RunScores:
        """Print the scores of the model and of each baseline, and return those of the baselines."""
        baselines = score_baselines(run)
        title = f"{run.title()}\n(1) the model\n(2) best constant caption\n(3) nearest neighbor's caption"
        shared = {name: score for name, score in figures.items() if name in baselines["constant"]}
        print_scores([shared, *baselines.values()], {}, title)
        return RunScores({"baselines": baselines})


def score_baselines(run: EvaluationRun) -> dict[str, dict[str, Any]]:
    """Return the scores of each baseline, by their names in result files."""
    from showattendtell.metrics.classes import METRICS, measure  # torchmetrics takes seconds to import

    train = run.dataset.split("train")
    typical = TypicalCaptions([_words(example) for example in evenly_spaced(train, MOST_IMAGES)])
    constant = run.sentence(typical.best_constant())
    nearest = [run.sentence(typical.consensus(_words(train[i]))) for i in find_nearest(run, train)]
    corpus = run.in_words({Path("constant"): [constant] * len(nearest), Path("nearest"): nearest})
    names = [name for name in run.metrics if name in METRICS]
    scores: dict[str, dict[str, Any]] = {
        str(file): corpus_scores(measure(hypotheses, corpus.references, names).measured.values())
        for file, hypotheses in corpus.hypotheses.items()
    }
    scores["constant"]["caption"] = constant
    return scores


def _words(example: Example) -> list[Words]:
    return [caption.words for caption in example.captions]


def find_nearest(run: EvaluationRun, candidates: Sequence[Example]) -> list[int]:
    """Return for each image of the evaluated split the index of the nearest candidate, by the cosine of the mean over
    the regions of the grids."""

    def directions(images: ImageSource, examples: Sequence[Example]) -> Tensor:
        grids = read_grids(run.module, images, examples, "reading")
        return torch.cat([unit_mean(batch).cpu() for batch in grids])

    others = directions(run.source(candidates), candidates)
    return (directions(run.images[0], run.examples) @ others.T).argmax(dim=1).tolist()


class TypicalCaptions:
    """Captions that agree best with others, by CIDEr-D.

    Args:
        references: captions of each image, at least one, which give the document frequencies.
    """

    def __init__(self, references: Sequence[Sequence[Words]]):
        self._references = references
        self._cider = SentenceCIDErD(references)

    def _weigh(self, captions: Sequence[Words]) -> list[Weighted]:
        return [self._cider.weigh(count_ngrams(words)) for words in captions]

    def consensus(self, captions: Sequence[Words]) -> Words:
        """Return the one of the captions of an image with the highest CIDEr-D against the others."""
        if len(captions) == 1:
            return captions[0]
        weighted = self._weigh(captions)
        scores = [self._cider.score(one, weighted[:n] + weighted[n + 1 :]) for n, one in enumerate(weighted)]
        return captions[scores.index(max(scores))]

    def best_constant(self) -> Words:
        """Return the caption with the highest mean CIDEr-D over all images, among the captions of all images.

        The candidates are ranked by CIDEr without clipping and length penalty, which is a scalar product with the mean
        of the normalized references: cos(c, s) averaged over s is c / |c| times the average of s / |s|. The first
        `SHORTLIST` are compared exactly.
        """
        weighted = list(map(self._weigh, self._references))
        mean, candidates = defaultdict[Ngram, float](float), dict[tuple[str, ...], Weighted]()
        for image_references, captions in zip(self._references, weighted, strict=True):
            candidates |= zip(map(tuple, image_references), captions, strict=True)
            for ngram, weight in chain.from_iterable(map(_normalized, captions)):
                mean[ngram] += weight / len(captions)

        def similarity(words: tuple[str, ...]) -> float:
            return sum(weight * mean[ngram] for ngram, weight in _normalized(candidates[words]))

        def total_score(words: tuple[str, ...]) -> float:
            return math.fsum(self._cider.score(candidates[words], captions) for captions in weighted)

        return max(sorted(candidates, key=similarity, reverse=True)[:SHORTLIST], key=total_score)


def _normalized(caption: Weighted) -> Iterator[tuple[Ngram, float]]:
    """Yield the n-grams of a caption with their parts of c / |c|, for each n-gram length."""
    for vector, norm in zip(caption.vectors, caption.norms, strict=True):
        yield from ((ngram, weight / norm) for ngram, weight in vector.items() if norm)
