"""What the HTTP API takes and returns, which FastAPI documents; the limits of the server, and errors of requests."""

import math
from collections.abc import Mapping, Sequence
from typing import Annotated, Literal, NamedTuple

import numpy as np
from pydantic import BaseModel, ConfigDict, Field

from showattendtell.data.image_limits import FILE_MEGABYTES, MEGAPIXELS
from showattendtell.settings import PositiveFloat, PositiveInt
from showattendtell.types import Box, CaptionOutput
from showattendtell.visualization.pages import ImageCaptions, describe_peak

DIGITS = 6
MAX_BEAM_SIZE = 20
LONGEST_NAME = 120
RETRY = {"Retry-After": "2"}

AttentionMode = Literal["sample", "argmax", "expectation"]


class RequestError(Exception):
    """A request that is not answered, with a sentence that says what is wrong and what to do.

    Args:
        status: 4xx, or 503 if the same request may succeed later.
    """

    def __init__(self, status: int, sentence: str, headers: Mapping[str, str] | None = None):
        super().__init__(sentence)
        self.status, self.headers = status, dict(headers or {})


class Upload(NamedTuple):
    """An uploaded photograph."""

    name: str
    content: bytes


def clean(text: str) -> str:
    """Remove unprintable characters and shorten the text, for use in messages."""
    printable_text = "".join(character for character in text if character.isprintable())
    return printable_text if len(printable_text) <= LONGEST_NAME else f"{printable_text[: LONGEST_NAME - 1]}…"


class Limits(NamedTuple):
    """Limits of the server.

    file_megabytes: size of one photograph as a file.
    request_megabytes: size of a whole request, which is kept in memory.
    megapixels: of all photographs of a request together, checked by their headers before any is decoded.
    photographs: number of photographs in one request.
    waiting: requests that are received, queued or processed at a time; others are rejected with status 503.
    seconds: time for sending a request, again for answering it, and again for receiving the answer.
    connections: open at a time from one client address; an IPv6 network of 64 bits counts as one. Behind a reverse
        proxy all clients have the address of the proxy.
    """

    file_megabytes: PositiveFloat = FILE_MEGABYTES
    request_megabytes: PositiveFloat = 32.0
    megapixels: PositiveFloat = MEGAPIXELS
    photographs: PositiveInt = 8
    waiting: PositiveInt = 16
    seconds: PositiveFloat = 60.0
    connections: PositiveInt = 64


class CaptionRequest(BaseModel):
    """The optional fields of the form, which come with the photographs."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: Annotated[
        tuple[str, ...], Field(description="names of the models that caption the photographs; by default the first")
    ] = ()
    beam_size: Annotated[
        int | None, Field(ge=1, le=MAX_BEAM_SIZE, description="number of captions that beam search keeps at each step")
    ] = None
    attention: Annotated[
        AttentionMode | None,
        Field(description="where hard attention looks; as in training by default. Ignored by other models."),
    ] = None
    seed: Annotated[int | None, Field(ge=0, lt=2**63, description="random seed")] = None
    language: Annotated[
        str | None, Field(max_length=20, description="language of the captions, for a model of several; see models")
    ] = None


class WordResponse(BaseModel):
    word: str
    log_prob: Annotated[float, Field(description="log p of the word given those before it, base e")]
    confidence: Annotated[float, Field(description="p of the word, calibrated if the model is, 0 to 1")]
    gate: Annotated[float, Field(description="beta, the factor on the context vector, 0 to 1")]
    place: Annotated[str, Field(description="where in the photograph the map has its peak, in words")]
    attention: Annotated[
        list[list[float]],
        Field(description="alpha: rows of regions from the top left of what was seen; all together sum to 1"),
    ]


class CaptionResponse(BaseModel):
    caption: str
    log_prob: Annotated[float, Field(description="of the whole caption, its end included")]
    confidence: Annotated[float, Field(description="geometric mean of the words' confidence, 0 to 1")]
    unsure: Annotated[
        bool, Field(description="whether the photograph is unlike those that a calibrated model was trained on")
    ]
    words: list[WordResponse]

    @classmethod
    def of(cls, caption: CaptionOutput[np.ndarray], seen: Box) -> "CaptionResponse":
        words = [
            WordResponse(
                word=word,
                log_prob=round(float(log_prob), DIGITS),
                confidence=round(math.exp(float(calibrated)), DIGITS),
                gate=round(float(gate), DIGITS),
                place=describe_peak(attention, seen),
                attention=attention.astype(float).round(DIGITS).tolist(),
            )
            for word, log_prob, calibrated, gate, attention in zip(
                caption.words, caption.log_probs, caption.best_log_probs, caption.gates, caption.attention, strict=False
            )
        ]
        return cls(
            caption=caption.caption,
            log_prob=round(caption.log_prob, DIGITS),
            confidence=round(caption.confidence, DIGITS),
            unsure=caption.unsure,
            words=words,
        )


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

    @classmethod
    def of(cls, model: str, output: ImageCaptions) -> "ModelResponse":
        assert isinstance(output.seen, Box)  # models without a grid are not served
        seen = SeenResponse(**{edge: round(coordinate, DIGITS) for edge, coordinate in output.seen._asdict().items()})
        captions = [CaptionResponse.of(caption, output.seen) for caption in output.captions]
        return cls(model=model, seen=seen, captions=captions)


class PhotographResponse(BaseModel):
    name: str
    width: Annotated[int, Field(description="in pixels, upright")]
    height: int
    outputs: Annotated[list[ModelResponse], Field(description="the captions of each requested model")]


class CaptionsResponse(BaseModel):
    photographs: list[PhotographResponse]

    @classmethod
    def of(cls, names: Sequence[str], outputs: Mapping[str, Sequence[ImageCaptions]]) -> "CaptionsResponse":
        """Return the response for the photographs' names and the captions of each photograph by model."""
        photographs = []
        for name, photograph_outputs in zip(names, zip(*outputs.values(), strict=True), strict=True):
            width, height = photograph_outputs[0].photograph.size
            models = [
                ModelResponse.of(model, output) for model, output in zip(outputs, photograph_outputs, strict=True)
            ]
            photographs.append(PhotographResponse(name=name, width=width, height=height, outputs=models))
        return cls(photographs=photographs)


class ModelInfo(BaseModel):
    name: str
    hard_attention: Annotated[bool, Field(description="whether the field attention has an effect")]
    languages: Annotated[list[str], Field(description="values of the field language; empty for a model of one")]


class ModelsResponse(BaseModel):
    models: list[ModelInfo]
    beam_size: Annotated[int | None, Field(description="the default; null if captions are not decoded by beam search")]
    attention: Annotated[list[str], Field(description="allowed values of the field attention")]
    formats: list[str]
    limits: dict[str, float]


class ErrorResponse(BaseModel):
    error: Annotated[str, Field(description="one sentence on what is wrong and what to do")]
