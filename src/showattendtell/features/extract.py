"""Run the frozen encoder once over every image of a data set, and open the store of its features."""

import multiprocessing
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass, replace
from functools import cached_property, partial
from hashlib import sha256
from pathlib import Path
from typing import Annotated, Literal

import torch
from pydantic import Field
from rich.console import Console
from rich.filesize import decimal
from rich.progress import track
from torch import Tensor
from torch.nn.functional import pad
from torch.utils.data import DataLoader

from showattendtell.errors import UserError
from showattendtell.features.store import (
    BATCH_SIZE,
    EncodedBatch,
    FeatureStore,
    FileStamp,
    Settings,
    StorePlan,
    check_same_settings,
    is_finished,
    shard_size,
    write_shards,
    write_store,
)
from showattendtell.images.reading import read_pixels
from showattendtell.models.encoder import Encoder
from showattendtell.runtime.distributed import local_device, num_readers, rank
from showattendtell.runtime.process import end_with_parent, keep_freed_memory
from showattendtell.runtime.tracing import lacks_onnx, open_session, reason_of, to_onnx
from showattendtell.settings import PositiveInt
from showattendtell.types import Dataset

Engine = Callable[[Tensor], Tensor]
"""Maps pixels (I, 3, S, S) in uint8 and in CPU memory to grids (I, L, D) in float32, on the device of the encoder."""

EngineName = Literal["torch", "onnxruntime"]
Precision = Literal["float32", "bfloat16", "float16"]

BATCH_SIZES: Mapping[EngineName, int] = {"torch": 16, "onnxruntime": 4}
"""Images per forward pass on a CPU. With one thread, torch leaves the 1 x 1 convolutions of fewer than 16 images to a
library that is slower on some processors. onnxruntime is fastest if the output of a layer fits into the cache."""

READERS = 2
"""Number of processes that read images, if a single process encodes on a CPU."""


def _run_by_torch(encoder: Encoder, precision: Precision) -> Engine:
    """Return an engine that runs torch on the encoder's device, CPU or GPU.

    On a CPU every forward pass has the same number of images; the last one is padded with black images. Otherwise the
    last digits of a grid would depend on the number of threads and of images.
    """
    device, dtype = next(encoder.parameters()).device, getattr(torch, precision)

    def run(pixels: Tensor) -> Tensor:
        inputs, size = pixels.to(device, non_blocking=True), len(pixels)
        if device.type == "cpu":
            size = BATCH_SIZES["torch"]
            inputs = pad(inputs, (0, 0, 0, 0, 0, 0, 0, -len(inputs) % size))
        with torch.inference_mode(), torch.autocast(device.type, dtype, enabled=precision != "float32"):
            return torch.cat([encoder(part).float() for part in inputs.split(size)])[: len(pixels)]

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
        session = open_session(to_onnx(encoder, {"pixels": example}, ["images"], ["grids"]).SerializeToString())

        def run(pixels: Tensor) -> Tensor:
            parts = [session.run(None, {"pixels": part.numpy()})[0] for part in pixels.split(BATCH_SIZES[name])]
            return torch.cat([torch.from_numpy(part) for part in parts])

        expected = _run_by_torch(encoder, "float32")(example)
        difference = ((run(example) - expected).norm() / expected.norm()).item()
        if difference <= 1e-3:
            return run
        reason = f"its grids differ from torch's by {100 * difference:.1f} %"
    except Exception as error:
        reason = reason_of(error)
    raise UserError(f"onnxruntime cannot run {encoder.network_name} ({reason}); leave features.engine at torch")


ReadBatch = tuple[dict[str, FileStamp], Tensor, dict[str, str]]
"""Stamps and pixels of the readable images of a batch, and the errors of the others."""


