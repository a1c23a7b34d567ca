"""The private parts of Lightning and torch that training uses are still there, and do what they did."""

import ast
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as lightning
import torch
from pytorch_lightning.callbacks import Callback
from torch.utils.data import DataLoader

import showattendtell
from showattendtell.training import checkpointing


class Line(lightning.LightningModule):
    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(1, 1)

    def training_step(self, batch: torch.Tensor, index: int) -> torch.Tensor:
        return self.layer(batch).sum()

    def validation_step(self, batch: torch.Tensor, index: int) -> None: ...

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1)


class Observer(Callback):
    def __init__(self) -> None:
        self.accumulating: list[bool] = []
        self.between: list[bool] = []
        self.validation: dict[str, int] = {}

    def on_train_batch_end(self, trainer: lightning.Trainer, *_: Any) -> None:
        self.accumulating.append(checkpointing.is_accumulating(trainer))
        self.between.append(checkpointing.is_between_steps(trainer))

    def on_save_checkpoint(self, trainer: lightning.Trainer, module: Any, checkpoint: dict[str, Any]) -> None:
        checkpointing.mark_validation_as_begun(checkpoint)
        self.validation = checkpoint["loops"]["fit_loop"][checkpointing.VALIDATION_PROGRESS]["total"]


def trainer_of(folder: Path, observer: Observer, **settings: Any) -> lightning.Trainer:
    """A Trainer of one epoch whose steps have two batches."""
    quiet = {"logger": False, "enable_progress_bar": False, "enable_checkpointing": False, "accelerator": "cpu"}
    return lightning.Trainer(
        max_epochs=1, accumulate_grad_batches=2, callbacks=[observer], default_root_dir=folder, **quiet, **settings
    )


@pytest.mark.filterwarnings("ignore")
def test_the_progress_of_an_epoch_is_read_as_lightning_counts_it(tmp_path: Path):
    """Six batches, two a step, validation after each step."""
    observer, batches = Observer(), DataLoader(torch.ones(6, 1))
    trainer = trainer_of(tmp_path, observer, val_check_interval=2, limit_val_batches=1, num_sanity_val_steps=0)
    trainer.fit(Line(), batches, DataLoader(torch.ones(3, 1)))
    assert observer.accumulating == [True, False, True, False, True, False]
    assert observer.between == [False] * 6
    trainer.save_checkpoint(tmp_path / "line.ckpt")
    assert observer.validation == {"ready": 4, "started": 4, "processed": 3, "completed": 3}


@pytest.mark.filterwarnings("ignore")
def test_a_moment_between_two_steps_is_found(tmp_path: Path):
    observer = Observer()
    trainer_of(tmp_path, observer).fit(Line(), DataLoader(torch.ones(6, 1)))
    assert observer.between == [False, True, False, True, False, False]


PUBLIC = {"_fields", "_asdict", "_replace", "_convert_", "_partial_", "_target_"}
PRIVATE = {"_data_fetcher", "_is_training_done", "_should_check_val_fx", "_should_accumulate"}
PRIVATE |= {"_step_supports_amp_scaling"}


def test_training_uses_no_other_private_parts():
    """Of `self` and of the class they are a module's own."""
    found = set()
    for file in (Path(showattendtell.__file__).parent / "training").rglob("*.py"):
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if not isinstance(node, ast.Attribute) or not node.attr.startswith("_") or node.attr.startswith("__"):
                continue
            if not (isinstance(node.value, ast.Name) and node.value.id in ("self", "os")):
                found.add(node.attr)
    assert found - PUBLIC == PRIVATE
