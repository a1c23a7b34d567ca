"""What a run goes by, tells and warns of while it trains."""

import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal, NamedTuple

import pytorch_lightning as lightning
from omegaconf import DictConfig
from pytorch_lightning.callbacks import Callback
from rich.console import Console

from showattendtell.batches import CaptionData
from showattendtell.evaluation import measure_gaze
from showattendtell.loggers import MetricsFile
from showattendtell.module import CaptioningModule
from showattendtell.processes import rank
from showattendtell.report.curves import draw_curves, read_metrics
from showattendtell.report.times import write_times
from showattendtell.watch import STILL

NLL = "val/nll_per_word"
CIDER = "val/cider"
MOVEMENT = "val/attention_movement"


class Monitor(NamedTuple):
    """Names of validation figures: the BLEU-4 that is told, and the metric that best.ckpt and early stopping go by."""

    bleu4: str
    metric: str
    mode: Literal["max", "min"]


def build_monitor(config: DictConfig) -> Monitor:
    bleu4 = "val/bleu4_with_penalty" if config.brevity_penalty else "val/bleu4"
    metric = {"nll": NLL, "cider": CIDER, "bleu4": bleu4}[config.selection]
    return Monitor(bleu4, metric, "min" if metric == NLL else "max")


class TrainingFigures(Callback):
    """Logs the epoch's figures of training, for the callbacks behind this one."""

    def on_train_epoch_end(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        if isinstance(module, CaptioningModule):
            module.log_training()


class GazeReport(Callback):
    """After each validation, how well attention finds what people's captions name, where the data set has boxes."""

    def on_validation_epoch_end(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        data = getattr(trainer, "datamodule", None)
        if not isinstance(module, CaptioningModule) or not isinstance(data, CaptionData):
            return
        gaze = measure_gaze(module, data.val_images.images, data.val_images.examples)
        if gaze:
            module.log("val/pointing_game", 100 * gaze.model.hit_rate)
            module.log("val/attention_correctness", 100 * gaze.model.correctness)


class EpochTimes(Callback):
    """Keeps the seconds of every epoch, its validation included, in `times.csv`; of an epoch that was interrupted those
    of its parts that count."""

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
            with suppress(OSError):  # told by the file of the figures beside it, and made good with the next epoch
                write_times(self._seconds, self._folder)

    def state_dict(self) -> dict[str, Any]:
        return {"seconds": self._seconds, "running": time.monotonic() - self._started}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._seconds, self._before = list(state["seconds"]), state["running"]


class EpochReport(Callback):
    """A line per epoch on the screen, and in the end the learning curve."""

    def __init__(self, log: MetricsFile, monitor: Monitor):
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
        """A figure, and the best so far where it is what the run selects by."""
        best = f" (best {self._best:.{digits}f})" if metric == self._monitor.metric else ""
        return f"{values[metric]:.{digits}f}{best}"

    def on_train_end(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        if self._log.rows and self._log.path.is_file():
            draw_curves(read_metrics(self._log.path), self._log.path.with_name("learning_curve.png"))

    def state_dict(self) -> dict[str, Any]:
        return {"best": self._best, "rows": self._log.rows}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Rows that were logged behind the checkpoint will be logged again."""
        self._best, self._log.rows = state["best"], list(state["rows"])
        self._log.save()
