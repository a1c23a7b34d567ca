"""Result files: the scores, and everything needed to get them again."""

import json
import platform
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

from showattendtell.errors import UserError
from showattendtell.files import whole_file
from showattendtell.metrics.gaze import Gaze, Score
from showattendtell.metrics.relations import Relations
from showattendtell.report.times import read_times

LIBRARIES = ("showattendtell", "torch", "timm", "pycocoevalcap")


def time_figures(checkpoint: Path) -> dict[str, float]:
    """The minutes that the checkpoint's run has trained, where the file of its times stands beside it."""
    seconds = read_times(checkpoint.parent)
    return {"training_minutes": sum(seconds) / 60} if seconds else {}


def relation_figures(relations: Relations) -> dict[str, Any]:
    """The figures of relations under the names that result files give them; rates in percent."""
    return {
        "relation_accuracy": 100 * relations.accuracy,
        "relation_commonest": 100 * relations.commonest,
        "relation_words": relations.num_words,
    }


def gaze_figures(gaze: Gaze) -> dict[str, Any]:
    """The figures of attention maps under the names that result files give them; rates in percent."""
    by_kind = {
        kind: {**_find_figures(score), "pointing_game_words": score.num_words} for kind, score in gaze.by_kind.items()
    }
    return {
        **_find_figures(gaze.model),
        "pointing_game_words": gaze.model.num_words,
        "attention_baselines": {"uniform": _find_figures(gaze.uniform), "centre": _find_figures(gaze.centre)},
        "attention_by_kind": by_kind,
    }


def _find_figures(score: Score) -> dict[str, float]:
    return {"pointing_game": 100 * score.hit_rate, "attention_correctness": 100 * score.correctness}


def versions() -> dict[str, str]:
    return {"python": platform.python_version(), **{name: version(name) for name in LIBRARIES}}


def write_json(content: Mapping[str, Any], path: Path) -> None:
    """Write a JSON file whole or not at all; a `UserError` where that cannot be done."""
    write_text(json.dumps(content, indent=1), path)


def write_text(text: str, path: Path) -> None:
    """Write a file whole or not at all; a `UserError` where that cannot be done."""
    with _telling_place(path), whole_file(path) as stream:
        stream.write(text.encode())


def writable(path: Path) -> Path:
    """A place for what is still to be computed; a `UserError` where it could not be written."""
    with _telling_place(path), NamedTemporaryFile(dir=path.parent):
        return path


@contextmanager
def _telling_place(path: Path) -> Iterator[None]:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as fault:
        raise UserError(f"{path} cannot be written ({fault.strerror}); set output to another place") from None
