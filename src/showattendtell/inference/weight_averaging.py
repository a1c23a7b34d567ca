"""Weight averaging: a model with the mean weights of several trained models."""

from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor

from showattendtell.config.compose import model_differences, trained_with
from showattendtell.decoding.beam_search import BeamSearch
from showattendtell.errors import UserError
from showattendtell.inference.checkpoints import METADATA_KEY
from showattendtell.inference.loading import LoadedModel, find_model, load_model
from showattendtell.runtime.files import sha256

IN_COMMON = 0.5
"""Cosine of two models' weights above which one was probably trained from the other, or both from the same weights."""


def average(paths: Sequence[str]) -> tuple[dict[str, Any], float]:
    """Average the weights of models of one kind and size (model soups, Wortsman et al. 2022).

        theta = 1/N sum_k theta_k

    Configuration and vocabulary are those of the first model. Weights that are equal in all models, such as those of a
    frozen encoder, stay the same bit for bit.

    Returns:
        The content of the averaged checkpoint, and the smallest cosine between the weights of consecutive models.

    Raises:
        UserError: a checkpoint is missing or damaged, or vocabularies, model settings or preprocessing differ.
    """
    models = [load_model(path, "cpu", BeamSearch()) for path in paths]
    first = models[0]
    states = [model.module.state_dict() for model in models]
    shapes = [{name: weights.shape for name, weights in state.items()} for state in states]
    for path, model, own in zip(paths, models, shapes, strict=True):
        if model.module.vocabulary.words != first.module.vocabulary.words:
            raise UserError(f"{path} cannot be averaged with {paths[0]}: their vocabularies differ; give others")
        differences = model_differences(first.config, model.metadata["config"])
        if differences or own != shapes[0] or _regions(model) != _regions(first):
            raise UserError(
                f"{path} cannot be averaged with {paths[0]}: "
                f"it was trained with {trained_with(differences, model.choices)}; "
                "give checkpoints of one model, or use them as an ensemble, as in evaluate 'checkpoint=[...]' does"
            )
    vectors = [torch.cat([own.detach().flatten() for own in model.module.captioner.parameters()]) for model in models]
    cosine = min(float(torch.cosine_similarity(one, other, dim=0)) for one, other in pairwise(vectors))
    mean = {name: _mean([state[name] for state in states]) for name in states[0]}
    first.module.load_state_dict(mean)
    first.module.encoder.tuned = any(model.module.encoder.tuned for model in models)
    metadata = {
        **first.metadata,
        "choices": {**first.choices, "average_of": str(len(models))},
        "encoder": first.module.encoder.describe(),
        "averaged": [sha256(find_model(path)) for path in paths],
    }
    return {METADATA_KEY: metadata, "state_dict": mean}, cosine


def _regions(model: LoadedModel) -> dict[str, Any]:
    """Return the settings that determine the regions, without the hash of the encoder's weights."""
    description = model.module.encoder.describe()
    return {name: description[name] for name in description.keys() - {"weights_sha256", "tuned"}}


def _mean(weights: Sequence[Tensor]) -> Tensor:
    """Return the mean in double precision, or the first tensor if all are equal or integers."""
    first = weights[0]
    if not first.is_floating_point() or all(torch.equal(first, others) for others in weights):
        return first
    return torch.stack(list(weights)).double().mean(dim=0).to(first)
