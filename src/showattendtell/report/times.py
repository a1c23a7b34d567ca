"""How long training took: the seconds of every epoch, in a file of the run's folder."""

import csv
from collections.abc import Sequence
from pathlib import Path

from showattendtell.files import whole_file

TIMES = "times.csv"


def write_times(seconds: Sequence[float], folder: Path) -> None:
    """A line for each epoch, from 1; an OSError where that cannot be done."""
    lines = [f"{epoch},{time:.3f}" for epoch, time in enumerate(seconds, start=1)]
    with whole_file(folder / TIMES) as stream:
        stream.write("\n".join(["epoch,seconds", *lines, ""]).encode())


def read_times(folder: Path) -> list[float]:
    """The seconds of each epoch that has ended; none where the run has not kept them, or the file is another's."""
    try:
        text = (folder / TIMES).read_text(encoding="utf-8")
        return [float(line["seconds"]) for line in csv.DictReader(text.splitlines())]
    except (OSError, KeyError, ValueError, TypeError):
        return []


def duration(time: float) -> str:
    """Seconds as `41 s`, `12 min` or `3.2 h`."""
    if time < 100:
        return f"{time:.0f} s"
    return f"{time / 60:.0f} min" if time < 6000 else f"{time / 3600:.1f} h"
