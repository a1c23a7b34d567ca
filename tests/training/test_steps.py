"""The point at which an extension computes training steps in its own way."""

import copy
import sys
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest
import pytorch_lightning as lightning
import torch
from quiet_trainer import quiet_trainer

from showattendtell.datamodules.datamodule import ShapesDataModule
from showattendtell.losses.caption import LossOutput
from showattendtell.models import kernels
from showattendtell.training.module import CaptioningModule, StepRunner


class CountingRunner(StepRunner):
    def __init__(self, *parts: Any):
        super().__init__(*parts)
        self.steps = self.kept = 0

    def loss(self, *batch: Any) -> LossOutput:
        self.steps += 1
        return super().loss(*batch)

    def keep_gradients(self, parameters: Any) -> None:
        self.kept += 1

    def describe(self) -> str:
        return f"{self.steps} steps, {self.kept} times kept"


@pytest.fixture
def registered(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Have `CountingRunner` registered for all devices."""
    module: Any = SimpleNamespace(supports=lambda device: True, Runner=CountingRunner)
    monkeypatch.setitem(sys.modules, "counted", module)
    monkeypatch.setitem(kernels.registered, "steps", "counted")
    kernels.device_module.cache_clear()
    yield
    kernels.device_module.cache_clear()


def trained(tmp_path: Any) -> CaptioningModule:
    lightning.seed_everything(0, verbose=False)
    module = CaptioningModule(hidden_dim=16, embedding_dim=16)
    trainer = quiet_trainer(max_steps=4, accumulate_grad_batches=2, limit_val_batches=0)
    trainer.fit(module, ShapesDataModule(40, 5, 1, batch_size=4, cache=tmp_path, seed=0))
    return module


def test_steps_are_computed_by_the_registered_runner(
    tmp_path: Any, request: pytest.FixtureRequest, capsys: pytest.CaptureFixture[str]
):
    plain = trained(tmp_path)
    request.getfixturevalue("registered")
    other = trained(tmp_path)
    assert capsys.readouterr().out.endswith("8 steps, 8 times kept\n")
    assert all(map(torch.equal, plain.state_dict().values(), other.state_dict().values()))
    assert type(copy.deepcopy(other).steps) is StepRunner