@dataclass(frozen=True)
class ImageEncoding:
    """An `Encode` that reads and encodes images, and can be sent to another process.

    Args:
        paths: image files by name.
        readers: number of processes that read files; 0 reads them in this process.
    """

    encoder: Encoder
    paths: Mapping[str, str]
    skip_unreadable: bool
    extraction: "Extraction"
    readers: int = 0

    def __call__(self, batches: Iterable[Sequence[str]]) -> Iterator[EncodedBatch]:
        """Yield the encoded batches of images, given by their names.

        Raises:
            UserError: an image is unreadable, unless such images are skipped.
        """
        readers = self.readers if len(self.paths) > BATCH_SIZE else 0
        loader: DataLoader[ReadBatch] = DataLoader(
            list(batches),  # type: ignore[arg-type]
            batch_size=None,  # an item is a batch
            collate_fn=self._read,
            num_workers=readers,
            multiprocessing_context="fork" if readers else None,  # others run the user's script again
            pin_memory=torch.cuda.is_available(),
            generator=torch.Generator(),  # a separate generator keeps later random draws independent of the cache
        )
        keep_freed_memory()
        read = iter(loader)  # starts the readers, which work while the GPU is opened
        if self.extraction.on_gpu:
            self.encoder.to(local_device()).to(memory_format=torch.channels_last)
        try:
            for stamps, pixels, errors in read:
                if errors and not self.skip_unreadable:
                    reason = next(iter(errors.values()))
                    raise UserError(f"{reason}, or skip such images with dataset.skip_unreadable=true")
                views = [pixels, pixels.flip(-1)][: self.extraction.views]
                grids = torch.stack(list(map(self._run, views)), dim=1) if stamps else pixels
                yield EncodedBatch(stamps, grids, errors)
        finally:
            self.encoder.to("cpu")

    def _read(self, images: Sequence[str]) -> ReadBatch:
        stamps, pixels, errors = {}, [], {}
        for image in images:
            try:
                pixels.append(self.encoder.preprocessing(read_pixels(self.paths[image])))
                stamps[image] = FileStamp.of(self.paths[image])
            except UserError as error:
                errors[image] = str(error)
        return stamps, torch.stack(pixels) if pixels else torch.zeros(0), errors

    @cached_property
    def _run(self) -> Engine:
        return start_engine(self.encoder, self.extraction.engine, self.extraction.precision)


@dataclass(frozen=True)
class Extraction:
    """How the grids of a frozen encoder are computed and stored.

    Args:
        workers: number of processes. Without a GPU each encodes and writes its own images. With a GPU they
            read images, by default one for each core but one.
        dtype: float16, or int8 for half the size: one step per region, 1/127 of its largest absolute value.
        precision: number format of the encoder. Shorter formats are faster on GPUs and some CPUs; the error
            of bfloat16 is 1 % (vgg19) to 5 % (tf_efficientnet_lite0) of the grids' norm, that of float16 an
            eighth of it.
        engine: torch, or onnxruntime from the extra onnx, which is faster on CPUs and gives the same grids.
        views: grids per image. 1 is the image alone, 2 adds its mirror image. Training draws one per image and
            batch; validation and test use the first.
    """

    workers: PositiveInt = 1
    dtype: Literal["float16", "int8"] = "float16"
    precision: Precision = "float32"
    engine: EngineName = "torch"
    views: Annotated[int, Field(ge=1, le=2)] = 1

    @property
    def on_gpu(self) -> bool:
        """Whether a GPU of this machine encodes."""
        return torch.cuda.is_available() and self.engine == "torch"

    def write(self, path: Path, plan: StorePlan, encode: ImageEncoding, numbers: Sequence[int]) -> Iterator[int]:
        """Write the shards with these numbers; yield the number of each. An extension may override this, to write them
        elsewhere."""
        if self.workers > 1 and not self.on_gpu:
            return in_processes(partial(write_shards, path, plan, encode), numbers, self.workers)
        default = max(READERS, num_readers()) if self.on_gpu else READERS
        return write_shards(path, plan, replace(encode, readers=self.workers if self.workers > 1 else default), numbers)


def feature_path(folder: Path, dataset: Dataset, encoder: Encoder, extraction: Extraction) -> Path:
    """Return the folder of a data set's feature store in the feature cache.

    The store's manifest detects other weights of the encoder under the same name.
    """
    name = encoder.store_name
    if extraction.precision != "float32":
        name += f"-{extraction.precision}"
    if extraction.dtype != "float16":
        name += f"-{extraction.dtype}"
    if extraction.views > 1:
        name += f"-{extraction.views}views"
    return folder / dataset.name / name


