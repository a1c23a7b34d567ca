"""Callbacks of a run that are not about its reports: averages of the weights, and scores of the attention."""

from collections.abc import Sequence

from pytorch_lightning import Trainer
from pytorch_lightning.callbacks import Callback, WeightAveraging
from torch import Tensor
from torch.optim.swa_utils import get_ema_multi_avg_fn

from showattendtell.datamodules.datamodule import CaptionDataModule
from showattendtell.inference.predictions import measure_attention
from showattendtell.settings import Fraction
from showattendtell.training.module import CaptioningModule


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


class AttentionEvaluation(Callback):
    """After each validation, scores attention on the words of reference captions, if the data set has boxes."""

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: CaptioningModule) -> None:  # type: ignore[override]
        data = getattr(trainer, "datamodule", None)
        if not isinstance(data, CaptionDataModule):
            return
        scores = measure_attention(pl_module, data.val_images.images, data.val_images.examples, silent=True)
        if scores:
            pl_module.log("val/pointing_game", 100 * scores.model.hit_rate)
            pl_module.log("val/attention_correctness", 100 * scores.model.correctness)
