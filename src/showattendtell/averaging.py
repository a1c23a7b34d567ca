"""Several trained models as one, whose weights are the mean of theirs."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import torch
from torch import Tensor

from showattendtell.checkpoint import CARD, Restored, restore
from showattendtell.config.differences import model_differences, trained_with
from showattendtell.decode.search import BeamSearch
from showattendtell.errors import UserError
from showattendtell.files import sha256
from showattendtell.portable import find_model, weights_file

IN_COMMON = 0.5
"""The cosine of two models' weights above which one is taken to have begun with the other's, or both with the same."""


class Averaged(NamedTuple):
    """A checkpoint's content, and how much the models that it is made of have in common: the least cosine of the
    weights of one and the next."""

    checkpoint: dict[str, Any]
    cosine: float


def average(paths: Sequence[str]) -> Averaged:
    """Of models of one kind and size, one with the mean of their weights (Wortsman et al. 2022, Model soups).

        theta = 1/N sum_k theta_k

    Settings and words are the first one's. Weights that all have alike, as those of an encoder that was not trained,
    stay the same bit for bit.

    Raises `UserError` for a checkpoint that is missing or damaged, and for models that differ in words, in settings
    that shape them, or in what they see of an image.
    """
    models = [restore(path, "cpu", BeamSearch()) for path in paths]
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
        "choices": {**first.choices, "mean_of": str(len(models))},
        "encoder": first.module.encoder.describe(),
        "averaged": [sha256(weights_file(find_model(path))) for path in paths],
    }
    return Averaged({CARD: card, "state_dict": mean}, cosine)


def _refuse_others(path: str, model: Restored, first_path: str, first: Restored) -> None:
    if model.module.vocabulary.words != first.module.vocabulary.words:
        raise UserError(f"{path} has no mean with {first_path}, since they know different words; give others")
    differences = model_differences(first.config, model.card["config"])
    if differences or _shapes(model) != _shapes(first) or _regions(model) != _regions(first):
        raise UserError(
            f"{path} has no mean with {first_path}: it was trained with {trained_with(differences, model.choices)}; "
            "give checkpoints of one model, or let these write together, as evaluate 'checkpoint=[...]' does"
        )


def _shapes(model: Restored) -> dict[str, torch.Size]:
    return {name: weights.shape for name, weights in model.module.state_dict().items()}


def _regions(model: Restored) -> dict[str, Any]:
    """What regions are, but for the encoder's weights."""
    told = model.module.encoder.describe()
    return {name: told[name] for name in told.keys() - {"weights_sha256", "tuned"}}


def _mean(weights: Sequence[Tensor]) -> Tensor:
    first = weights[0]
    if not first.is_floating_point() or all(torch.equal(first, others) for others in weights):
        return first
    return torch.stack(list(weights)).double().mean(dim=0).to(first)


def _cosine(one: Restored, other: Restored) -> float:
    """Of all that the captioners have learned."""
    ours, theirs = (
        torch.cat([weights.detach().flatten() for weights in model.module.captioner.parameters()])
        for model in (one, other)
    )
    return float(torch.cosine_similarity(ours, theirs, dim=0))
