"""Reports of a run: `metrics.csv`, loggers whose errors do not end it, a line for each epoch, and the progress within
it."""

import csv
import io
import math
import resource
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from functools import wraps
from inspect import getmembers, isfunction, signature
from pathlib import Path
from typing import Any, Literal

import torch
from hydra.utils import get_object
from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.callbacks import Callback, ModelCheckpoint
from pytorch_lightning.loggers import Logger
from pytorch_lightning.utilities import rank_zero_only
from pytorch_lightning.utilities.seed import isolate_rng
from rich import get_console
from torch import Tensor
from torch.optim import Optimizer

from showattendtell.config.instantiate import build
from showattendtell.config.validation import USER_ERRORS, sentence, with_defaults
from showattendtell.datamodules.datamodule import CaptionDataModule
from showattendtell.errors import UserError, first_line
from showattendtell.inference.predictions import measure_attention
from showattendtell.metrics.attention import MIN_MOVEMENT
from showattendtell.metrics.means import perplexity
from showattendtell.runtime.distributed import mean_over_processes, rank
from showattendtell.runtime.files import METRICS, atomic_write, duration, write_times
from showattendtell.settings import Node, Nodes, metric_mode, short_metric
from showattendtell.training.checkpointing import is_accumulating
from showattendtell.training.module import CaptioningModule
from showattendtell.visualization.figures import draw_curves, read_metrics

LOSS = "val/loss_per_word"
CIDER = "val/cider"
MOVEMENT = "val/attention_movement"
CURVE = "learning_curve.png"

MEASURED = 2.0
"""Seconds of training from which its time is estimated."""

FEW_STEPS = 100
"""Steps before which figures of the attention say nothing."""


def build_monitor(monitor: str, brevity_penalty: bool) -> tuple[str, str, Literal["max", "min"]]:
    """Return the names of the reported BLEU-4 and of the metric for best.ckpt and early stopping, and its mode."""
    bleu4 = "val/bleu4_with_penalty" if brevity_penalty else "val/bleu4"
    metric = {"loss": LOSS, "cider": CIDER, "bleu4": bleu4}[short_metric(monitor)]
    return bleu4, metric, metric_mode(monitor)


def best_of(trainer: Trainer) -> ModelCheckpoint:
    """Return the callback that writes `best.ckpt`, which is the last of its kind."""
    return trainer.checkpoint_callbacks[-1]  # type: ignore[return-value]


def print_line(text: str, style: str | None = None) -> None:
    """Print a line above the progress bar."""
    get_console().print(text, style=style, soft_wrap=True, highlight=False)


class MetricsFile(Logger):
    """A run's `metrics.csv`: one row per call, one column per metric.

    Lightning's CSVLogger removes the existing file when a run resumes. When a column is added it overwrites the file,
    which a kill or a full disk then truncates.
    """

    name, version = "", ""

    def __init__(self, folder: Path):
        super().__init__()
        self.path = folder / METRICS
        self.rows: list[dict[str, Any]] = []
        self._has_warned = False

    @rank_zero_only
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.rows.append({**metrics, "step": step})

    def log_hyperparams(self, *_: Any, **__: Any) -> None:
        """Do nothing: the run's configuration is already in the same folder."""

    @rank_zero_only
    def save(self) -> None:
        """Write all rows; a failure is reported once, and the next call writes these rows too."""
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, sorted({name for row in self.rows for name in row}))
        writer.writeheader()
        writer.writerows(self.rows)
        try:
            with atomic_write(self.path) as stream:
                stream.write(text.getvalue().encode())
        except OSError as error:
            if not self._has_warned:
                print(
                    f"warning: {self.path} cannot be written ({error.strerror}); the run continues, and the missing "
                    "rows are written with the next ones",
                    file=sys.stderr,
                )
            self._has_warned = True


