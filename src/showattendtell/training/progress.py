"""Progress within an epoch: figures of single steps, the progress bar, and lines where there is no terminal."""

import math
import resource
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import torch
from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.callbacks import Callback, RichProgressBar
from pytorch_lightning.callbacks.progress.rich_progress import ProcessingSpeedColumn
from rich import get_console
from rich.progress import BarColumn
from torch import Tensor
from torch.optim import Optimizer

from showattendtell.runtime.distributed import mean_over_processes, rank
from showattendtell.training.lightning_internals import is_accumulating
from showattendtell.training.loggers import MetricsFile

SENT = ".dashboards"
"""File in a run's folder with the last step whose figures the dashboards have."""


MEASURED = 2.0
"""Seconds of training from which its time is estimated."""


def about(seconds: float) -> str:
    """Return a duration for people: about 12 minutes."""
    if seconds < 5400:
        minutes = max(1, round(seconds / 60))
        return f"about {minutes} minute{'s' * (minutes > 1)}"
    return f"about {seconds / 3600:.1f} hours"


class StepMetrics(Callback):
    """Measures loss, learning rate, images per second and memory within an epoch.

    Dashboards get them every `trainer.log_every_n_steps` steps, as `train/loss_step`, `train/learning_rate`,
    `train/images_per_second` and `train/memory_gb` (the peak, of the first GPU or of the first process). Without a
    terminal, a line is printed at least every `seconds` seconds, unless a single step takes longer.

    Lightning's LearningRateMonitor, ThroughputMonitor and DeviceStatsMonitor write to all loggers, also to
    `metrics.csv`, which a resumed run has to reproduce; ThroughputMonitor also waits for the GPU after every step.

    Args:
        seconds: longest time between two lines.
    """

    loss: Tensor | None = None
    """Loss of the last step, in this process."""
    nll_per_word: Tensor | None = None
    """-log p per word of the last step, if the loss computes it."""
    images_per_second: float | None = None
    """Over about the last second, in all processes; None before the first step."""

    def __init__(self, seconds: float = 10.0):
        self._seconds = seconds
        self._rates: list[float] = []  # learning rates at the last step
        self._last_sent = -1
        self._images, self._last_rate = 0, 0.0
        self._last_printed = self._last_batch = 0.0
        self._first: tuple[int, float] | None = None
        self._measured = False

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.ckpt_path:  # the steps since the checkpoint are repeated; dashboards do not get them again
            with suppress(OSError, ValueError):
                self._last_sent = int((Path(trainer.default_root_dir) / SENT).read_text())
        self._last_printed = self._last_batch = self._last_rate = time.monotonic()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._images, self._last_rate = 0, time.monotonic()

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer) -> None:
        self._rates = [group["lr"] for group in optimizer.param_groups]  # of matrices, biases, a trainable encoder

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        now = time.monotonic()
        self.loss = outputs["loss"] if isinstance(outputs, Mapping) else None
        self.nll_per_word = getattr(pl_module, "step_nll", None)
        self._images += trainer.world_size * len(getattr(getattr(batch, "content", None), "images", ()))
        if now - self._last_rate >= 1 or self.images_per_second is None:
            self.images_per_second = self._images / max(now - self._last_rate, 1e-9)
            self._images, self._last_rate = 0, now
        self._log(trainer)
        self._estimate(trainer, batch_idx, now)
        if self._is_due(now):
            values = ", ".join(f"{name} {value}" for name, value in self.describe().items())
            position = f"batch {batch_idx + 1} of {trainer.num_training_batches} (step {trainer.global_step})"
            self._print(f"epoch {trainer.current_epoch + 1}: {position}, {values}")

    def on_validation_batch_end(
        self,
        trainer: Trainer,
        pl_module: LightningModule,
        outputs: Any,
        batch: Any,
        batch_idx: int,
        dataloader_idx: int = 0,
    ) -> None:
        if self._is_due(time.monotonic()):
            sizes = trainer.num_val_batches
            done = sum(sizes[:dataloader_idx]) + batch_idx + 1
            self._print(f"epoch {trainer.current_epoch + 1}: validation, batch {done} of {sum(sizes)}")

    def describe(self) -> dict[str, str]:
        """Return loss, learning rate and speed of the last step for people."""
        loss = {} if self.loss is None else {"loss": f"{float(self.loss):.3f}"}
        if self.nll_per_word is not None:
            nll = float(self.nll_per_word)
            loss = {"loss per word": f"{nll:.3f}", "perplexity": f"{math.exp(nll):.1f}"}
        speed = self.images_per_second or 0.0
        images = f"{speed:.0f}" if speed >= 10 else f"{speed:.1f}"
        return {**loss, "learning rate": f"{self._rates[0]:.3g}", "images/s": images}

    def _estimate(self, trainer: Trainer, batch_idx: int, now: float) -> None:
        """Print how long the training takes, once the first batches have shown their speed."""
        if self._measured or rank() or trainer.fast_dev_run:  # type: ignore[attr-defined]
            return
        if self._first is None or batch_idx <= self._first[0]:
            self._first = batch_idx, now  # after the first batch, which takes longer
        batches, seconds = batch_idx - self._first[0], now - self._first[1]
        if batches >= 2 and seconds >= MEASURED:
            self._measured = True
            epochs = (trainer.max_epochs or 0) - trainer.current_epoch
            rest = (epochs * trainer.num_training_batches - batch_idx - 1) * seconds / batches
            if epochs > 0 and 60 < rest < math.inf:
                self._print(f"training takes {about(rest)}, and the validations after each epoch")

    def _log(self, trainer: Trainer) -> None:
        loggers = [logger for logger in trainer.loggers if not isinstance(logger, MetricsFile)]
        step = trainer.global_step - 1  # the number that Lightning logs
        is_logged = trainer.global_step % trainer.log_every_n_steps == 0  # type: ignore[attr-defined]
        if not loggers or not is_logged or is_accumulating(trainer) or step <= self._last_sent:
            return
        device = trainer.strategy.root_device
        if device.type == "cuda":
            memory = torch.cuda.max_memory_allocated(device)
        else:
            memory = 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        metrics = {"train/learning_rate": self._rates[0], "train/memory_gb": memory / 1e9}
        metrics["train/images_per_second"] = self.images_per_second or 0.0
        if len(self._rates) > 2:
            metrics["train/learning_rate_encoder"] = self._rates[2]
        if self.loss is not None:
            metrics["train/loss_step"] = float(mean_over_processes(self.loss))
        for logger in loggers:
            logger.log_metrics(metrics, step)
        if rank() == 0:
            with suppress(OSError):  # if the disk is full, the checkpoint reports it
                (Path(trainer.default_root_dir) / SENT).write_text(str(step))

    def _is_due(self, now: float) -> bool:
        """Return whether a line is due: the next batch would end too late for it, if it takes as long as this one."""
        duration, self._last_batch = now - self._last_batch, now
        return now + duration - self._last_printed > self._seconds and rank() == 0 and not get_console().is_terminal

    def _print(self, line: str) -> None:
        self._last_printed = time.monotonic()
        get_console().print(line, soft_wrap=True, highlight=False)


