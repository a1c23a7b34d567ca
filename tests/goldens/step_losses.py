"""Write the loss of every training step to a file, and end the process after a step if that is requested."""

import os
import signal
from pathlib import Path
from typing import Any

from pytorch_lightning import LightningModule, Trainer
from pytorch_lightning.callbacks import Callback

STOP_AFTER = "GOLDENS_STOP_AFTER"
"""Environment variable: number of steps after which the process sends itself SIGTERM."""


class StepLosses(Callback):
    """Append the losses of each process to `losses-RANK.txt`, one a line; a resumed run continues the file."""

    def __init__(self, folder: str):
        self._folder = Path(folder)

    def on_train_batch_end(self, trainer: Trainer, module: LightningModule, outputs: Any, *_: Any) -> None:
        self._folder.mkdir(parents=True, exist_ok=True)
        with (self._folder / f"losses-{trainer.global_rank}.txt").open("a") as file:
            file.write(f"{outputs['loss'].item()!r}\n")
        if str(trainer.global_step) == os.environ.get(STOP_AFTER):
            os.kill(os.getpid(), signal.SIGTERM)


def read_losses(folder: Path) -> list[list[float]]:
    """Return the losses of each process."""
    return [[float(line) for line in file.read_text().splitlines()] for file in sorted(folder.glob("losses-*.txt"))]
