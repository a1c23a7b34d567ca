"""Training epochs, beam search and feature extraction on a GPU, with all features in GPU memory.

Batches have 64 captions of one length. The training step is captured as one CUDA graph per length. It computes products
in bfloat16, and reads the features of its images by index. Times of epochs are computed from 100 batches. The features
of COCO's training split take 22.7 GB in bfloat16; at most 60 % of the free memory is used, with fewer images if
necessary.
"""

from argparse import Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from itertools import islice
from operator import call
from typing import Any

import numpy as np
import torch
import torch.distributed as dist
from torch import Tensor, nn
from torch.nn.parallel import DistributedDataParallel

from benchmarks.captioners import typical_captioner, varied_regions
from benchmarks.extraction import NETWORKS, compare
from benchmarks.generation import ALL, BEAM, BF16, make_search
from benchmarks.generation import WORKLOAD as BEAM_WORKLOAD
from benchmarks.gpu_step import add_options, capturable_optimizer, capture, open_device, run_steps
from benchmarks.harness.figures import Figure
from benchmarks.harness.script import Results, main
from benchmarks.harness.timing import interleave, medians
from benchmarks.implementations import Implementation, Trainer
from benchmarks.workload import Workload
from showattendtell.datamodules.samplers import LengthBuckets, WholeBatchSampler
from showattendtell.losses.caption import SoftLoss, total
from showattendtell.losses.reinforce import HardLoss
from showattendtell.models.attention import SoftAttention
from showattendtell.models.captioner import Captioner
from showattendtell.models.encoder import Encoder
from showattendtell.models.hard_attention import HardAttention

DATA_SETS = {name: Workload(images, hidden=1000) for name, images in (("Flickr8k", 6_000), ("COCO", 113_287))}
"""Training splits with 5 captions per image."""

KINDS: dict[str, tuple[Any, Callable[[], SoftLoss]]] = {
    "soft": (SoftAttention, SoftLoss),
    "hard": (HardAttention, HardLoss),
}
BATCH_SIZE, BATCHES, ENCODED = 64, 100, 256

Batches = list[tuple[Tensor, Tensor]]


class GridLoss(nn.Module):
    """Loss of a captioner in bfloat16, on images whose `grids` (I, L, D) are in GPU memory."""

    def __init__(self, captioner: Captioner, loss: SoftLoss, grids: Tensor):
        super().__init__()
        self.captioner, self.loss, self.grids = captioner, loss, grids

    def forward(self, images: Tensor, tokens: Tensor) -> Tensor:
        """Return the loss of captions (B, T) of the `images` (B,)."""
        rows = torch.arange(len(images), device=images.device)
        with torch.autocast(images.device.type, torch.bfloat16):
            return total(self.loss(self.captioner, self.grids[images], rows, tokens).terms)


def measure(options: Namespace) -> Results:
    device = open_device(options)
    figures, notes = [], []
    for name, data in DATA_SETS.items():
        grids = make_grids(data, device)
        notes.append(f"{name}: features of {len(grids):,} images in memory, {grids.nbytes / 1e9:.1f} GB")
        batches = make_batches(data, grids)
        for attention in KINDS:
            model = partial(make_model, data, attention, grids)
            figures += time_epochs(f"GPU, {name}, {attention}", data.captions, model, batches)
        figures.append(time_ddp(f"GPU, {name}, DDP with 1 process", partial(make_model, data, "soft", grids), batches))
    figures += [*time_searches(device), *time_encoders(device)]
    return Results([], figures, notes)


