"""Run the frozen encoder once over every image of a data set, and open the store of its features."""

import itertools
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from functools import partial
from pathlib import Path
from threading import Event, Thread
from typing import Literal, NamedTuple

import torch
from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

from showattendtell.errors import UserError
from showattendtell.features.encoding import EngineName, ImageEncoding, Precision
from showattendtell.features.regions import RegionReading, has_changed, open_region_file
from showattendtell.features.store import (
    DEFAULTS,
    MANIFEST,
    FeatureStore,
    Settings,
    StorePlan,
    is_finished,
    shard_size,
    verify_changed,
)
from showattendtell.features.workers import READERS, in_processes, write_with_ray
from showattendtell.features.writer import count_written, write_shards, write_store
from showattendtell.models.encoder import Encoder
from showattendtell.models.region_features import RegionFeatures
from showattendtell.runtime.distributed import rank
from showattendtell.settings import PositiveInt
from showattendtell.types import Dataset, Example


class Extraction(NamedTuple):
    """Settings of grid computation and storage.

    workers: processes; without a GPU each encodes and writes its own images, with a GPU they read images.
    executor: processes of this machine, or ray: `workers` actors on a Ray cluster, that of RAY_ADDRESS if it is set,
        each with a thread or a part of a GPU.
    dtype: float16, or int8 for half the size: one step per region, 1/127 of its largest absolute value; the loss is
        reported.
    precision: number format of the encoder. Shorter formats are faster on GPUs and some CPUs; the error of bfloat16 is
        1 % (vgg19) to 5 % (tf_efficientnet_lite0) of the grids' norm, that of float16 an eighth of it.
    engine: torch, or onnxruntime from the extra onnx, which is faster on CPUs and gives the same grids.
    views: grids per image. 1 is the image alone, 2 adds its mirror image, more add enlarged parts of it, every other
        one mirrored. Training draws one per image and batch; validation and test use the first, with
        `decoding=mirrored` also the second.
    """

    workers: PositiveInt = 1
    executor: Literal["processes", "ray"] = "processes"
    dtype: Literal["float16", "int8"] = "float16"
    precision: Precision = "float32"
    engine: EngineName = "torch"
    views: PositiveInt = 1


def feature_path(folder: Path, dataset: Dataset, encoder: Encoder, extraction: Extraction) -> Path:
    """Return the folder of a data set's feature store.

    Its name has the encoder's sizes, and for a fine-tuned network a hash of the weights; the store's manifest detects
    other weights under the same name.
    """
    if isinstance(encoder, RegionFeatures):
        name = f"{Path(encoder.features).name}-{encoder.max_regions}-{encoder.feature_dim}"
        return folder / dataset.name / f"{encoder.network_name}-{name}"
    preprocessing = encoder.preprocessing
    parts = [
        f"{encoder.network_name}-{encoder.stride}-{preprocessing.crop}-resize{preprocessing.resize}",
        "squash" if preprocessing.crop_mode == "squash" else "",
        f"pool{encoder.pool}" if encoder.pool > 1 else "",
        encoder.describe()["weights_sha256"][:12] if encoder.tuned else "",
        extraction.precision if extraction.precision != "float32" else "",
        extraction.dtype if extraction.dtype != "float16" else "",
        f"{extraction.views}views" if extraction.views > 1 else "",
    ]
    return folder / dataset.name / "-".join(filter(None, parts))


def open_features(
    dataset: Dataset, encoder: Encoder, path: Path, skip_unreadable: bool, extraction: Extraction | None = None
) -> tuple[FeatureStore, Dataset]:
    """Open a feature store; compute and write it first if it is missing.

    Shards are verified at their first use, and again when their file has changed.

    Returns:
        The store, and the data set without the images that were skipped as unreadable.

    Raises:
        UserError: the store has other settings or is damaged, or a photograph has changed since it was encoded.
    """
    extraction = extraction or Extraction()
    settings = store_settings(encoder, extraction)
    if not is_finished(path):
        write_features(dataset, encoder, path, skip_unreadable, extraction)
    elif isinstance(encoder, RegionFeatures) and has_changed(encoder, path / MANIFEST):
        raise UserError(f"{encoder.features} is newer than {path}; delete the folder; the next run recreates it")
    store = FeatureStore(path, settings)
    verify_changed(path)
    changed = [example.path for example in dataset.examples() if _has_changed(example, store)]
    if changed:
        raise UserError(
            f"{len(changed)} photographs changed since their grids in {path} were computed, the first is {changed[0]}; "
            "delete the folder; prepare and train recreate it"
        )
    skipped = [example.path for example in dataset.examples() if example.image in store.skipped]
    if skipped and not skip_unreadable:
        raise UserError(
            f"{path} was made without the images that could not be read ({len(skipped)}, the first is {skipped[0]}); "
            "skip them with dataset.skip_unreadable=true, or replace them and delete the folder"
        )
    return store, dataset.without(store.skipped)


