"""Callback that opens dashboards and shows captions, attention maps and the best checkpoint."""

from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from io import BytesIO
from pathlib import Path
from typing import Any

from PIL import Image
from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.callbacks import Callback
from pytorch_lightning.utilities.seed import isolate_rng
from torch import Tensor

from showattendtell.config.validation import with_defaults
from showattendtell.data.images import open_image
from showattendtell.datamodules.datamodule import CaptionDataModule
from showattendtell.errors import UserError
from showattendtell.extensions.dashboards.loggers import Dashboard, ImagePanel
from showattendtell.inference.checkpoints import METADATA_KEY
from showattendtell.inference.pipeline import CaptioningPipeline
from showattendtell.metrics.ngrams import make_scorer
from showattendtell.runtime.distributed import rank
from showattendtell.runtime.files import BEST, METRICS
from showattendtell.training.checkpointing import is_accumulating
from showattendtell.training.module import CaptioningModule
from showattendtell.training.progress import CURVE, best_of
from showattendtell.types import Example
from showattendtell.visualization.figures import encode

Scorer = Callable[..., float]

PICTURE_DPI = 80
"""Of a figure, whose panels have 2 inches."""

NO_PHOTOGRAPH = Image.new("RGB", (1, 1))


class DashboardCallback(Callback):
    """Opens the dashboards, shows captions and attention maps of a few images after each validation, and the best
    checkpoint at the end.

    The images are the first of the validation split by name, so all runs on one data set show the same ones. Drawing
    them does not change the run's random numbers. Only the first process has dashboards.
    """

    def __init__(self) -> None:
        self._dashboards: Sequence[Dashboard] = ()
        self._ids: dict[str, str] = {}
        self._score: Scorer | None = None

    def load_state_dict(self, state: dict[str, Any]) -> None:
        self._ids = dict(state["ids"])

    def state_dict(self) -> dict[str, Any]:
        return {"ids": {**self._ids, **{board.kind: board.id for board in self._dashboards}}}

    def on_fit_start(self, trainer: Trainer, pl_module: CaptioningModule) -> None:  # type: ignore[override]
        if trainer.fast_dev_run:  # type: ignore[attr-defined]
            return
        self._dashboards = [logger for logger in trainer.loggers if isinstance(logger, Dashboard)]
        settings = pl_module.metadata.get(METADATA_KEY, {}).get("config", {})
        with isolate_rng():
            for dashboard in self._dashboards:
                dashboard.id = self._ids.get(dashboard.kind, "")
                dashboard.open(Path(trainer.default_root_dir), with_defaults(settings))

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: CaptioningModule) -> None:  # type: ignore[override]
        step = trainer.global_step - (not is_accumulating(trainer))  # the number that Lightning logs
        awaiting = [dashboard for dashboard in self._dashboards if dashboard.images]
        data = getattr(trainer, "datamodule", None)
        if not awaiting or not isinstance(data, CaptionDataModule):
            return
        images, examples = data.val_images.images, data.val_images.examples
        by_name = sorted(range(len(examples)), key=lambda index: examples[index].image)
        with isolate_rng():
            self._score = self._score or make_scorer([_references(example) for example in examples])
            for dashboard in awaiting:
                chosen = by_name[: dashboard.images]
                panels = caption_panels(pl_module, images(chosen), [examples[index] for index in chosen], self._score)
                dashboard.attempt(partial(dashboard.show_panels, panels, step))

    def on_train_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        log: Any = trainer.logger  # the metrics file
        best, folder = best_of(trainer), Path(trainer.default_root_dir)
        files = [folder / name for name in (BEST, METRICS, CURVE)]
        if rank() or best.best_model_score is None or not files[0].is_file():
            return
        monitor, choose = str(best.monitor), max if best.mode == "max" else min
        figures = choose((row for row in log.rows if monitor in row), key=lambda row: row[monitor])
        files = [file for file in files if file.is_file()]
        for dashboard in self._dashboards:
            dashboard.attempt(partial(dashboard.show_best, files, figures))


def caption_panels(
    module: CaptioningModule, images: Tensor, examples: Sequence[Example], score: Scorer
) -> list[ImagePanel]:
    """Caption validation images, with the attention map of each word.

    Args:
        score: CIDEr-D in percent of a caption and its references.
    """
    photographs = dict.fromkeys((example.image for example in examples), NO_PHOTOGRAPH)
    for example in examples:
        with suppress(UserError):  # training needs only the grid, not the file
            photographs[example.image] = open_image(Path(example.path))
    outputs = CaptioningPipeline.from_module(module, seed=None).describe(list(photographs.items()), [images])
    panels = []
    for example, output in zip(examples, outputs, strict=True):
        picture = None
        if photographs[example.image] is not NO_PHOTOGRAPH:
            picture = Image.open(BytesIO(encode(output.plot(dpi=PICTURE_DPI)))).convert("RGB")
        references = tuple(caption.written or " ".join(caption.words) for caption in example.captions)
        cider = score(module.vocabulary.decode(output.tokens), _references(example))
        panels.append(ImagePanel(example.image, output.caption, cider, output.confidence, references, picture))
    return panels


def _references(example: Example) -> list[tuple[str, ...]]:
    return [caption.words for caption in example.captions]
