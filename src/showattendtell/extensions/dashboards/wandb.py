"""Lightning's logger of wandb, for runs that resume and for machines without an account, and the captions it shows."""

import os
import shlex
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from io import BytesIO
from pathlib import Path
from typing import Any

import wandb
from hydra.conf import HydraConf
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from PIL import Image
from pytorch_lightning import Trainer
from pytorch_lightning.callbacks import Callback
from pytorch_lightning.loggers import WandbLogger
from pytorch_lightning.utilities import rank_zero_only
from pytorch_lightning.utilities.seed import isolate_rng
from wandb.errors import CommError, UsageError

from showattendtell.datamodules.datamodule import CaptionDataModule
from showattendtell.errors import UserError, first_line
from showattendtell.images.reading import open_image
from showattendtell.inference.pipeline import CaptioningPipeline
from showattendtell.metrics.ngrams import SentenceCIDErD
from showattendtell.runtime.distributed import rank
from showattendtell.settings import NonNegativeInt, Text
from showattendtell.training.checkpointing import is_accumulating
from showattendtell.training.module import CaptioningModule
from showattendtell.types import Example
from showattendtell.visualization.figures import encode

GROUPS = ("dataset", "encoder", "attention", "decoder")
"""Config groups whose options are tags of a run."""

INIT_TIMEOUT, FINISH_TIMEOUT = 20.0, 300.0
"""Seconds that wandb's server has to answer when a run begins, and to take the rest of its data at the end."""

PICTURE_DPI = 80
"""Of a figure of attention maps, whose panels have 2 inches."""

LONGEST = 320
"""Pixels of a photograph's longer side."""

COLUMNS = ["photograph", "name", "caption", "cider", "confidence", "references", "attention"]
"""Of the table: CIDEr-D is in percent, the confidence from 0 to 1; a line has each reference caption."""


@contextmanager
def _abandoned_on_error() -> Iterator[None]:
    """Stop wandb's service if a call fails: otherwise it prints a traceback when the process ends."""
    try:
        yield
    except Exception:
        with suppress(Exception):
            wandb.teardown()
        raise


class WandbDashboard(WandbLogger):
    """Log a run on wandb, and the best checkpoint at its end.

    A resumed run continues the wandb run whose data are in its folder. Without an account or a reachable server, the
    data stay there and the upload command is printed.

    Args:
        save_dir: folder of the run.
        project: the project on wandb.
        name: the run's name; by default that of its folder.
        group: the group of the run; by default the folder of its sweep.
        tags: words to find the run by, in addition to the chosen data, encoder, attention and decoder.
        images: number of validation images that are shown with their captions, the first by name.
    """

    def __init__(
        self,
        save_dir: Path | str = ".",
        project: Text = "showattendtell",
        name: Text | None = None,
        group: Text | None = None,
        tags: Sequence[Text] = (),
        images: NonNegativeInt = 8,
    ):
        self.images = images
        self._folder = Path(save_dir)
        *_, parent, own = self._folder.absolute().parts
        hydra = HydraConfig.get() if HydraConfig.initialized() else HydraConf()
        choices = [hydra.runtime.choices.get(config_group) for config_group in GROUPS]
        sweep = parent if hydra.mode == RunMode.MULTIRUN else None
        super().__init__(
            name=name or f"{parent}/{own}",
            save_dir=self._folder,
            version=next((part.name.rpartition("-")[2] for part in self._parts()), None),
            project=project,
            group=group or sweep,
            tags=[*dict.fromkeys(filter(None, choices)), *tags],
            reinit="create_new",
            log_model=True,
            add_file_policy="immutable",  # the checkpoint is not copied
            settings=wandb.Settings(
                silent=True,
                console="off",
                disable_job_creation=True,
                init_timeout=INIT_TIMEOUT,
                finish_timeout=FINISH_TIMEOUT,
                finish_timeout_raises=True,
            ),
        )
        del self._wandb_init["anonymous"]  # Lightning sets it to None, and wandb warns that it has no effect

    def _parts(self) -> list[Path]:
        """Return the folders with wandb's data of this run: one for each time that it was resumed."""
        return sorted(self._folder.glob("wandb/*run-*-*"))

    @rank_zero_only
    def log_hyperparams(self, params: Any) -> None:
        """Begin the run, with the settings of training."""
        # uploads wait there; by default in the user's home
        os.environ["WANDB_DATA_DIR"] = str(self._folder.absolute() / "wandb")
        try:
            if "WANDB_MODE" not in os.environ and not wandb.login(prompt=False, verify=False):
                self._wandb_init["mode"] = "offline"
            super().log_hyperparams(params)
        except (CommError, UsageError, TimeoutError) as error:
            print(f"wandb cannot be reached ({first_line(error)}), so this run is offline")
            self._wandb_init["mode"] = "offline"
            super().log_hyperparams(params)

    @rank_zero_only
    @_abandoned_on_error()
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        super().log_metrics(metrics, step)

    @rank_zero_only
    @_abandoned_on_error()
    def finalize(self, status: str) -> None:
        """Upload the best checkpoint, wait for pending uploads, and print where the run is."""
        super().finalize(status)
        run = self.experiment
        address = None if run.offline else run.url
        run.finish(exit_code=0 if status == "success" else 1)
        if address:
            print(f"the run is at {address}")
        elif parts := self._parts():
            command = shlex.join(["wandb", "sync", *map(str, parts)])
            print(f"the wandb run is kept offline; upload it with\n  {command}")


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
        self._score = self._score or SentenceCIDErD(map(_references, examples)).percent
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
                "\n".join(caption.sentence for caption in example.captions),
                wandb.Image(attention, file_type="jpg"),
            ]


def _references(example: Example) -> list[Sequence[str]]:
    return [caption.words for caption in example.captions]
