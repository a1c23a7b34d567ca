"""Templates with their content, as text."""

from jinja2 import Environment, PackageLoader, StrictUndefined


def fill(template: str, **content: object) -> str:
    """A template of this package with its content; in HTML nothing of that is markup."""
    templates = Environment(
        loader=PackageLoader("showattendtell.report"),
        autoescape=template.endswith(".html"),
        trim_blocks=True,
        lstrip_blocks=True,
        undefined=StrictUndefined,
    )
    text = templates.get_template(template).render(content)
    return text.encode("utf-8", "replace").decode()  # names of files may hold bytes that are no text
