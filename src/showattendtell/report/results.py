"""Result files: the scores, and everything needed to get them again."""

import json
import platform
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any

from showattendtell.errors import UserError
from showattendtell.metrics.bleu import Bleu
from showattendtell.metrics.pointing import Pointing

LIBRARIES = ("showattendtell", "torch", "timm", "pycocoevalcap")


def score_figures(bleu: Bleu, pointing: Pointing | None, num_distinct: int) -> dict[str, Any]:
    """The figures under the names that result files give them; BLEU and the hit rate in percent."""
    figures: dict[str, Any] = {
        **{f"bleu{n}": 100 * score for n, score in enumerate(bleu.without_penalty, start=1)},
        **{f"bleu{n}_with_penalty": 100 * score for n, score in enumerate(bleu.with_penalty, start=1)},
        "brevity_penalty": bleu.brevity_penalty,
        "words": bleu.length,
        "reference_words": bleu.reference_length,
        "distinct_captions": num_distinct,
    }
    if pointing:
        figures |= {"pointing_game": 100 * pointing.hit_rate, "pointing_game_words": pointing.num_words}
    return figures


def versions() -> dict[str, str]:
    return {"python": platform.python_version(), **{name: version(name) for name in LIBRARIES}}


def write_json(content: Mapping[str, Any], path: Path) -> None:
    """Write a JSON file whole or not at all; a `UserError` where that cannot be done."""
    unfinished = path.with_name(f"{path.name}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        unfinished.write_text(json.dumps(content, indent=1), encoding="utf-8")
        unfinished.replace(path)
    except OSError as fault:
        raise UserError(f"{path} cannot be written ({fault.strerror}); set output to another place") from None
