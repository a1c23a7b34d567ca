"""Run the frozen encoder once over every image of a data set: inference engines, views, and parallel processes."""

import itertools
import multiprocessing
import os
import shutil
import signal
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, replace
from functools import cached_property, partial
from multiprocessing.connection import Connection, wait
from pathlib import Path
from random import Random
from threading import Event, Thread
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text
from torch import Tensor
from torch.utils.data import DataLoader

from showattendtell.data.images import Frame, ImageFiles, Preprocessing
from showattendtell.errors import UserError
from showattendtell.features.regions import RegionReading, has_changed, open_region_file
from showattendtell.features.store import (
    BATCH_SIZE,
    DEFAULTS,
    MANIFEST,
    Encode,
    EncodedBatch,
    FeatureStore,
    FileStamp,
    Settings,
    StorePlan,
    check_same_settings,
    is_finished,
    read_manifest,
    shard_size,
    verify_changed,
)
from showattendtell.features.writer import count_written, write_shards, write_store
from showattendtell.models.encoder import Encoder
from showattendtell.models.region_features import RegionFeatures
from showattendtell.runtime.distributed import local_device, rank
from showattendtell.runtime.memory import keep_freed_memory
from showattendtell.runtime.ray_actors import actor_options, require_ray
from showattendtell.runtime.tracing import lacks_onnx, open_session, reason_of, to_onnx, traced
from showattendtell.runtime.vision import transforms
from showattendtell.settings import PositiveInt
from showattendtell.types import Box, Dataset, Example

Engine = Callable[[Tensor], Tensor]
"""Maps pixels (I, 3, S, S) in uint8 to grids (I, L, D) in float32, both in CPU memory."""

EngineName = Literal["torch", "onnxruntime"]
Computed = Literal["float32", "bfloat16", "float16"]


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
    precision: Computed = "float32"
    engine: EngineName = "torch"
    views: PositiveInt = 1


