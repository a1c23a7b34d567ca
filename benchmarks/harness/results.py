"""Results of benchmarks as JSON files. The next run is compared with the newest one."""

import json
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter, ValidationError

from benchmarks.harness.figures import Figure
from benchmarks.harness.machine import Code, Machine

RESULTS = Path(__file__).parents[1] / "results"


@dataclass(frozen=True)
class Run:
    """The figures of a script, with its environment.

    Args:
        script: module name.
        time: start of the run.
        options: command-line options.
        seconds: duration.
    """

    script: str
    time: datetime
    machine: Machine
    code: Code
    options: dict[str, Any]
    seconds: float
    figures: tuple[Figure, ...]

    def is_comparable(self, other: "Run") -> bool:
        """Return whether script, machine and options are equal; the code may differ."""
        return (self.script, self.machine, self.options) == (other.script, other.machine, other.options)


ADAPTER = TypeAdapter(Run)


def store(run: Run, folder: Path) -> Path:
    """Write the run and return its file."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{run.script}-{run.time:%Y-%m-%d-%H%M%S}.json"
    path.write_text(json.dumps(ADAPTER.dump_python(run, mode="json"), indent=2) + "\n", encoding="utf-8")
    return path


def stored(script: str, folder: Path) -> list[Run]:
    """Return all runs of the script, oldest first. Files in another format are ignored."""
    runs = []
    for path in folder.glob(f"{script}-[0-9]*.json"):
        try:
            runs.append(ADAPTER.validate_json(path.read_bytes()))
        except ValidationError:
            continue
    return sorted(runs, key=lambda run: run.time)


def last_comparable(run: Run, folder: Path) -> Run | None:
    """Return the newest earlier run that `run` can be compared with."""
    earlier = [other for other in stored(run.script, folder) if other.time < run.time and run.is_comparable(other)]
    return earlier[-1] if earlier else None
