"""The seconds of every epoch, in a file of the run's folder."""

import csv
from collections.abc import Sequence
from pathlib import Path

from showattendtell.runtime.files import atomic_write

TIMES = "times.csv"


def write_times(seconds: Sequence[float], folder: Path) -> None:
    """Write a line for each epoch, counted from 1.

    Raises:
        OSError: the file cannot be written.
    """
    lines = [f"{epoch},{time:.3f}" for epoch, time in enumerate(seconds, start=1)]
    with atomic_write(folder / TIMES) as stream:
        stream.write("\n".join(["epoch,seconds", *lines, ""]).encode())


def read_times(folder: Path) -> list[float]:
    """Return the seconds of each finished epoch; an empty list if the file is missing or has another format."""
    try:
        text = (folder / TIMES).read_text(encoding="utf-8")
        return [float(line["seconds"]) for line in csv.DictReader(text.splitlines())]
    except (OSError, KeyError, ValueError, TypeError):
        return []


def duration(time: float) -> str:
    """Format seconds as `41 s`, `12 min` or `3.2 h`."""
    if time < 100:
        return f"{time:.0f} s"
    return f"{time / 60:.0f} min" if time < 6000 else f"{time / 3600:.1f} h"
