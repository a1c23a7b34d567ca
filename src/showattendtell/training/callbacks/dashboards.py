"""Dashboard callback: shows captions, attention maps, histograms and the best checkpoint."""

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytorch_lightning as lightning
import torch
from PIL import Image
from pytorch_lightning.callbacks import Callback, ModelCheckpoint
from torch import Tensor

from showattendtell.data.images import open_image
from showattendtell.data.vocabulary import PAD
from showattendtell.datamodules.datamodule import CaptionDataModule
from showattendtell.datamodules.datasets import CaptionDataset
from showattendtell.errors import UserError
from showattendtell.metrics.attention import entropies
from showattendtell.runtime.distributed import rank
from showattendtell.runtime.files import BEST
from showattendtell.runtime.random_states import random_states, set_random_states
from showattendtell.training.lightning_internals import logged_step
from showattendtell.training.loggers.build import METRICS, MetricsFile, figures_in
from showattendtell.training.loggers.dashboard import Dashboard, Histogram, ImagePanel
from showattendtell.training.module import CaptioningModule
from showattendtell.types import CaptionOutput, Example
from showattendtell.visualization.heatmaps import draw_panel

BINS = 64


class DashboardCallback(Callback):
    """Opens the dashboards, shows captions and attention maps of a few images after each validation, and the best
    checkpoint at the end.

    The images are the first of the validation split by name, so all runs on one data set show the same ones. Drawing
    them does not change the run's random numbers. Only the first process has dashboards.
    """

    def __init__(self, dashboards: Sequence[Dashboard], log: MetricsFile, best: ModelCheckpoint):
        self._dashboards, self._log, self._best = dashboards, log, best
        self._ids: dict[str, str] = {}
        self._shown: set[tuple[int, str]] = set()
        self._gradients: dict[str, Histogram] = {}

    def setup(self, trainer: lightning.Trainer, module: lightning.LightningModule, stage: str) -> None:
        """Open the dashboards before the run's log is cut back to the checkpoint: dashboards cannot be cut back."""
        if trainer.ckpt_path:
            self._shown = figures_in(self._log.path)

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._ids = dict(state["ids"])

    def state_dict(self) -> dict[str, Any]:
        return {"ids": {**self._ids, **{board.kind: board.id for board in self._dashboards}}}

    def on_fit_start(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        if trainer.fast_dev_run:  # type: ignore[attr-defined]
            self._dashboards = ()
        states = random_states()
        for dashboard in self._dashboards:
            dashboard.id = self._ids.get(dashboard.kind, "")
            dashboard.open(self._shown)
        set_random_states(states)

    def on_before_optimizer_step(
        self, trainer: lightning.Trainer, module: lightning.LightningModule, optimizer: torch.optim.Optimizer
    ) -> None:
        wanted = rank() == 0 and any(dashboard.histograms for dashboard in self._dashboards)
        if wanted and trainer.global_step % trainer.log_every_n_steps == 0:  # type: ignore[attr-defined]
            self._gradients = gradient_histograms(module)

    def on_validation_epoch_end(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        step = logged_step(trainer)
        awaiting = [dashboard for dashboard in self._dashboards if dashboard.awaits(step)]
        data = getattr(trainer, "datamodule", None)
        if not awaiting or not isinstance(module, CaptioningModule) or not isinstance(data, CaptionDataModule):
            return
        chosen = first_by_name(data, max(dashboard.images for dashboard in awaiting))
        states = random_states()
        panels = portray(module, data, chosen) if chosen else []
        histograms = self._gradients
        if any(dashboard.histograms for dashboard in awaiting):
            histograms = histograms | entropy_histogram(module, data, chosen or first_by_name(data, 1))
        set_random_states(states)
        for dashboard in awaiting:
            dashboard.log_panels(panels, step)
            dashboard.log_histograms(histograms, step)

    def on_train_end(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        files = [self._log.path.with_name(name) for name in (BEST, METRICS, "learning_curve.png")]
        if rank() or self._best.best_model_score is None or not files[0].is_file():
            return
        figures = best_figures(self._log.rows, str(self._best.monitor), self._best.mode)
        for dashboard in self._dashboards:
            dashboard.log_best([file for file in files if file.is_file()], figures)


def best_figures(rows: Sequence[Mapping[str, Any]], metric: str, mode: str) -> dict[str, float]:
    """Return the row of the log with the best value of a metric; the first of equal ones."""
    choose = max if mode == "max" else min
    return dict(choose((row for row in rows if metric in row), key=lambda row: row[metric]))


def first_by_name(data: CaptionDataModule, number: int) -> list[int]:
    """Return the indices of the first validation images by name."""
    examples = data.val_images.examples
    return sorted(range(len(examples)), key=lambda place: examples[place].image)[:number]


@torch.no_grad()
def portray(module: CaptioningModule, data: CaptionDataModule, places: Sequence[int]) -> list[ImagePanel]:
    """Caption validation images, with the attention map of each word."""
    images = data.val_images.images(places).to(module.device)
    examples = [data.val_images.examples[place] for place in places]
    return [
        _portray(module, example, best) for example, (best, *_) in zip(examples, module.generate(images), strict=True)
    ]


def _portray(module: CaptioningModule, example: Example, written: CaptionOutput[torch.Tensor]) -> ImagePanel:
    words = module.vocabulary.decode(written.tokens)
    said = tuple(caption.written or " ".join(caption.words) for caption in example.captions)
    return ImagePanel(example.image, " ".join(words), said, _picture(module, example, words, written))


def _picture(
    module: CaptioningModule, example: Example, words: Sequence[str], written: CaptionOutput[torch.Tensor]
) -> Image.Image | None:
    """Draw the attention maps of a caption; None if the image file is missing (training needs only its grid)."""
    try:
        photograph = open_image(Path(example.path))
    except UserError:
        return None
    maps = written.attention.float().cpu().unflatten(1, module.encoder.grid).numpy()
    seen = module.encoder.preprocessing.crop_box(*photograph.size)
    return draw_panel(photograph, words, maps, written.gates.float().cpu().numpy(), seen)


@torch.no_grad()
def entropy_histogram(module: CaptioningModule, data: CaptionDataModule, places: Sequence[int]) -> dict[str, Histogram]:
    """Return the distribution of attention entropies over the words of validation images' reference captions."""
    examples = [data.val_images.examples[place] for place in places]
    captions = CaptionDataset(examples, module.vocabulary, lambda own: data.val_images.images([places[n] for n in own]))
    batch = captions[list(range(len(captions)))]
    tokens = batch.tokens.to(module.device)
    trace = module.trace(batch.images.to(module.device), batch.image_index.to(module.device), tokens)
    return {"attention/entropy": histogram(entropies(trace)[tokens != PAD])}


def gradient_histograms(module: lightning.LightningModule) -> dict[str, Histogram]:
    """Return a histogram for each parameter of the captioner that has a gradient, before clipping."""
    captioner = module.captioner
    assert isinstance(captioner, torch.nn.Module)
    named = ((name, parameter.grad) for name, parameter in captioner.named_parameters())
    return {f"gradients/{name}": histogram(gradient) for name, gradient in named if gradient is not None}


def histogram(values: Tensor) -> Histogram:
    """Return a histogram of the finite values, in `BINS` equal bins from the smallest to the largest."""
    finite = values.detach()[values.isfinite()].float()
    low, high = (float(finite.min()), float(finite.max())) if len(finite) else (0.0, 0.0)
    if low == high:
        low, high = low - 0.5, high + 0.5
    counts = torch.histc(finite, BINS, low, high)
    return Histogram(counts.cpu().long().numpy(), torch.linspace(low, high, BINS + 1, dtype=torch.float64).numpy())
