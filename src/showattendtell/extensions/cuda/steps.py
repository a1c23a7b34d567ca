"""Training steps as CUDA graphs: all kernels of a forward or a backward pass are launched at once.

The kernels of a training step are small, and Python launches them more slowly than a GPU runs them.
"""

import logging
from collections import Counter
from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call

from showattendtell.losses.caption import LossOutput, SoftLoss
from showattendtell.models.captioner import Captioner
from showattendtell.models.encoder import Encoder
from showattendtell.training.module import StepRunner
from showattendtell.types import AttentionTargets, BatchShard

log = logging.getLogger(__name__)

IMAGE_MULTIPLE = 16
"""Batches are filled up to a multiple of this number of images, so that few graphs serve all numbers."""

MAX_GRAPHS, MIN_FREE = 64, 0.2
"""The largest number of captured shapes, and the part of the GPU's memory that has to be free to capture one more."""


def supports(device: torch.device) -> bool:
    """Return whether training steps on this device can be CUDA graphs."""
    return device.type == "cuda"


class Graphs:
    """CUDA graphs of the calls of modules.

    The second call with inputs of the same shapes is captured. The tensors that a graph returns are valid until its
    next call. All graphs share one memory pool, in which activations are reused, so the backward pass of a call has to
    end before the next call begins. Each keeps its inputs and outputs, and a copy of the gradients of all trainable
    parameters.
    """

    def __init__(self) -> None:
        self._graphs: dict[tuple[Any, ...], tuple[Any, list[nn.Parameter]]] = {}
        self._seen = Counter[tuple[Any, ...]]()
        self._pool: Any = None
        self._can_capture = True
        self.memory = 0
        """Bytes that the graphs take."""

    def __len__(self) -> int:
        return len(self._graphs)

    def call(self, module: nn.Module, inputs: Sequence[Tensor], *settings: Hashable) -> Any:
        """Return what `module(*inputs)` returns, a tensor or a tuple of them; None if the call is not captured.

        Args:
            settings: what else the operations of the module depend on.
        """
        key = (*((part.shape, part.dtype, part.requires_grad) for part in inputs), *settings)
        if key not in self._graphs and self._wants(key):
            self._try_to_capture(key, module, inputs)
        if key not in self._graphs:
            return None
        graph, parameters = self._graphs[key]
        return graph(*inputs, *parameters)

    def _wants(self, key: tuple[Any, ...]) -> bool:
        """Return whether to capture this shape now. A shape that comes once is not worth it."""
        self._seen[key] += 1
        if not (self._can_capture and torch.is_grad_enabled()):
            return False
        free, total = torch.cuda.mem_get_info()
        return self._seen[key] > 1 and len(self) < MAX_GRAPHS and free > MIN_FREE * total

    def _try_to_capture(self, key: tuple[Any, ...], module: nn.Module, inputs: Sequence[Tensor]) -> None:
        torch.cuda.empty_cache()  # as a capture does, which would hide what the graph takes
        before, device = torch.cuda.memory_reserved(), inputs[0].device
        random_state = torch.cuda.get_rng_state(device)
        try:
            self._graphs[key] = self._capture(module, inputs)
        except RuntimeError as error:  # an operation that waits for the GPU, in a model of somebody's own
            self._can_capture = False
            log.info("training steps are not captured as CUDA graphs: %s", error)
            # the generator still counts for the graph that has failed
            generator = torch.Generator(device)
            generator.set_state(random_state)
            torch.cuda.default_generators[device.index].graphsafe_set_state(generator.graphsafe_get_state())
        self.memory += torch.cuda.memory_reserved() - before

    def _capture(self, module: nn.Module, inputs: Sequence[Tensor]) -> tuple[Any, list[nn.Parameter]]:
        """Capture the call of a module with inputs of these shapes. Neither its buffers nor random numbers change."""
        learned = {name: parameter for name, parameter in module.named_parameters() if parameter.requires_grad}
        buffers = {name: buffer.clone() for name, buffer in module.named_buffers()}
        examples = [part.detach().clone().requires_grad_(part.requires_grad) for part in inputs]
        # Gradients of the parameters themselves would be accumulated on the stream of earlier steps, which a capture
        # must not wait for; so they are arguments, and the graph is captured with others that share their memory.
        aliases = [parameter.detach().requires_grad_() for parameter in learned.values()]

        dtype, is_on = torch.get_autocast_dtype("cuda"), torch.is_autocast_enabled("cuda")

        def compute(*values: Tensor) -> Any:
            parameters = dict(zip(learned, values[len(inputs) :], strict=True))
            # converted weights must not be cached between calls: they would be computed outside the graph
            with torch.autocast("cuda", dtype, is_on, cache_enabled=False):
                return functional_call(module, parameters, values[: len(inputs)])

        self._pool = self._pool or torch.cuda.graph_pool_handle()
        no_autocast = torch.autocast("cuda", enabled=False)  # backward passes have none
        with torch.random.fork_rng([inputs[0].device]), no_autocast, _alone_on_this_thread():
            # one warm-up: a call of this shape has already chosen the algorithms
            graph = torch.cuda.make_graphed_callables(
                compute, (*examples, *aliases), num_warmup_iters=1, allow_unused_input=True, pool=self._pool
            )
        for name, buffer in module.named_buffers():
            buffer.copy_(buffers[name])
        return graph, list(learned.values())


