"""Parameter groups, learning-rate schedules, and averages of the weights."""

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.callbacks import WeightAveraging
from torch import Tensor, nn
from torch.optim.swa_utils import get_ema_multi_avg_fn

from showattendtell.settings import Fraction, NonNegativeFloat, NonNegativeInt

Schedule = Callable[[int, int], float]
"""Factor on the learning rate at a step out of the total number of steps."""


class Cosine(NamedTuple):
    """Linear warm-up over `warmup` steps, then half a cosine from 1 towards `final`; constant with `final=1`.

    Steps are counted from 0, so the last one is `total` - 1. `final` would be reached in the step after it, as with
    `torch.optim.lr_scheduler.CosineAnnealingLR`.
    """

    warmup: NonNegativeInt = 0
    final: NonNegativeFloat = 0.0

    def __call__(self, step: int, total: int) -> float:
        rise = min(1.0, (step + 1) / (self.warmup + 1))
        progress = min(1.0, max(0, step - self.warmup) / max(1, total - self.warmup))
        return rise * (self.final + (1 - self.final) * (1 + math.cos(math.pi * progress)) / 2)


def parameter_groups(captioner: nn.Module, encoder: nn.Module, encoder_rate: float) -> list[dict[str, Any]]:
    """Return the groups of parameters: matrices; biases and scales, without weight decay; and those of a trainable
    encoder, with its own learning rate."""
    trainable = [parameter for parameter in captioner.parameters() if parameter.requires_grad]
    groups: list[dict[str, Any]] = [
        {"params": [parameter for parameter in trainable if parameter.ndim > 1]},
        {"params": [parameter for parameter in trainable if parameter.ndim <= 1], "weight_decay": 0.0},
    ]
    tuned = [parameter for parameter in encoder.parameters() if parameter.requires_grad]
    if tuned:
        groups.append({"params": tuned, "lr": encoder_rate})
    return groups


class ExponentialMovingAverage(WeightAveraging):
    """Averages the weights over the steps of training; validation and checkpoints use the averaged weights.

        theta' <- d theta' + (1 - d) theta,  d = min(decay, (1 + t) / (10 + t)) at step t

    The warmup of d, which is that of TensorFlow and timm, lets short trainings forget their initial weights. Unlike
    Lightning's `EMAWeightAveraging`, it changes no weight that training does not change: the average is computed as
    theta' + (1 - d) (theta - theta'), without rounding where both are equal.

    Args:
        decay: the largest d.
    """

    def __init__(self, decay: Fraction = 0.999):
        def update(averaged: Sequence[Tensor], weights: Sequence[Tensor], step: Tensor | int) -> None:
            get_ema_multi_avg_fn(min(decay, (1 + int(step)) / (10 + int(step))))(averaged, weights, step)

        super().__init__(multi_avg_fn=update)

    def on_validation_epoch_end(self, *_: Any) -> None:
        """Keep the averaged weights for other callbacks of this moment, such as captions for dashboards."""

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_validation_epoch_end(trainer, pl_module)

    def on_train_end(self, *_: Any) -> None:
        """Keep the weights of training: `last.ckpt`, which is written now, also has them for a run that is extended."""

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        super().on_train_end(trainer, pl_module)
