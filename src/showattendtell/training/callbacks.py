"""Callbacks of a run: training metrics, attention scores, gradient norms, times and reports of epochs.

They find the run's folder, its loggers and its best checkpoint in the trainer.
"""

import math
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

import torch
from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.callbacks import Callback, WeightAveraging
from rich import get_console
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.swa_utils import get_ema_multi_avg_fn

from showattendtell.datamodules.datamodule import CaptionDataModule
from showattendtell.inference.predictions import measure_attention
from showattendtell.metrics.attention import MIN_MOVEMENT
from showattendtell.runtime.distributed import mean_over_processes, rank
from showattendtell.runtime.files import write_times
from showattendtell.settings import Fraction, short_metric
from showattendtell.training.checkpointing import BestCheckpoint
from showattendtell.training.loggers import MetricsFile
from showattendtell.training.module import CaptioningModule
from showattendtell.training.progress import about
from showattendtell.visualization.figures import draw_curves, read_metrics

NLL = "val/nll_per_word"
CIDER = "val/cider"
MOVEMENT = "val/attention_movement"
CURVE = "learning_curve.png"

FEW_STEPS = 100
"""Steps before which figures of the attention say nothing."""


def build_monitor(monitor: str, brevity_penalty: bool) -> tuple[str, str, Literal["max", "min"]]:
    """Return the names of the reported BLEU-4 and of the metric for best.ckpt and early stopping, and its mode."""
    bleu4 = "val/bleu4_with_penalty" if brevity_penalty else "val/bleu4"
    metric = {"nll": NLL, "cider": CIDER, "bleu4": bleu4}[short_metric(monitor)]
    return bleu4, metric, "min" if metric == NLL else "max"


def best_of(trainer: Trainer) -> BestCheckpoint:
    return next(callback for callback in trainer.checkpoint_callbacks if isinstance(callback, BestCheckpoint))


def metrics_file(trainer: Trainer) -> MetricsFile:
    """Return the trainer's `MetricsFile`; an empty one in `fast_dev_run`, which has no loggers."""
    files = (logger for logger in trainer.loggers if isinstance(logger, MetricsFile))
    return next(files, MetricsFile(Path(trainer.default_root_dir)))


def is_logged(trainer: Trainer) -> bool:
    """Return whether figures of the current step are logged."""
    return trainer.global_step % trainer.log_every_n_steps == 0  # type: ignore[attr-defined]


def print_line(text: str, style: str | None = None) -> None:
    """Print a line above the progress bar."""
    get_console().print(text, style=style, soft_wrap=True, highlight=False)


class TrainingMetrics(Callback):
    """Logs the epoch's training metrics, for the callbacks that follow."""

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        pl_module.on_train_epoch_end()  # which Lightning calls after the callbacks; it logs nothing the second time


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


class GradientNorm(Callback):
    """Logs `train/gradient_norm`: the norm of all gradients before clipping, mean over the epoch.

    It is computed at every `trainer.log_every_n_steps`-th step. Steps that mixed precision skips do not count.

    Args:
        terms: also log the norm of each loss term's gradient, `train/gradient_norm_TERM`; needs one more backward pass
            per term at these steps.
    """

    def __init__(self, terms: bool = False):
        self._terms = terms
        self._norms: dict[str, list[float]] = {}

    def on_before_backward(self, trainer: Trainer, pl_module: CaptioningModule, loss: Tensor) -> None:  # type: ignore[override]
        if not self._terms or not is_logged(trainer):
            return
        parameters = [parameter for parameter in pl_module.captioner.parameters() if parameter.requires_grad]
        for name, term in pl_module.step_terms.items():
            if term.requires_grad:
                parts = torch.autograd.grad(term, parameters, retain_graph=True, allow_unused=True)
                gradients = [mean_over_processes(part) for part in parts if part is not None]
                self._add(f"train/gradient_norm_{name}", gradients)

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer) -> None:
        if is_logged(trainer):
            parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
            self._add("train/gradient_norm", [each.grad for each in parameters if each.grad is not None])

    def _add(self, name: str, gradients: list[Tensor]) -> None:
        norm = float(torch.nn.utils.get_total_norm(gradients))
        if math.isfinite(norm):
            self._norms.setdefault(name, []).append(norm)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        for name, norms in self._norms.items():
            pl_module.log(name, fmean(norms))
        self._norms = {}

    def state_dict(self) -> dict[str, Any]:
        return self._norms

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._norms = {name: list(norms) for name, norms in state.items()}


class EpochTimes(Callback):
    """Writes the seconds of every epoch, validation included, to `times.csv`; for an interrupted epoch, the parts that
    count."""

    def __init__(self) -> None:
        self._seconds, self._elapsed = list[float](), 0.0
        self._started = time.monotonic()

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._started = time.monotonic() - self._elapsed

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        now = time.monotonic()
        self._seconds.append(now - self._started)
        self._started = now
        if rank() == 0 and not trainer.fast_dev_run:  # type: ignore[attr-defined]
            with suppress(OSError):  # reported with the metrics file, and written again after the next epoch
                write_times(self._seconds, Path(trainer.default_root_dir))

    def state_dict(self) -> dict[str, Any]:
        return {"seconds": self._seconds, "running": time.monotonic() - self._started}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._seconds, self._elapsed = list(state["seconds"]), state["running"]


class EpochReport(Callback):
    """Prints one line per epoch, and draws the learning curve at the end.

    Args:
        brevity_penalty: whether the reported BLEU-4 has the brevity penalty.
    """

    def __init__(self, brevity_penalty: bool = False):
        self._bleu4, _, _ = build_monitor("bleu4", brevity_penalty)

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._log = metrics_file(trainer)
        self._started = time.monotonic()

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._started = time.monotonic()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        values = {name: float(value) for name, value in trainer.callback_metrics.items()}
        best = best_of(trainer)

        def describe(metric: str, digits: int) -> str:
            value = f"{metric} {values.get(metric, math.nan):.{digits}f}"
            if metric == best.monitor and best.best_model_score is not None:
                value += f" (best {best.best_model_score:.{digits}f})"
            return value

        figures = [describe("train/nll_per_word", 3)]
        if NLL in values:
            figures += [describe(NLL, 3), f"perplexity {math.exp(values[NLL]):.1f}", describe(self._bleu4, 1)]
            figures += [describe(CIDER, 1), describe("val/distinct_captions", 0)]
        seconds = time.monotonic() - self._started
        left = max(0, (trainer.max_epochs or 0) - trainer.current_epoch - 1)
        rest = f", {about(seconds * left)} left" if left and seconds * left > 60 else ""
        print_line(f"epoch {trainer.current_epoch + 1:>3}: {', '.join(figures)}; {seconds:.0f} s{rest}")
        is_trained = trainer.global_step >= FEW_STEPS
        if is_trained and values.get(MOVEMENT, 1.0) < MIN_MOVEMENT and getattr(pl_module, "selective", False):
            print_line(
                f"warning: the attention hardly changes between words ({100 * values[MOVEMENT]:.1f} % of its weight); "
                "a smaller loss.doubly_stochastic_weight, a larger optimizer.lr or another attention/score may help",
                style="yellow",
            )

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._log.rows and self._log.path.is_file():
            draw_curves(read_metrics(self._log.path), self._log.path.with_name(CURVE))

    def state_dict(self) -> dict[str, Any]:
        return {"rows": self._log.rows}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._log.resume(state["rows"])
