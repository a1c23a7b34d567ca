"""What MkDocs does beyond its settings: the reference, studies' reports from their databases, and equations in MathML,
which browsers draw by themselves."""

from importlib.resources import files as files_of
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert
from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from reference import reference_pages

from showattendtell.config.study import find_study
from showattendtell.visualization.study_page import PAGE, render, summarize_study

FONT = "STIXTwoMath-Regular.ttf"
"""What a browser draws equations with; a system need not have one that can."""


def on_config(config: MkDocsConfig) -> None:
    fence = {"name": "math", "class": "math", "format": as_mathml}
    config.mdx_configs["pymdownx.superfences"] = {"custom_fences": [fence]}
    sections: dict[str, list[str]] = {}
    for path in reference_pages():
        section = "Commands" if "/commands/" in path else "Choices"
        sections.setdefault(section, []).append(path)
    assert config.nav is not None
    config.nav.extend({section: paths} for section, paths in sections.items())


def on_files(files: Files, config: MkDocsConfig) -> None:
    for path, text in reference_pages().items():
        files.append(File.generated(config, path, content=text))
    font = files_of("ziamath") / "fonts" / FONT
    files.append(File.generated(config, FONT, content=font.read_bytes()))
    for database in Path(config.docs_dir).glob("studies/*/study.db"):
        folder = database.parent
        page = render(summarize_study(find_study(folder, None), Path(folder.name)))
        files.append(File.generated(config, f"studies/{folder.name}/{PAGE}", content=page))


def as_mathml(source: str, *about: Any, **others: Any) -> str:
    """A fenced block of LaTeX, an equation a line; one that is wider than the page can be moved."""
    equations = (convert(line, display="block") for line in source.splitlines() if line.strip())
    return "\n".join(f'<div class="equation">{equation}</div>' for equation in equations)
