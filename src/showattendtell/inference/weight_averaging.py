"""Weight averaging: one model with the mean weights of several trained models."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from showattendtell.config.compose import model_differences, trained_with
from showattendtell.decoding.beam_search import BeamSearch
from showattendtell.errors import UserError
from showattendtell.inference.checkpoints import CARD, LoadedModel, find_model, load_model, weights_file
from showattendtell.runtime.files import sha256

IN_COMMON = 0.5
"""Cosine of two models' weights above which they count as trained from common weights, or one from the other."""


class AveragedModel(NamedTuple):
    """Content of the averaged checkpoint, and the least cosine between the weights of consecutive models."""

    checkpoint: dict[str, Any]
    cosine: float


def average(paths: Sequence[str]) -> AveragedModel:
    """Average the weights of models of one kind and size (Wortsman et al. 2022, Model soups).

        theta = 1/N sum_k theta_k

    Configuration and vocabulary are those of the first model. Weights that are equal in all models, such as those of an
    encoder that was not trained, stay the same bit for bit.

    Raises `UserError` for a checkpoint that is missing or damaged, and for models with different vocabularies, model
    settings or preprocessing.
    """
    models = [load_model(path, "cpu", BeamSearch()) for path in paths]
    first = models[0]
    for path, model in zip(paths, models, strict=True):
        _refuse_others(path, model, paths[0], first)
    cosine = min(_cosine(one, other) for one, other in pairwise(models))
    states = [model.module.state_dict() for model in models]
    mean = {name: _mean([state[name] for state in states]) for name in states[0]}
    first.module.load_state_dict(mean)
    first.module.encoder.tuned = any(model.module.encoder.tuned for model in models)
    card = {
        **first.card,
        "choices": {**first.choices, "average_of": str(len(models))},
        "encoder": first.module.encoder.describe(),
        "averaged": [sha256(weights_file(find_model(path))) for path in paths],
    }
    return AveragedModel({CARD: card, "state_dict": mean}, cosine)


def _refuse_others(path: str, model: LoadedModel, first_path: str, first: LoadedModel) -> None:
    if model.module.vocabulary.words != first.module.vocabulary.words:
        raise UserError(f"{path} cannot be averaged with {first_path}: their vocabularies differ; give others")
    differences = model_differences(first.config, model.card["config"])
    if differences or _shapes(model) != _shapes(first) or _regions(model) != _regions(first):
        raise UserError(
            f"{path} cannot be averaged with {first_path}: "
            f"it was trained with {trained_with(differences, model.choices)}; "
            "give checkpoints of one model, or let these write together, as evaluate 'checkpoint=[...]' does"
        )


def _shapes(model: LoadedModel) -> dict[str, torch.Size]:
    return {name: weights.shape for name, weights in model.module.state_dict().items()}


def _regions(model: LoadedModel) -> dict[str, Any]:
    """Return what defines the regions, apart from the encoder's weights."""
    description = model.module.encoder.describe()
    return {name: description[name] for name in description.keys() - {"weights_sha256", "tuned"}}


def _mean(weights: Sequence[Tensor]) -> Tensor:
    first = weights[0]
    if not first.is_floating_point() or all(torch.equal(first, others) for others in weights):
        return first
    return torch.stack(list(weights)).double().mean(dim=0).to(first)


def _cosine(one: LoadedModel, other: LoadedModel) -> float:
    """Return the cosine between all parameters of the two captioners."""
    ours, theirs = (
        torch.cat([weights.detach().flatten() for weights in model.module.captioner.parameters()])
        for model in (one, other)
    )
    return float(torch.cosine_similarity(ours, theirs, dim=0))
