"""Callbacks of a run: training metrics, progress reports, dashboards, and pruning of poor trials.

They find the run's folder, its loggers and its best checkpoint in the trainer.
"""

import math
import time
from collections import defaultdict
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, Literal

import torch
from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.callbacks import Callback, WeightAveraging
from rich import get_console
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.swa_utils import get_ema_multi_avg_fn

from showattendtell.config.validation import with_defaults
from showattendtell.data.images import open_image
from showattendtell.data.vocabulary import PAD
from showattendtell.datamodules.datamodule import CaptionDataModule
from showattendtell.datamodules.datasets import CaptionDataset
from showattendtell.errors import UserError
from showattendtell.inference.checkpoints import METADATA_KEY
from showattendtell.inference.predictions import measure_attention
from showattendtell.metrics.attention import MIN_MOVEMENT, entropies
from showattendtell.runtime.distributed import rank
from showattendtell.runtime.files import BEST, write_times
from showattendtell.runtime.random_states import random_states, set_random_states
from showattendtell.settings import Fraction
from showattendtell.training.checkpointing import BestCheckpoint
from showattendtell.training.lightning_internals import is_accumulating
from showattendtell.training.loggers import METRICS, Dashboard, Histogram, ImagePanel, MetricsFile, logged_values
from showattendtell.training.module import CaptioningModule
from showattendtell.visualization.figures import draw_curves, read_metrics
from showattendtell.visualization.heatmaps import draw_panel

NLL = "val/nll_per_word"
CIDER = "val/cider"
MOVEMENT = "val/attention_movement"


def build_monitor(monitor: str, brevity_penalty: bool) -> tuple[str, str, Literal["max", "min"]]:
    """Return the names of the reported BLEU-4 and of the metric for best.ckpt and early stopping, and its mode."""
    bleu4 = "val/bleu4_with_penalty" if brevity_penalty else "val/bleu4"
    metric = {"nll": NLL, "cider": CIDER, "bleu4": bleu4}[monitor]
    return bleu4, metric, "min" if metric == NLL else "max"


def best_of(trainer: Trainer) -> BestCheckpoint:
    return next(callback for callback in trainer.checkpoint_callbacks if isinstance(callback, BestCheckpoint))


def metrics_file(trainer: Trainer) -> MetricsFile:
    """Return the trainer's `MetricsFile`; an empty one in `fast_dev_run`, which has no loggers."""
    files = (logger for logger in trainer.loggers if isinstance(logger, MetricsFile))
    return next(files, MetricsFile(Path(trainer.default_root_dir)))


