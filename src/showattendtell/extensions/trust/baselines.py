"""Baselines of an evaluation: captions without a model, and the reference captions, scored in the same way."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.nn.functional import normalize

from showattendtell.config.instantiate import Config
from showattendtell.extensions.trust.leave_one_out import Round, WeightedReferences, leave_one_out
from showattendtell.inference.evaluator import EvaluationRun
from showattendtell.inference.matching import MatchedCaptions, in_words
from showattendtell.inference.predictions import Predictor, evenly_spaced, read_grids
from showattendtell.metrics.bootstrap import corpus_scores
from showattendtell.metrics.tokenizers import Words
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
    from showattendtell.metrics.modular import ENGLISH, METRICS, measure  # torchmetrics takes seconds to import

    names = [name for name in config.metrics if name in METRICS]
    train = run.dataset.split("train")
    constant = WeightedReferences([_words(example) for example in evenly_spaced(train, MOST_IMAGES)]).best_constant()
    weighted_references = WeightedReferences([_words(example) for example in train])
    nearest = [weighted_references.consensus(number) for number in find_nearest(run, train)]
    captions = {
        CONSTANT: [run.sentence(constant)] * len(captions_by_image),
        NEAREST: list(map(run.sentence, nearest)),
        "model": [run.sentence(captions[0]) for captions in captions_by_image.values()],
    }
    sentences = {Path(name): image_captions for name, image_captions in captions.items()}
    matched, language = MatchedCaptions(list(captions_by_image), list(references), sentences), run.language or ENGLISH
    corpus = in_words(matched, run.scoring_tokenizer(config.get("tokenizer")))
    scores: dict[str, dict[str, Any]] = {}
    for name in (CONSTANT, NEAREST):
        panel = measure(corpus.hypotheses[Path(name)], corpus.references, names, language)
        scores[name] = corpus_scores(panel.measured.values())
    scores[CONSTANT]["caption"] = run.sentence(constant)

    def mean_figures(hypotheses: Sequence[list[Words]]) -> dict[str, float]:
        panels = [
            measure(image_captions, fold.references, names, language)
            for fold, image_captions in zip(rounds, hypotheses, strict=True)
        ]
        figures = [corpus_scores(panel.measured.values()) for panel in panels]
        return {name: float(np.mean([example[name] for example in figures])) for name in figures[0]}

    if rounds := list(leave_one_out(corpus.references)):
        model = corpus.hypotheses[Path("model")]
        scores[HUMAN] = mean_figures([fold.hypotheses for fold in rounds])
        scores[LEAVE_ONE_OUT] = mean_figures([_of_images(fold, model) for fold in rounds])
    return scores


def _words(example: Example) -> list[Words]:
    return [caption.words for caption in example.captions]


def _of_images(fold: Round, captions: Sequence[Words]) -> list[Words]:
    return [captions[image] for image in fold.images]


def find_nearest(run: EvaluationRun, candidates: Sequence[Example]) -> list[int]:
    """Return for each image of the evaluated split the index of the nearest candidate."""
    features = mean_grids(run.predictors[0], run.examples)
    candidate_features = mean_grids(Predictor(run.predictors[0].module, run.source(candidates)), candidates)
    return (normalize(features, dim=1) @ normalize(candidate_features, dim=1).T).argmax(dim=1).tolist()


def mean_grids(predictor: Predictor, examples: Sequence[Example]) -> Tensor:
    """Return the mean over the regions of each example's grid, (N, D); of images with padding, a multiple of it."""
    channels = predictor.module.encoder.feature_dim
    return torch.cat([grids[..., :channels].mean(dim=1).cpu() for grids in read_grids(predictor, examples, "reading")])
