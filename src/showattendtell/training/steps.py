"""How the loss of a training step is computed."""

from collections.abc import Iterable
from typing import Protocol

import torch
from torch import Tensor, nn

from showattendtell.losses.caption import LossOutput, SoftLoss
from showattendtell.models.captioner import Captioner
from showattendtell.models.encoder import Encoder
from showattendtell.models.kernels import device_module
from showattendtell.types import AttentionTargets, BatchShard


class StepRunner:
    """Calls the encoder and the loss of each training step as they are.

    An extension replaces it by a subclass that computes the same faster on a kind of device: it registers a module as
    `steps`, see `models.kernels.registered`, with a class `Runner`.
    """

    def __init__(self, loss: SoftLoss, captioner: Captioner, encoder: Encoder):
        self._loss, self._captioner, self._encoder = loss, captioner, encoder

    def encode(self, pixels: Tensor) -> Tensor:
        """Encode pixels (I, 3, H, W) as grids (I, L, D) with a trainable encoder."""
        grids: Tensor = self._encoder(pixels)
        return grids

    def loss(
        self,
        regions: Tensor,
        image_index: Tensor,
        tokens: Tensor,
        shard: BatchShard,
        targets: AttentionTargets | None = None,
    ) -> LossOutput:
        """Return the loss of a batch; the arguments are those of `SoftLoss.forward` after the captioner."""
        output: LossOutput = self._loss(self._captioner, regions, image_index, tokens, shard, targets)
        return output

    def keep_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        """Prepare the gradients of an earlier batch for those of the next one, which are added to them."""

    def describe(self) -> str:
        """Return what to print when the training ends, if anything."""
        return ""


class _Steps(Protocol):
    Runner: type[StepRunner]


def step_runner(device: torch.device) -> type[StepRunner]:
    """Return the class that computes training steps on a device."""
    steps: _Steps | None = device_module("steps", device)
    return steps.Runner if steps else StepRunner
