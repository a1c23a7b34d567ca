"""Progress reporting and training metrics."""

import math
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pytorch_lightning as lightning
import torch
from omegaconf import DictConfig
from pytorch_lightning.callbacks import Callback
from rich.console import Console
from torch import Tensor
from torch.optim import Optimizer

from showattendtell.datamodules.datamodule import CaptionDataModule
from showattendtell.inference.predictions import measure_attention
from showattendtell.metrics.attention_statistics import STILL
from showattendtell.runtime.distributed import rank
from showattendtell.runtime.files import write_times
from showattendtell.training.loggers.build import MetricsFile
from showattendtell.training.module import CaptioningModule
from showattendtell.visualization.curves import draw_curves, read_metrics

NLL = "val/nll_per_word"
CIDER = "val/cider"
MOVEMENT = "val/attention_movement"


class MonitoredMetrics(NamedTuple):
    """Names of validation metrics: the reported BLEU-4, and the one for best.ckpt and early stopping."""

    bleu4: str
    metric: str
    mode: Literal["max", "min"]


def build_monitor(config: DictConfig) -> MonitoredMetrics:
    bleu4 = "val/bleu4_with_penalty" if config.brevity_penalty else "val/bleu4"
    metric = {"nll": NLL, "cider": CIDER, "bleu4": bleu4}[config.monitor]
    return MonitoredMetrics(bleu4, metric, "min" if metric == NLL else "max")


class TrainingFigures(Callback):
    """Logs the epoch's training metrics, for the callbacks that follow."""

    def on_train_epoch_end(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        if isinstance(module, CaptioningModule):
            module.log_training()


class AttentionEvaluation(Callback):
    """After each validation, scores attention on the words of reference captions, if the data set has boxes."""

    def on_validation_epoch_end(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        data = getattr(trainer, "datamodule", None)
        if not isinstance(module, CaptioningModule) or not isinstance(data, CaptionDataModule):
            return
        gaze = measure_attention(module, data.val_images.images, data.val_images.examples)
        if gaze:
            module.log("val/pointing_game", 100 * gaze.model.hit_rate)
            module.log("val/attention_correctness", 100 * gaze.model.correctness)


class GradientNorm(Callback):
    """Logs `train/gradient_norm`: the norm of all gradients before clipping, mean over the epoch.

    It is computed at every `trainer.log_every_n_steps`-th step. Steps that mixed precision skips do not count.

    Args:
        terms: also log the norm of each loss term's gradient, `train/gradient_norm_TERM`; needs one more backward pass
            per term at these steps.
    """

    def __init__(self, terms: bool = False):
        self._terms = terms
        self._norms: list[Tensor] = []

    def setup(self, trainer: lightning.Trainer, module: lightning.LightningModule, stage: str) -> None:
        if isinstance(module, CaptioningModule):
            module.log_term_gradients = self._terms

    def on_before_optimizer_step(
        self, trainer: lightning.Trainer, module: lightning.LightningModule, optimizer: Optimizer
    ) -> None:
        if trainer.global_step % trainer.log_every_n_steps == 0:  # type: ignore[attr-defined]
            parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
            gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
            self._norms.append(torch.nn.utils.get_total_norm(gradients))

    def on_train_epoch_end(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        if norms := self._finite():
            module.log("train/gradient_norm", sum(norms) / len(norms))
        self._norms = []

    def _finite(self) -> list[float]:
        return [norm for norm in map(float, self._norms) if math.isfinite(norm)]

    def state_dict(self) -> dict[str, Any]:
        return {"norms": self._finite()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._norms = list(map(torch.tensor, state["norms"]))


class EpochTimes(Callback):
    """Writes the seconds of every epoch, validation included, to `times.csv`; for an interrupted epoch, the parts that
    count."""

    def __init__(self, folder: Path):
        self._folder, self._seconds, self._before = folder, list[float](), 0.0
        self._started = time.monotonic()

    def on_train_start(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        self._started = time.monotonic() - self._before

    def on_train_epoch_end(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        now = time.monotonic()
        self._seconds.append(now - self._started)
        self._started = now
        if rank() == 0 and not trainer.fast_dev_run:  # type: ignore[attr-defined]
            with suppress(OSError):  # reported with the metrics file, and written again after the next epoch
                write_times(self._seconds, self._folder)

    def state_dict(self) -> dict[str, Any]:
        return {"seconds": self._seconds, "running": time.monotonic() - self._started}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._seconds, self._before = list(state["seconds"]), state["running"]


class EpochReport(Callback):
    """Prints one line per epoch, and the learning curve at the end."""

    def __init__(self, log: MetricsFile, monitor: MonitoredMetrics):
        self._log, self._monitor = log, monitor
        self._best: float | None = None
        self._started = time.monotonic()
        self._console = Console(highlight=False)

    def on_train_epoch_start(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        self._started = time.monotonic()

    def on_train_epoch_end(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        values = {name: float(value) for name, value in trainer.callback_metrics.items()}
        if self._monitor.metric not in values:
            return
        better = max if self._monitor.mode == "max" else min
        now = values[self._monitor.metric]
        self._best = now if self._best is None else better(self._best, now)
        seconds = time.monotonic() - self._started
        self._console.print(
            f"epoch {trainer.current_epoch + 1:>3}: -log p per word {values['train/nll_per_word']:.3f} in training, "
            f"{self._told(values, NLL, 3)} in validation; BLEU-4 {self._told(values, self._monitor.bleu4, 1)}, "
            f"CIDEr {self._told(values, CIDER, 1)}, "
            f"{values['val/distinct_captions']:.0f} distinct captions; {seconds:.0f} s",
            soft_wrap=True,
        )
        if values.get(MOVEMENT, 1.0) < STILL and getattr(module, "selective", False):
            self._console.print(
                f"warning: the attention maps stand still: from word to word {100 * values[MOVEMENT]:.1f} % of alpha "
                "moves; a smaller loss.attention_weight, a larger optimizer.lr or another attention/score may help",
                style="yellow",
                soft_wrap=True,
            )

    def _told(self, values: dict[str, float], metric: str, digits: int) -> str:
        """Format a metric; the metric that the run selects by comes with its best value so far."""
        best = f" (best {self._best:.{digits}f})" if metric == self._monitor.metric else ""
        return f"{values[metric]:.{digits}f}{best}"

    def on_train_end(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        if self._log.rows and self._log.path.is_file():
            draw_curves(read_metrics(self._log.path), self._log.path.with_name("learning_curve.png"))

    def state_dict(self) -> dict[str, Any]:
        return {"best": self._best, "rows": self._log.rows}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Drop rows that were logged after the checkpoint: they will be logged again."""
        self._best, self._log.rows = state["best"], list(state["rows"])
        self._log.save()
