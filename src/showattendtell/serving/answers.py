"""What the JSON endpoint answers; these classes are its documentation too."""

from collections.abc import Mapping, Sequence
from typing import Annotated, get_args

from pydantic import BaseModel, Field

from showattendtell.describing import Description, Telling
from showattendtell.records import Box
from showattendtell.report.pages import find_place
from showattendtell.serving.limits import Limits
from showattendtell.serving.models import Models
from showattendtell.serving.uploads import FORMATS, Upload
from showattendtell.serving.wishes import Look

DIGITS = 6


class Word(BaseModel):
    word: str
    log_probability: Annotated[float, Field(description="log p of the word given those before it, base e")]
    beta: Annotated[float, Field(description="how much of what it looked at the model let in, 0 to 1")]
    place: Annotated[str, Field(description="where in the photograph the map has its peak, in words")]
    map: Annotated[
        list[list[float]],
        Field(description="alpha: rows of regions from the top left of what was seen; all together sum to 1"),
    ]


class Caption(BaseModel):
    caption: str
    log_probability: Annotated[float, Field(description="of the whole caption, its end included")]
    words: list[Word]


class Seen(BaseModel):
    """The part of the photograph that the model saw, on which its maps lie, in fractions of width and height."""

    left: float
    top: float
    right: float
    bottom: float


class Account(BaseModel):
    model: str
    seen: Seen
    captions: Annotated[list[Caption], Field(description="the best first")]


class Photograph(BaseModel):
    name: str
    width: Annotated[int, Field(description="in pixels, upright")]
    height: int
    accounts: Annotated[list[Account], Field(description="one of each model that was asked")]


class Answer(BaseModel):
    photographs: list[Photograph]


class ServedModel(BaseModel):
    name: str
    hard_attention: Annotated[bool, Field(description="whether it heeds the field attention")]


class Overview(BaseModel):
    models: list[ServedModel]
    beam_size: Annotated[int | None, Field(description="where none is sent; null where decoding is no beam search")]
    attention: Annotated[list[str], Field(description="what the field attention may be")]
    formats: list[str]
    limits: dict[str, float]


class Fault(BaseModel):
    error: Annotated[str, Field(description="one sentence on what is wrong and what to do")]


def make_answer(photographs: Sequence[Upload], described: Mapping[str, Sequence[Description]]) -> Answer:
    return Answer(photographs=[_photograph(number, one, described) for number, one in enumerate(photographs)])


def _photograph(number: int, sent: Upload, described: Mapping[str, Sequence[Description]]) -> Photograph:
    accounts = [_account(model, descriptions[number]) for model, descriptions in described.items()]
    width, height = next(iter(described.values()))[number].photograph.size
    return Photograph(name=sent.name, width=width, height=height, accounts=accounts)


def _account(model: str, description: Description) -> Account:
    seen = Seen(**{edge: round(place, DIGITS) for edge, place in description.seen._asdict().items()})
    captions = [_caption(telling, description.seen) for telling in description.captions]
    return Account(model=model, seen=seen, captions=captions)


def _caption(telling: Telling, seen: Box) -> Caption:
    steps = zip(telling.words, telling.log_probabilities, telling.gates, telling.weights, strict=False)
    words = [
        Word(
            word=word,
            log_probability=round(float(log_p), DIGITS),
            beta=round(float(beta), DIGITS),
            place=find_place(weights, seen),
            map=weights.astype(float).round(DIGITS).tolist(),
        )
        for word, log_p, beta, weights in steps
    ]
    return Caption(caption=telling.caption, log_probability=round(telling.log_probability, DIGITS), words=words)


def make_overview(models: Models, limits: Limits) -> Overview:
    served = [ServedModel(name=name, hard_attention=bool(model.hard)) for name, model in models.by_name.items()]
    return Overview(
        models=served,
        beam_size=models.beam_size,
        attention=[*get_args(Look)],
        formats=[*FORMATS],
        limits=limits._asdict(),
    )
