"""Run the frozen encoder once over every image of a data set, and open the store of its features."""

import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from multiprocessing.queues import SimpleQueue
from pathlib import Path
from threading import Event, Thread
from typing import Annotated, Literal

import torch
import torch.multiprocessing as multiprocessing
from pydantic import Field
from rich.console import Console
from rich.filesize import decimal
from rich.progress import MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from showattendtell.errors import UserError
from showattendtell.features.encoding import EngineName, ImageEncoding, Precision
from showattendtell.features.store import MANIFEST, FeatureStore, Settings, is_finished, verify_changed
from showattendtell.features.writer import StorePlan, count_written, shard_size, write_shards, write_store
from showattendtell.models.encoder import Encoder
from showattendtell.runtime.distributed import num_readers, rank
from showattendtell.runtime.launched import end_with_parent
from showattendtell.settings import PositiveInt
from showattendtell.types import Dataset, Example

READERS = 2
"""Number of processes that read images, if a single process encodes on a CPU."""


@dataclass(frozen=True)
class Extraction:
    """How the grids of a frozen encoder are computed and stored.

    Args:
        workers: number of processes. Without a GPU each encodes and writes its own images. With a GPU they
            read images, by default one for each core but one.
        dtype: float16, or int8 for half the size: one step per region, 1/127 of its largest absolute value;
            the loss is reported.
        precision: number format of the encoder. Shorter formats are faster on GPUs and some CPUs; the error
            of bfloat16 is 1 % (vgg19) to 5 % (tf_efficientnet_lite0) of the grids' norm, that of float16 an
            eighth of it.
        engine: torch, or onnxruntime from the extra onnx, which is faster on CPUs and gives the same grids.
        views: grids per image. 1 is the image alone, 2 adds its mirror image. Training draws one per image and
            batch; validation and test use the first, with `decoding=mirrored` also the second.
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

    def write(self, path: Path, plan: StorePlan, encode: ImageEncoding) -> None:
        """Write all shards of a store. An extension may override this, to write them elsewhere."""
        if self.workers == 1 or self.on_gpu:
            default = max(READERS, num_readers()) if self.on_gpu else READERS
            write_shards(path, plan, replace(encode, readers=self.workers if self.workers > 1 else default))
        else:
            run_in_processes(self.workers, partial(write_shards, path, plan, encode))


def feature_path(folder: Path, dataset: Dataset, encoder: Encoder, extraction: Extraction) -> Path:
    """Return the folder of a data set's feature store.

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
    dataset: Dataset, encoder: Encoder, path: Path, skip_unreadable: bool, extraction: Extraction | None = None
) -> tuple[FeatureStore, Dataset]:
    """Open a feature store; compute and write it first if it is missing.

    Returns:
        The store, and the data set without the images that were skipped as unreadable.

    Raises:
        UserError: the store has other settings or is damaged, or what it was made from has changed.
    """
    extraction = extraction or Extraction()
    if not is_finished(path):
        write_features(dataset, encoder, path, skip_unreadable, extraction)
    store = FeatureStore(path, store_settings(encoder, extraction))
    verify_changed(path)
    changed = [file for file in encoder.stored_files if file.stat().st_mtime > (path / MANIFEST).stat().st_mtime]
    changed += [Path(example.path) for example in dataset.examples() if _has_changed(example, store)]
    if changed:
        raise UserError(
            f"{len(changed)} files changed since the grids in {path} were computed from them, the first is "
            f"{changed[0]}; delete the folder; prepare and train recreate it"
        )
    skipped = [example.path for example in dataset.examples() if example.image in store.skipped]
    if skipped and not skip_unreadable:
        raise UserError(
            f"{path} was made without the images that could not be read ({len(skipped)}, the first is "
            f"{skipped[0]}); skip them with dataset.skip_unreadable=true, or replace them and delete the folder"
        )
    return store, dataset.without(store.skipped)


