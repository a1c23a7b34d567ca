"""MkDocs hooks: the generated reference, and equations in MathML, which needs no script."""

import re
from importlib.resources import files as files_of
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page
from reference import reference_pages

FONT = "STIXTwoMath-Regular.ttf"
"""The font of equations, since a system may not have one."""

SECTIONS = {"commands": "Commands", "choices": "Config groups", "api": "Python API"}
"""The section of the navigation for each folder of the generated reference."""


def on_config(config: MkDocsConfig) -> None:
    fence = {"name": "math", "class": "math", "format": as_mathml}
    config.mdx_configs["pymdownx.superfences"] = {"custom_fences": [fence]}
    sections: dict[str, list[str]] = {}
    for path in reference_pages():
        section = SECTIONS[path.split("/")[1]]
        sections.setdefault(section, []).append(path)
    assert config.nav is not None
    [reference] = (pages["Reference"] for pages in config.nav if isinstance(pages, dict) and "Reference" in pages)
    reference.extend({section: paths} for section, paths in sections.items())
    docs = Path(config.docs_dir)
    config.nav.append({"Extensions": [str(page.relative_to(docs)) for page in sorted(docs.glob("extensions/*.md"))]})


def on_files(files: Files, config: MkDocsConfig) -> None:
    for path, text in reference_pages().items():
        files.append(File.generated(config, path, content=text))
    font = files_of("ziamath") / "fonts" / FONT
    files.append(File.generated(config, FONT, content=font.read_bytes()))


def on_page_markdown(markdown: str, page: Page, **others: Any) -> None:
    """List the generated reference below the other pages in search results."""
    name = page.file.src_uri
    page.meta |= {"search": {"boost": 0.5}} if name.startswith("reference/") or name == "experiments.md" else {}


def on_page_content(html: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """The page; links of a notebook lead to pages of the site."""
    return re.sub(r'href="(\w+)\.md"', r'href="\1.html"', html) if page.file.src_uri.endswith(".ipynb") else html


def as_mathml(source: str, *about: Any, **others: Any) -> str:
    """A fenced block with an equation in LaTeX; wide equations can be scrolled."""
    spaced = '<mo lspace="0.17em" rspace="0.17em">log</mo>'  # which browsers leave out beside a name
    return f'<div class="equation">{convert(source, display="block").replace("<mi>log</mi>", spaced)}</div>'
