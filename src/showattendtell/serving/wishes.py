"""How a request wants its photographs captioned."""

from collections.abc import Mapping
from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from showattendtell.serving.refusal import Refusal
from showattendtell.serving.uploads import clean

MOST_BEAMS = 20

Look = Literal["sample", "argmax", "expectation"]


class Wishes(BaseModel):
    """The fields of the form beside the photographs; none has to be sent."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: Annotated[
        tuple[str, ...], Field(description="which of the models caption the photographs; the first of all by default")
    ] = ()
    beam_size: Annotated[
        int | None, Field(ge=1, le=MOST_BEAMS, description="how many captions are kept open while one is searched")
    ] = None
    attention: Annotated[
        Look | None,
        Field(description="what a model with hard attention looks at; as in training by default. Others heed it not."),
    ] = None
    seed: Annotated[int | None, Field(ge=0, lt=2**63, description="decides what is drawn at random")] = None


def read_wishes(fields: Mapping[str, list[str]]) -> Wishes:
    """Of the form's fields; an empty one counts as not sent. A `Refusal` tells what is no wish."""
    several = {name: [value for value in values if value] for name, values in fields.items()}
    given = {name: values if name == "model" else values[-1] for name, values in several.items() if values}
    try:
        return Wishes.model_validate(given)
    except ValidationError as fault:
        raise Refusal(422, "; ".join(_sentence(one["loc"], one["msg"]) for one in fault.errors()[:3])) from None


def _sentence(place: tuple[int | str, ...], message: str) -> str:
    name = clean(str(place[0])) if place else "a field"  # whose name is no text
    if message.startswith("Extra inputs"):
        return f"there is no field '{name}'; known are photograph, {', '.join(Wishes.model_fields)}"
    return f"{name}: {message[0].lower()}{message[1:]}"
