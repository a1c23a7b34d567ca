"""Compute grids of a frozen encoder by torch, or by onnxruntime, and the views of an image."""

import multiprocessing
import signal
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import dataclass
from functools import cached_property
from multiprocessing.connection import Connection, wait
from multiprocessing.context import SpawnProcess
from random import Random
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.utils.data import DataLoader
from torchvision.transforms.v2 import functional as transforms

from showattendtell.data.images import ImageFiles
from showattendtell.errors import UserError
from showattendtell.features.store import Encode, EncodedBatch
from showattendtell.models.encoder import Encoder
from showattendtell.runtime.tracing import lacks_onnx, open_session, reason_of, to_onnx, traced

Engine = Callable[[Tensor], Tensor]
"""Maps pixels (I, 3, S, S), uint8, to grids (I, L, D), float32, both in CPU memory."""

EngineName = Literal["torch", "onnxruntime"]
Computed = Literal["float32", "bfloat16", "float16"]

TOGETHER = 4
"""Images per forward pass on a CPU: a layer's output is then still in cache when the next layer reads it. For
EfficientNet-lite0 this takes half the time of 32 images per pass."""

DIFFERENCE = 1e-3
"""Maximum |a - b| / |b| for two engines to count as equal."""


def start_engine(encoder: Encoder, name: EngineName, precision: Computed) -> Engine:
    """Return the engine; raises `UserError` if it is not installed or cannot run the encoder."""
    if name == "torch":
        return _run_by_torch(encoder, precision)
    if precision != "float32":
        raise UserError(f"features.engine={name} computes in float32; leave features.precision={precision} out")
    return _run_by_onnxruntime(encoder)


def _run_by_torch(encoder: Encoder, precision: Computed) -> Engine:
    """Return an engine that runs torch on the encoder's device, CPU or GPU."""
    device, dtype = next(encoder.parameters()).device, getattr(torch, precision)

    def run(pixels: Tensor) -> Tensor:
        seen = pixels.to(device, non_blocking=True)
        parts = seen.split(TOGETHER) if device.type == "cpu" else [seen]
        lower = nullcontext() if dtype == torch.float32 else torch.autocast(device.type, dtype)
        with torch.inference_mode(), lower:
            return torch.cat([encoder(part).float() for part in parts]).cpu()

    return run


