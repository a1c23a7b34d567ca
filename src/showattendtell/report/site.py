"""The pages of the server: the one that photographs are given to, and the one that tells programs what they can ask."""

from collections.abc import Mapping
from typing import Any

from showattendtell.report.filling import fill
from showattendtell.report.pages import DARKEST, Page, gated_models, spell


def render_site(overview: Mapping[str, Any], beams: int) -> str:
    """The page, for what `/api/models` tells; no more than so many beams can be chosen."""
    return fill("serve.html", overview=overview, beams=beams, gated=[True, False])


def render_cards(page: Page) -> str:
    """The cards alone of photographs on a page."""
    return fill("cards.html", page=page, gated=gated_models(page), spell=spell)


def render_script() -> str:
    return fill("serve.js", darkest=DARKEST)


def render_style() -> str:
    return fill("serve.css")


def render_reference(openapi: Mapping[str, Any], address: str) -> str:
    """An OpenAPI description as a page.

    Args:
        address: of the server, for examples.
    """
    return fill("reference.html", openapi=openapi, address=address, spell=spell_schema)


def spell_schema(schema: Mapping[str, Any]) -> str:
    """The kind of value that a JSON schema describes, in words."""
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
