"""Training losses as CUDA graphs: all kernels of a forward or a backward pass are launched at once."""

from typing import Any

import torch
from pytorch_lightning import Trainer
from pytorch_lightning.callbacks import Callback
from torch import Tensor, nn

from showattendtell.errors import UserError
from showattendtell.losses.caption import LossOutput, SoftLoss
from showattendtell.models.captioner import Captioner
from showattendtell.training.module import CaptioningModule
from showattendtell.types import BatchShard

IMAGE_MULTIPLE = 16
"""Batches are filled up to a multiple of this number of images, so that few graphs serve all numbers."""


class CUDAGraphs(Callback):
    """Captures the loss of a training step as CUDA graphs, one pair of graphs per shape of a batch.

    The kernels of a step are small, and Python launches them more slowly than a GPU runs them. A graph launches all of
    them at once. The first step of each shape takes longer, because it is run and captured.

    Raises:
        UserError: training is not on one GPU, or the loss changes from step to step in a way that a graph cannot:
            `loss.scheduled_sampling`, `loss.supervision_weight` or a `LossTerm` of an extension.
    """

    def check_trainer(self, trainer: Trainer) -> None:
        """Raise `UserError` if training is not on one GPU."""
        device = trainer.strategy.root_device.type
        if device != "cuda" or trainer.world_size > 1:
            raise UserError(
                "callbacks=cuda_graphs is for training on one GPU, and this run uses "
                f"{f'{trainer.world_size} processes' if trainer.world_size > 1 else device}; leave it out, "
                "or set trainer.accelerator=gpu trainer.devices=1"
            )

    def on_fit_start(self, trainer: Trainer, pl_module: CaptioningModule) -> None:  # type: ignore[override]
        self.check_trainer(trainer)
        loss = pl_module.loss
        refused = {
            "loss.scheduled_sampling": loss.scheduled_sampling,
            "loss.supervision_weight": loss.supervision_weight,
            **{f"the loss term {type(term).__name__}": term for term in pl_module.terms},
        }
        if names := [name for name, value in refused.items() if value]:
            raise UserError(f"callbacks=cuda_graphs cannot capture {names[0]}; leave one of both out")
        # Gradients are accumulated on the stream on which the graphs were captured, which is correct, only slower.
        torch.autograd.graph.set_warn_on_accumulate_grad_stream_mismatch(False)
        pl_module.graphs = LossGraphs(loss, pl_module.captioner)

    def on_fit_end(self, trainer: Trainer, pl_module: CaptioningModule) -> None:  # type: ignore[override]
        pl_module.graphs = None


class LossGraphs:
    """Computes a training loss by CUDA graphs. Called like the loss, and differentiable like it.

    The tensors of a result are valid until the next call. `outputs` of a result is None.

    A graph pair is kept for every shape of a batch: the number of images I, filled up, the number of captions B and
    their length T. None is dropped before training ends. All share one memory pool, in which activations are reused,
    but each pair keeps its inputs and outputs, and a copy of the gradients of all trainable parameters: a model of 10
    million parameters takes at least 40 MB of GPU memory per shape.
    """

    def __init__(self, loss: SoftLoss, captioner: Captioner):
        self.loss, self.captioner = loss, captioner
        self._graphs: dict[tuple[Any, ...], tuple[Any, _Flat]] = {}
        self._pool: Any = None

    def __call__(
        self, captioner: Captioner, regions: Tensor, image_index: Tensor, tokens: Tensor, shard: BatchShard, _: Any
    ) -> LossOutput:
        inputs = (fill_up(regions, IMAGE_MULTIPLE), image_index, tokens)
        shape = (*(part.shape for part in inputs), regions.requires_grad)
        if shape not in self._graphs:
            self._graphs[shape] = self._capture(*inputs)
        graph, flat = self._graphs[shape]
        return flat.restore(graph(*inputs))

    def _capture(self, *inputs: Tensor) -> "tuple[Any, _Flat]":
        """Capture the loss of inputs of these shapes. Neither the buffers of the loss nor random numbers change."""
        flat = _Flat(self.loss, self.captioner)
        buffers = {name: buffer.clone() for name, buffer in self.loss.named_buffers()}
        examples = tuple(part.detach().clone().requires_grad_(part.requires_grad) for part in inputs)
        self._pool = self._pool or torch.cuda.graph_pool_handle()
        device = inputs[0].device
        # converted weights must not be cached between calls: they would be computed outside the graph
        with (
            torch.random.fork_rng([device]),
            torch.autocast(
                "cuda", torch.get_autocast_dtype("cuda"), torch.is_autocast_enabled("cuda"), cache_enabled=False
            ),
        ):
            graph = torch.cuda.make_graphed_callables(flat, examples, allow_unused_input=True, pool=self._pool)
        for name, buffer in self.loss.named_buffers():
            buffer.copy_(buffers[name])
        return graph, flat


class _Flat(nn.Module):
    """A loss that returns a tuple of tensors, as CUDA graphs need it."""

    def __init__(self, loss: SoftLoss, captioner: Captioner):
        super().__init__()
        self.loss, self.captioner = loss, captioner
        self.terms: list[str] = []
        self.metrics: list[str] = []

    def forward(self, regions: Tensor, image_index: Tensor, tokens: Tensor) -> tuple[Tensor, ...]:
        output = self.loss(self.captioner, regions, image_index, tokens)
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
