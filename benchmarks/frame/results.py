"""Runs of the benchmarks as JSON files, the newest of which the next run is compared with."""

import json
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from benchmarks.frame.figures import Figure
from benchmarks.frame.machine import Code, Machine

RESULTS = Path(__file__).parents[1] / "results"


@dataclass(frozen=True)
class Run:
    """A script's figures, and everything that they depend on.

    Args:
        script: its module's name.
        time: when it began.
        options: what the command line set.
        seconds: how long it took.
    """

    script: str
    time: datetime
    machine: Machine
    code: Code
    options: dict[str, Any]
    seconds: float
    figures: tuple[Figure, ...]

    def comparable(self, other: "Run") -> bool:
        """Whether both measured the same on the same machine; the code may differ."""
        mine, others = ((run.script, run.machine, run.options) for run in (self, other))
        return mine == others


FORM = TypeAdapter(Run)


def store(run: Run, folder: Path) -> Path:
    """The file that now holds the run."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{run.script}-{run.time:%Y-%m-%d-%H%M%S}.json"
    path.write_text(json.dumps(FORM.dump_python(run, mode="json"), indent=2) + "\n", encoding="utf-8")
    return path


def stored(script: str, folder: Path) -> list[Run]:
    """All runs of the script in the order of time; files of another form are passed over."""
    runs = []
    for path in folder.glob(f"{script}-[0-9]*.json"):
        try:
            runs.append(FORM.validate_json(path.read_bytes()))
        except ValidationError:
            continue
    return sorted(runs, key=lambda run: run.time)


def last_like(run: Run, folder: Path) -> Run | None:
    """The newest stored run that it can be compared with."""
    alike = [other for other in stored(run.script, folder) if other.time < run.time and run.comparable(other)]
    return alike[-1] if alike else None
