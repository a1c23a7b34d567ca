"""Dashboards that never abort a run."""

import os
import shlex
import sys
from abc import abstractmethod
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import numpy as np
from PIL import Image
from pytorch_lightning.loggers import Logger, TensorBoardLogger, WandbLogger
from pytorch_lightning.utilities import rank_zero_only

from showattendtell import __version__
from showattendtell.config.entry_point import read_origin
from showattendtell.config.validation import sentence
from showattendtell.errors import UserError, first_line
from showattendtell.settings import NonNegativeInt, Text, leaves

Item = TypeVar("Item")

WANDB_DATA = os.environ.get("WANDB_DATA_DIR")
"""Folder of uploads that the user has set; by default they wait in the run's folder instead of the user's home."""

INIT_TIMEOUT, FINISH_TIMEOUT = 20.0, 300.0
"""Seconds that wandb's server has to answer when a run begins, and to take the rest of its data at the end."""


class ImagePanel(NamedTuple):
    """An image, its generated caption with CIDEr-D in percent and confidence from 0 to 1, its reference captions, and a
    picture of the attention at each word if the image file is there. The fields are columns on wandb."""

    image: str
    caption: str
    cider: float
    confidence: float
    references: tuple[str, ...]
    attention: Image.Image | None


class Dashboard(Logger):
    """One of Lightning's loggers, from which it protects the run: theirs raise when a server or a disk fails.

    A call that raises is reported in one sentence and disables the dashboard for the rest of the run.

    Args:
        images: number of validation images that it shows.
    """

    name, version = "", ""
    kind: str
    """Name of the dashboard in messages and in checkpoints."""

    def __init__(self, images: int = 0):
        super().__init__()
        self.images = images
        self.id = ""
        self._logger: Any = None
        self._enabled = False

    @abstractmethod
    def start(self, folder: Path, settings: Mapping[str, Any]) -> Logger:
        """Return Lightning's logger of a new run, or of the run `id`, with the settings of training; set `id`."""

    @abstractmethod
    def show_panels(self, panels: Sequence[ImagePanel], step: int) -> None: ...

    def show_best(self, files: Sequence[Path], figures: Mapping[str, float]) -> None:
        """Upload the best checkpoint with its files, and the metrics of its validation, if the dashboard has files."""

    @abstractmethod
    def close(self, succeeded: bool) -> str:
        """Wait for pending uploads; return a message for the user."""

    def abandon(self) -> None:
        """Drop what would fail at the end of this process."""

    @property
    def experiment(self) -> Any:
        """The run of the dashboard's own library; None while the dashboard is closed or disabled."""
        return self._logger.experiment if self._enabled else None

    @rank_zero_only
    def open(self, folder: Path, settings: Mapping[str, Any]) -> None:
        """Open the dashboard, or reopen it for the run `id`."""
        self._enabled = True
        self._logger = self.attempt(lambda: self.start(folder, settings))

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        self.attempt(lambda: self._logger.log_metrics(metrics, step))

    def log_hyperparams(self, *_: Any, **__: Any) -> None:
        """Do nothing: the dashboard receives the configuration when it is opened."""

    @rank_zero_only
    def finalize(self, status: str) -> None:
        message = self.attempt(lambda: self.close(status == "success"))
        self._enabled = False
        if message:
            print(message)

    def attempt(self, call: Callable[[], Item]) -> Item | None:
        """Call the dashboard, unless it is closed or disabled; return None if that fails."""
        if not self._enabled:
            return None
        try:
            return call()
        except Exception as error:
            self._enabled = False
            print(
                f"warning: {self.kind} is switched off for the rest of this run ({sentence(error)}); the run itself "
                "continues, and metrics.csv has the figures of each epoch",
                file=sys.stderr,
            )
        with suppress(Exception):
            self.abandon()
        return None


