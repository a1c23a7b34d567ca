"""The pages of the server: the upload page and the documentation of the endpoint."""

from collections.abc import Mapping
from typing import Any

from showattendtell.serving.limits import RequestError
from showattendtell.serving.models import ModelRegistry
from showattendtell.serving.requests import CaptionRequest, Form
from showattendtell.visualization.image_captions import ImageCaptions
from showattendtell.visualization.pages import Page, card_content, make_entry
from showattendtell.visualization.rendering import DARKEST, fill


def render_site(overview: Mapping[str, Any], beams: int) -> str:
    """Return the page for an answer of `/api/models`; `beams` is the largest number that can be chosen."""
    return fill("serve.html", overview=overview, beams=beams, gated=[True, False])


def render_cards(page: Page) -> str:
    """Return the cards of a page without its frame."""
    return fill("cards.html", **card_content(page))


def render_script() -> str:
    return fill("serve.js", darkest=DARKEST)


def render_style() -> str:
    return fill("serve.css")


def render_reference(openapi: Mapping[str, Any], address: str) -> str:
    """Return an OpenAPI description as a page.

    Args:
        address: of the server, for examples.
    """
    return fill("reference.html", openapi=openapi, address=address, spell=spell_schema)


def spell_schema(schema: Mapping[str, Any]) -> str:
    """Return in words what kind of value a JSON schema describes."""
    if "$ref" in schema:
        return schema["$ref"].rpartition("/")[2]
    if "anyOf" in schema:
        return " or ".join(spell_schema(one) for one in schema["anyOf"] if one.get("type") != "null")
    if "enum" in schema:
        return ", ".join(map(str, schema["enum"]))
    if schema.get("type") == "array":
        return f"list of {spell_schema(schema['items'])}"
    if schema.get("format") == "binary":
        return "file"
    bounds = [f"from {schema['minimum']:g}"] if "minimum" in schema else []
    bounds += [f"to {schema['maximum']:g}"] if "maximum" in schema else []
    return " ".join([schema.get("type", "any"), *bounds])


def make_cards(models: ModelRegistry, form: Form, wishes: CaptionRequest) -> Page:
    """Caption the photographs of a request and return them as a page."""
    described = models.describe(form.photographs, wishes)
    rows = zip(form.photographs, zip(*described.values(), strict=True), strict=True)
    entries = [make_entry(photograph.name, outputs) for photograph, outputs in rows]
    return Page("", list(described), entries)


def draw_strip(models: ModelRegistry, form: Form, wishes: CaptionRequest) -> bytes:
    """Return a PNG of the photograph with a panel for each word.

    Raises `RequestError` for several photographs or models.
    """
    if len(form.photographs) > 1 or len(wishes.model) > 1:
        raise RequestError(422, "a picture is of one photograph and one model; send one of each")
    [[description]] = models.describe(form.photographs, wishes).values()
    return _strip(description)


def get_ready() -> None:
    """Import what draws, which takes seconds."""


def _strip(description: ImageCaptions) -> bytes:
    from showattendtell.visualization.figures import picture_content
    from showattendtell.visualization.heatmaps import DPI, heatmap_figure

    return picture_content(heatmap_figure(*description.as_drawn()), "png", DPI)