class ProgressBar(RichProgressBar):
    """Lightning's progress bar, which counts epochs from 0, has the loss of the last epoch, and is drawn 100 times a
    second; this one counts from 1 and has the figures of the last step."""

    def __init__(self) -> None:
        super().__init__(refresh_rate=4)
        self._values: dict[str, Any] = {}
        self._last_read = 0.0

    def get_metrics(self, trainer: Trainer, module: LightningModule) -> dict[str, Any]:
        """Return the figures, read at most once a second: to read a loss waits for the GPU."""
        if time.monotonic() - self._last_read >= 1:
            self._last_read = time.monotonic()
            for callback in trainer.callbacks:  # type: ignore[attr-defined]
                if isinstance(callback, StepMetrics):
                    figures = callback.describe()
                    loss = figures.get("loss per word") or figures.get("loss", "")
                    self._values = {"loss": loss, "images/s": figures["images/s"]}
        return self._values

    def configure_columns(self, trainer: Trainer) -> list[Any]:
        """Make room for the figures in a window of 80 columns."""
        columns = [each for each in super().configure_columns(trainer) if not isinstance(each, ProcessingSpeedColumn)]
        for column in columns:
            if isinstance(column, BarColumn):
                column.bar_width = 16
        return columns

    def _get_train_description(self, current_epoch: int) -> str:
        last = self.trainer.max_epochs or 0
        return f"epoch {current_epoch + 1}" + (f" of {last}" if last > 0 else "")