class TensorBoardDashboard(Dashboard):
    """Log the run to TensorBoard event files in its own folder; a resumed run gets a further file.

    Args:
        images: number of validation images that are shown with their captions, the first by name.
    """

    kind = "TensorBoard"

    def __init__(self, images: NonNegativeInt = 8):
        super().__init__(images)
        if find_spec("tensorboard") is None:
            raise UserError(
                "logger=tensorboard needs the package tensorboard; run pip install 'showattendtell[tensorboard]'"
            )

    def start(self, folder: Path, settings: Mapping[str, Any]) -> Logger:
        from torch.utils.tensorboard.summary import hparams

        logger = TensorBoardLogger(folder, name="", version="tensorboard", flush_secs=1)
        plain = {}
        for name, value in leaves("", settings):
            plain[name] = value if type(value) in (int, float, str) else str(value)
        # without the summary of an experiment, TensorBoard's table of runs compares all metrics
        for summary in hparams(plain, {})[1:]:
            logger.experiment.file_writer.add_summary(summary)
        return logger

    def show_panels(self, panels: Sequence[ImagePanel], step: int) -> None:
        for panel in panels:
            scores = f"CIDEr {panel.cider:.1f}, confidence {panel.confidence:.2f}"
            references = (f"- {reference}" for reference in panel.references)
            text = "\n".join([f"**{panel.caption}**", "", scores, "", *references])
            name = f"val/captions/{panel.image}"
            self.experiment.add_text(name, text, step)
            if panel.attention:
                self.experiment.add_image(name, np.asarray(panel.attention), step, dataformats="HWC")

    def close(self, succeeded: bool) -> str:
        self.experiment.close()
        return f"TensorBoard shows the run with\n  {shlex.join(['tensorboard', '--logdir', self._logger.save_dir])}"


class WandbDashboard(Dashboard):
    """Log the run on wandb; without an account or a reachable server, it is kept in its own folder and the upload
    command is printed.

    Args:
        project: the project on wandb.
        name: the run's name; by default that of its folder.
        group: the group of the run; by default the one of its sweep.
        tags: words to find the run by, in addition to the chosen data, encoder, attention and decoder.
        images: number of validation images that are shown with their captions, the first by name.
    """

    kind = "wandb"

    def __init__(
        self,
        project: Text = "showattendtell",
        name: Text | None = None,
        group: Text | None = None,
        tags: Sequence[Text] = (),
        images: NonNegativeInt = 8,
    ):
        super().__init__(images)
        self._project, self._name, self._group, self._tags = project, name, group, tags

    def start(self, folder: Path, settings: Mapping[str, Any]) -> Logger:
        import wandb
        from wandb.errors import CommError, UsageError

        try:
            if "WANDB_MODE" in os.environ or wandb.login(prompt=False, verify=False):
                return self._start(folder, settings, None)
        except (CommError, UsageError, TimeoutError) as error:
            print(f"wandb cannot be reached ({first_line(error)}), so this run is offline")
        return self._start(folder, settings, "offline")

    def _start(self, folder: Path, settings: Mapping[str, Any], mode: str | None) -> WandbLogger:
        import wandb

        group, tags = read_origin(folder)
        place = Path(os.environ.get("WANDB_DIR", folder))
        place.mkdir(parents=True, exist_ok=True)
        os.environ["WANDB_DATA_DIR"] = WANDB_DATA or str(place / "wandb")
        logger = WandbLogger(
            name=self._name or "/".join(folder.absolute().parts[-2:]),
            save_dir=place,
            version=self.id or None,
            project=self._project,
            group=self._group or group,
            tags=[*tags, *self._tags],
            config={**settings, "version": __version__},
            mode=mode,
            reinit="create_new",
            settings=wandb.Settings(
                silent=True,
                console="off",
                disable_job_creation=True,
                init_timeout=INIT_TIMEOUT,
                finish_timeout=FINISH_TIMEOUT,
                finish_timeout_raises=True,
            ),
        )
        self.id = logger.experiment.id
        return logger

    def show_panels(self, panels: Sequence[ImagePanel], step: int) -> None:
        import wandb

        rows = []
        for image, caption, cider, confidence, references, attention in panels:
            picture = attention and wandb.Image(attention, caption=caption, file_type="jpg")
            rows.append([image, caption, cider, confidence, "\n".join(references), picture])
        self._logger.log_table("val/captions", list(ImagePanel._fields), rows, step=step)

    def show_best(self, files: Sequence[Path], figures: Mapping[str, float]) -> None:
        import wandb

        artifact = wandb.Artifact(f"best-{self.id}", type="model", metadata=dict(figures))
        for file in files:
            artifact.add_file(str(file.absolute()), file.name, skip_cache=True, policy="immutable")
        self.experiment.log_artifact(artifact, aliases=["best"])
        self.experiment.summary.update({f"best/{name}": value for name, value in figures.items()})

    def close(self, succeeded: bool) -> str:
        run = self.experiment
        address = None if run.offline else run.url
        run.finish(exit_code=0 if succeeded else 1)
        if address:
            return f"the run is at {address}"
        parts = sorted(Path(run.settings.sync_dir).parent.glob(f"offline-run-*-{self.id}"))
        command = shlex.join(["wandb", "sync", *map(str, parts)])
        return f"the wandb run is kept offline; upload it with\n  {command}" if parts else "wandb is disabled"

    def abandon(self) -> None:
        import wandb

        wandb.teardown()
