"""Implementations of a training step of the same model: the textbook's and those of the package."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from functools import partial
from itertools import product
from pydoc import locate
from typing import Any, NamedTuple
from unittest.mock import patch

import torch
import yaml
from torch import Tensor, nn
from torch.optim import Optimizer

from benchmarks.harness.machine import ROOT
from benchmarks.harness.memory import can_measure, in_subprocess, peak_over_resident, returning_freed_memory
from benchmarks.textbook import textbook_loss
from benchmarks.workload import Workload
from showattendtell.losses.caption import SoftLoss, total
from showattendtell.models.captioner import Captioner
from showattendtell.models.kernels import products

CLIP, LEARNING_RATE = 5.0, 4e-4
"""Gradient clipping norm, and the textbook's learning rate, as in conf/."""

Peaks = dict[tuple[str, Workload], float]
"""Peak memory of a step in MB, by implementation and workload."""

TEXTBOOK, OURS, BF16 = "textbook", "ours", "ours, bf16"


def package_loss(captioner: Captioner, regions: Tensor, image_index: Tensor, tokens: Tensor) -> Tensor:
    return total(SoftLoss()(captioner, regions, image_index, tokens).terms)


def bf16_loss(captioner: Captioner, regions: Tensor, image_index: Tensor, tokens: Tensor) -> Tensor:
    with torch.autocast(regions.device.type, torch.bfloat16):
        return package_loss(captioner, regions, image_index, tokens)


def textbook_optimizer(model: nn.Module) -> Optimizer:
    return torch.optim.Adam(model.parameters(), LEARNING_RATE)


def package_optimizer(model: nn.Module, **settings: Any) -> Optimizer:
    """Return the optimizer of `optimizer=adam` with these settings."""
    config = {**yaml.safe_load((ROOT / "conf/optimizer/adam.yaml").read_text()), **settings}
    return locate(config.pop("_target_"))(model.parameters(), **config)


@contextmanager
def torch_products() -> Iterator[None]:
    """Use the matrix products of torch's own layers, as popular ports do."""
    with patch.object(products, "library", lambda: "torch"):
        yield


class Implementation(NamedTuple):
    """A training step: the loss of (model, *batch) and the optimizer. All of it runs in `context`."""

    loss: Callable[..., Tensor]
    optimizer: Callable[[nn.Module], Optimizer]
    context: Callable[[], AbstractContextManager[None]] = nullcontext
    dtype: torch.dtype = torch.float32


IMPLEMENTATIONS = {
    TEXTBOOK: Implementation(textbook_loss, textbook_optimizer, torch_products),
    OURS: Implementation(package_loss, package_optimizer),
    BF16: Implementation(bf16_loss, package_optimizer, dtype=torch.bfloat16),
}


class Trainer:
    """Train a model; `losses` has the loss of every `step`."""

    def __init__(self, implementation: Implementation, model: nn.Module):
        self.implementation, self.model = implementation, model
        self.optimizer = implementation.optimizer(model)
        self.losses: list[float] = []

    def step(self, *batch: Tensor) -> None:
        self.losses.append(self.training_step(*batch).item())

    def training_step(self, *batch: Tensor) -> Tensor:
        """Run a step without reading its loss, which would synchronize a GPU."""
        with self.implementation.context():
            self.optimizer.zero_grad()
            loss = self.implementation.loss(self.model, *batch)
            loss.backward()
            nn.utils.clip_grad_norm_(self.model.parameters(), CLIP)
            self.optimizer.step()
        return loss.detach()


def make_step(name: str, workload: Workload) -> Callable[[], None]:
    """Return a training step on the workload's batch."""
    return partial(Trainer(IMPLEMENTATIONS[name], workload.captioner()).step, *workload.batch())


def peak_memory(names: Sequence[str], workloads: Sequence[Workload], threads: int) -> Peaks:
    """Return peak memory without parameters, gradients, optimizer state and features; {} if it cannot be measured."""
    if not can_measure():
        return {}
    with returning_freed_memory():
        return in_subprocess(_peak_memory, names, workloads, threads)


def _peak_memory(names: Sequence[str], workloads: Sequence[Workload], threads: int) -> Peaks:
    torch.set_num_threads(threads)
    return {key: peak_over_resident(make_step(*key)) for key in product(names, workloads)}