def _run_by_onnxruntime(encoder: Encoder) -> Engine:
    if missing := lacks_onnx():
        raise UserError(f"features.engine=onnxruntime needs {missing}")
    unable = f"onnxruntime cannot run {encoder.network_name} ({{}}); leave features.engine at torch"
    side = encoder.preprocessing.crop
    example = torch.randint(256, (2, 3, side, side), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    try:
        session = _open_session(encoder, example)
    except Exception as fault:
        raise UserError(unable.format(reason_of(fault))) from None
    [entry] = [entry.name for entry in session.get_inputs()]

    def run(pixels: Tensor) -> Tensor:
        parts = [session.run(None, {entry: part.numpy()})[0] for part in pixels.split(TOGETHER)]
        return torch.cat([torch.from_numpy(part) for part in parts])

    expected = _run_by_torch(encoder, "float32")(example)
    error = ((run(example) - expected).norm() / expected.norm()).item()
    if not error <= DIFFERENCE:
        raise UserError(unable.format(f"its grids differ from torch's by {100 * error:.1f} %"))
    return run


def _open_session(encoder: Encoder, example: Tensor) -> Any:
    graph = to_onnx(traced(encoder, (example,), ("images",)), ("pixels",), ("grids",))
    return open_session(graph.model_proto.SerializeToString())


@dataclass(frozen=True)
class ImageEncoding:
    """Encodes batches of images; an `Encode` that can be sent to another process.

    paths: image files by name.
    engine, precision: inference engine and number format.
    readers: number of processes that read files; 0 reads them in this process.
    """

    encoder: Encoder
    paths: Mapping[str, str]
    views: int
    skip_unreadable: bool
    engine: EngineName = "torch"
    precision: Computed = "float32"
    readers: int = 0

    def __call__(self, batches: Sequence[Sequence[str]]) -> Iterator[EncodedBatch]:
        """Yield encoded batches. Raises `UserError` for an unreadable image, unless such images are skipped."""
        for images, (pixels, places, faults) in zip(batches, self._read(batches), strict=True):
            if faults and not self.skip_unreadable:
                fault = next(iter(faults.values()))
                raise UserError(f"{fault}, or pass over such images with dataset.skip_unreadable=true")
            skipped = {images[place]: str(fault) for place, fault in faults.items()}
            readable = [images[place] for place in places]
            yield EncodedBatch(readable, self._encode(pixels, readable), skipped)

    def _read(self, batches: Sequence[Sequence[str]]) -> Iterator[tuple[Tensor, list[int], dict[int, UserError]]]:
        files = ImageFiles([self.paths[image] for images in batches for image in images], self.encoder.preprocessing)
        positions = iter(range(len(files)))
        in_batches = [[next(positions) for _ in images] for images in batches]
        readers = self.readers if len(batches) > 1 else 0
        return iter(
            DataLoader(
                files,
                batch_sampler=in_batches,
                collate_fn=_collate,
                num_workers=readers,
                pin_memory=torch.cuda.is_available(),
                generator=torch.Generator(),  # a separate generator keeps later random draws independent of the cache
            )
        )

    def _encode(self, pixels: Tensor, images: Sequence[str]) -> Tensor:
        """Return grids (N, views, L, D), float32."""
        if not images:
            return torch.zeros(0, self.views, self.encoder.grid[0] * self.encoder.grid[1], self.encoder.dim)
        return torch.stack([self._run(view_of(pixels, images, view)) for view in range(self.views)], dim=1)

    @cached_property
    def _run(self) -> Engine:
        return start_engine(self.encoder, self.engine, self.precision)


def _collate(items: Sequence[tuple[int, Tensor | UserError]]) -> tuple[Tensor, list[int], dict[int, UserError]]:
    """Return the pixels of the readable images, their positions in the batch, and the errors of the others."""
    faults = {place: item for place, (_, item) in enumerate(items) if isinstance(item, UserError)}
    read = {place: item for place, (_, item) in enumerate(items) if isinstance(item, Tensor)}
    return torch.stack(list(read.values())) if read else torch.zeros(0, 3, 1, 1), list(read), faults


Write = Callable[[Encode, Callable[[int], None]], None]
"""`write_shards` of a store."""


def in_processes(number: int, write: Write, encode: Encode, report: Callable[[int], None]) -> None:
    """Run `write` in several processes, and call `report` here with the images of each batch that one has written.

    Raises the error of a process, or a `UserError` if one was killed; the others are then stopped. If this process is
    killed, they stop at their next batch.
    """
    context = multiprocessing.get_context("spawn")  # a forked process could use neither the GPU nor torch's threads
    threads = max(1, torch.get_num_threads() // number)
    ends = [context.Pipe(duplex=False) for _ in range(number)]
    processes = [context.Process(target=_work, args=(write, encode, sender, threads)) for _, sender in ends]
    try:
        for process, (_, sender) in zip(processes, ends, strict=True):
            process.start()
            sender.close()
        _listen({receiver: process for (receiver, _), process in zip(ends, processes, strict=True)}, report)
    finally:
        for process in processes:
            if process.pid:
                process.kill()
                process.join()


def _listen(processes: Mapping[Connection, SpawnProcess], report: Callable[[int], None]) -> None:
    """Handle messages of the processes until all have ended."""
    open_ends = set(processes)
    while open_ends:
        for end in wait(open_ends):
            assert isinstance(end, Connection)
            try:
                said = end.recv()
            except EOFError:
                open_ends.discard(end)
                processes[end].join()
                if processes[end].exitcode:
                    raise UserError(
                        f"a process that encodes images ended with status {processes[end].exitcode}, as for lack of "
                        "memory; set features.workers lower and run it again: what is written is kept"
                    ) from None
                continue
            if isinstance(said, BaseException):
                raise said
            report(said)


def _work(write: Write, encode: Encode, parent: Connection, threads: int) -> None:
    """Run in each process; its next message fails if the parent was killed."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends this process
    torch.set_num_threads(threads)
    with suppress(BrokenPipeError):
        try:
            write(encode, parent.send)
        except UserError as fault:
            parent.send(fault)


MIRRORED = 1
"""The view that is the mirror image."""

SMALLEST = 0.7
"""Minimum side of a part, as a fraction of the whole side."""


def view_of(pixels: Tensor, images: Sequence[str], view: int) -> Tensor:
    """Return a view of the named images' pixels (I, 3, S, S), same shape."""
    parts = pixels
    if view >= 2 and len(pixels):
        named = zip(images, pixels, strict=True)
        parts = torch.stack([_enlarge_part(own, Random(f"{view} {image}")) for image, own in named])
    return parts.flip(-1) if is_mirrored(view) else parts


def is_mirrored(view: Any) -> Any:
    """Return whether a view, or each of an array of views, is mirrored."""
    return view % 2 == 1


def draw_views(number: int, sided: NDArray[np.bool_], seed: int, draw: tuple[int, int]) -> Tensor:
    """Draw one of `number` views for each of N images, (N,), in the batch that `draw` names by its epoch and number.

    All images of a split are drawn at once: a process that has a part of the batch then finds the same views.

    sided: (N,) whether the image's captions distinguish left from right, so that no mirrored view is drawn.
    """
    drawn = np.random.default_rng([seed, *draw]).integers(number, size=len(sided))
    return torch.from_numpy(np.where(sided & is_mirrored(drawn), drawn - 1, drawn))


def _enlarge_part(pixels: Tensor, random: Random) -> Tensor:
    whole = pixels.shape[-1]
    side = round(whole * random.uniform(SMALLEST, 1))
    top, left = random.randint(0, whole - side), random.randint(0, whole - side)
    return transforms.resized_crop(pixels, top, left, side, side, [whole, whole])