@contextmanager
def open_loggers(nodes: Nodes, record: Mapping[str, Any], trainer: Trainer) -> Iterator[None]:
    """Build loggers, which get the record of the settings, and add them to a Trainer. Close them if the `with` block
    fails, as Lightning does if training fails."""
    opened: list[Logger] = []
    try:
        for name, node in nodes.items():
            if node and not trainer.fast_dev_run:  # type: ignore[attr-defined]
                opened.append(build_logger(name, node, record, Path(trainer.default_root_dir)))
        trainer.loggers = [*trainer.loggers, *opened]
        yield
    except BaseException:
        for logger in opened:
            logger.finalize("failed")
        raise


def build_logger(name: str, node: Node, record: Mapping[str, Any], folder: Path) -> Logger:
    """Build a logger, by any class of Lightning's kind, and log the record of the run's settings.

    A class with the arguments `save_dir` and `run_name` gets the folder of the run and its name.

    Raises:
        UserError: its package is missing, or its server cannot be reached.
    """
    about = {"save_dir": folder, "run_name": "/".join(folder.absolute().parts[-2:])}
    try:
        accepted = about.keys() & signature(get_object(node.target)).parameters
        with isolate_rng():  # MLflow, for example, draws a name
            logger: Logger = build(node, **{key: about[key] for key in accepted - node.arguments.keys()})
            logger.log_hyperparams(with_defaults(record))
    except USER_ERRORS:
        raise
    except Exception as error:  # each has its own errors
        raise UserError(f"logger.{name}: {first_line(error)}; --debug shows the traceback") from error
    return without_errors(logger, name)