class StepGraphs(StepRunner):
    """Runs the encoder and the training loss by CUDA graphs where that is possible, and else as they are.

    Batches are filled up to few numbers of images. A captured loss has no `outputs`.
    """

    def __init__(self, loss: SoftLoss, captioner: Captioner, encoder: Encoder):
        # Gradients are accumulated on the stream on which the graphs were captured, which is correct, only slower.
        torch.autograd.graph.set_warn_on_accumulate_grad_stream_mismatch(False)
        super().__init__(loss, captioner, encoder)
        self._of_loss, self._of_encoder = Graphs(), Graphs()
        self._flat: dict[int, _FlatLoss] = {}

    def __len__(self) -> int:
        return len(self._of_loss) + len(self._of_encoder)

    def describe(self) -> str:
        memory = self._of_loss.memory + self._of_encoder.memory
        return f"CUDA graphs of {len(self)} shapes of batches took {memory / 1e9:.1f} GB"

    def encode(self, pixels: Tensor) -> Tensor:
        normalized = self._encoder.preprocessing.normalize(pixels)  # copies constants, which a graph cannot
        grids = self._of_encoder.call(self._encoder, [fill_up(normalized, IMAGE_MULTIPLE)])
        return super().encode(normalized) if grids is None else grids[: len(pixels)]

    def loss(
        self,
        regions: Tensor,
        image_index: Tensor,
        tokens: Tensor,
        shard: BatchShard,
        targets: AttentionTargets | None = None,
    ) -> LossOutput:
        results = None
        if self._loss.is_capturable:
            maps = self._loss.target_maps(targets, tokens)
            given = [part for part in (fill_up(regions, IMAGE_MULTIPLE), image_index, tokens, maps) if part is not None]
            flat = self._flat.setdefault(shard.num_captions, _FlatLoss(self._loss, self._captioner, shard))
            results = self._of_loss.call(flat, given, shard.num_captions)
        if results is None:
            return super().loss(regions, image_index, tokens, shard, targets)
        return flat.restore(results)

    def keep_gradients(self, parameters: Iterable[nn.Parameter]) -> None:
        for parameter in parameters:
            # they may lie in the memory of a graph, which now writes the next ones there
            parameter.grad = None if parameter.grad is None else parameter.grad.clone()


Runner = StepGraphs
"""The class of `device_module` on these devices."""


@contextmanager
def _alone_on_this_thread() -> Iterator[None]:
    """Let other threads call CUDA while a graph is captured. By default a call of the thread that copies batches to
    pinned memory would end the capture, and the thread.

    Hack: replaces a method of torch, since `make_graphed_callables` of torch 2.11 does not pass `capture_error_mode`
    on.
    """
    begin = torch.cuda.CUDAGraph.capture_begin

    def begin_on_thread(graph: Any, *arguments: Any, **settings: Any) -> None:
        begin(graph, *arguments, **{**settings, "capture_error_mode": "thread_local"})

    torch.cuda.CUDAGraph.capture_begin = begin_on_thread  # type: ignore[assignment,method-assign]
    try:
        yield
    finally:
        torch.cuda.CUDAGraph.capture_begin = begin  # type: ignore[method-assign]


class _FlatLoss(nn.Module):
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


def fill_up(images: Tensor, multiple: int) -> Tensor:
    """Repeat the first image of (I, ...) until the number of images is a multiple; no caption reads the copies."""
    missing = -len(images) % multiple
    return torch.cat([images, images[:1].expand(missing, *images.shape[1:])]) if missing else images
