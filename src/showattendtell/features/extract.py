"""Runs the frozen encoder over every image of a data set, once."""

import shutil
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Literal, NamedTuple

import torch
from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text

from showattendtell.arguments import PositiveInt
from showattendtell.encoder import Encoder
from showattendtell.errors import UserError
from showattendtell.features.encoding import ImageEncoding, on_gpu
from showattendtell.features.engines import Computed, EngineName
from showattendtell.features.layout import USUAL, Settings, is_finished
from showattendtell.features.plan import Plan
from showattendtell.features.store import FeatureStore
from showattendtell.features.workers import in_processes
from showattendtell.features.writer import count_written, write_shards, write_store
from showattendtell.processes import rank
from showattendtell.records import Dataset

READERS = 2
"""Processes that read images for the one that encodes, where that is one."""


class Extraction(NamedTuple):
    """How the grids of a frozen encoder are computed and stored.

    workers: processes; without a GPU each of them encodes and writes images of its own, and for a GPU they read images.
    dtype: float16, or int8 for half the size: a step for each region, 1/127 of its largest number; what that loses is
        told.
    precision: what the encoder computes in. Shorter numbers save time on GPUs and on some processors; bfloat16 loses
        1 % (vgg19) to 5 % (tf_efficientnet_lite0) of the grids' norm, float16 an eighth of that.
    engine: torch, or onnxruntime from the extra onnx, which is faster on processors and gives the same grids.
    views: grids of each image. 1 is that of the image alone, 2 has its mirror image as well, more have parts of it,
        every other one mirrored. Training draws one for each image of a batch; validation and test use the first, with
        `decoding=mirrored` also the second.
    """

    workers: PositiveInt = 1
    dtype: Literal["float16", "int8"] = "float16"
    precision: Computed = "float32"
    engine: EngineName = "torch"
    views: PositiveInt = 1


def feature_path(folder: Path, dataset: Dataset, encoder: Encoder, extraction: Extraction) -> Path:
    """Where a data set's grids are kept, those of a network that was fine-tuned by its weights; other weights under the
    same name are found out by the store's manifest."""
    parts = [
        f"{encoder.network_name}-{encoder.stride}-{encoder.preprocessing.crop}",
        "squash" if encoder.preprocessing.crop_mode == "squash" else "",
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
    """The store of a data set's grids, made now where it is missing, and the data set less the images it skipped."""
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
    """All that decides the values of the grids; the usual precision goes without saying."""
    lower = {} if extraction.precision == USUAL["precision"] else {"precision": extraction.precision}
    return {**encoder.describe(), "dtype": extraction.dtype, "views": extraction.views, **lower}


def write_features(
    dataset: Dataset, encoder: Encoder, path: Path, skip_unreadable: bool, extraction: Extraction
) -> None:
    """Compute and write all grids, or those that an interrupted run left undone."""
    settings, num_workers = store_settings(encoder, extraction), extraction.workers
    console = Console(stderr=True, quiet=rank() > 0)
    paths = {example.image: example.path for example in dataset.examples()}
    plan = Plan(dataset.name, settings, list(paths))
    engine, precision = extraction.engine, extraction.precision
    encode = ImageEncoding(encoder, paths, extraction.views, skip_unreadable, engine, precision)
    write = partial(write_shards, path, plan)
    _announce(console, path, plan)
    with _progress(console) as progress:
        bar = progress.add_task("features", total=len(paths))

        def work() -> None:
            progress.update(bar, completed=count_written(path, plan))
            tell = partial(progress.advance, bar)
            if torch.cuda.is_available() and engine == "torch":
                with on_gpu(encoder):
                    write(replace(encode, readers=max(READERS, num_workers)), tell)
            elif num_workers == 1:
                write(replace(encode, readers=READERS), tell)
            else:
                in_processes(num_workers, write, encode, tell)

        write_store(path, plan, work)
        progress.update(bar, completed=len(paths))
    store = FeatureStore(path)
    if settings["dtype"] != "float16":
        console.print(f"  {settings['dtype']} loses {100 * store.relative_error:.2f} % of the grids' norm")
    for reason in store.skipped.values():
        console.print(f"skipped: {reason}", style="yellow", markup=False, soft_wrap=True)


def _announce(console: Console, path: Path, plan: Plan) -> None:
    """What will be written, and where, and how much room there is."""
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


def _progress(console: Console) -> Progress:
    return Progress(
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        _ImagesPerSecond(),
        TimeRemainingColumn(),
        console=console,
    )
