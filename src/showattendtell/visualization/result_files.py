"""Result files of `evaluate`: scores, and everything needed to reproduce them; written, found and read."""

import json
import platform
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from importlib.metadata import version
from itertools import chain, count
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict, ValidationError

from showattendtell.errors import UserError, has_control
from showattendtell.runtime.files import atomic_write, read_times

LIBRARIES = ("showattendtell", "torch", "timm", "pycocoevalcap")


class ResultContent(BaseModel):
    """The fields that are read from a result file, apart from its scores; lists for an ensemble."""

    model_config = ConfigDict(extra="allow")

    dataset: str
    split: str
    split_sha256: str
    tokenizer: str
    decoding: dict[str, Any]
    checkpoint: str | list[str]
    checkpoint_sha256: str | list[str]
    seed: int | list[int]
    missing: dict[str, str] = {}
    baselines: dict[str, dict[str, float | str]] = {}
    choices: dict[str, Any] | list[dict[str, Any]] = {}
    config: dict[str, Any] | list[dict[str, Any]]


class ModelRecord(NamedTuple):
    """A model behind a result: its checkpoint, and the options and settings that it was trained with."""

    checkpoint: str
    sha256: str
    seed: int
    choices: Mapping[str, Any]
    config: Mapping[str, Any]


class Result(NamedTuple):
    """The scores of a result file by their names, their provenance, the reasons for missing metrics, and the scores of
    baselines."""

    path: str
    dataset: str
    split: str
    split_sha256: str
    tokenizer: str
    decoding: Mapping[str, Any]
    models: tuple[ModelRecord, ...]
    figures: Mapping[str, float]
    missing: Mapping[str, str]
    baselines: Mapping[str, Mapping[str, float]] = {}


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
        files = [place] if place.is_file() else sorted(filter(Path.is_file, place.rglob("results-*.json")))
        if not files:
            raise UserError(f"the folder {place} holds no results-*.json; evaluate writes it next to a checkpoint")
        inside = [read_result(path) for path in files]
        results = [result for result in inside if result.split == split]
        if not results:
            splits = " and ".join(sorted({result.split for result in inside}))
            raise UserError(f"{place} has no results on the split {split}, but on {splits}; give split=NAME")
        results_found += results
    return results_found


def read_result(path: Path) -> Result:
    """Read a result file of `evaluate`; raise `UserError` for other files and for one without its configuration."""
    try:
        content = ResultContent.model_validate_json(path.read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
        field = "".join(f"{name}: " for name in first["loc"][:1])
        raise UserError(f"{path} is not a result file of evaluate ({field}{first['msg']}); leave it out") from None
    if has_control(content.model_dump(exclude={"captions", "references", "per_image"})):
        raise UserError(f"{path} was altered: a text in it has control characters; leave it out")
    models = [
        value if isinstance(value, list) else [value]
        for value in (content.checkpoint, content.checkpoint_sha256, content.seed, content.choices, content.config)
    ]
    if len({len(values) for values in models}) != 1 or not models[0]:
        raise UserError(f"{path} does not say for each of its checkpoints how it was trained; evaluate again")
    extra = {name: value for name, value in (content.model_extra or {}).items() if isinstance(value, int | float)}
    return Result(
        str(path),
        content.dataset,
        content.split,
        content.split_sha256,
        content.tokenizer,
        content.decoding,
        tuple(ModelRecord(*model) for model in zip(*models, strict=True)),
        {name: float(x) for name, x in extra.items() if not isinstance(x, bool) and _is_finite(x)},
        content.missing,
        {
            baseline: {name: x for name, x in scores.items() if isinstance(x, float) and _is_finite(x)}
            for baseline, scores in content.baselines.items()
        },
    )


def _is_finite(number: float) -> bool:
    """Return whether a number is finite as a float; JSON has integers that are not."""
    return abs(number) <= sys.float_info.max


def time_figures(checkpoint: Path) -> dict[str, float]:
    """Return the training minutes of the checkpoint's run; empty if its folder has no file of epoch times."""
    seconds = read_times(checkpoint.parent)
    return {"training_minutes": sum(seconds) / 60} if seconds else {}


def versions() -> dict[str, str]:
    return {"python": platform.python_version(), **{name: version(name) for name in LIBRARIES}}


def write_json(content: Mapping[str, Any], path: Path) -> None:
    """Write a JSON file atomically; raise `UserError` if it cannot be written."""
    write_text(json.dumps(content, indent=1), path)


def write_text(text: str, path: Path) -> None:
    """Write a text file atomically; raise `UserError` if it cannot be written."""
    write_bytes(text.encode(), path)


def write_bytes(content: bytes, path: Path, hint: str = "output to another place") -> None:
    """Write a file atomically; raise a `UserError` that says which setting to change if it cannot be written."""
    with write_errors(path, hint), atomic_write(path) as stream:
        stream.write(content)


def writable(path: Path, is_earlier: Callable[[Path], bool]) -> Path:
    """Check before a computation that its output can be written.

    Args:
        is_earlier: returns whether an existing file is an earlier output of this kind, which is replaced.

    Raises:
        UserError: the file cannot be written, or it exists and is something else, such as an input or a folder.
    """
    if path.is_dir():
        raise UserError(f"{path} is a folder; set output to a file")
    with write_errors(path), NamedTemporaryFile(dir=path.parent):
        if path.is_file() and path.stat().st_size and not is_earlier(path):
            raise UserError(f"{path} exists and is not an earlier output of this command; set output to another file")
        return path


def next_free(path: Path) -> Path:
    """Return the path, or else the first of `NAME-2`, `NAME-3`, ... that does not exist or is an empty folder."""
    numbered = (path.with_name(f"{path.stem}-{number}{path.suffix}") for number in count(2))
    return next(
        candidate for candidate in chain([path], numbered) if not candidate.exists() or _is_empty_folder(candidate)
    )


def _is_empty_folder(path: Path) -> bool:
    return path.is_dir() and not any(path.iterdir())


def has_fields(*fields: str) -> Callable[[Path], bool]:
    """Return a test of whether a file is a JSON object with these fields, for `writable`."""

    def test(path: Path) -> bool:
        try:
            content = json.loads(path.read_bytes())
        except (ValueError, RecursionError):
            return False
        return isinstance(content, dict) and content.keys() >= set(fields)

    return test


def starts_with(start: str) -> Callable[[Path], bool]:
    """Return a test of whether a file starts with these characters, for `writable`."""

    def test(path: Path) -> bool:
        with path.open("rb") as file:
            return file.read(len(start.encode())) == start.encode()

    return test


@contextmanager
def write_errors(path: Path, hint: str = "output to another place") -> Iterator[None]:
    """Create the folder of a file, and report as a `UserError` that the file cannot be written."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as error:
        raise UserError(f"{path} cannot be written ({error.strerror}); set {hint}") from None
