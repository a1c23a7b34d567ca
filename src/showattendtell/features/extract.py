"""Run the frozen encoder once over every image of a data set."""

import shutil
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

from showattendtell.errors import UserError
from showattendtell.features.encoding import Computed, EngineName, ImageEncoding, in_processes
from showattendtell.features.store import (
    USUAL,
    FeatureStore,
    Settings,
    StorePlan,
    check_same_settings,
    is_finished,
    read_manifest,
)
from showattendtell.features.writer import count_written, write_shards, write_store
from showattendtell.models.encoder import Encoder
from showattendtell.runtime.distributed import rank
from showattendtell.settings import PositiveInt
from showattendtell.types import Dataset

READERS = 2
"""Reader processes if a single process encodes."""


class Extraction(NamedTuple):
    """Settings of grid computation and storage.

    workers: processes; without a GPU each encodes and writes its own images, with a GPU they read images.
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
    dtype: Literal["float16", "int8"] = "float16"
    precision: Computed = "float32"
    engine: EngineName = "torch"
    views: PositiveInt = 1


def feature_path(folder: Path, dataset: Dataset, encoder: Encoder, extraction: Extraction) -> Path:
    """Return the folder of a data set's feature store.

    Its name has the encoder's sizes, and for a fine-tuned network a hash of the weights; the store's manifest detects
    other weights under the same name. Earlier versions omitted the resize: a complete store under such a name is used
    if its settings match.
    """
    preprocessing = encoder.preprocessing
    ending = [
        "squash" if preprocessing.crop_mode == "squash" else "",
        f"pool{encoder.pool}" if encoder.pool > 1 else "",
        encoder.describe()["weights_sha256"][:12] if encoder.tuned else "",
        extraction.precision if extraction.precision != "float32" else "",
        extraction.dtype if extraction.dtype != "float16" else "",
        f"{extraction.views}views" if extraction.views > 1 else "",
    ]
    network = f"{encoder.network_name}-{encoder.stride}-{preprocessing.crop}"
    path, former = (
        folder / dataset.name / "-".join(filter(None, parts))
        for parts in ([network, f"resize{preprocessing.resize}", *ending], [network, *ending])
    )
    if is_finished(former) and not is_finished(path):
        with suppress(UserError):
            check_same_settings(former, read_manifest(former).settings, store_settings(encoder, extraction))
            return former
    return path


def open_features(
    dataset: Dataset, encoder: Encoder, path: Path, skip_unreadable: bool, extraction: Extraction | None = None
) -> tuple[FeatureStore, Dataset]:
    """Open the feature store, or create it if it is missing; also return the data set without skipped images."""
    extraction = extraction or Extraction()
    settings = store_settings(encoder, extraction)
    if not is_finished(path):
        write_features(dataset, encoder, path, skip_unreadable, extraction)
    store = FeatureStore(path, settings)
    skipped = [example.path for example in dataset.examples() if example.image in store.skipped]
    if skipped and not skip_unreadable:
        raise UserError(
            f"{path} was made without the images that could not be read ({len(skipped)}, the first is {skipped[0]}); "
            "pass over them with dataset.skip_unreadable=true, or replace them and remove the folder"
        )
    return store, dataset.without(store.skipped)


def store_settings(encoder: Encoder, extraction: Extraction) -> Settings:
    """Return all settings that decide the grids' values; the default precision is omitted."""
    lower = {} if extraction.precision == USUAL["precision"] else {"precision": extraction.precision}
    return {**encoder.describe(), "dtype": extraction.dtype, "views": extraction.views, **lower}


def write_features(
    dataset: Dataset, encoder: Encoder, path: Path, skip_unreadable: bool, extraction: Extraction
) -> None:
    """Compute and write all grids, or the remaining ones of an interrupted run."""
    settings, num_workers = store_settings(encoder, extraction), extraction.workers
    console = Console(stderr=True, quiet=rank() > 0)
    paths = {example.image: example.path for example in dataset.examples()}
    plan = StorePlan(dataset.name, settings, list(paths))
    engine = extraction.engine
    encode = ImageEncoding(encoder, paths, extraction.views, skip_unreadable, engine, extraction.precision)
    write = partial(write_shards, path, plan)
    _announce(console, path, plan)
    columns = (BarColumn(), MofNCompleteColumn(), _ImagesPerSecond(), TimeRemainingColumn())
    with Progress(TextColumn("{task.description}"), *columns, console=console) as progress:
        bar = progress.add_task("features", total=len(paths))

        def work() -> None:
            progress.update(bar, completed=count_written(path, plan))
            report = partial(progress.advance, bar)
            if torch.cuda.is_available() and engine == "torch":
                encoder.to("cuda").to(memory_format=torch.channels_last)
                try:
                    write(replace(encode, readers=max(READERS, num_workers)), report)
                finally:
                    encoder.to("cpu")
            elif num_workers == 1:
                write(replace(encode, readers=READERS), report)
            else:
                in_processes(num_workers, write, encode, report)

        write_store(path, plan, work)
        progress.update(bar, completed=len(paths))
    store = FeatureStore(path)
    if settings["dtype"] != "float16":
        console.print(f"  {settings['dtype']} loses {100 * store.relative_error:.2f} % of the grids' norm")
    for reason in store.skipped.values():
        console.print(f"skipped: {reason}", style="yellow", markup=False, soft_wrap=True)


def _announce(console: Console, path: Path, plan: StorePlan) -> None:
    """Print the store's content, its path and the free disk space."""
    rows, columns = plan.settings["grid"]
    views = f" x {plan.settings['views']} views" if plan.settings["views"] > 1 else ""
    console.print(
        f"features: {len(plan.images)} images{views} x {rows * columns} x {plan.settings['dim']} in "
        f"{plan.settings['dtype']}, {decimal(plan.num_bytes)}"
    )
    there = next((folder for folder in (path, *path.parents) if folder.is_dir()), Path())
    free = decimal(shutil.disk_usage(there).free)
    console.print(f"  to {path} ({free} free)", soft_wrap=True, highlight=False, markup=False)
    former = Path(f"{path}.safetensors")
    if former.is_file():
        console.print(f"  {former} is of an earlier version and is not read; it may be removed", soft_wrap=True)


class _ImagesPerSecond(ProgressColumn):
    def render(self, task: Task) -> Text:
        return Text(f"{task.finished_speed or task.speed or 0:.0f} images/s", style="progress.data.speed")
