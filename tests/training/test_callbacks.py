"""Callbacks of a run, the norms of its gradients, averages of its weights, and how long its epochs took."""

import copy
import math
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as lightning
import torch
from pytorch_lightning.callbacks import Callback
from slow_cases import slow_after
from small_training import small_config, small_run
from torch import Tensor
from torch.optim.swa_utils import AveragedModel

from showattendtell.runtime.files import METRICS
from showattendtell.training.build import build_trainer
from showattendtell.training.optimizers import ExponentialMovingAverage
from showattendtell.visualization.figures import read_metrics

pytestmark = pytest.mark.filterwarnings("ignore")


class Gradients(Callback):
    """The norm of all gradients at each step, by hand."""

    def __init__(self) -> None:
        self.norms: list[float] = []

    def on_before_optimizer_step(self, trainer: lightning.Trainer, module: Any, optimizer: Any) -> None:
        squares = [(p.grad.double() ** 2).sum() for p in module.captioner.parameters() if p.grad is not None]
        self.norms.append(math.sqrt(sum(squares)))


@pytest.mark.parametrize("every", slow_after(1, [2, 1]))
def test_the_norm_of_the_gradients_is_a_mean_over_the_epoch(tmp_path: Path, every: int):
    by_hand = Gradients()
    small_run(small_config(f"++trainer.log_every_n_steps={every}"), tmp_path, callbacks=[by_hand])
    epochs = [[norm for step, norm in enumerate(by_hand.norms) if step // 5 == n and step % every == 0] for n in (0, 1)]
    logged = read_metrics(tmp_path / METRICS)["train/gradient_norm"]
    assert [*logged.values()] == pytest.approx([sum(norms) / len(norms) for norms in epochs], rel=1e-5)


def names(config: Any, folder: Path) -> set[str]:
    return {type(callback).__name__ for callback in build_trainer(config, folder)[0].callbacks}


def test_callbacks_are_added_and_left_out_by_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    monkeypatch.setenv("SHOWATTENDTELL_TRUST", "pytorch_lightning.callbacks")
    without = names(small_config("callbacks.early_stopping=null", "callbacks.finite_loss=null"), tmp_path)
    assert without & {"EarlyStopping", "FiniteLoss"} == set()
    added = names(small_config("+callbacks.summary._target_=pytorch_lightning.callbacks.RichModelSummary"), tmp_path)
    assert added == without | {"EarlyStopping", "FiniteLoss", "RichModelSummary"}


class Weights(Callback):
    """The weights after each step, and those of each validation."""

    def __init__(self) -> None:
        self.trained: list[dict[str, Tensor]] = []
        self.validated: list[dict[str, Tensor]] = []

    def on_train_batch_end(self, trainer: lightning.Trainer, module: lightning.LightningModule, *_: Any) -> None:
        self.trained.append(copy.deepcopy(module.state_dict()))

    def on_validation_batch_start(self, trainer: lightning.Trainer, module: lightning.LightningModule, *_: Any) -> None:
        self.validated.append(copy.deepcopy(module.state_dict()))


def test_validation_and_checkpoints_have_the_moving_average_of_the_weights(tmp_path: Path):
    weights = Weights()
    small_run(small_config("callbacks=ema", "callbacks.ema.decay=0.25"), tmp_path, callbacks=[weights])
    average, averages = weights.trained[0], []
    for step, trained in enumerate(weights.trained[1:], start=1):
        decay = min(0.25, [2 / 11, 3 / 12, 4 / 13][min(step, 3) - 1])
        average = {name: decay * average[name] + (1 - decay) * trained[name] for name in trained}
        averages.append(average)
    assert weights.validated
    torch.testing.assert_close(weights.validated[0], averages[3])
    checkpoint = torch.load(tmp_path / "last.ckpt", weights_only=True)
    torch.testing.assert_close(checkpoint["state_dict"], average)
    assert any(not torch.equal(average[name], weights.trained[-1][name]) for name in average)


def test_the_moving_average_leaves_frozen_weights_as_they_are():
    frozen = torch.nn.Linear(50, 50)
    averaged = AveragedModel(frozen, multi_avg_fn=ExponentialMovingAverage(0.999)._kwargs["multi_avg_fn"])
    for _ in range(20):
        averaged.update_parameters(frozen)
    assert torch.equal(averaged.module.weight, frozen.weight)
