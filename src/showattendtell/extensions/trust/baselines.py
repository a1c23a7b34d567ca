"""Baselines of an evaluation: captions without a model, and the reference captions, scored in the same way."""

import math
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from showattendtell.config.instantiate import Config
from showattendtell.data.tokenizers import ORDERS, count_ngrams
from showattendtell.datamodules.datasets import ImageSource
from showattendtell.inference.evaluator import EvaluationRun
from showattendtell.inference.matching import MatchedCaptions, in_words
from showattendtell.inference.predictions import evenly_spaced, read_grids
from showattendtell.metrics.bootstrap import corpus_scores
from showattendtell.metrics.ngrams import Ngram, SentenceCIDErD
from showattendtell.metrics.tokenizers import Caption, Words, split_captions
from showattendtell.types import Example
from showattendtell.visualization.comparison import CONSTANT, HUMAN, LEAVE_ONE_OUT, NEAREST

MOST_IMAGES = 10_000
"""Maximum number of training images, evenly spaced, whose captions are candidates for the constant caption."""


def score_baselines(
    run: EvaluationRun,
    captions_by_image: Mapping[str, Sequence[Sequence[str]]],
    references: Sequence[list[str]],
    config: Config,
) -> dict[str, dict[str, Any]]:
    """Return the scores of each baseline, by their names in result files.

    - `constant`: the training caption with the highest mean CIDEr-D against all training captions, for every image
    - `nearest`: a caption of the nearest training image, by the cosine of the mean grids of the first model's
      encoder; of its captions the one that agrees best with the others
    - `human`: one reference caption against the others, mean over the references
    - `model_leave_one_out`: the model's captions against the same references as `human`

    Args:
        captions_by_image: captions of each image in words, best first.
        references: reference captions of each image.
        config: of the command, with `metrics` and `tokenizer`.
    """
    from showattendtell.metrics.caption_scores import METRICS, measure  # torchmetrics takes seconds to import

    names = [name for name in config.metrics if name in METRICS]
    train = run.dataset.split("train")
    constant = WeightedReferences(_captions(evenly_spaced(train, MOST_IMAGES))).best_constant()
    weighted_references = WeightedReferences(_captions(train))
    nearest = [weighted_references.consensus(number) for number in find_nearest(run, train)]
    sentences = {
        Path(CONSTANT): [run.sentence(constant)] * len(captions_by_image),
        Path(NEAREST): list(map(run.sentence, nearest)),
        Path("model"): [run.sentence(captions[0]) for captions in captions_by_image.values()],
    }
    matched = MatchedCaptions(list(captions_by_image), list(references), sentences)
    corpus = in_words(matched, run.scoring_tokenizer(config.get("tokenizer")))

    def score(hypotheses: Sequence[Words], others: Sequence[Sequence[Words]]) -> dict[str, float]:
        return corpus_scores(measure(hypotheses, others, names).measured.values())

    scores: dict[str, dict[str, Any]] = {}
    for name in (CONSTANT, NEAREST):
        scores[name] = {**score(corpus.hypotheses[Path(name)], corpus.references)}
    scores[CONSTANT]["caption"] = run.sentence(constant)

    written = corpus.hypotheses[Path("model")]
    rounds: dict[str, list[dict[str, float]]] = {HUMAN: [], LEAVE_ONE_OUT: []}
    for images, left_out, others in leave_one_out(corpus.references):
        rounds[HUMAN].append(score(left_out, others))
        rounds[LEAVE_ONE_OUT].append(score([written[image] for image in images], others))
    for name, results in rounds.items():
        if results:
            scores[name] = {metric: float(np.mean([result[metric] for result in results])) for metric in results[0]}
    return scores


def _captions(examples: Sequence[Example]) -> list[list[Words]]:
    return [[caption.words for caption in example.captions] for example in examples]


def find_nearest(run: EvaluationRun, candidates: Sequence[Example]) -> list[int]:
    """Return for each image of the evaluated split the index of the nearest candidate, by the cosine of the mean over
    the regions of the grids."""

    def directions(images: ImageSource, examples: Sequence[Example]) -> Tensor:
        grids = read_grids(run.module, images, examples, "reading")
        return normalize(torch.cat([batch.mean(dim=1).cpu() for batch in grids]), dim=1)

    others = directions(run.source(candidates), candidates)
    return (directions(run.images[0], run.examples) @ others.T).argmax(dim=1).tolist()


SHORTLIST = 20
"""Number of candidates for the constant caption that are compared exactly."""


class WeightedReferences:
    """Reference captions of images with their CIDEr-D weights; document frequencies are those of all of them.

    Args:
        references: the captions of each image, at least one.
    """

    def __init__(self, references: Sequence[Sequence[Caption]]):
        self.captions = [split_captions(captions, "the references of an image") for captions in references]
        self._cider = SentenceCIDErD(self.captions)
        self._weighted = [[self._cider.weigh(count_ngrams(words)) for words in captions] for captions in self.captions]

    def best_constant(self) -> Words:
        """Return the caption with the highest mean CIDEr-D over all images, among the captions of all images.

        The candidates are ranked by CIDEr without clipping and length penalty, which is a scalar product with the mean
        of the normalized references: cos(c, s) averaged over s is c / |c| times the average of s / |s|. The first
        `SHORTLIST` are compared exactly.
        """
        means: list[dict[Ngram, float]] = [defaultdict(float) for _ in range(ORDERS)]
        for weighted_captions in self._weighted:
            for caption in weighted_captions:
                for mean, vector, norm in zip(means, caption.vectors, caption.norms, strict=True):
                    for ngram, weight in vector.items() if norm else ():
                        mean[ngram] += weight / norm / len(weighted_captions)
        words = map(tuple, chain.from_iterable(self.captions))
        candidates = dict(zip(words, chain.from_iterable(self._weighted), strict=True))

        def similarity(words: tuple[str, ...]) -> float:
            parts = zip(candidates[words].vectors, candidates[words].norms, means, strict=True)
            return sum(sum(w * mean[k] for k, w in vector.items()) / norm for vector, norm, mean in parts if norm)

        def total_score(words: tuple[str, ...]) -> float:
            return math.fsum(self._cider.score(candidates[words], references) for references in self._weighted)

        return max(sorted(candidates, key=similarity, reverse=True)[:SHORTLIST], key=total_score)

    def consensus(self, image: int) -> Words:
        """Return the caption of an image with the highest CIDEr-D against the image's other captions."""
        captions = self._weighted[image]
        if len(captions) == 1:
            return self.captions[image][0]
        scores = [self._cider.score(caption, captions[:n] + captions[n + 1 :]) for n, caption in enumerate(captions)]
        return self.captions[image][scores.index(max(scores))]


def leave_one_out(
    references: Sequence[Sequence[Words]],
) -> Iterator[tuple[list[int], list[Words], list[list[Words]]]]:
    """Yield for each position of a reference that all images with several references have: the indices of these images,
    the reference that is left out of each as hypothesis, and the others."""
    images = [i for i, captions in enumerate(references) if len(captions) > 1]
    for left_out in range(min((len(references[i]) for i in images), default=0)):
        hypotheses = [references[i][left_out] for i in images]
        yield images, hypotheses, [[*references[i][:left_out], *references[i][left_out + 1 :]] for i in images]