def make_grids(data: Workload, device: torch.device) -> Tensor:
    """Return random features of the images, or of as many as fit into the memory, in bfloat16."""
    images, size = data.images, (data.regions, data.region_dim)
    if device.type == "cuda":
        images = min(images, int(0.6 * torch.cuda.mem_get_info(device)[0]) // (2 * data.regions * data.region_dim))
    return torch.rand(images, *size, dtype=torch.bfloat16, device=device)


def make_batches(data: Workload, grids: Tensor) -> Batches:
    """Return the images (B,) and the tokens (B, T) of the first batches of a shuffled epoch."""
    lengths, images = np.array(data.lengths), np.arange(data.captions) // data.captions_per_image % len(grids)
    sampler = WholeBatchSampler(LengthBuckets(lengths, images, BATCH_SIZE, False), 0)
    batches, tokens = islice((batch for batch in sampler if len(batch) == BATCH_SIZE), BATCHES), data.tokens()
    return [
        (torch.from_numpy(images[batch]).to(grids.device), tokens[batch, : lengths[batch[0]]].to(grids.device))
        for batch in batches
    ]


def make_model(data: Workload, attention: str, grids: Tensor) -> GridLoss:
    kind, loss = KINDS[attention]
    return GridLoss(data.captioner(kind), loss(), grids).to(grids.device)


def make_trainer(model: nn.Module) -> Trainer:
    return Trainer(Implementation(call, capturable_optimizer), model)


def time_epochs(name: str, captions: int, model: Callable[[], GridLoss], batches: Batches) -> list[Figure]:
    """Measure an epoch with and without CUDA graphs; their capture is not part of the time."""
    eager, captured = (make_trainer(model()).training_step for _ in range(2))
    examples = {tokens.shape: (images, tokens) for images, tokens in batches}
    pool = torch.cuda.graph_pool_handle() if batches[0][0].is_cuda else None
    graphs = {shape: capture(captured, *example, pool=pool) for shape, example in examples.items()}
    with_graphs = [partial(graphs[tokens.shape], images, tokens) for images, tokens in batches]
    seconds = time_steps({"eager": [partial(eager, *batch) for batch in batches], "CUDA graphs": with_graphs})
    epochs = {key: captions / BATCH_SIZE * step for key, step in seconds.items()}
    return [
        Figure(f"{name}, CUDA graphs: speed-up over eager", seconds["eager"] / seconds["CUDA graphs"]),
        *(Figure(f"{name}, {key}: epoch", epoch, "s", "lower") for key, epoch in epochs.items()),
    ]


def time_steps(variants: Mapping[str, Sequence[Callable[[], object]]]) -> dict[str, float]:
    """Return the seconds of a step of each variant."""
    times = interleave({name: partial(run_steps, steps) for name, steps in variants.items()}, seconds=0, min_rounds=1)
    return {name: taken / len(variants[name]) for name, taken in medians(times).items()}


def time_ddp(name: str, model: Callable[[], GridLoss], batches: Batches) -> Figure:
    """Measure the overhead of DDP in a single process, without CUDA graphs."""
    backend = "nccl" if batches[0][0].is_cuda else "gloo"
    dist.init_process_group(backend, store=dist.HashStore(), rank=0, world_size=1)
    try:
        models = {"eager": model(), "DDP": DistributedDataParallel(model())}
        steps = {key: make_trainer(module).training_step for key, module in models.items()}
        seconds = time_steps({key: [partial(step, *batch) for batch in batches] for key, step in steps.items()})
    finally:
        dist.destroy_process_group()
    return Figure(f"{name}: step time / eager without DDP", seconds["DDP"] / seconds["eager"], better="lower")


def time_searches(device: torch.device) -> Iterator[Figure]:
    """Measure beam search on the images of `python -m benchmarks.generation`."""
    regions = varied_regions(BEAM_WORKLOAD)
    captioner, regions = typical_captioner(BEAM_WORKLOAD, regions).to(device), regions.to(device)
    for precision, variant in (("float32", ALL), ("bfloat16", BF16)):
        search = make_search(BEAM, variant, captioner)
        seconds = medians(interleave({precision: partial(search, regions)}, seconds=5))[precision]
        yield Figure(f"GPU, {BEAM.name}, {len(regions)} images, {precision}", len(regions) / seconds, "images/s")


def time_encoders(device: torch.device) -> Iterator[Figure]:
    """Measure the networks of `python -m benchmarks.extraction`, with random weights and pixels."""
    for network in NETWORKS:
        encoder = Encoder(network.name, network.stride, "random").to(device)
        side = encoder.preprocessing.crop
        pixels = torch.randint(256, (ENCODED, 3, side, side), dtype=torch.uint8)
        for name, result in compare(network, encoder, pixels).items():
            yield Figure(f"GPU, {network.name}, {name}", result.rate, "images/s")


if __name__ == "__main__":
    main(measure, more_options=add_options)
