"""Where a run's figures go besides its CSV file: wandb's dashboards."""

import netrc
import os
from pathlib import Path
from urllib.parse import urlparse

from omegaconf import DictConfig
from pytorch_lightning.loggers import Logger, WandbLogger

from showattendtell.config.build import build
from showattendtell.config.check import TARGET


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
