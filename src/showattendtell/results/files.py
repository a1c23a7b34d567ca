"""Result files of `evaluate`: scores, and everything needed to reproduce them; written, found and read."""

import json
import os
import platform
from collections.abc import Mapping, Sequence
from importlib.metadata import version
from itertools import zip_longest
from pathlib import Path
from typing import Annotated, Any, NamedTuple

from pydantic import Field, TypeAdapter, ValidationError

from showattendtell.errors import UserError
from showattendtell.runtime.files import (
    WEIGHTS,
    read_regular,
    read_times,
    sha256,
    write_new,
)
from showattendtell.settings import has_control

LARGEST = 1e15
"""Larger numbers are no scores."""

LIBRARIES = ("showattendtell", "torch", "timm", "pycocoevalcap")


class ModelRecord(NamedTuple):
    """A model behind a result: its checkpoint, and the options and settings that it was trained with."""

    checkpoint: str
    sha256: str
    seed: int
    choices: Mapping[str, Any]
    config: Mapping[str, Any]


class Result(NamedTuple):
    """The finite scores of a result file by their names, and their provenance."""

    path: str
    dataset: str
    split: str
    split_sha256: str
    tokenizer: str
    decoding: Mapping[str, Any]
    models: Annotated[tuple[ModelRecord, ...], Field(min_length=1)]
    figures: Mapping[str, float]


def run_name(result: Result) -> str:
    """Return the last two folders of a result file, by which its run is called in tables."""
    return "/".join(Path(result.path).parent.parts[-2:]) or Path(result.path).name


def find_results(paths: Sequence[str], split: str) -> list[Result]:
    """Return the results on a split from the given files and from every `results-*.json` in or below the given folders.

    Raises `UserError` for a path without results, a file that is not a result file, and if all are of other splits.
    """
    results_found = []
    for place in map(Path, paths):
        if not place.exists():
            raise UserError(f"{place} does not exist; give result files, or folders with results-*.json in them")
        files = [place] if place.is_file() else list(filter(Path.is_file, place.rglob("results-*.json")))
        files.sort(key=lambda file: (file.parent, -file.stat().st_mtime_ns))  # of two evaluations, the newer one counts
        if not files:
            raise UserError(f"the folder {place} holds no results-*.json; evaluate writes it next to a checkpoint")
        results = [read_result(path) for path in files]
        splits = sorted({result.split for result in results})
        if split not in splits:
            raise UserError(
                f"{place} has no results on the split {split}, but on {' and '.join(splits)}; give split=NAME"
            )
        results_found += [result for result in results if result.split == split]
    return results_found


def read_result(path: Path) -> Result:
    """Read a result file of `evaluate`; raise `UserError` for other files and for one without its configuration."""
    try:
        content = TypeAdapter(dict[str, Any]).validate_json(read_regular(path))
        names = ("checkpoint", "checkpoint_sha256", "seed", "choices", "config")
        of_models = [{"choices": {}, **content}.get(name) for name in names]
        # lists for an ensemble
        models = zip_longest(*(value if isinstance(value, list) else [value] for value in of_models))
        fields = {name: content[name] for name in Result._fields if name in content}
        fields |= {"path": str(path), "models": list(models)}
        numbers = {name: x for name, x in content.items() if name not in names and type(x) in (int, float)}
        # JSON has integers that no float can be, and numbers whose variance overflows
        fields["figures"] = {name: float(x) for name, x in numbers.items() if abs(x) <= LARGEST}
        result = TypeAdapter(Result).validate_python(fields)
    except ValidationError as error:
        first = error.errors()[0]
        field = "".join(f"{name}: " for name in first["loc"][:1])
        raise UserError(f"{path} is not a result file of evaluate ({field}{first['msg']}); leave it out") from None
    if has_control(result[1:]):
        raise UserError(f"{path} was altered: a text in it has control characters; leave it out")
    return result


def is_current(result: Result) -> bool:
    """Return whether the checkpoints of a result are those that were scored. One that was deleted counts as the same,
    and that of a folder that was moved is next to the result."""
    for model in result.models:
        places = {os.path.realpath(model.checkpoint)}
        if len(result.models) == 1:
            places.add(os.path.realpath(Path(result.path).parent / Path(model.checkpoint).name))
        found = [place for place in places if os.path.isfile(place) or os.path.isfile(Path(place, WEIGHTS))]
        if found and model.sha256 not in [sha256(Path(place)) for place in found]:
            return False
    return True


def time_figures(checkpoint: Path) -> dict[str, float]:
    """Return the training minutes of the checkpoint's run; empty if its folder has no file of epoch times."""
    seconds = read_times(checkpoint.parent)
    return {"training_minutes": sum(seconds) / 60} if seconds else {}


def versions() -> dict[str, str]:
    return {"python": platform.python_version(), **{name: version(name) for name in LIBRARIES}}


def write_result(content: Mapping[str, Any], path: Path) -> Path:
    """Write a new JSON file and return its path. See `write_new`."""
    [file] = write_new({path: json.dumps(content, indent=1).encode()})
    return file
