"""Rendering of templates and what all pictures and pages share."""

import re
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined
from markupsafe import Markup
from PIL import Image

DARKEST = 0.15
"""Brightness of the photograph where the attention is 0."""

UNGATED = 0.995
"""Gates from here on are shown as 1.00; models without a gate never have less."""

FOLDER = Path(__file__).parent
EXAMPLES = FOLDER / "examples"
"""The photographs that pages offer to try, which `upload.html` describes: from COCO 2017, licensed CC BY 2.0."""


def scaled(photograph: Image.Image, scale: float) -> Image.Image:
    """Return a photograph at another size; its sides have one pixel at least."""
    width, height = (max(1, round(side * scale)) for side in photograph.size)
    return photograph.resize((width, height))


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
