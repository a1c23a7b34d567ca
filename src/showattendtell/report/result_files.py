"""Result files of `evaluate`, found and read."""

import math
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import BaseModel, ConfigDict, ValidationError

from showattendtell.errors import UserError


class Content(BaseModel):
    """What is used of a result file besides its figures; lists where several models wrote together."""

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
    choices: dict[str, Any] | list[dict[str, Any]] = {}
    config: dict[str, Any] | list[dict[str, Any]] | None = None


class Model(NamedTuple):
    """One of the models that wrote: its checkpoint, and the options and settings that it was trained with."""

    checkpoint: str
    sha256: str
    seed: int
    choices: Mapping[str, Any]
    config: Mapping[str, Any]


class Result(NamedTuple):
    """The figures of a result file, by their names in it, and where they come from; of those that could not be made the
    reason.
    """

    path: str
    dataset: str
    split: str
    split_sha256: str
    tokenizer: str
    decoding: Mapping[str, Any]
    models: tuple[Model, ...]
    figures: Mapping[str, float]
    missing: Mapping[str, str]


def find_results(places: Sequence[str], split: str) -> list[Result]:
    """The results on a split: of the files named, and of every `results-*.json` in the folders named and below them.

    Raises `UserError` for a place that holds none, a file that is no result file, and where all are of another split.
    """
    found = []
    for place in map(Path, places):
        inside = [read_result(path) for path in _result_files(place)]
        results = [result for result in inside if result.split == split]
        if not results:
            splits = " and ".join(sorted({result.split for result in inside}))
            raise UserError(f"{place} has no results on the split {split}, but on {splits}; give split=NAME")
        found += results
    return found


def _result_files(place: Path) -> list[Path]:
    if place.is_file():
        return [place]
    if not place.exists():
        raise UserError(f"{place} does not exist; give result files, or folders with results-*.json in them")
    files = sorted(file for file in place.rglob("results-*.json") if file.is_file())
    if not files:
        raise UserError(f"the folder {place} holds no results-*.json; evaluate writes it beside a checkpoint")
    return files


def read_result(path: Path) -> Result:
    """A result file of `evaluate`; a `UserError` for any other file, and for one that does not say how was trained."""
    try:
        content = Content.model_validate_json(path.read_bytes())
    except ValidationError as fault:
        first = fault.errors()[0]
        where = "".join(f"{name}: " for name in first["loc"][:1])
        raise UserError(f"{path} is no result file of evaluate ({where}{first['msg']}); leave it out") from None
    if content.config is None:
        raise UserError(f"{path} is of an older version and does not say what was trained; evaluate again")
    figures = {name: float(value) for name, value in (content.model_extra or {}).items() if _is_figure(value)}
    return Result(
        str(path),
        content.dataset,
        content.split,
        content.split_sha256,
        content.tokenizer,
        content.decoding,
        tuple(_models(path, content)),
        figures,
        content.missing,
    )


def _models(path: Path, content: Content) -> Iterator[Model]:
    lists = [
        value if isinstance(value, list) else [value]
        for value in (content.checkpoint, content.checkpoint_sha256, content.seed, content.choices, content.config)
    ]
    if len({len(values) for values in lists}) != 1 or not lists[0]:
        raise UserError(f"{path} does not say for each of its checkpoints how it was trained; evaluate again")
    return (Model(*model) for model in zip(*lists, strict=True))


def _is_figure(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)
