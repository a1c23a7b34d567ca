"""Training in half the precision with loss scaling, and gradient accumulation, against plain training."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import pytorch_lightning as lightning
import torch
from killed_runs import Kills, assert_ends_as, read
from pytorch_lightning.callbacks import Callback
from pytorch_lightning.plugins.precision import MixedPrecision
from slow_cases import slow_after
from small_training import WORDS, small_config, small_run
from torch import Tensor
from torch.optim import Optimizer

from showattendtell.runtime.files import LAST
from showattendtell.types import Caption, Example

pytestmark = pytest.mark.filterwarnings("ignore")


class Half(Callback):
    """What `trainer.precision=16-mixed` is on a GPU, on the processor, where Lightning takes bfloat16 instead."""

    def __init__(self, scale: float = 2.0**10, growth_interval: int = 2000):
        self.scaler = torch.amp.GradScaler("cpu", init_scale=scale, growth_interval=growth_interval)

    def setup(self, trainer: lightning.Trainer, module: lightning.LightningModule, stage: str) -> None:
        trainer.strategy.precision_plugin = MixedPrecision("16-mixed", "cpu", self.scaler)


class Steps(Callback):
    """Of every step the gradient before and after clipping, and the weights and the loss scale behind it."""

    def __init__(self, half: Half | None = None):
        self._half = half
        self.found: list[Tensor] = []
        self.clipped: list[Tensor] = []
        self.weights: list[Tensor] = []
        self.scales: list[float] = []

    def on_train_start(self, trainer: lightning.Trainer, module: lightning.LightningModule) -> None:
        self._keep(module)
        trainer.optimizers[0].register_step_post_hook(lambda *_: self.clipped.append(gradient_of(module)))

    def on_before_optimizer_step(
        self, trainer: lightning.Trainer, module: lightning.LightningModule, optimizer: Optimizer
    ) -> None:
        self.found.append(gradient_of(module))

    def on_train_batch_end(self, trainer: lightning.Trainer, module: lightning.LightningModule, *_: Any) -> None:
        self._keep(module)

    def _keep(self, module: lightning.LightningModule) -> None:
        self.weights.append(weights_of(module))
        if self._half:
            self.scales.append(self._half.scaler.get_scale())


def weights_of(module: torch.nn.Module) -> Tensor:
    return torch.cat([parameter.detach().flatten() for parameter in module.parameters()])


def gradient_of(module: torch.nn.Module) -> Tensor:
    given = [p.new_zeros(p.numel()) if p.grad is None else p.grad.detach().flatten() for p in module.parameters()]
    return torch.cat(given).clone()


def length(values: Tensor) -> float:
    return float(torch.linalg.vector_norm(values))


MODELS = [
    ["attention=soft"],
    ["attention=hard", "attention.estimator=gumbel_st"],
    ["attention=adaptive"],
    ["attention/score=cosine"],
    ["optimizer=rmsprop", "optimizer.centered=true", "trainer.accumulate_grad_batches=2"],
]
FEW = ["decoder.dropout=0", "trainer.max_epochs=1", "checkpoint_interval_minutes=60"]


@pytest.mark.parametrize("settings", slow_after(1, MODELS), ids=" ".join)
def test_in_half_the_precision_training_ends_near_the_weights_of_the_whole(tmp_path: Path, settings: list[str]):
    config = small_config(*FEW, *settings)
    whole, float16, bfloat16 = Steps(), Steps(), Steps()
    small_run(config, tmp_path, callbacks=[whole])
    small_run(config, tmp_path, callbacks=[Half(), float16])
    config = small_config(*FEW, *settings, "trainer.precision=bf16-mixed")
    small_run(config, tmp_path, callbacks=[bfloat16])
    moved = length(whole.weights[-1] - whole.weights[0])
    assert 0 < length(whole.weights[-1] - float16.weights[-1]) < 0.01 * moved
    assert 0 < length(whole.weights[-1] - bfloat16.weights[-1]) < 0.05 * moved


def test_a_step_whose_gradients_overflow_is_left_out_and_the_scale_is_halved(tmp_path: Path):
    half = Half(scale=2.0**19)
    steps = Steps(half)
    module = small_run(small_config("checkpoint_interval_minutes=60"), tmp_path, callbacks=[half, steps])
    left_out = [not gradient.isfinite().all() for gradient in steps.found]
    assert left_out[0]
    assert not left_out[-1]
    for step, over in enumerate(left_out):
        assert steps.scales[step + 1] == steps.scales[step] / (2 if over else 1)
        assert torch.equal(steps.weights[step], steps.weights[step + 1]) == over
    assert weights_of(module).isfinite().all()
    [adam] = read(tmp_path / LAST)["optimizer_states"]
    assert {int(state["step"]) for state in adam["state"].values()} == {left_out.count(False)}


def test_gradients_are_clipped_by_their_norm_without_the_scale(tmp_path: Path):
    config = small_config(*FEW, "trainer.gradient_clip_val=0.5")
    whole, half = Steps(), Steps()
    small_run(config, tmp_path, callbacks=[whole])
    small_run(config, tmp_path, callbacks=[Half(), half])
    for ours, theirs in zip(half.found, whole.found, strict=True):
        assert length(ours) == pytest.approx(length(theirs), rel=0.01)
    for found, clipped in zip(half.found, half.clipped, strict=True):
        assert length(found) > 0.6
        torch.testing.assert_close(clipped, found * 0.5 / length(found))


@pytest.mark.slow
def test_a_run_continues_with_the_scale_that_it_had(tmp_path: Path):
    """It has been halved and doubled, and is about to be again."""
    config, whole, copies = small_config(), tmp_path / "whole", tmp_path / "copies"
    small_run(config, whole, callbacks=[Half(2.0**17, growth_interval=3), Kills(whole, copies)])
    scales = {moment.name: read(moment / LAST)["MixedPrecision"]["scale"] for moment in copies.iterdir()}
    assert len(set(scales.values())) > 2
    for name in ("01", "04", "05-validation", "08"):
        small_run(config, copies / name, copies / name / LAST, [Half(growth_interval=3)])
        assert_ends_as(whole, copies / name)
        assert read(copies / name / LAST)["MixedPrecision"] == read(whole / LAST)["MixedPrecision"]


def one_length(number: int) -> Sequence[Example]:
    """So many images with a caption of four words each."""
    return [Example(f"{n}.png", "", (Caption(tuple(WORDS[n : n + 4])),)) for n in range(number)]


@pytest.mark.parametrize("parts", slow_after(1, [2, 4]))
def test_batches_whose_gradients_are_accumulated_make_the_step_of_one(tmp_path: Path, parts: int):
    """Clipped by the norm of their sum, which is less than that of the parts."""
    settings = ["decoder.dropout=0", "trainer.gradient_clip_val=0.5"]
    whole, accumulated = Steps(), Steps()
    small_run(small_config(*settings, "data.batch_size=8"), tmp_path, callbacks=[whole], examples=one_length(8))
    several = [f"data.batch_size={8 // parts}", f"trainer.accumulate_grad_batches={parts}"]
    small_run(small_config(*settings, *several), tmp_path, callbacks=[accumulated], examples=one_length(8))
    assert len(whole.found) == len(accumulated.found) == 2
    for ours, theirs in zip(accumulated.found, whole.found, strict=True):
        assert length(ours) > 0.6
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)
    for ours, theirs in zip(accumulated.clipped, whole.clipped, strict=True):
        assert length(ours) == pytest.approx(0.5, rel=1e-4)
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)
    torch.testing.assert_close(accumulated.weights[-1], whole.weights[-1], rtol=0, atol=1e-4)
