"""Fields of the requests and responses of the server, which FastAPI documents."""

from typing import Annotated, Literal

from fastapi import UploadFile
from pydantic import AfterValidator, BaseModel, Field

Rounded = Annotated[float, AfterValidator(lambda value: round(value, 6))]


class CaptionForm(BaseModel, extra="forbid"):
    photograph: list[UploadFile] = Field(description="one photograph or several; the response has their file names")
    model: list[str] = Field([], description="names of the models that caption the photographs; one by default")
    beam_size: int | None = Field(None, ge=1, le=20, description="of beam search")
    attention: Literal["sample", "argmax", "expectation"] | None = Field(None, description="where hard attention looks")


class WordResponse(BaseModel):
    word: str
    log_prob: Rounded = Field(description="log p of the word given those before it, base e")
    confidence: Rounded = Field(description="p of the word, calibrated if the model is, 0 to 1")
    gate: Rounded = Field(description="beta, the factor on the context vector, 0 to 1")
    place: str = Field(description="where in the photograph the map has its peak, in words")
    attention: list[list[Rounded]] = Field(description="alpha: regions by rows, from the top left of what was seen")


class CaptionResponse(BaseModel):
    caption: str
    log_prob: Rounded = Field(description="of the whole caption, its end included")
    confidence: Rounded = Field(description="geometric mean of the words' confidence, 0 to 1")
    not_sure: bool = Field(description="whether the photograph is unlike those that a calibrated model was trained on")
    words: list[WordResponse]


class ModelResponse(BaseModel):
    model: str
    seen: dict[str, Rounded] = Field(description="part of the photograph under the maps, in fractions of its sides")
    captions: list[CaptionResponse] = Field(description="the best first")


class PhotographResponse(BaseModel):
    name: str
    width: int = Field(description="in pixels, upright")
    height: int
    outputs: list[ModelResponse] = Field(description="the captions of each requested model")


class CaptionsResponse(BaseModel):
    photographs: list[PhotographResponse]