def without_errors(logger: Logger, name: str) -> Logger:
    """Return a logger, all of whose methods do nothing once one of them has raised an error, which is printed.

    Lightning's loggers raise when a server or a disk fails, which would end the run.
    """
    failed: list[Exception] = []

    def guarded(method: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(method)
        def call(*args: Any, **kwargs: Any) -> Any:
            if failed:
                return None
            try:
                return method(*args, **kwargs)
            except Exception as error:
                failed.append(error)
                print(
                    f"warning: logger.{name} is switched off for the rest of this run ({sentence(error)}); the run "
                    "itself continues, and metrics.csv has the figures of each epoch",
                    file=sys.stderr,
                )

        return call

    for method, _ in getmembers(type(logger), isfunction):
        if not method.startswith("_"):
            setattr(logger, method, guarded(getattr(logger, method)))
    return logger


def remaining_batches(trainer: Trainer) -> float:
    """Return how many batches training still has, by its maximum of epochs or of steps."""
    steps = trainer.estimated_stepping_batches - trainer.global_step
    return steps * trainer.accumulate_grad_batches


class EpochReport(Callback):
    """Prints one line per epoch, writes its seconds to `times.csv`, and draws the learning curve at the end.

    The seconds include validation; those of an interrupted epoch are the parts that count. A run that resumes goes back
    to the rows of `metrics.csv` at its checkpoint: those after it are logged again.

    Args:
        brevity_penalty: whether the reported BLEU-4 has the brevity penalty.
    """

    def __init__(self, brevity_penalty: bool = False):
        self._bleu4, _, _ = build_monitor("bleu4", brevity_penalty)
        self._seconds: list[float] = []
        self._elapsed = self._started = 0.0

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        self._log: Any = trainer.logger  # the metrics file, which is the first

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._started = time.monotonic() - self._elapsed

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        pl_module.on_train_epoch_end()  # log its metrics for the callbacks; Lightning would do so after them
        values = {name: float(value) for name, value in trainer.callback_metrics.items()}
        best = best_of(trainer)

        def describe(metric: str, name: str, digits: int) -> str:
            value = f"{name} {values.get(metric, math.nan):.{digits}f}"
            if metric == best.monitor and best.best_model_score is not None:
                value += f" (best {best.best_model_score:.{digits}f})"
            return value

        figures = [describe("train/loss_per_word", "loss per word", 3)]
        if LOSS in values:
            figures += [describe(LOSS, "validation", 3), f"perplexity {perplexity(values[LOSS]):.1f}"]
            bleu = "BLEU-4 with brevity penalty" if "penalty" in self._bleu4 else "BLEU-4"
            figures += [describe(self._bleu4, bleu, 1), describe(CIDER, "CIDEr", 1)]
            figures += [describe("val/distinct_captions", "distinct captions", 0)]
        seconds = self._end_epoch(trainer)
        rest = seconds * remaining_batches(trainer) / trainer.num_training_batches
        left = f", about {duration(rest)} left" if rest > 60 else ""
        print_line(f"epoch {trainer.current_epoch + 1:>3}: {', '.join(figures)}; {seconds:.0f} s{left}")
        is_trained = trainer.global_step >= FEW_STEPS
        if is_trained and values.get(MOVEMENT, 1.0) < MIN_MOVEMENT and getattr(pl_module, "selective", False):
            print_line(
                f"warning: the attention hardly changes between words ({100 * values[MOVEMENT]:.1f} % of its weight); "
                "a smaller loss.doubly_stochastic_weight, a larger optimizer.lr or another attention/score may help",
                style="yellow",
            )

    def _end_epoch(self, trainer: Trainer) -> float:
        """Write the seconds of all epochs, and return those of this one."""
        now = time.monotonic()
        self._seconds.append(now - self._started)
        self._started = now
        if rank() == 0 and not trainer.fast_dev_run:  # type: ignore[attr-defined]
            with suppress(OSError):  # reported with the metrics file, and written again after the next epoch
                write_times(self._seconds, Path(trainer.default_root_dir))
        return self._seconds[-1]

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        stopping: Any = trainer.early_stopping_callback
        if stopping and stopping.stopping_reason_message:
            print_line(f"early stopping: {stopping.stopping_reason_message.partition(' Signaling')[0]}")
        file = Path(trainer.default_root_dir) / METRICS
        if rank() == 0 and file.is_file():
            draw_curves(read_metrics(file), file.with_name(CURVE))

    def state_dict(self) -> dict[str, Any]:
        return {"rows": self._log.rows, "seconds": self._seconds, "running": time.monotonic() - self._started}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._seconds, self._elapsed = list(map(float, state["seconds"])), float(state["running"])
        self._log.rows = [dict(row) for row in state["rows"]]
        _ = [float(value) for row in self._log.rows for value in row.values()]  # raises for what is no number
        _ = [int(str(row[name])) for row in self._log.rows for name in ("epoch", "step") if name in row]
        self._log.save()


class AttentionEvaluation(Callback):
    """After each validation, scores attention on the words of reference captions, if the data set has boxes."""

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: CaptioningModule) -> None:  # type: ignore[override]
        data = getattr(trainer, "datamodule", None)
        if not isinstance(data, CaptionDataModule):
            return
        scores = measure_attention(pl_module, data.val_images.images, data.val_images.examples, silent=True)
        if scores:
            pl_module.log("val/pointing_game", scores["pointing_game"])
            pl_module.log("val/attention_correctness", scores["attention_correctness"])