def feature_path(folder: Path, dataset: Dataset, encoder: Encoder, extraction: Extraction) -> Path:
    """Return the folder of a data set's feature store.

    Its name has the encoder's sizes, and for a fine-tuned network a hash of the weights; the store's manifest detects
    other weights under the same name. Earlier versions omitted the resize: a complete store under such a name is used
    if its settings match.
    """
    if isinstance(encoder, RegionFeatures):
        name = f"{Path(encoder.features).name}-{encoder.max_regions}-{encoder.feature_dim}"
        return folder / dataset.name / f"{encoder.network_name}-{name}"
    preprocessing = encoder.preprocessing
    suffixes = [
        "squash" if preprocessing.crop_mode == "squash" else "",
        f"pool{encoder.pool}" if encoder.pool > 1 else "",
        encoder.describe()["weights_sha256"][:12] if encoder.tuned else "",
        extraction.precision if extraction.precision != "float32" else "",
        extraction.dtype if extraction.dtype != "float16" else "",
        f"{extraction.views}views" if extraction.views > 1 else "",
    ]
    network = f"{encoder.network_name}-{encoder.stride}-{preprocessing.crop}"
    path, old_path = (
        folder / dataset.name / "-".join(filter(None, parts))
        for parts in ([network, f"resize{preprocessing.resize}", *suffixes], [network, *suffixes])
    )
    if is_finished(old_path) and not is_finished(path):
        with suppress(UserError):
            check_same_settings(old_path, read_manifest(old_path).settings, store_settings(encoder, extraction))
            return old_path
    return path


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
        raise UserError(f"{encoder.features} is newer than {path}; remove the folder and it will be made again")
    store = FeatureStore(path, settings)
    verify_changed(path)
    changed = [example.path for example in dataset.examples() if _has_changed(example, store)]
    if changed:
        raise UserError(
            f"{len(changed)} photographs changed since their grids in {path} were computed, the first is {changed[0]}; "
            "remove the folder and it will be made again, by prepare or train"
        )
    skipped = [example.path for example in dataset.examples() if example.image in store.skipped]
    if skipped and not skip_unreadable:
        raise UserError(
            f"{path} was made without the images that could not be read ({len(skipped)}, the first is {skipped[0]}); "
            "skip them with dataset.skip_unreadable=true, or replace them and remove the folder"
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
    old_file = Path(f"{path}.safetensors")
    if old_file.is_file():
        console.print(f"  {old_file} is of an earlier version and is not read; it may be removed", soft_wrap=True)


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


READERS = 2
"""Number of processes that read images, if a single process encodes."""

BATCH_SIZES: Mapping[EngineName, int] = {"torch": 16, "onnxruntime": 4}
"""Images per forward pass on a CPU. With one thread, torch leaves the 1 x 1 convolutions of fewer than 16 images to a
library that is slower on some processors. onnxruntime is fastest if the output of a layer fits into the cache."""


def _run_by_torch(encoder: Encoder, precision: Computed) -> Engine:
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
            return torch.cat([encoder(part).float() for part in parts])[: len(pixels)].cpu()

    return run


def start_engine(encoder: Encoder, name: EngineName, precision: Computed) -> Engine:
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
    message = f"onnxruntime cannot run {encoder.network_name} ({{}}); leave features.engine at torch"
    side = encoder.preprocessing.crop
    example = torch.randint(256, (2, 3, side, side), dtype=torch.uint8, generator=torch.Generator().manual_seed(0))
    try:
        session = _open_session(encoder, example)
    except Exception as error:
        raise UserError(message.format(reason_of(error))) from None
    [input_name] = [input_name.name for input_name in session.get_inputs()]

    def run(pixels: Tensor) -> Tensor:
        parts = [session.run(None, {input_name: part.numpy()})[0] for part in pixels.split(BATCH_SIZES[name])]
        return torch.cat([torch.from_numpy(part) for part in parts])

    expected = _run_by_torch(encoder, "float32")(example)
    difference = ((run(example) - expected).norm() / expected.norm()).item()
    if not difference <= 1e-3:
        raise UserError(message.format(f"its grids differ from torch's by {100 * difference:.1f} %"))
    return run


def _open_session(encoder: Encoder, example: Tensor) -> Any:
    graph = to_onnx(traced(encoder, (example,), ("images",)), ("pixels",), ("grids",))
    return open_session(graph.model_proto.SerializeToString())


@dataclass(frozen=True)
class ImageEncoding:
    """An `Encode` that reads and encodes images, and can be sent to another process.

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
    precision: Computed = "float32"
    readers: int = 0

    def __call__(self, batches: Iterable[Sequence[str]]) -> Iterator[EncodedBatch]:
        """Yield the encoded batches of images, given by their names.

        Raises:
            UserError: an image is unreadable, unless such images are skipped.
        """
        files = ImageFiles(list(self.paths.values()), self.encoder.preprocessing)
        positions = {image: position for position, image in enumerate(self.paths)}
        named, requested = itertools.tee(batches)
        loader = DataLoader(
            files,
            batch_sampler=([positions[image] for image in images] for images in requested),
            collate_fn=_collate,
            num_workers=self.readers if len(files) > BATCH_SIZE else 0,
            pin_memory=torch.cuda.is_available(),
            generator=torch.Generator(),  # a separate generator keeps later random draws independent of the cache
        )
        with self._on_device():
            for images, (pixels, places, errors) in zip(named, loader, strict=True):
                if errors and not self.skip_unreadable:
                    error = next(iter(errors.values()))
                    raise UserError(f"{error}, or skip such images with dataset.skip_unreadable=true")
                skipped = {images[place]: str(error) for place, error in errors.items()}
                readable = [images[position] for position in places]
                grids = torch.zeros(0, self.views, self.encoder.grid[0] * self.encoder.grid[1], self.encoder.dim)
                if readable:
                    views = [self._run(view_of(pixels, readable, view)) for view in range(self.views)]
                    grids = torch.stack(views, dim=1)
                stamps = {image: FileStamp.of(self.paths[image]) for image in readable}
                yield EncodedBatch(readable, grids, skipped, stamps)

    @contextmanager
    def _on_device(self) -> Iterator[None]:
        """Keep the encoder on the GPU, if there is one; on a CPU, use the memory of its activations again."""
        if self.engine != "torch" or not torch.cuda.is_available():
            keep_freed_memory()
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


def _collate(items: Sequence[tuple[int, Tensor | UserError]]) -> tuple[Tensor, list[int], dict[int, UserError]]:
    """Collate the items of a batch: pixels of the readable images, their positions, and the errors of the others."""
    errors = {i: item for i, (_, item) in enumerate(items) if isinstance(item, UserError)}
    pixels = {i: item for i, (_, item) in enumerate(items) if isinstance(item, Tensor)}
    return torch.stack(list(pixels.values())) if pixels else torch.zeros(0, 3, 1, 1), list(pixels), errors


def in_processes(num_processes: int, write: Callable[[], None]) -> None:
    """Call `write` in several processes. They end with this one, also if it is killed.

    Raises:
        UserError: a process raised it or was killed. The others are stopped.
    """
    context = multiprocessing.get_context("spawn")  # neither CUDA nor torch's threads work in a forked process
    threads = max(1, torch.get_num_threads() // num_processes)
    pipes = [context.Pipe(duplex=False) for _ in range(num_processes)]
    processes = {receiver: context.Process(target=_work, args=(write, sender, threads)) for receiver, sender in pipes}
    try:
        for receiver, sender in pipes:
            processes[receiver].start()
            sender.close()
        open_receivers = set(processes)
        while open_receivers:
            for end in wait(open_receivers):
                assert isinstance(end, Connection)
                with suppress(EOFError):
                    raise end.recv()
                open_receivers.discard(end)
                processes[end].join()
                if processes[end].exitcode:
                    raise UserError(
                        f"a process that encodes images ended with status {processes[end].exitcode}, as for lack "
                        "of memory; set features.workers lower and run it again: finished work is kept"
                    )
    finally:
        for process in processes.values():
            if process.pid:
                process.kill()
                process.join()


def _work(write: Callable[[], None], parent: Connection, threads: int) -> None:
    """Entry point of the processes."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends this process
    Thread(target=_end_with_parent, daemon=True).start()
    torch.set_num_threads(threads)
    try:
        write()
    except UserError as error:
        parent.send(error)


def _end_with_parent() -> None:
    parent = multiprocessing.parent_process()
    assert parent is not None
    parent.join()
    os._exit(1)


class ShardWriter:
    """Writes shards of a store in an actor of Ray.

    Args:
        folder: working directory, from which relative paths start.
    """

    def __init__(self, folder: str, path: Path, plan: StorePlan, encode: Encode):
        os.chdir(folder)
        self._write = partial(write_shards, path, plan, encode)

    def __call__(self, batch: dict[str, NDArray]) -> dict[str, list[str]]:
        """Write the shards with the numbers in the column `id`. Return the error of images that cannot be read."""
        try:
            self._write(numbers=batch["id"].tolist())
        except UserError as error:
            return {"error": [str(error)]}
        return {"error": [""]}


def write_with_ray(workers: int, path: Path, plan: StorePlan, encode: ImageEncoding) -> None:
    """Write all shards in actors of Ray. Paths have to be valid on every machine of the cluster; see `actor_options`.
    The work of an actor that is killed is done by another.

    Raises:
        UserError: Ray Data is not installed, or an actor raised it.
    """
    ray = require_ray()
    options = actor_options(ray, workers, on_gpu=encode.engine == "torch")
    encode = replace(encode, readers=READERS if options["num_gpus"] else 0)
    numbers = ray.data.range(len(plan.shards), override_num_blocks=len(plan.shards))
    arguments = (os.getcwd(), path, plan, encode)
    for row in numbers.map_batches(ShardWriter, fn_constructor_args=arguments, batch_size=1, **options).iter_rows():
        if row["error"]:
            raise UserError(row["error"])


MIRRORED = 1
"""Number of the view that is the mirror image; 0 is the image itself."""

SMALLEST = 0.7
"""Minimum side of an enlarged part, as a fraction of the whole side."""


def view_of(pixels: Tensor, images: Sequence[str], view: int) -> Tensor:
    """Return a view (I, 3, S, S) of the pixels of the named images, whose names seed the enlarged parts."""
    parts, size = [], pixels.shape[-1]
    for image, image_pixels in zip(images, pixels, strict=True) if view >= 2 else ():
        top, left, side = part_of(image, view, size)
        parts.append(transforms.resized_crop(image_pixels, top, left, side, side, [size, size]))
    views = torch.stack(parts) if parts else pixels
    return views.flip(-1) if is_mirrored(view) else views


def part_of(image: str, view: int, size: int) -> tuple[int, int, int]:
    """Return top, left and side of the square of `size` x `size` pixels that a view shows."""
    if view < 2:
        return 0, 0, size
    random = Random(f"{view} {image}")
    side = round(size * random.uniform(SMALLEST, 1))
    return random.randint(0, size - side), random.randint(0, size - side), side


def frame_of(example: Example, view: int, preprocessing: Preprocessing) -> Frame:
    """Return the part of a photograph that a view shows. Raise `UserError` if the photograph cannot be read."""
    size = preprocessing.crop
    top, left, side = part_of(example.image, view, size)
    part = Box(left, top, left + side, top + side).scaled(1 / size, 1 / size)
    return preprocessing.frame(example.path).part(part, is_mirrored(view))


def is_mirrored(view: Any) -> Any:
    """Return whether a view, or each of an array of views, is mirrored."""
    return view % 2 == 1


def draw_views(num_views: int, sided: NDArray[np.bool_], seed: int, draw: tuple[int, int]) -> Tensor:
    """Draw one of `num_views` views for each of the N images of a split.

    Views are drawn for all images and not only for those of the batch, so that processes with different parts of a
    batch draw the same.

    Args:
        sided: (N,) whether the captions of an image distinguish left from right; no mirrored view is drawn then.
        seed, draw: random seed, with the epoch and the number of the batch in it.

    Returns:
        Numbers of views (N,).
    """
    views = np.random.default_rng([seed, *draw]).integers(num_views, size=len(sided))
    return torch.from_numpy(np.where(sided & is_mirrored(views), views - 1, views))
