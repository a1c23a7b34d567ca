"""The ways in which a training step of the same model is done: the textbook's, and the package's."""

import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from pydoc import locate
from typing import NamedTuple
from unittest.mock import patch

import torch
import yaml
from torch import Tensor, nn
from torch.optim import Optimizer

from benchmarks.frame.machine import ROOT
from benchmarks.frame.memory import apart, giving_back, peak_over_resident
from benchmarks.textbook import textbook_loss
from benchmarks.workload import Batch, Work
from showattendtell.losses.caption import SoftLoss, total
from showattendtell.models.captioner import Captioner
from showattendtell.models.kernels import products

CLIP, RATE = 5.0, 4e-4
"""The gradients' largest norm, and the textbook's learning rate, as conf/ has them."""

TEXTBOOK, OURS, PLAIN, HALF = "textbook", "ours", "ours, nothing compiled", "ours, bf16"


def package_loss(captioner: Captioner, regions: Tensor, image_index: Tensor, tokens: Tensor) -> Tensor:
    return total(SoftLoss()(captioner, regions, image_index, tokens).terms)


bf16_loss = torch.autocast("cpu", torch.bfloat16)(package_loss)


def textbook_optimizer(model: nn.Module) -> Optimizer:
    return torch.optim.Adam(model.parameters(), RATE)


def package_optimizer(model: nn.Module) -> Optimizer:
    """As `optimizer=adam` makes it."""
    settings = yaml.safe_load((ROOT / "conf/optimizer/adam.yaml").read_text())
    return locate(settings.pop("_target_"))(model.parameters(), **settings)


@contextmanager
def torch_products() -> Iterator[None]:
    """The products of torch's own layers, which the ports use."""
    with patch.object(products, "library", lambda: "torch"):
        yield


@contextmanager
def without_compiler() -> Iterator[None]:
    """The package as it is where no loop can be compiled."""
    own = [module for name, module in sys.modules.items() if name.startswith("showattendtell.models.")]
    with ExitStack() as patches:
        for module in own:
            if hasattr(module, "compilable"):
                patches.enter_context(patch.object(module, "compilable", lambda *tensors: False))
        yield


class Way(NamedTuple):
    """How a training step is done; `around` all of it."""

    loss: Callable[[Captioner, Tensor, Tensor, Tensor], Tensor]
    optimizer: Callable[[nn.Module], Optimizer]
    around: Callable[[], AbstractContextManager[None]] = nullcontext
    dtype: torch.dtype = torch.float32


WAYS = {
    TEXTBOOK: Way(textbook_loss, textbook_optimizer, torch_products),
    OURS: Way(package_loss, package_optimizer),
    PLAIN: Way(package_loss, package_optimizer, without_compiler),
    HALF: Way(bf16_loss, package_optimizer, dtype=torch.bfloat16),
}


class Learner:
    """A model that is trained on one batch again and again; `losses` has that of every step."""

    def __init__(self, way: Way, work: Work, batch: Batch):
        self.way, self.batch = way, batch
        self.captioner = work.captioner().to(batch.regions.device)
        self.optimizer = way.optimizer(self.captioner)
        self.losses: list[float] = []

    def step(self) -> None:
        self.losses.append(self.move().item())

    def move(self) -> Tensor:
        """All of a step but to learn its loss, for which a GPU has to be waited for."""
        with self.way.around():
            self.optimizer.zero_grad()
            loss = self.way.loss(self.captioner, *self.batch)
            loss.backward()
            nn.utils.clip_grad_norm_(self.captioner.parameters(), CLIP)
            self.optimizer.step()
        return loss.detach()


def peaks(way: str, works: Sequence[Work], threads: int) -> list[float]:
    """MB that a step of each work takes at its highest, over what stays from step to step: parameters, gradients, the
    optimiser's state and grids."""
    with giving_back():
        return apart(_peaks, way, works, threads)


def _peaks(way: str, works: Sequence[Work], threads: int) -> list[float]:
    torch.set_num_threads(threads)
    return [_peak(Learner(WAYS[way], work, work.batch())) for work in works]


def _peak(learner: Learner) -> float:
    learner.step()
    return peak_over_resident(learner.step)
