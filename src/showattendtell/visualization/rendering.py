"""Rendering of templates."""

from jinja2 import Environment, PackageLoader, StrictUndefined

DARKEST = 0.15
"""Brightness of the photograph where the attention is 0."""

UNGATED = 0.995
"""Gates from here on are shown as 1.00; models without a gate never have less."""


def fill(template: str, **content: object) -> str:
    """Render a template of this package; in HTML, values are escaped."""
    templates = Environment(
        loader=PackageLoader("showattendtell.visualization"),
        autoescape=template.endswith(".html"),
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    text = templates.get_template(template).render(content)
    return text.encode("utf-8", "replace").decode()  # file names may hold bytes that are not text
