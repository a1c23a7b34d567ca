"""Contents of result files: scores, and everything needed to reproduce them."""

import json
import platform
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib.metadata import version
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

from showattendtell.errors import UserError
from showattendtell.metrics.attention import AttentionScores, MapScore, Relations
from showattendtell.runtime.files import atomic_write, read_times

LIBRARIES = ("showattendtell", "torch", "timm", "pycocoevalcap")


def time_figures(checkpoint: Path) -> dict[str, float]:
    """Return the training minutes of the checkpoint's run; empty if its folder has no file of epoch times."""
    seconds = read_times(checkpoint.parent)
    return {"training_minutes": sum(seconds) / 60} if seconds else {}


def relation_figures(relations: Relations) -> dict[str, Any]:
    """Return the scores of relations by their names in result files; rates in percent."""
    return {
        "relation_accuracy": 100 * relations.accuracy,
        "relation_commonest": 100 * relations.commonest,
        "relation_words": relations.num_words,
    }


def gaze_figures(gaze: AttentionScores) -> dict[str, Any]:
    """Return the scores of attention maps by their names in result files; rates in percent."""
    by_kind = {
        kind: {**_find_figures(score), "pointing_game_words": score.num_words} for kind, score in gaze.by_kind.items()
    }
    return {
        **_find_figures(gaze.model),
        "pointing_game_words": gaze.model.num_words,
        "attention_baselines": {"uniform": _find_figures(gaze.uniform), "centre": _find_figures(gaze.centre)},
        "attention_by_kind": by_kind,
    }


def _find_figures(score: MapScore) -> dict[str, float]:
    return {"pointing_game": 100 * score.hit_rate, "attention_correctness": 100 * score.correctness}


def versions() -> dict[str, str]:
    return {"python": platform.python_version(), **{name: version(name) for name in LIBRARIES}}


def write_json(content: Mapping[str, Any], path: Path) -> None:
    """Write a JSON file atomically; raise `UserError` if it cannot be written."""
    write_text(json.dumps(content, indent=1), path)


def write_text(text: str, path: Path) -> None:
    """Write a text file atomically; raise `UserError` if it cannot be written."""
    with _telling_place(path), atomic_write(path) as stream:
        stream.write(text.encode())


def writable(path: Path) -> Path:
    """Check before a computation that its output can be written; raise `UserError` if not."""
    with _telling_place(path), NamedTemporaryFile(dir=path.parent):
        return path


@contextmanager
def _telling_place(path: Path) -> Iterator[None]:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield
    except OSError as fault:
        raise UserError(f"{path} cannot be written ({fault.strerror}); set output to another place") from None
