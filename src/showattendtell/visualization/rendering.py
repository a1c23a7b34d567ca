"""Rendering of templates, and the model card: how a published model was trained, what it scores, its limitations."""

import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from PIL import Image

from showattendtell.settings import PictureStyle
from showattendtell.types import Box, CaptionOutput
from showattendtell.visualization.result_files import read_result

DARKEST = 0.15
"""Brightness of the photograph where the attention is 0."""

UNGATED = 0.995
"""Gates from here on are shown as 1.00; models without a gate never have less."""

ANIMATIONS = (".gif", ".webp")
"""Suffixes of pictures that move."""

FOLDER = Path(__file__).parent
EXAMPLES = FOLDER / "examples"
"""The photographs that pages offer to try, which `upload.html` describes: from COCO 2017, licensed CC BY 2.0."""


PLAIN = PictureStyle()
"""The default style of pictures."""


class Drawing(NamedTuple):
    """A caption to be drawn.

    photograph  upright RGB image
    caption     in words, with attention (T, rows, columns)
    seen        the part of the photograph that the encoder saw, in pixels
    """

    photograph: Image.Image
    caption: CaptionOutput[np.ndarray]
    seen: Box


def fill(template: str | Path, **content: object) -> str:
    """Render a template of this package, or the template in a file.

    In HTML, Markdown and LaTeX, values are escaped unless they are `Markup`.
    """
    path = Path(template)
    templates = Environment(
        loader=FileSystemLoader([FOLDER / "templates", path.parent]),
        autoescape=path.suffix == ".html",
        finalize=ESCAPES.get(path.suffix),
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


LATEX = {ord(letter): f"\\{letter}" for letter in "&%$#_{}"}
LATEX |= {ord(letter): rf"\ensuremath{{{letter}}}" for letter in "<>"}
LATEX |= {ord("^"): r"\^{}", ord("~"): r"\textasciitilde{}", ord("\\"): r"\textbackslash{}", ord("±"): r"$\pm$"}


def escape_latex(value: Any) -> Any:
    """Escape the characters that are markup in LaTeX."""
    return value.translate(LATEX) if isinstance(value, str) else value


ESCAPES = {".md": escape_markdown, ".tex": escape_latex}


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