class TrainingMetrics(Callback):
    """Logs the epoch's training metrics, for the callbacks that follow."""

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if isinstance(pl_module, CaptioningModule):
            pl_module.log_training()


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

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        data = getattr(trainer, "datamodule", None)
        if not isinstance(pl_module, CaptioningModule) or not isinstance(data, CaptionDataModule):
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
        self._norms: list[Tensor] = []

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        if isinstance(pl_module, CaptioningModule):
            pl_module.log_term_gradients = self._terms

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer) -> None:
        if trainer.global_step % trainer.log_every_n_steps == 0:  # type: ignore[attr-defined]
            parameters = [parameter for group in optimizer.param_groups for parameter in group["params"]]
            gradients = [parameter.grad for parameter in parameters if parameter.grad is not None]
            self._norms.append(torch.nn.utils.get_total_norm(gradients))

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if norms := self._finite_norms():
            pl_module.log("train/gradient_norm", sum(norms) / len(norms))
        self._norms = []

    def _finite_norms(self) -> list[float]:
        return [norm for norm in map(float, self._norms) if math.isfinite(norm)]

    def state_dict(self) -> dict[str, Any]:
        return {"norms": self._finite_norms()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        self._norms = list(map(torch.tensor, state["norms"]))


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

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._started = time.monotonic()

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self._started = time.monotonic()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        values = defaultdict(lambda: math.nan, {name: float(x) for name, x in trainer.callback_metrics.items()})
        best, validation = best_of(trainer), "no validation"

        def describe(metric: str, digits: int) -> str:
            is_monitor = metric == best.monitor and best.best_model_score is not None
            score = f" (best {best.best_model_score:.{digits}f})" if is_monitor else ""
            return f"{values[metric]:.{digits}f}{score}"

        if NLL in values:
            distinct = f"{values['val/distinct_captions']:.0f}"
            scores = f"BLEU-4 {describe(self._bleu4, 1)}, CIDEr {describe(CIDER, 1)}"
            captions = f"{distinct} distinct caption{'s' if distinct != '1' else ''}"
            validation = f"{describe(NLL, 3)} in validation; {scores}, {captions}"
        get_console().print(  # that of the progress bar, which is drawn again below the line
            f"epoch {trainer.current_epoch + 1:>3}: -log p per word {values['train/nll_per_word']:.3f} in training, "
            f"{validation}; {time.monotonic() - self._started:.0f} s",
            soft_wrap=True,
            highlight=False,
        )
        if values.get(MOVEMENT, 1.0) < MIN_MOVEMENT and getattr(pl_module, "selective", False):
            get_console().print(
                f"warning: the attention hardly changes between words ({100 * values[MOVEMENT]:.1f} % of its "
                "weight); a smaller loss.doubly_stochastic_weight, a larger optimizer.lr or another attention/score "
                "may help",
                style="yellow",
                soft_wrap=True,
                highlight=False,
            )

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if self._log.rows and self._log.path.is_file():
            draw_curves(read_metrics(self._log.path), self._log.path.with_name("learning_curve.png"))

    def state_dict(self) -> dict[str, Any]:
        return {"rows": self._log.rows}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Drop rows that were logged after the checkpoint: they will be logged again."""
        self._log.rows = list(state["rows"])
        self._log.save()


class DashboardCallback(Callback):
    """Opens the dashboards, shows captions and attention maps of a few images after each validation, and the best
    checkpoint at the end.

    The images are the first of the validation split by name, so all runs on one data set show the same ones. Drawing
    them does not change the run's random numbers. Only the first process has dashboards.
    """

    def __init__(self) -> None:
        self._dashboards: Sequence[Dashboard] = ()
        self._ids: dict[str, str] = {}
        self._logged: set[tuple[int, str]] = set()
        self._gradients: dict[str, Histogram] = {}

    def setup(self, trainer: Trainer, pl_module: LightningModule, stage: str) -> None:
        """Read the logged steps before `metrics.csv` is truncated to the checkpoint; dashboards keep theirs."""
        if not trainer.fast_dev_run:  # type: ignore[attr-defined]
            self._dashboards = [logger for logger in trainer.loggers if isinstance(logger, Dashboard)]
        self._logged = logged_values(metrics_file(trainer).path)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._ids = dict(state["ids"])

    def state_dict(self) -> dict[str, Any]:
        return {"ids": {**self._ids, **{board.kind: board.id for board in self._dashboards}}}

    def on_fit_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        states = random_states()
        if not trainer.ckpt_path:  # which is not known in `setup`: these figures are of an earlier run in the folder
            self._logged = set()
        for dashboard in self._dashboards:
            dashboard.id = self._ids.get(dashboard.kind, "")
            settings = (
                pl_module.metadata.get(METADATA_KEY, {}).get("config", {})
                if isinstance(pl_module, CaptioningModule)
                else {}
            )
            dashboard.open(Path(trainer.default_root_dir), with_defaults(settings), self._logged)
        set_random_states(states)

    def on_before_optimizer_step(self, trainer: Trainer, pl_module: LightningModule, optimizer: Optimizer) -> None:
        is_first = rank() == 0 and any(dashboard.histograms for dashboard in self._dashboards)
        is_logged = trainer.global_step % trainer.log_every_n_steps == 0  # type: ignore[attr-defined]
        if is_first and is_logged and isinstance(pl_module, CaptioningModule):
            named = ((name, parameter.grad) for name, parameter in pl_module.captioner.named_parameters())
            gradients = {name: gradient for name, gradient in named if gradient is not None}
            self._gradients = {f"gradients/{name}": histogram(gradient) for name, gradient in gradients.items()}

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        step = trainer.global_step - (not is_accumulating(trainer))  # the number that Lightning logs
        awaiting = [dashboard for dashboard in self._dashboards if dashboard.awaits(step)]
        data = getattr(trainer, "datamodule", None)
        if not awaiting or not isinstance(pl_module, CaptioningModule) or not isinstance(data, CaptionDataModule):
            return
        examples = data.val_images.examples
        by_name = sorted(range(len(examples)), key=lambda index: examples[index].image)
        chosen = by_name[: max(dashboard.images for dashboard in awaiting)]
        states = random_states()
        panels = caption_panels(pl_module, data, chosen) if chosen else []
        histograms = self._gradients
        if any(dashboard.histograms for dashboard in awaiting):
            entropy = entropy_histogram(pl_module, data, chosen or by_name[:1])
            histograms = {**histograms, "attention/entropy": entropy}
        set_random_states(states)
        for dashboard in awaiting:
            dashboard.log_panels(panels, step)
            dashboard.log_histograms(histograms, step)

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        log, best = metrics_file(trainer), best_of(trainer)
        files = [log.path.with_name(name) for name in (BEST, METRICS, "learning_curve.png")]
        monitor, choose = str(best.monitor), max if best.mode == "max" else min
        if rank() or best.best_model_score is None or not files[0].is_file():
            return
        rows = [row for row in log.rows if monitor in row]
        for dashboard in self._dashboards:
            dashboard.log_best([file for file in files if file.is_file()], choose(rows, key=lambda row: row[monitor]))


@torch.no_grad()
def caption_panels(module: CaptioningModule, data: CaptionDataModule, indices: Sequence[int]) -> list[ImagePanel]:
    """Caption validation images, with the attention map of each word."""
    images = data.val_images.images(indices).to(module.device)
    panels = []
    for index, image, (best, *_) in zip(indices, images, module.generate(images), strict=True):
        example, words = data.val_images.examples[index], module.vocabulary.decode(best.tokens)
        references = tuple(caption.written or " ".join(caption.words) for caption in example.captions)
        try:
            photograph = open_image(Path(example.path))
        except UserError:  # the image file is missing, of which training needs only the grid
            picture = None
        else:
            width, height = photograph.size
            seen = module.encoder.preprocessing.crop_box(width, height).scaled(1 / width, 1 / height)
            maps, boxes = module.encoder.arrange(best.attention.float().cpu().numpy(), image, seen)
            gates = best.gates.float().cpu().numpy()
            picture = draw_panel(photograph, words, maps, gates, boxes.scaled(width, height))
        panels.append(ImagePanel(example.image, module.vocabulary.text(best.tokens), references, picture))
    return panels


@torch.no_grad()
def entropy_histogram(module: CaptioningModule, data: CaptionDataModule, indices: Sequence[int]) -> Histogram:
    """Return the distribution of attention entropies over the words of validation images' reference captions."""
    examples = [data.val_images.examples[index] for index in indices]

    def images(positions: Sequence[int], draw: tuple[int, int] = (0, 0)) -> Tensor:
        return data.val_images.images([indices[position] for position in positions], draw)

    captions = CaptionDataset(examples, module.vocabulary, images)
    batch = captions[list(range(len(captions)))]
    tokens = batch.tokens.to(module.device)
    outputs = module(batch.images.to(module.device), batch.image_index.to(module.device), tokens)
    return histogram(entropies(outputs)[tokens != PAD])


def histogram(values: Tensor) -> Histogram:
    """Return a histogram of the finite values, in 64 equal bins from the smallest to the largest."""
    finite = values.detach()[values.isfinite()].float()
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 0.0)
    if low == high:
        low, high = low - 0.5, high + 0.5
    counts = torch.histc(finite, 64, low, high)
    return Histogram(counts.cpu().long().numpy(), torch.linspace(low, high, 64 + 1, dtype=torch.float64).numpy())
