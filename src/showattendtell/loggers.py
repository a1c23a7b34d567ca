"""Where a run's figures go: its CSV file, and the dashboards that were chosen."""

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

from showattendtell.arguments import NonNegativeInt, Text
from showattendtell.boards.board import Board, Dashboard
from showattendtell.boards.wandb import Label, open_wandb
from showattendtell.config.build import build
from showattendtell.errors import UserError
from showattendtell.files import whole_file

TAGS = ("dataset", "encoder", "attention", "decoder")
"""The groups whose options a run is found by."""

METRICS = "metrics.csv"


class MetricsFile(Logger):
    """A run's `metrics.csv`: a row each time that figures are logged, a column each.

    Lightning's CSVLogger begins a run that goes on with the removal of what it has, and where a column is added it
    overwrites the file, which a kill or a full disk then leaves cut off.
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
        """Every row is written when it is logged."""

    def log_hyperparams(self, *_: Any, **__: Any) -> None:
        """The run's configuration is beside the file already."""

    @rank_zero_only
    def save(self) -> None:
        """Write all rows; where that fails, which is told once, the next time has them too."""
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
        with whole_file(self.path) as stream:
            stream.write(text.getvalue().encode())


def figures_in(file: Path) -> set[tuple[int, str]]:
    """The step and the name of every figure in a `metrics.csv`; none where there is no such file."""
    if not file.is_file():
        return set()
    with file.open(encoding="utf-8", newline="") as rows:
        return {(int(row["step"]), name) for row in csv.DictReader(rows) for name, value in row.items() if value}


def chosen_loggers(config: DictConfig, folder: Path) -> list[Dashboard]:
    """The dashboards that `logger=` chose."""
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
    """The run on wandb; without an account, or where the server does not answer, it is kept in its own folder, and the
    command that uploads it is printed.

    Args:
        project: the project on wandb.
        name: the run's; that of its folder by default.
        group: the runs beside which it stands; those of its sweep by default.
        tags: words to find it by, besides what was chosen as data, encoder, attention and decoder.
        images: how many validation images are shown with their captions, the first by name.
        histograms: show how gradients and the maps' entropies are distributed, too.
    """
    origin = read_origin(folder)
    label = Label(
        project, name or "/".join(folder.absolute().parts[-2:]), group or origin.group, (*origin.choices, *tags)
    )

    def open_board(run_id: str) -> Board:
        return open_wandb(folder, label, config, run_id)

    return Dashboard("wandb", open_board, images, histograms)


def tensorboard_logger(
    folder: Path, config: Mapping[str, Any], images: NonNegativeInt = 8, histograms: bool = False
) -> Dashboard:
    """The run in TensorBoard's files, in its own folder.

    Args:
        images: how many validation images are shown with their captions, the first by name.
        histograms: show how gradients and the maps' entropies are distributed, too.
    """
    if find_spec("tensorboard") is None:
        raise UserError(
            "logger=tensorboard needs the package tensorboard; run pip install 'showattendtell[tensorboard]'"
        )

    def open_board(_: str) -> Board:
        from showattendtell.boards.tensorboard import TensorBoardBoard

        return TensorBoardBoard(folder / "tensorboard", config)

    return Dashboard("TensorBoard", open_board, images, histograms)


class Origin(NamedTuple):
    """The sweep that a run belongs to, by the name of its folder, and what was chosen for it."""

    group: str | None
    choices: tuple[str, ...]


def read_origin(folder: Path) -> Origin:
    """As Hydra has kept it in the run's folder."""
    file = folder / "config/hydra.yaml"
    if not file.is_file():
        return Origin(None, ())
    hydra = OmegaConf.load(file).hydra
    choices = hydra.runtime.choices
    tags = [str(choices[group]) for group in TAGS if choices.get(group)]
    is_sweep = hydra.mode == RunMode.MULTIRUN.name
    return Origin(folder.absolute().parent.name if is_sweep else None, tuple(dict.fromkeys(tags)))
