"""Finds the images that cannot be read, before a training that reads them as it goes."""

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

from rich.console import Console
from rich.progress import track

from showattendtell.data.images import read_pixels
from showattendtell.errors import UserError
from showattendtell.records import Dataset, Example

SHOWN = 5
"""Faults that are told one by one."""


def drop_unreadable(dataset: Dataset, splits: Sequence[str]) -> Dataset:
    """The data set less the images of the splits that cannot be read; its notes tell them. Every one is decoded."""
    examples = [example for split in splits for example in dataset.split(split)]
    console = Console(stderr=True)
    with ThreadPoolExecutor() as threads:  # decoding lets other threads run
        tried = track(threads.map(_fault, examples), "reading", len(examples), console=console, transient=True)
        faults = {example.image: fault for example, fault in zip(examples, tried, strict=True) if fault}
    if not faults:
        return dataset
    count = "1 image" if len(faults) == 1 else f"{len(faults)} images"
    told = "; ".join(list(faults.values())[:SHOWN])
    more = f"; and {len(faults) - SHOWN} more" if len(faults) > SHOWN else ""
    note = f"{count} passed over: {told}{more}"
    return dataset.without(faults)._replace(notes=(*dataset.notes, note))


def _fault(example: Example) -> str | None:
    try:
        read_pixels(example.path)
    except UserError as fault:
        return str(fault)
    return None
