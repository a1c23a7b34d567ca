"""What the HTTP API takes and returns, which FastAPI documents; the limits of the server, and errors of requests."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Literal, NamedTuple

import numpy as np
from fastapi import UploadFile
from pydantic import AfterValidator, BaseModel, ConfigDict, Field
from starlette.exceptions import HTTPException

from showattendtell.config.schemas import CaptioningConfig
from showattendtell.data.image_limits import FILE_MEGABYTES, MEGAPIXELS
from showattendtell.settings import PositiveFloat, PositiveInt, Text
from showattendtell.types import Box
from showattendtell.visualization.pages import ImageCaptions, describe_peak

MEGA = 1_000_000
MAX_BEAM_SIZE = 20
LONGEST_NAME = 120
RETRY_SECONDS = 2

AttentionMode = Literal["sample", "argmax", "expectation"]
HostPattern = Annotated[str, Field(pattern=r"^(\*|(\*\.)?[^*]+)$")]
Rounded = Annotated[float, AfterValidator(lambda value: round(value, 6))]


@dataclass
class ServeConfig(CaptioningConfig):
    """Settings of `serve`.

    Attributes:
        host: the address to bind. 127.0.0.1 accepts connections from this machine only, 0.0.0.0 from any machine.
        port: the port to bind; 0 takes any free port. The address is printed.
        allowed_hosts: the host names that the server accepts, as [photos.example.org], or [*.example.org] for all below
            it; by default those of this machine if host accepts connections from it only, else any.
    """

    host: Text
    port: Annotated[int, Field(ge=0, le=65535)]
    allowed_hosts: Annotated[Sequence[HostPattern], Field(min_length=1)] | None


class RequestError(HTTPException):
    """A request that is not answered, with a sentence that says what is wrong and what to do.

    Args:
        status: 4xx, or 503 if the same request may succeed later.
    """

    def __init__(self, status: int, sentence: str):
        super().__init__(status, sentence, {"Retry-After": str(RETRY_SECONDS)} if status == 503 else None)


class Upload(NamedTuple):
    """An uploaded photograph."""

    name: str
    content: bytes


def clean(text: str) -> str:
    """Remove unprintable characters and shorten the text, for use in messages."""
    return "".join(filter(str.isprintable, text))[:LONGEST_NAME]


class Limits(NamedTuple):
    """Limits of the server.

    file_megabytes: size of one photograph as a file.
    request_megabytes: size of a whole request, which is kept in memory.
    megapixels: of all photographs of a request together, checked by their headers before any is decoded.
    photographs: number of photographs in one request.
    waiting: requests that are received, queued or processed at a time; others are rejected with status 503.
    seconds: time from the header of a request to its answer.
    connections: open at a time; requests on others are rejected with status 503.
    """

    file_megabytes: PositiveFloat = FILE_MEGABYTES
    request_megabytes: PositiveFloat = 32.0
    megapixels: PositiveFloat = MEGAPIXELS
    photographs: PositiveInt = 8
    waiting: PositiveInt = 16
    seconds: PositiveFloat = 60.0
    connections: PositiveInt = 512


class CaptionRequest(BaseModel):
    """The optional fields of the form."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    model: tuple[str, ...] = Field((), description="names of the models that caption the photographs; one by default")
    beam_size: int | None = Field(
        None, ge=1, le=MAX_BEAM_SIZE, description="number of captions that beam search keeps at each step"
    )
    attention: AttentionMode | None = Field(
        None, description="where hard attention looks; as in training by default. Ignored by other models."
    )
    seed: int | None = Field(None, ge=0, lt=2**63, description="random seed")


class CaptionForm(CaptionRequest):
    """The form with photographs."""

    photograph: list[UploadFile] = Field(
        description="one photograph or several; their file names are returned and not used otherwise"
    )


class WordResponse(BaseModel):
    word: str
    log_prob: Rounded = Field(description="log p of the word given those before it, base e")
    confidence: Rounded = Field(description="p of the word, calibrated if the model is, 0 to 1")
    gate: Rounded = Field(description="beta, the factor on the context vector, 0 to 1")
    place: str = Field(description="where in the photograph the map has its peak, in words")
    attention: list[list[Rounded]] = Field(
        description="alpha: rows of regions from the top left of what was seen; all together sum to 1"
    )


class CaptionResponse(BaseModel):
    caption: str
    log_prob: Rounded = Field(description="of the whole caption, its end included")
    confidence: Rounded = Field(description="geometric mean of the words' confidence, 0 to 1")
    unsure: bool = Field(description="whether the photograph is unlike those that a calibrated model was trained on")
    words: list[WordResponse]


class ModelResponse(BaseModel):
    model: str
    seen: dict[str, Rounded] = Field(
        description="the part of the photograph that the model saw, on which its maps lie: left, top, right and bottom "
        "in fractions of width and height"
    )
    captions: list[CaptionResponse] = Field(description="the best first")

    @classmethod
    def of(cls, model: str, output: ImageCaptions) -> "ModelResponse":
        assert isinstance(output.seen, Box)  # models without a grid are not served
        captions = []
        for caption in output.captions:
            by_word = (caption.words, caption.log_probs, caption.best_log_probs, caption.gates, caption.attention)
            words = [
                WordResponse(
                    word=word,
                    log_prob=log_prob,
                    confidence=np.exp(best_log_prob),
                    gate=gate,
                    place=describe_peak(attention, output.seen),
                    attention=attention.tolist(),
                )
                for word, log_prob, best_log_prob, gate, attention in zip(*by_word, strict=False)  # less <eos>
            ]
            whole = {name: getattr(caption, name) for name in ("caption", "log_prob", "confidence", "unsure")}
            captions.append(CaptionResponse(**whole, words=words))
        return cls(model=model, seen=output.seen._asdict(), captions=captions)


class PhotographResponse(BaseModel):
    name: str
    width: int = Field(description="in pixels, upright")
    height: int
    outputs: list[ModelResponse] = Field(description="the captions of each requested model")


class CaptionsResponse(BaseModel):
    photographs: list[PhotographResponse]

    @classmethod
    def of(cls, names: Sequence[str], outputs: Mapping[str, Sequence[ImageCaptions]]) -> "CaptionsResponse":
        """Return the response for the photographs' names and the captions of each photograph by model."""
        photographs = []
        for number, name in enumerate(names):
            models = [ModelResponse.of(model, captions[number]) for model, captions in outputs.items()]
            width, height = next(iter(outputs.values()))[number].photograph.size
            photographs.append(PhotographResponse(name=name, width=width, height=height, outputs=models))
        return cls(photographs=photographs)


class ModelInfo(BaseModel):
    name: str
    hard_attention: bool = Field(description="whether the field attention has an effect")


class ModelsResponse(BaseModel):
    models: list[ModelInfo]
    beam_size: int | None = Field(description="the default; null if captions are not decoded by beam search")
    attention: list[str] = Field(description="allowed values of the field attention")
    formats: list[str]
    limits: dict[str, float]


class ErrorResponse(BaseModel):
    error: str = Field(description="one sentence on what is wrong and what to do")