def _has_changed(example: Example, store: FeatureStore) -> bool:
    stamp = store.stamps.get(example.image)
    return stamp is not None and os.path.isfile(example.path) and not stamp.is_of(example.path)


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
    read = encoder.region_reader(paths, skip_unreadable)
    if read is not None:
        work = partial(write_shards, path, plan, read)
    else:
        precision = extraction.precision
        encode = ImageEncoding(encoder, paths, extraction.views, skip_unreadable, extraction.engine, precision)
        work = partial(extraction.write, path, plan, encode)
    with _progress(console, path, plan):
        write_store(path, plan, work)
    store = FeatureStore(path)
    if extraction.dtype != "float16":
        console.print(f"  {extraction.dtype} loses {100 * store.relative_error:.2f} % of the grids' norm")
    for reason in store.skipped.values():
        console.print(f"skipped: {reason}", style="yellow", markup=False, soft_wrap=True)


LINE_SECONDS = 9
"""Seconds between two lines of progress without a terminal."""


@contextmanager
def _progress(console: Console, path: Path, plan: StorePlan) -> Iterator[None]:
    """Print what the store will contain, and how many images it has from all processes that write it: as a bar, or
    without a terminal as lines."""
    rows, columns = plan.settings["grid"]
    grid = f"{rows * columns} x {plan.settings['dim']} in {plan.settings['dtype']}"
    views = f" x {plan.settings['views']} views" if plan.settings["views"] > 1 else ""
    size = f"{len(plan.images)} images{views} x {grid}, {decimal(plan.num_bytes)}"
    existing = next(folder for folder in (path, *path.parents) if folder.exists())
    free = decimal(shutil.disk_usage(existing).free)
    console.print(f"features: {size}\n  to {path} ({free} free)", soft_wrap=True, highlight=False, markup=False)
    speed = TextColumn("{task.fields[speed]}")
    shown = (*Progress.get_default_columns()[:2], MofNCompleteColumn(), speed, TimeRemainingColumn())
    ended = Event()

    def follow() -> None:
        while not ended.wait(1 if console.is_terminal else LINE_SECONDS):
            progress.update(task, completed=count_written(path, plan))
            done, speed = progress.tasks[task].completed, progress.tasks[task].speed
            rate = f"{speed:.1f} images/s" if speed else ""
            progress.update(task, speed=rate)
            if not console.is_terminal:
                line = f"features: {done:.0f} of {len(plan.images)} images{', ' if rate else ''}{rate}"
                console.print(line, highlight=False)

    with Progress(*shown, console=console, disable=not console.is_terminal) as progress:
        task = progress.add_task("features", total=len(plan.images), speed="")
        thread = Thread(target=follow)
        thread.start()
        try:
            yield
        finally:
            ended.set()
            thread.join()
        console.print(f"features: {len(plan.images)} images are stored", highlight=False)


def run_in_processes(number: int, function: Callable[[], None]) -> None:
    """Call a function in several processes, each with its share of the threads. They end with this one.

    Raises:
        UserError: a process raised it or was killed. The others are stopped.
    """
    context = multiprocessing.get_context("spawn")  # neither CUDA nor torch's threads work in a forked process
    errors = context.SimpleQueue()
    threads = max(1, torch.get_num_threads() // number)
    try:
        multiprocessing.spawn(_run, (function, errors, threads), nprocs=number)
    except (multiprocessing.ProcessExitedException, multiprocessing.ProcessRaisedException) as error:
        if not errors.empty():
            raise errors.get() from None
        if isinstance(error, multiprocessing.ProcessRaisedException):
            raise
        raise UserError(
            f"a process that encodes images ended with status {error.exit_code}, probably out of memory; "
            "lower features.workers and run the command again: finished work is kept"
        ) from None


def _run(index: int, function: Callable[[], None], errors: "SimpleQueue[UserError]", threads: int) -> None:
    end_with_parent()  # torch asks for SIGINT then, which some shells ignore
    parent = multiprocessing.parent_process()
    if parent and not parent.is_alive():  # it ended before that
        return
    torch.set_num_threads(threads)
    try:
        function()
    except UserError as error:
        errors.put(error)
        sys.exit(1)
