"""Encode images: inference engines, and the batches of a feature store."""

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from functools import cached_property
from typing import Literal

import torch
from torch import Tensor
from torch.utils.data import DataLoader, Dataset

from showattendtell.data.augmentation import view_of
from showattendtell.data.images import Preprocessing, read_pixels
from showattendtell.errors import UserError
from showattendtell.features.store import FileStamp
from showattendtell.features.writer import BATCH_SIZE, EncodedBatch
from showattendtell.models.encoder import Encoder
from showattendtell.runtime.distributed import local_device
from showattendtell.runtime.memory import keep_freed_memory
from showattendtell.runtime.tracing import lacks_onnx, open_session, reason_of, to_onnx, traced

Engine = Callable[[Tensor], Tensor]
"""Maps pixels (I, 3, S, S) in uint8 and in CPU memory to grids (I, L, D) in float32, on the device of the encoder."""

EngineName = Literal["torch", "onnxruntime"]
Precision = Literal["float32", "bfloat16", "float16"]

BATCH_SIZES: Mapping[EngineName, int] = {"torch": 16, "onnxruntime": 4}
"""Images per forward pass on a CPU. With one thread, torch leaves the 1 x 1 convolutions of fewer than 16 images to a
library that is slower on some processors. onnxruntime is fastest if the output of a layer fits into the cache."""


def _run_by_torch(encoder: Encoder, precision: Precision) -> Engine:
    """Return an engine that runs torch on the encoder's device, CPU or GPU.

    On a CPU every forward pass has the same number of images; the last one is padded with black images. Otherwise the
    last digits of a grid would depend on the number of threads and of images.
    """
    device, dtype = next(encoder.parameters()).device, getattr(torch, precision)

    def run(pixels: Tensor) -> Tensor:
        inputs = pixels.to(device, non_blocking=True)
        parts = [inputs]
        if device.type == "cpu":
            missing = -len(inputs) % BATCH_SIZES["torch"]
            parts = list(torch.cat([inputs, inputs.new_zeros(missing, *inputs.shape[1:])]).split(BATCH_SIZES["torch"]))
        autocast = nullcontext() if dtype == torch.float32 else torch.autocast(device.type, dtype)
        with torch.inference_mode(), autocast:
            return torch.cat([encoder(part).float() for part in parts])[: len(pixels)]

    return run


def start_engine(encoder: Encoder, name: EngineName, precision: Precision) -> Engine:
    """Return an inference engine.

    Raises:
        UserError: the engine is not installed, or cannot run the encoder with this precision.
    """
    if name == "torch":
        return _run_by_torch(encoder, precision)
    if precision != "float32":
        raise UserError(f"features.engine={name} computes in float32; leave features.precision={precision} out")
    if missing := lacks_onnx():
        raise UserError(f"features.engine=onnxruntime needs {missing}")
    side = encoder.preprocessing.crop
    example = torch.randint(256, (2, 3, side, side), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    try:
        graph = to_onnx(traced(encoder, (example,), ("images",)), ("pixels",), ("grids",))
        session = open_session(graph.model_proto.SerializeToString())

        def run(pixels: Tensor) -> Tensor:
            parts = [session.run(None, {"pixels": part.numpy()})[0] for part in pixels.split(BATCH_SIZES[name])]
            return torch.cat([torch.from_numpy(part) for part in parts])

        expected = _run_by_torch(encoder, "float32")(example)
        difference = ((run(example) - expected).norm() / expected.norm()).item()
    except Exception as error:
        reason = reason_of(error)
    else:
        if difference <= 1e-3:
            return run
        reason = f"its grids differ from torch's by {100 * difference:.1f} %"
    raise UserError(f"onnxruntime cannot run {encoder.network_name} ({reason}); leave features.engine at torch")


@dataclass(frozen=True)
class ImageEncoding:
    """An `Encode` that reads and encodes images, and can be sent to another process.

    Args:
        paths: image files by name.
        views: number of grids per image.
        engine, precision: inference engine and its number format.
        readers: number of processes that read files; 0 reads them in this process.
    """

    encoder: Encoder
    paths: Mapping[str, str]
    views: int
    skip_unreadable: bool
    engine: EngineName = "torch"
    precision: Precision = "float32"
    readers: int = 0

    def __call__(self, batches: Iterable[Sequence[str]]) -> Iterator[EncodedBatch]:
        """Yield the encoded batches of images, given by their names.

        Raises:
            UserError: an image is unreadable, unless such images are skipped.
        """
        named, requested = itertools.tee(batches)
        loader = DataLoader(
            ImageFiles(self.encoder.preprocessing),
            batch_sampler=([self.paths[image] for image in images] for images in requested),
            collate_fn=_collate,
            num_workers=self.readers if len(self.paths) > BATCH_SIZE else 0,
            pin_memory=torch.cuda.is_available(),
            generator=torch.Generator(),  # a separate generator keeps later random draws independent of the cache
        )
        with self._on_device():
            for images, (pixels, errors) in zip(named, loader, strict=True):
                skipped = {image: error for image, error in zip(images, errors, strict=True) if error}
                if skipped and not self.skip_unreadable:
                    reason = next(iter(skipped.values()))
                    raise UserError(f"{reason}, or skip such images with dataset.skip_unreadable=true")
                readable = [image for image in images if image not in skipped]
                views = [self._run(view_of(pixels, readable, view)) for view in range(self.views) if readable]
                grids = torch.stack(views, dim=1) if views else torch.zeros(0)
                stamps = {image: FileStamp.of(self.paths[image]) for image in readable}
                yield EncodedBatch(readable, grids, skipped, stamps)

    @contextmanager
    def _on_device(self) -> Iterator[None]:
        """Keep the encoder on the GPU, if there is one."""
        keep_freed_memory()
        if self.engine != "torch" or not torch.cuda.is_available():
            yield
            return
        self.encoder.to(local_device()).to(memory_format=torch.channels_last)
        try:
            yield
        finally:
            self.encoder.to("cpu")

    @cached_property
    def _run(self) -> Engine:
        return start_engine(self.encoder, self.engine, self.precision)


class ImageFiles(Dataset):
    """Data set of preprocessed pixels by the path of their file, with the error instead for an unreadable one."""

    def __init__(self, preprocessing: Preprocessing):
        self.preprocessing = preprocessing

    def __getitem__(self, path: str) -> Tensor | str:
        try:
            return self.preprocessing(read_pixels(path))
        except UserError as error:
            return str(error)


def _collate(items: Sequence[Tensor | str]) -> tuple[Tensor, list[str]]:
    """Collate the items of a batch: pixels of the readable images, and the error of each image, which may be empty."""
    pixels = [item for item in items if isinstance(item, Tensor)]
    return torch.stack(pixels) if pixels else torch.zeros(0), [item if isinstance(item, str) else "" for item in items]