def open_features(
    dataset: Dataset,
    encoder: Encoder,
    path: Path,
    skip_unreadable: bool,
    extraction: Extraction | None = None,
    compute: bool = True,
) -> tuple[FeatureStore | None, Dataset]:
    """Open the feature store at a path; compute and write it first if it is missing.

    A data set with images that this store lacks gets a further one next to it.

    Args:
        compute: false: return None instead of a store that is missing.

    Returns:
        The store, and the data set without the images that were skipped as unreadable.

    Raises:
        UserError: the store has other settings or is damaged, or what it was made from has changed.
    """
    extraction = extraction or Extraction()
    examples = dataset.examples()
    images = sorted(example.image for example in examples)
    if is_finished(path) and not FeatureStore(path).covers(images):
        path = path.with_name(f"{path.name}-{sha256(repr(images).encode()).hexdigest()[:6]}")
    if not is_finished(path):
        if not compute:
            return None, dataset
        write_features(dataset, encoder, path, skip_unreadable, extraction)
    store = FeatureStore(path)
    check_same_settings(path, store.settings, store_settings(encoder, extraction))
    changed = [
        example.path
        for example in examples
        if (stamp := store.stamps.get(example.image)) and os.path.isfile(example.path)
        if stamp != FileStamp.of(example.path)
    ]
    if changed:
        raise UserError(
            f"{len(changed)} photographs changed since the grids in {path} were computed from them, the first is "
            f"{changed[0]}; delete the folder; prepare and train recreate it"
        )
    skipped = [example.path for example in examples if example.image in store.skipped]
    if skipped and not skip_unreadable:
        raise UserError(
            f"{path} was made without the images that could not be read ({len(skipped)}, the first is "
            f"{skipped[0]}); skip them with dataset.skip_unreadable=true, or replace them and delete the folder"
        )
    return store, dataset.without(store.skipped)


def store_settings(encoder: Encoder, extraction: Extraction) -> Settings:
    """Return all settings that determine the grids."""
    names = ("dtype", "views", "precision")
    return {**encoder.describe(), **{name: getattr(extraction, name) for name in names}}


def write_features(
    dataset: Dataset, encoder: Encoder, path: Path, skip_unreadable: bool, extraction: Extraction
) -> None:
    """Compute and write all grids, or the remaining ones of an interrupted run, on the GPU if there is one."""
    console = Console(stderr=True, quiet=rank() > 0)
    paths = {example.image: example.path for example in dataset.examples()}
    plan = StorePlan(dataset.name, store_settings(encoder, extraction), list(paths), shard_size(len(paths)))
    encode = ImageEncoding(encoder, paths, skip_unreadable, extraction)
    size = f"{len(paths)} images, {decimal(plan.num_bytes)}"
    console.print(f"features: {size}, to {path}", soft_wrap=True, highlight=False, markup=False)

    def write(numbers: Sequence[int]) -> Iterable[int]:
        written = extraction.write(path, plan, encode, numbers)
        return track(written, "features", len(numbers), console=console, disable=not console.is_terminal)

    write_store(path, plan, write)
    for reason in FeatureStore(path).skipped.values():
        console.print(f"skipped: {reason}", style="yellow", markup=False, soft_wrap=True)


def in_processes(
    write: Callable[[Sequence[int]], Iterator[int]], numbers: Sequence[int], workers: int
) -> Iterator[int]:
    """Call `write` with each number in several processes, which share the threads; yield the numbers that are done. The
    processes end with this one.

    Raises:
        UserError: a process raised it or was killed. Numbers that no process has begun are left out then.
    """
    # neither CUDA nor torch's threads work in a forked process
    context, threads = multiprocessing.get_context("spawn"), max(1, torch.get_num_threads() // workers)
    pool = ProcessPoolExecutor(workers, context, _start_worker, (write, threads))
    try:
        yield from pool.map(_write_one, numbers)
    except BrokenProcessPool:
        raise UserError(
            "a process that encodes images was killed, probably out of memory; lower features.workers and run the "
            "command again: finished work is kept"
        ) from None
    finally:
        pool.shutdown(cancel_futures=True)


_write: Callable[[Sequence[int]], Iterator[int]]  # in a process of `in_processes`


def _start_worker(write: Callable[[Sequence[int]], Iterator[int]], threads: int) -> None:
    global _write
    end_with_parent()
    parent = multiprocessing.parent_process()
    if parent and not parent.is_alive():  # it ended before that
        sys.exit()
    torch.set_num_threads(threads)
    _write = write


def _write_one(number: int) -> int:
    return next(_write([number]))
