"""Callback that shows captions and attention maps of validation images on wandb."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from io import BytesIO
from pathlib import Path
from typing import Any

import wandb
from PIL import Image
from pytorch_lightning import Trainer
from pytorch_lightning.callbacks import Callback
from pytorch_lightning.utilities.seed import isolate_rng

from showattendtell.datamodules.datamodule import CaptionDataModule
from showattendtell.errors import UserError
from showattendtell.extensions.dashboards.loggers import WandbDashboard
from showattendtell.images.reading import open_image
from showattendtell.inference.pipeline import CaptioningPipeline
from showattendtell.metrics.ngrams import make_scorer
from showattendtell.runtime.distributed import rank
from showattendtell.training.checkpointing import is_accumulating
from showattendtell.training.module import CaptioningModule
from showattendtell.types import Example
from showattendtell.visualization.figures import encode

PICTURE_DPI = 80
"""Of a figure of attention maps, whose panels have 2 inches."""

LONGEST = 320
"""Pixels of a photograph's longer side."""

COLUMNS = ["photograph", "name", "caption", "cider", "confidence", "references", "attention"]
"""Of the table: CIDEr-D is in percent, the confidence from 0 to 1; a line has each reference caption."""


class CaptionPanels(Callback):
    """Shows captions and attention maps of a few images on wandb after each validation.

    The images are the first of the validation split by name, so all runs on one data set show the same ones. Drawing
    them does not change the run's random numbers.
    """

    def __init__(self) -> None:
        self._score: Callable[..., float] | None = None

    def on_validation_epoch_end(self, trainer: Trainer, pl_module: CaptioningModule) -> None:  # type: ignore[override]
        data = getattr(trainer, "datamodule", None)
        boards = [logger for logger in trainer.loggers if isinstance(logger, WandbDashboard)]
        if rank() or not isinstance(data, CaptionDataModule):
            return
        step = trainer.global_step - (not is_accumulating(trainer))  # the number that Lightning logs
        with isolate_rng():
            for board in boards:
                if rows := [*self._rows(pl_module, data, board.images)]:
                    board.log_table("val/captions", COLUMNS, rows, step=step)

    def _rows(self, module: CaptioningModule, data: CaptionDataModule, number: int) -> Iterator[list[Any]]:
        """Yield rows of the table: the first images of which there are photographs; training needs only their grids."""
        examples = data.val_images.examples
        self._score = self._score or make_scorer([_references(example) for example in examples])
        photographs: dict[int, Image.Image] = {}
        for index in sorted(range(len(examples)), key=lambda index: examples[index].image):
            if len(photographs) < number:
                with suppress(UserError):
                    photographs[index] = open_image(Path(examples[index].path))
        if not photographs:
            return
        pictures = [(examples[index].image, photograph) for index, photograph in photographs.items()]
        pipeline = CaptioningPipeline.from_module(module, seed=None)
        outputs = pipeline.describe(pictures, [data.val_images.images([*photographs])])
        for example, output in zip(map(examples.__getitem__, photographs), outputs, strict=True):
            output.photograph.thumbnail((LONGEST, LONGEST))
            attention = Image.open(BytesIO(encode(output.plot(dpi=PICTURE_DPI)))).convert("RGB")
            yield [
                wandb.Image(output.photograph, file_type="jpg"),
                example.image,
                output.caption,
                self._score(module.vocabulary.decode(output.tokens), _references(example)),
                output.confidence,
                "\n".join(caption.written or " ".join(caption.words) for caption in example.captions),
                wandb.Image(attention, file_type="jpg"),
            ]


def _references(example: Example) -> list[Sequence[str]]:
    return [caption.words for caption in example.captions]
