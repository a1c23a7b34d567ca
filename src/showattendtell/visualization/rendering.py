"""Rendering of templates, and the model card: how a published model was trained, what it scores, its limitations."""

import json
import re
from collections.abc import Mapping, Sequence
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jinja2 import ChoiceLoader, Environment, FileSystemLoader, PackageLoader, StrictUndefined
from markupsafe import Markup
from PIL import Image

from showattendtell.types import Box, RegionBoxes
from showattendtell.visualization.result_files import Result, read_result

DARKEST = 0.15
"""Brightness of the photograph where the attention is 0."""

UNGATED = 0.995
"""Gates from here on are shown as 1.00; models without a gate never have less."""

CARD_SCORES = {
    "bleu1": "BLEU-1",
    "bleu2": "BLEU-2",
    "bleu3": "BLEU-3",
    "bleu4": "BLEU-4",
    "bleu4_with_penalty": "BLEU-4 with brevity penalty",
    "meteor": "METEOR",
    "rouge_l": "ROUGE-L",
    "cider": "CIDEr-D",
    "pointing_game": "pointing game",
    "attention_correctness": "attention correctness",
}
"""The figures of a result file that a model card shows, and their headings."""


EXAMPLE_FOLDER = files("showattendtell.visualization") / "examples"


class ExamplePhotograph(NamedTuple):
    """A photograph in `EXAMPLE_FOLDER`, from COCO 2017, and the id of its source on Flickr."""

    file: str
    width: int
    height: int
    shows: str
    flickr: str


EXAMPLES = (
    ExamplePhotograph("skater.jpg", 480, 320, "A boy on a skateboard jumps off a ramp", "5438252538"),
    ExamplePhotograph("riders.jpg", 480, 318, "Two people ride horses on a beach", "8392128987"),
    ExamplePhotograph("dog.jpg", 280, 420, "A dog is tied to a fire hydrant", "3937557668"),
)
"""The photographs that pages offer to try; licensed CC BY 2.0."""


class Drawing(NamedTuple):
    """A caption to be drawn.

    photograph  upright RGB image
    words       of the caption
    weights     (S, rows, columns) or, with boxes, (S, L), S at least the number of words
    gates       (S,) beta
    seen        the part of the photograph that the encoder saw, or the boxes of its regions, in pixels
    caption     the words as a sentence
    """

    photograph: Image.Image
    words: Sequence[str]
    weights: np.ndarray
    gates: np.ndarray
    seen: Box | RegionBoxes
    caption: str


def spaces_before(words: Sequence[str], caption: str) -> list[bool]:
    """Return whether there is a space before each word in the caption."""
    spaced, end = [], 0
    for word in words:
        start = caption.find(word, end)
        spaced.append(start < 1 or caption[start - 1] == " ")
        end = max(end, start + len(word))
    return spaced


def fill(template: str | Path, **content: object) -> str:
    """Render a template of this package, or the template in a file.

    In HTML and Markdown, values are escaped unless they are `Markup`.
    """
    path = Path(template)
    templates = Environment(
        loader=ChoiceLoader([PackageLoader("showattendtell.visualization"), FileSystemLoader(path.parent)]),
        autoescape=path.suffix == ".html",
        finalize=escape_markdown if path.suffix == ".md" else None,
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    text = templates.get_template(path.name).render(content)
    return text.encode("utf-8", "replace").decode()  # file names may hold bytes that are not text


def escape_markdown(value: Any) -> Any:
    r"""Escape the characters that are markup in Markdown; an underscore within a word is not."""
    if isinstance(value, Markup) or not isinstance(value, str):
        return value
    line = " ".join(value.splitlines())
    return re.sub(r"[\\`*<|]|\](?=[(\[:])|&(?=#?\w+;)|:(?=//)|(?<=www)\.|(?<!\w)_|_(?!\w)", r"\\\g<0>", line)


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
        scores=[_scores(read_result(Path(file))) for file in files],
        words=len(card["vocabulary"]) - 4,
        sees=_seen(card["encoder"]),
    )


def _seen(encoder: Mapping[str, Any]) -> str:
    if "features" in encoder:
        return f"regions that a detector has stored, in the layout of {encoder['features']}"
    preprocessing = encoder["preprocessing"]
    crop, side = preprocessing["crop"], preprocessing["resize"]
    if preprocessing.get("crop_mode") != "squash":
        return f"the central square of {crop} pixels, of a photograph whose shortest side is {side}"
    if crop == side:
        return f"the whole photograph, squashed to a square of {side} pixels"
    return f"the central square of {crop} pixels, of a photograph squashed to a square whose side is {side}"


def _scores(result: Result) -> tuple[str, list[tuple[str, str]]]:
    """Return the heading of a result file, and the figures to show with their headings."""
    figures = result.figures
    heading = f"{result.dataset}, {figures.get('images', 0):,.0f} images of {result.split}"
    if "beam_size" in result.decoding:
        heading += f", beam {result.decoding['beam_size']}"
    if result.decoding.get("mirrored"):
        heading += ", mirror images read as well"
    return heading, [(title, f"{figures[name]:.1f}") for name, title in CARD_SCORES.items() if name in figures]
