"""Training losses as CUDA graphs: all kernels of a forward or a backward pass are launched at once.

The kernels of a training step are small, and Python launches them more slowly than a GPU runs them.
"""

import logging
from collections import Counter
from typing import Any

import torch
from torch import Tensor, nn

from showattendtell.losses.caption import LossOutput, SoftLoss
from showattendtell.models.captioner import Captioner
from showattendtell.types import AttentionTargets, BatchShard

log = logging.getLogger(__name__)

IMAGE_MULTIPLE = 16
"""Batches are filled up to a multiple of this number of images, so that few graphs serve all numbers."""

MAX_GRAPHS, MIN_FREE = 64, 0.2
"""The largest number of captured shapes, and the part of the GPU's memory that has to be free to capture one more."""


class LossGraphs:
    """Computes a training loss by CUDA graphs where that is possible, and else as the loss does.

    Called like the loss, and differentiable like it; the tensors of a captured result are valid until the next call,
    and its `outputs` are None. The second batch of a shape is captured: the number of images I, filled up, the number
    of captions B and their length T. All graphs share one memory pool, in which activations are reused, but each keeps
    its inputs and outputs, and a copy of the gradients of all trainable parameters.
    """

    def __init__(self, loss: SoftLoss, captioner: Captioner):
        self.loss, self.captioner = loss, captioner
        self._graphs: dict[tuple[Any, ...], tuple[Any, _Flat]] = {}
        self._seen = Counter[tuple[Any, ...]]()
        self._pool: Any = None
        self._can_capture = True
        self.memory = 0
        """Bytes that the graphs take."""

    def __len__(self) -> int:
        return len(self._graphs)

    def __call__(
        self,
        captioner: Captioner,
        regions: Tensor,
        image_index: Tensor,
        tokens: Tensor,
        shard: BatchShard,
        targets: AttentionTargets | None = None,
    ) -> LossOutput:
        maps = self.loss.target_maps(targets, tokens)
        given = [part for part in (fill_up(regions, IMAGE_MULTIPLE), image_index, tokens, maps) if part is not None]
        key = (*((part.shape, part.dtype) for part in given), regions.requires_grad, shard.num_captions)
        if key not in self._graphs and self._wants(key):
            self._try_to_capture(key, given, shard)
        if key not in self._graphs:
            return self.loss(captioner, regions, image_index, tokens, shard, targets)
        graph, flat = self._graphs[key]
        return flat.restore(graph(*given))

    def _wants(self, key: tuple[Any, ...]) -> bool:
        """Return whether to capture this shape now. A shape that comes once is not worth it."""
        self._seen[key] += 1
        if not (self._can_capture and self.loss.is_capturable and torch.is_grad_enabled()):
            return False
        free, total = torch.cuda.mem_get_info()
        return self._seen[key] > 1 and len(self) < MAX_GRAPHS and free > MIN_FREE * total

    def _try_to_capture(self, key: tuple[Any, ...], inputs: list[Tensor], shard: BatchShard) -> None:
        before = torch.cuda.memory_reserved()
        try:
            self._graphs[key] = self._capture(inputs, shard)
        except RuntimeError as error:  # an operation that waits for the GPU, in a model of somebody's own
            self._can_capture = False
            log.info("training steps are not captured as CUDA graphs: %s", error)
        self.memory += torch.cuda.memory_reserved() - before

    def _capture(self, inputs: list[Tensor], shard: BatchShard) -> "tuple[Any, _Flat]":
        """Capture the loss of inputs of these shapes. Neither the buffers of the loss nor random numbers change."""
        flat = _Flat(self.loss, self.captioner, shard)
        buffers = {name: buffer.clone() for name, buffer in self.loss.named_buffers()}
        examples = tuple(part.detach().clone().requires_grad_(part.requires_grad) for part in inputs)
        self._pool = self._pool or torch.cuda.graph_pool_handle()
        dtype, is_on = torch.get_autocast_dtype("cuda"), torch.is_autocast_enabled("cuda")
        # converted weights must not be cached between calls: they would be computed outside the graph
        with torch.random.fork_rng([inputs[0].device]), torch.autocast("cuda", dtype, is_on, cache_enabled=False):
            graph = torch.cuda.make_graphed_callables(flat, examples, allow_unused_input=True, pool=self._pool)
        for name, buffer in self.loss.named_buffers():
            buffer.copy_(buffers[name])
        return graph, flat


class _Flat(nn.Module):
    """A loss that returns a tuple of tensors, as CUDA graphs need it."""

    def __init__(self, loss: SoftLoss, captioner: Captioner, shard: BatchShard):
        super().__init__()
        self.loss, self.captioner, self.shard = loss, captioner, shard
        self.terms: list[str] = []
        self.metrics: list[str] = []

    def forward(
        self, regions: Tensor, image_index: Tensor, tokens: Tensor, maps: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        output = self.loss(self.captioner, regions, image_index, tokens, self.shard, maps)
        self.terms, self.metrics = list(output.terms), list(output.metrics)
        return (output.nll.detach(), *output.terms.values(), *(value.detach() for value in output.metrics.values()))

    def restore(self, values: tuple[Tensor, ...]) -> LossOutput:
        nll, *others = values
        terms = dict(zip(self.terms, others[: len(self.terms)], strict=True))
        return LossOutput(nll, terms, dict(zip(self.metrics, others[len(self.terms) :], strict=True)))


def fill_up(regions: Tensor, multiple: int) -> Tensor:
    """Repeat the first image of (I, L, D) until the number of images is a multiple; no caption reads the copies."""
    missing = -len(regions) % multiple
    return torch.cat([regions, regions[:1].expand(missing, -1, -1)]) if missing else regions
