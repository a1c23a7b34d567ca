"""Where a run's figures go: its CSV file, and wandb's dashboards."""

import csv
import io
import netrc
import os
from pathlib import Path
from typing import Any
from urllib.parse import urlparse

from omegaconf import DictConfig
from pytorch_lightning.loggers import Logger, WandbLogger
from pytorch_lightning.utilities import rank_zero_only

from showattendtell.config.build import build
from showattendtell.config.check import TARGET
from showattendtell.files import whole_file

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

    @rank_zero_only
    def log_metrics(self, metrics: dict[str, float], step: int | None = None) -> None:
        self.rows.append({**metrics, "step": step})

    def finalize(self, status: str) -> None:
        """Every row is written when it is logged."""

    def log_hyperparams(self, *_: Any, **__: Any) -> None:
        """The run's configuration is beside the file already."""

    @rank_zero_only
    def save(self) -> None:
        text = io.StringIO(newline="")
        writer = csv.DictWriter(text, sorted({name for row in self.rows for name in row}))
        writer.writeheader()
        writer.writerows(self.rows)
        with whole_file(self.path) as stream:
            stream.write(text.getvalue().encode())


def chosen_loggers(config: DictConfig, folder: Path) -> list[Logger]:
    """The logger that `logger=` chose, if it is another than CSV."""
    if not config.get("logger") or TARGET not in config.logger:
        return []
    return [build(config.logger, save_dir=str(folder))]


def wandb_logger(save_dir: str, project: str = "showattendtell") -> WandbLogger:
    """A logger to wandb; without an account the run is kept in `save_dir`, and wandb prints the command to upload it.

    Args:
        project: the project on wandb.
    """
    if "WANDB_MODE" not in os.environ and not has_account():
        os.environ["WANDB_MODE"] = "offline"
    return WandbLogger(save_dir=save_dir, project=project, offline=os.environ.get("WANDB_MODE") == "offline")


def has_account() -> bool:
    """Whether a key for wandb's server is in the environment or in ~/.netrc, where `wandb login` puts it."""
    if os.environ.get("WANDB_API_KEY"):
        return True
    host = urlparse(os.environ.get("WANDB_BASE_URL", "https://api.wandb.ai")).hostname or ""
    try:
        return netrc.netrc().authenticators(host) is not None
    except (FileNotFoundError, netrc.NetrcParseError):
        return False