def _has_changed(example: Example, store: FeatureStore) -> bool:
    stamp = store.stamps.get(example.image)
    return stamp is not None and os.path.isfile(example.path) and not stamp.is_of(example.path)


def store_settings(encoder: Encoder, extraction: Extraction) -> Settings:
    """Return all settings that determine the grids; the default precision is omitted."""
    precision = {} if extraction.precision == DEFAULTS["precision"] else {"precision": extraction.precision}
    return {**encoder.describe(), "dtype": extraction.dtype, "views": extraction.views, **precision}


def write_features(
    dataset: Dataset, encoder: Encoder, path: Path, skip_unreadable: bool, extraction: Extraction
) -> None:
    """Compute and write all grids, or the remaining ones of an interrupted run, on the GPU if there is one."""
    settings = store_settings(encoder, extraction)
    console = Console(stderr=True, quiet=rank() > 0)
    paths = {example.image: example.path for example in dataset.examples()}
    plan = StorePlan(dataset.name, settings, list(paths), shard_size(len(paths)))
    on_gpu = torch.cuda.is_available() and extraction.engine == "torch"

    def work() -> None:
        if isinstance(encoder, RegionFeatures):
            write_shards(path, plan, RegionReading(encoder, open_region_file(encoder), paths, skip_unreadable))
            return
        encode = ImageEncoding(
            encoder, paths, extraction.views, skip_unreadable, extraction.engine, extraction.precision
        )
        if extraction.executor == "ray":
            write_with_ray(extraction.workers, path, plan, encode)
        elif extraction.workers == 1 or on_gpu:
            write_shards(path, plan, replace(encode, readers=max(READERS, extraction.workers)))
        else:
            in_processes(extraction.workers, partial(write_shards, path, plan, encode))

    _announce(console, path, plan)
    is_slow = extraction.engine == "torch" and extraction.precision == "float32" and encoder.reads_pixels and not on_gpu
    with _progress(console, path, plan, FASTER if is_slow else ""):
        write_store(path, plan, work)
    store = FeatureStore(path)
    if settings["dtype"] != "float16":
        console.print(f"  {settings['dtype']} loses {100 * store.relative_error:.2f} % of the grids' norm")
    for reason in store.skipped.values():
        console.print(f"skipped: {reason}", style="yellow", markup=False, soft_wrap=True)


def _announce(console: Console, path: Path, plan: StorePlan) -> None:
    """Print what the store will contain, its path and the free disk space."""
    rows, columns = plan.settings["grid"]
    views = f" x {plan.settings['views']} views" if plan.settings["views"] > 1 else ""
    console.print(
        f"features: {len(plan.images)} images{views} x {rows * columns} x {plan.settings['dim']} in "
        f"{plan.settings['dtype']}, {decimal(plan.num_bytes)}"
    )
    existing = next((folder for folder in (path, *path.parents) if folder.is_dir()), Path())
    free = decimal(shutil.disk_usage(existing).free)
    console.print(f"  to {path} ({free} free)", soft_wrap=True, highlight=False, markup=False)


@contextmanager
def _progress(console: Console, path: Path, plan: StorePlan, hint: str) -> Iterator[None]:
    """Show how many images the store has, from all processes that write it: as a bar, or without a terminal as lines.

    Args:
        hint: printed if the rest will take longer than `PATIENCE`.
    """
    columns = (BarColumn(), MofNCompleteColumn(), _ImagesPerSecond(), TimeRemainingColumn())
    ended = Event()
    with Progress(TextColumn("{task.description}"), *columns, console=console) as progress:
        bar = progress.add_task("features", total=len(plan.images))
        follow = Thread(target=_follow, args=(progress, partial(count_written, path, plan), ended, hint))
        follow.start()
        try:
            yield
            progress.update(bar, completed=len(plan.images))
        finally:
            ended.set()
            follow.join()


def _follow(progress: Progress, count: Callable[[], int], ended: Event, hint: str) -> None:
    """Update the bar every second, and print the lines."""
    console, [task] = progress.console, progress.tasks
    for second in itertools.count(1):
        if ended.wait(1):
            return
        progress.update(task.id, completed=count())
        if second % LINE_SECONDS:
            continue
        if not console.is_terminal:
            speed = f", {task.speed:.1f} images/s" if task.speed else ""
            console.print(f"features: {task.completed:.0f} of {task.total:.0f} images{speed}", highlight=False)
        remaining = task.time_remaining or 0
        if hint and remaining > PATIENCE:
            console.print(f"  about {remaining / 60:.0f} minutes are left; {hint}", highlight=False, soft_wrap=True)
            hint = ""


LINE_SECONDS = 9
"""Seconds between two lines of progress without a terminal."""

PATIENCE = 600
"""Seconds of remaining time from which faster settings are suggested."""

FASTER = (
    "features.engine=onnxruntime computes the same grids faster and continues this work after Ctrl-C; "
    "features.precision=bfloat16 starts again and is less exact, and faster on processors that support it"
)


class _ImagesPerSecond(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text(f"{task.finished_speed or task.speed or 0:.0f} images/s", style="progress.data.speed")
