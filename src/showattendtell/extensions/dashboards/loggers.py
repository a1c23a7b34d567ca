"""Lightning's logger of wandb, for runs that resume and for machines without an account."""

import os
import shlex
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import wandb
from hydra.conf import HydraConf
from hydra.core.hydra_config import HydraConfig
from hydra.types import RunMode
from pytorch_lightning.loggers import WandbLogger
from pytorch_lightning.utilities import rank_zero_only
from wandb.errors import CommError, UsageError

from showattendtell.errors import first_line
from showattendtell.settings import NonNegativeInt, Text

GROUPS = ("dataset", "encoder", "attention", "decoder")
"""Config groups whose options are tags of a run."""

INIT_TIMEOUT, FINISH_TIMEOUT = 20.0, 300.0
"""Seconds that wandb's server has to answer when a run begins, and to take the rest of its data at the end."""


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