class StepMetrics(Callback):
    """Measures loss, learning rate, images per second and memory within an epoch.

    Dashboards get them every `trainer.log_every_n_steps` steps, as `train/loss_step`, `train/learning_rate`,
    `train/images_per_second` and `train/memory_gb` (the peak, of the first GPU or of the first process). Without a
    terminal, a line is printed after the first batch that ends `seconds` seconds after the last line.

    Lightning's LearningRateMonitor, ThroughputMonitor and DeviceStatsMonitor write to all loggers, also to
    `metrics.csv`, which a resumed run has to reproduce; ThroughputMonitor also waits for the GPU after every step.

    Args:
        seconds: shortest time between two lines.
    """

    images_per_second: float | None = None
    """Over about the last second, in all processes; None before the first step."""

    def __init__(self, seconds: float = 60.0):
        self._seconds = seconds
        self._rates: list[float] = []  # learning rates at the last step
        self._nll: Tensor | None = None  # -log p per word of the last step, if the loss computes it
        self._images, self._last_rate, self._last_printed = 0, 0.0, 0.0
        self._batches, self._first_ended, self._is_estimated = 0, 0.0, False

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._last_printed = self._last_rate = time.monotonic()

    def on_validation_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._images, self._last_rate = 0, time.monotonic()

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer) -> None:
        self._rates = [group["lr"] for group in optimizer.param_groups]  # of matrices, biases, a trainable encoder

    def on_train_batch_end(
        self, trainer: Trainer, pl_module: LightningModule, outputs: Any, batch: Any, batch_idx: int
    ) -> None:
        now = time.monotonic()
        self._nll = getattr(pl_module, "step_nll", None)
        self._images += trainer.world_size * len(getattr(getattr(batch, "content", None), "images", ()))
        if now - self._last_rate >= 1 or self.images_per_second is None:
            self.images_per_second = self._images / max(now - self._last_rate, 1e-9)
            self._images, self._last_rate = 0, now
            if trainer.progress_bar_callback and self._nll is not None:  # once a second: to read it waits for the GPU
                pl_module.log("loss", self._nll, prog_bar=True, logger=False, on_step=True, on_epoch=False)
        self._log(trainer, outputs)
        self._estimate(trainer, now)
        if self._is_due(now):
            position = f"batch {batch_idx + 1} of {trainer.num_training_batches} (step {trainer.global_step})"
            print_line(f"epoch {trainer.current_epoch + 1}: {position}, {self._figures()}")

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
            print_line(f"epoch {trainer.current_epoch + 1}: validation, batch {done} of {sum(sizes)}")

    def _figures(self) -> str:
        """Return loss, learning rate and speed of the last step for people."""
        nll = math.nan if self._nll is None else float(self._nll)
        speed = self.images_per_second or 0.0
        of_step = f"loss per word {nll:.3f}, perplexity {perplexity(nll):.1f}, learning rate {self._rates[0]:.3g}"
        return f"{of_step}, images/s {speed:.{0 if speed >= 10 else 1}f}"

    def _estimate(self, trainer: Trainer, now: float) -> None:
        """Print how long the training takes, once the batches after the first, which takes longer, show their speed."""
        self._batches += 1
        if self._batches == 1:
            self._first_ended = now
        seconds = now - self._first_ended
        if self._is_estimated or self._batches < 3 or seconds < MEASURED:
            return
        self._is_estimated = True
        rest = remaining_batches(trainer) * seconds / (self._batches - 1)
        if 60 < rest < math.inf and rank() == 0:
            print_line(f"training takes about {duration(rest)}, and the validations after each epoch")

    def _log(self, trainer: Trainer, outputs: Any) -> None:
        """Pass the figures of every `trainer.log_every_n_steps`-th step to the dashboards."""
        dashboards = [logger for logger in trainer.loggers if not isinstance(logger, MetricsFile)]
        is_due = trainer.global_step % trainer.log_every_n_steps == 0  # type: ignore[attr-defined]
        if not dashboards or not is_due or is_accumulating(trainer):
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
        if isinstance(outputs, Mapping):
            loss = trainer.accumulate_grad_batches * outputs["loss"]  # Lightning divides it
            metrics["train/loss_step"] = float(mean_over_processes(loss))
        for logger in dashboards:
            logger.log_metrics(metrics, trainer.global_step - 1)  # the number that Lightning logs

    def _is_due(self, now: float) -> bool:
        """Return whether to print a line now."""
        is_due = now - self._last_printed >= self._seconds and rank() == 0 and not get_console().is_terminal
        if is_due:
            self._last_printed = now
        return is_due
