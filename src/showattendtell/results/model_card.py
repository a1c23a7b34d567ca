"""The model card: how a published model was trained, what it scores, its limitations."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from showattendtell.results.files import read_result
from showattendtell.visualization.rendering import fill


def model_card(
    card: Mapping[str, Any],
    name: str = "",
    license: str = "",
    results: str | Path | Sequence[str | Path] = (),
    data: str = "",
    limitations: Sequence[str] = (),
    note: str = "",
) -> str:
    """Return the model card of a model as Markdown. Texts of the checkpoint and of result files are escaped.

    Args:
        card: metadata of the model's checkpoint.
        name: of the model; by default the data set that it was trained on and its attention.
        license: of the weights, by its name on the hub.
        results: result files of `evaluate`, whose scores are shown.
        data: a sentence on who made the data, and under which terms.
        limitations: of this model, in addition to those of all models of its kind.
        note: what users should know, as the rest of a sentence about the model ("was trained on drawn shapes"). The
            commands that caption photographs print it.
    """
    files = [results] if isinstance(results, str | Path) else results
    choices = card["choices"]
    default_name = f"{choices.get('dataset', 'own data')}, {choices.get('attention', 'own')} attention"
    return fill(
        "model_card.md",
        card=card,
        name=Markup(name) or default_name,
        license=Markup(license or "unknown"),
        data=Markup(data),
        limitations=map(Markup, limitations),
        note=Markup(note),
        note_as_yaml=Markup(json.dumps(note)),
        results=[read_result(Path(file)) for file in files],
    )
