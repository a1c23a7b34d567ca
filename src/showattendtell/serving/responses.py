"""Responses of the JSON endpoint; FastAPI documents these classes."""

from collections.abc import Mapping, Sequence
from typing import Annotated, get_args

import numpy as np
from pydantic import BaseModel, Field

from showattendtell.serving.limits import Limits
from showattendtell.serving.models import ModelRegistry
from showattendtell.serving.requests import FORMATS, Look, Upload
from showattendtell.types import Box, CaptionOutput
from showattendtell.visualization.image_captions import ImageCaptions
from showattendtell.visualization.pages import find_place

DIGITS = 6


class WordResponse(BaseModel):
    word: str
    log_prob: Annotated[float, Field(description="log p of the word given those before it, base e")]
    gate: Annotated[float, Field(description="beta, the factor on the context vector, 0 to 1")]
    place: Annotated[str, Field(description="where in the photograph the map has its peak, in words")]
    attention: Annotated[
        list[list[float]],
        Field(description="alpha: rows of regions from the top left of what was seen; all together sum to 1"),
    ]


class CaptionResponse(BaseModel):
    caption: str
    log_prob: Annotated[float, Field(description="of the whole caption, its end included")]
    words: list[WordResponse]


class SeenResponse(BaseModel):
    """The part of the photograph that the model saw, on which its maps lie, in fractions of width and height."""

    left: float
    top: float
    right: float
    bottom: float


class ModelResponse(BaseModel):
    model: str
    seen: SeenResponse
    captions: Annotated[list[CaptionResponse], Field(description="the best first")]


class PhotographResponse(BaseModel):
    name: str
    width: Annotated[int, Field(description="in pixels, upright")]
    height: int
    outputs: Annotated[list[ModelResponse], Field(description="the captions of each requested model")]


class CaptionsResponse(BaseModel):
    photographs: list[PhotographResponse]


class ModelInfo(BaseModel):
    name: str
    hard_attention: Annotated[bool, Field(description="whether the field attention has an effect")]


class ModelsResponse(BaseModel):
    models: list[ModelInfo]
    beam_size: Annotated[int | None, Field(description="where none is sent; null where decoding is no beam search")]
    attention: Annotated[list[str], Field(description="what the field attention may be")]
    formats: list[str]
    limits: dict[str, float]


class ErrorResponse(BaseModel):
    error: Annotated[str, Field(description="one sentence on what is wrong and what to do")]


def make_answer(photographs: Sequence[Upload], described: Mapping[str, Sequence[ImageCaptions]]) -> CaptionsResponse:
    return CaptionsResponse(photographs=[_photograph(number, one, described) for number, one in enumerate(photographs)])


def _photograph(number: int, sent: Upload, described: Mapping[str, Sequence[ImageCaptions]]) -> PhotographResponse:
    width, height = next(iter(described.values()))[number].photograph.size
    outputs = [_model(name, captions[number]) for name, captions in described.items()]
    return PhotographResponse(name=sent.name, width=width, height=height, outputs=outputs)


def _model(name: str, output: ImageCaptions) -> ModelResponse:
    seen = SeenResponse(**{edge: round(place, DIGITS) for edge, place in output.seen._asdict().items()})
    return ModelResponse(model=name, seen=seen, captions=[_caption(one, output.seen) for one in output.captions])


def _caption(caption: CaptionOutput[np.ndarray], seen: Box) -> CaptionResponse:
    words = [
        WordResponse(
            word=word,
            log_prob=round(float(log_prob), DIGITS),
            gate=round(float(gate), DIGITS),
            place=find_place(attention, seen),
            attention=attention.astype(float).round(DIGITS).tolist(),
        )
        for word, log_prob, gate, attention in zip(
            caption.words, caption.log_probs, caption.gates, caption.attention, strict=False
        )
    ]
    return CaptionResponse(caption=caption.caption, log_prob=round(caption.log_prob, DIGITS), words=words)


def make_overview(models: ModelRegistry, limits: Limits) -> ModelsResponse:
    served = [ModelInfo(name=name, hard_attention=bool(model.hard)) for name, model in models.by_name.items()]
    return ModelsResponse(
        models=served,
        beam_size=models.beam_size,
        attention=[*get_args(Look)],
        formats=[*FORMATS],
        limits=limits._asdict(),
    )
