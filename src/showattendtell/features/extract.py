"""Runs the frozen encoder over every image of a data set, once."""

from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import torch
from rich.console import Console
from rich.filesize import decimal
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, Task, TextColumn, TimeRemainingColumn
from rich.text import Text
from torch import Tensor
from torch.utils.data import DataLoader

from showattendtell.data.images import ImageFiles
from showattendtell.encoder import Encoder
from showattendtell.errors import UserError
from showattendtell.features.store import FeatureStore, FeatureWriter, Settings
from showattendtell.records import Dataset, Example

BATCH_SIZE = 32


class Readable(NamedTuple):
    """A batch of images: the pixels of those that could be read, their positions, and the faults of the others."""

    pixels: Tensor
    positions: list[int]
    faults: dict[int, UserError]


def feature_path(folder: Path, dataset: Dataset, encoder: Encoder) -> Path:
    """Where a data set's grids are kept; other weights under the same name are found out by the file's header."""
    return folder / dataset.name / f"{encoder.network_name}-{encoder.stride}-{encoder.preprocessing.crop}.safetensors"


def open_features(
    dataset: Dataset, encoder: Encoder, path: Path, skip_unreadable: bool, num_workers: int = 2
) -> tuple[FeatureStore, Dataset]:
    """The store of a data set's grids, made now where it is missing, and the data set less the images it skipped."""
    settings: Settings = {"dataset": dataset.name, **encoder.describe()}
    if not path.exists():
        write_features(dataset.examples(), encoder, path, settings, skip_unreadable, num_workers)
    store = FeatureStore(path, settings)
    skipped = [example.path for example in dataset.examples() if example.image in store.skipped]
    if skipped and not skip_unreadable:
        raise UserError(
            f"{path} was made without the images that could not be read ({len(skipped)}, the first is {skipped[0]}); "
            "pass over them with dataset.skip_unreadable=true, or replace them and remove the file"
        )
    return store, dataset.without(store.skipped)


def write_features(
    examples: Sequence[Example],
    encoder: Encoder,
    path: Path,
    settings: Settings,
    skip_unreadable: bool,
    num_workers: int,
) -> None:
    """Compute and write all grids, or those that an interrupted run left undone."""
    console = Console(stderr=True)
    paths = {example.image: example.path for example in examples}
    writer = FeatureWriter(path, settings, list(paths))
    rows, columns = encoder.grid
    console.print(
        f"features: {len(paths)} images x {rows * columns} x {encoder.dim} in fp16, {decimal(writer.num_bytes)}"
    )
    console.print(f"  to {path}", soft_wrap=True, highlight=False)
    with writer, _progress(console) as progress:
        remaining = writer.remaining()
        bar = progress.add_task("features", total=len(paths), completed=len(paths) - len(remaining))
        files = ImageFiles([paths[image] for image in remaining], encoder.preprocessing)
        for batch in _load(files, num_workers):
            if batch.faults and not skip_unreadable:
                fault = next(iter(batch.faults.values()))
                raise UserError(f"{fault}, or pass over such images with dataset.skip_unreadable=true")
            skipped = {remaining[position]: str(fault) for position, fault in batch.faults.items()}
            writer.write([remaining[position] for position in batch.positions], _encode(encoder, batch.pixels), skipped)
            progress.advance(bar, len(batch.positions) + len(skipped))
        writer.finish()
    for reason in writer.skipped.values():
        console.print(f"skipped: {reason}", style="yellow", soft_wrap=True)


def _encode(encoder: Encoder, pixels: Tensor) -> Tensor:
    if not len(pixels):
        return pixels.new_zeros(0, encoder.grid[0] * encoder.grid[1], encoder.dim)
    device = next(encoder.parameters()).device
    with torch.inference_mode():
        return encoder(pixels.to(device, memory_format=torch.channels_last)).cpu()


def _load(files: ImageFiles, num_workers: int) -> DataLoader[Readable]:
    workers = num_workers if len(files) > BATCH_SIZE else 0
    return DataLoader(files, BATCH_SIZE, collate_fn=_collate, num_workers=workers)


def _collate(items: list[tuple[int, Tensor | UserError]]) -> Readable:
    faults = {position: item for position, item in items if isinstance(item, UserError)}
    read = {position: item for position, item in items if isinstance(item, Tensor)}
    pixels = torch.stack(list(read.values())) if read else torch.zeros(0, 3, 1, 1)
    return Readable(pixels, list(read), faults)


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
