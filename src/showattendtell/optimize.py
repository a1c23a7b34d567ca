"""How the parameters are updated: groups for the optimiser, and the learning rate's course."""

import math
from collections.abc import Iterable
from typing import Any, NamedTuple, Protocol

from torch import nn

from showattendtell.arguments import NonNegativeFloat, NonNegativeInt


class Schedule(Protocol):
    """The factor on the learning rate at a step out of `total` steps."""

    def __call__(self, step: int, total: int) -> float: ...


class Constant(NamedTuple):
    """The rate as it is, after a linear rise over `warmup` steps."""

    warmup: NonNegativeInt = 0

    def __call__(self, step: int, total: int) -> float:
        return min(1.0, (step + 1) / (self.warmup + 1))


class Cosine(NamedTuple):
    """A linear rise over `warmup` steps, then half a cosine from 1 down to `final` at the last step."""

    warmup: NonNegativeInt = 0
    final: NonNegativeFloat = 0.0

    def __call__(self, step: int, total: int) -> float:
        rise = min(1.0, (step + 1) / (self.warmup + 1))
        progress = min(1.0, max(0, step - self.warmup) / max(1, total - self.warmup))
        return rise * (self.final + (1 - self.final) * (1 + math.cos(math.pi * progress)) / 2)


def parameter_groups(captioner: nn.Module, encoder: nn.Module, encoder_rate: float) -> list[dict[str, Any]]:
    """Matrices, then biases (without weight decay), then the encoder with its own rate where it is trained."""
    groups: list[dict[str, Any]] = [
        {"params": _trainable(captioner.parameters(), matrices=True)},
        {"params": _trainable(captioner.parameters(), matrices=False), "weight_decay": 0.0},
    ]
    tuned = [parameter for parameter in encoder.parameters() if parameter.requires_grad]
    if tuned:
        groups.append({"params": tuned, "lr": encoder_rate})
    return groups


def _trainable(parameters: Iterable[nn.Parameter], matrices: bool) -> list[nn.Parameter]:
    return [p for p in parameters if p.requires_grad and (p.ndim > 1) == matrices]
