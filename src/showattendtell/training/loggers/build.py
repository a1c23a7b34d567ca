"""Build a run's loggers: its CSV file and the chosen dashboards."""

import csv
import io
import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple

from hydra.types import RunMode
from omegaconf import DictConfig, OmegaConf
from pytorch_lightning.loggers import Logger
from pytorch_lightning.utilities import rank_zero_only

from showattendtell.config.instantiate import build
from showattendtell.errors import UserError
from showattendtell.runtime.files import atomic_write
from showattendtell.settings import NonNegativeInt, Text
from showattendtell.training.loggers.dashboard import Dashboard, DashboardBackend
from showattendtell.training.loggers.wandb import RunLabel, open_wandb

TAGS = ("dataset", "encoder", "attention", "decoder")
"""Config groups whose options become tags of a run."""

METRICS = "metrics.csv"


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
        self._is_told = False

    @rank_zero_only
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.rows.append({**metrics, "step": step})

    def finalize(self, status: str) -> None:
        """Do nothing: every row is written when it is logged."""

    def log_hyperparams(self, *_: Any, **__: Any) -> None:
        """Do nothing: the run's configuration is already in the same folder."""

    @rank_zero_only
    def save(self) -> None:
        """Write all rows; a failure is reported once, and the next call writes these rows too."""
        try:
            self._write()
        except OSError as fault:
            if not self._is_told:
                print(
                    f"warning: {self.path} cannot be written ({fault.strerror}); the run goes on, and what is missing "
                    "is written with the next figures",
                    file=sys.stderr,
                )
            self._is_told = True

    def _write(self) -> None:
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, sorted({name for row in self.rows for name in row}))
        writer.writeheader()
        writer.writerows(self.rows)
        with atomic_write(self.path) as stream:
            stream.write(text.getvalue().encode())


def figures_in(file: Path) -> set[tuple[int, str]]:
    """Return the step and the name of every value in a `metrics.csv`; empty if there is no such file."""
    if not file.is_file():
        return set()
    with file.open(encoding="utf-8", newline="") as rows:
        return {(int(row["step"]), name) for row in csv.DictReader(rows) for name, value in row.items() if value}


def chosen_loggers(config: DictConfig, folder: Path) -> list[Dashboard]:
    """Return the dashboards that `logger=` chooses."""
    nodes = [node for node in (config.get("logger") or {}).values() if isinstance(node, DictConfig)]
    settings: Any = OmegaConf.to_container(config, resolve=True)
    return [build(node, folder=folder, config=settings) for node in nodes]


def wandb_logger(
    folder: Path,
    config: Mapping[str, Any],
    project: Text = "showattendtell",
    name: Text | None = None,
    group: Text | None = None,
    tags: Sequence[Text] = (),
    images: NonNegativeInt = 8,
    histograms: bool = False,
) -> Dashboard:
    """Log the run on wandb; without an account or a reachable server, it is kept in its own folder and the upload
    command is printed.

    Args:
        project: the project on wandb.
        name: the run's name; by default that of its folder.
        group: the group of the run; by default the one of its sweep.
        tags: words to find the run by, in addition to the chosen data, encoder, attention and decoder.
        images: number of validation images that are shown with their captions, the first by name.
        histograms: also show the distributions of gradients and attention entropies.
    """
    origin = read_origin(folder)
    label = RunLabel(
        project, name or "/".join(folder.absolute().parts[-2:]), group or origin.group, (*origin.choices, *tags)
    )

    def open_board(run_id: str) -> DashboardBackend:
        return open_wandb(folder, label, config, run_id)

    return Dashboard("wandb", open_board, images, histograms)


def tensorboard_logger(
    folder: Path, config: Mapping[str, Any], images: NonNegativeInt = 8, histograms: bool = False
) -> Dashboard:
    """Log the run to TensorBoard event files in its own folder.

    Args:
        images: number of validation images that are shown with their captions, the first by name.
        histograms: also show the distributions of gradients and attention entropies.
    """
    if find_spec("tensorboard") is None:
        raise UserError(
            "logger=tensorboard needs the package tensorboard; run pip install 'showattendtell[tensorboard]'"
        )

    def open_board(_: str) -> DashboardBackend:
        from showattendtell.training.loggers.tensorboard import TensorBoardBackend

        return TensorBoardBackend(folder / "tensorboard", config)

    return Dashboard("TensorBoard", open_board, images, histograms)


class SweepOrigin(NamedTuple):
    """The sweep of a run, by its folder's name, and the overrides of the run."""

    group: str | None
    choices: tuple[str, ...]


def read_origin(folder: Path) -> SweepOrigin:
    """Read the sweep from the files that Hydra wrote to the run's folder."""
    file = folder / "config/hydra.yaml"
    if not file.is_file():
        return SweepOrigin(None, ())
    content: Any = OmegaConf.to_container(OmegaConf.load(file), resolve=False)  # interpolations stay unresolved
    hydra = content["hydra"]
    choices = hydra["runtime"]["choices"]
    tags = [str(choices[group]) for group in TAGS if choices.get(group)]
    is_sweep = hydra["mode"] == RunMode.MULTIRUN.name
    return SweepOrigin(folder.absolute().parent.name if is_sweep else None, tuple(dict.fromkeys(tags)))
