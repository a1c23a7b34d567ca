"""The web application: the page, the endpoints with the fields that FastAPI documents, and the work on requests."""

import asyncio
import traceback
from collections import Counter
from collections.abc import Awaitable, Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from pathlib import Path, PureWindowsPath
from time import perf_counter
from typing import Annotated, Any, Literal

import numpy as np
from fastapi import FastAPI, Form, Request, Response, UploadFile
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.staticfiles import StaticFiles
from pydantic import AfterValidator, BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartParser
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.routing import Route

from showattendtell.errors import UserError, did_you_mean, printable
from showattendtell.extensions.serving import ServeSettings
from showattendtell.images.limits import FORMATS
from showattendtell.images.reading import decode_image
from showattendtell.inference.captioning import load_captioners
from showattendtell.inference.pipeline import stacked
from showattendtell.loading.hub import note_about
from showattendtell.runtime.process import LARGE_BLOCK, keep_freed_memory
from showattendtell.types import Box, CaptionOutput
from showattendtell.visualization.figures import encode
from showattendtell.visualization.pages import ImageCaptions, Page, describe_peak, make_entry, render
from showattendtell.visualization.rendering import DARKEST, EXAMPLES, fill

TEMPLATES = Path(__file__).parent / "templates"
HEADERS = [line.split(": ", 1) for line in fill(TEMPLATES / "headers.txt").splitlines()]  # of every response
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


Sent = Annotated[CaptionForm, Form(media_type="multipart/form-data")]
Outputs = dict[str, list[ImageCaptions]]  # the captions of each photograph, by model


class Service:
    """The models, which one thread uses, and counts of requests by status, of seconds, and of captions by doubt."""

    def __init__(self, settings: ServeSettings):
        keep_freed_memory(LARGE_BLOCK)
        self.settings, self._thread = settings, ThreadPoolExecutor(1)
        self.models = {captioner.name: captioner for captioner in load_captioners(settings)}
        attentions = [model.module.captioner.attention for one in self.models.values() for model in one.models]
        self.modes = {attention: attention.inference_mode for attention in attentions if attention.samples}
        self.answers, self.captions, self.seconds = Counter[int](), Counter[bool](), 0.0

    async def answer(self, form: CaptionForm, make: Callable[[Outputs], Any]) -> Any:
        """Return what `make` computes of the captions of the photographs in a form."""
        sent = [(str(file.filename).replace("%22", '"'), await file.read()) for file in form.photograph]
        files = [(printable(PureWindowsPath(path).name, 120) or "photograph", content) for path, content in sent]
        return await asyncio.get_running_loop().run_in_executor(self._thread, lambda: make(self._describe(form, files)))

    def _describe(self, form: CaptionForm, files: Sequence[tuple[str, bytes]]) -> Outputs:
        for name in {*form.model} - self.models.keys():
            raise HTTPException(422, f"there is no model '{printable(name)}'{did_you_mean(name, self.models)}")
        for attention, mode in self.modes.items():
            attention.inference_mode = form.attention or mode
        images, pixels, outputs = [], 1e6 * self.settings.megapixels, Outputs()
        try:
            for name, content in files:  # a large JPEG is reduced to the number of pixels that the others leave
                images.append((name, decode_image(content, name, pixels)))
                pixels -= images[-1][1].width * images[-1][1].height
            for name in form.model or [*self.models][:1]:
                inputs = stacked(self.models[name].pixels(image) for _, image in images)
                outputs[name] = list(self.models[name].describe(images, inputs, form.beam_size))
        except UserError as error:
            raise HTTPException(422, str(error)) from None
        self.captions.update(one.not_sure for captions in outputs.values() for one in captions)
        return outputs


def make_captions(outputs: Outputs) -> dict[str, Any]:
    """Return the fields of `CaptionsResponse`."""
    photographs = []
    for captions in zip(*outputs.values(), strict=True):
        models = []
        for model, output in zip(outputs, captions, strict=True):
            own = [caption_fields(caption, output.seen) for caption in output.captions]
            models.append({"model": model, "seen": output.seen._asdict(), "captions": own})
        width, height = captions[0].photograph.size
        photographs.append({"name": captions[0].name, "width": width, "height": height, "outputs": models})
    return {"photographs": photographs}


def caption_fields(one: CaptionOutput[np.ndarray], seen: Box) -> dict[str, Any]:
    """Return the fields of `CaptionResponse`; <eos> is no word."""
    places = [describe_peak(grid, seen) for grid in one.attention]
    columns = one.log_probs, np.exp(one.best_log_probs), one.gates, places, one.attention.tolist()
    words = [dict(zip(WordResponse.model_fields, row, strict=True)) for row in zip(one.words, *columns, strict=False)]
    return {"words": words} | {name: getattr(one, name) for name in ("caption", "log_prob", "confidence", "not_sure")}


def make_cards(outputs: Outputs) -> str:
    """Return the photographs with their captions as HTML."""
    entries = [make_entry(captions[0].name, captions) for captions in zip(*outputs.values(), strict=True)]
    return render(Page("", list(outputs), entries), "cards.html")


async def refuse(_: Request, error: Exception) -> JSONResponse:
    """Return an error as JSON with one sentence."""
    if isinstance(error, HTTPException):
        return JSONResponse({"error": error.detail}, error.status_code, error.headers)
    if isinstance(error, RequestValidationError):
        faults = [f"{printable(str(fault['loc'][-1]))}: {fault['msg'].lower()}" for fault in error.errors()[:3]]
        return JSONResponse({"error": f"{'; '.join(faults)}; see /docs"}, 422)
    traceback.print_exception(error)
    return JSONResponse({"error": "the server failed; its output has the reason"}, 500)


def make_app(service: Service, hosts: Sequence[str], address: str) -> FastAPI:
    """Create the application at an address, for requests to these hosts."""
    MultiPartParser.spool_max_size = 2**40  # no temporary files
    app = FastAPI(
        title="showattendtell",
        docs_url=None,
        responses={"4XX": {"description": 'an error, as {"error": "..."} with one sentence'}},
        exception_handlers=dict.fromkeys((HTTPException, RequestValidationError, Exception), refuse),
        form_limits={"max_files": service.settings.photographs, "max_fields": 32, "max_part_size": 2000},
        max_body_size=int(service.settings.megabytes * 1e6),
    )
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=hosts, www_redirect=False)
    app.mount("/examples", StaticFiles(directory=EXAMPLES))

    @app.middleware("http")
    async def count(request: Request, handle: Callable[[Request], Awaitable[Response]]) -> Response:
        if request.headers.get("sec-fetch-site") == "cross-site":
            return JSONResponse({"error": "this server does not answer pages of other sites"}, 403)
        started, response = perf_counter(), await handle(request)
        if request.method == "POST":
            service.answers[response.status_code] += 1
            service.seconds += perf_counter() - started
        return response

    @app.post("/api/caption")
    async def caption(form: Sent) -> CaptionsResponse:
        """Caption photographs; return log p, beta and the attention map of each word."""
        return await service.answer(form, make_captions)

    @app.post("/api/picture", response_class=Response, responses={200: {"content": {"image/png": {}}}})
    async def picture(form: Sent) -> Response:
        """Caption one photograph with one model; return a PNG with a panel for each word."""
        if len(form.photograph) * len(form.model or [1]) > 1:
            raise HTTPException(422, "a picture is of one photograph and one model; send one of each")
        content = await service.answer(form, lambda outputs: encode(outputs.popitem()[1][0].plot()))
        return Response(content, media_type="image/png")

    @app.post("/cards", include_in_schema=False)
    async def cards(form: Sent) -> Response:
        return Response(await service.answer(form, make_cards), media_type="text/html")

    @app.get("/metrics")
    async def metrics() -> Response:
        """Return counts of requests and captions, in the text format of Prometheus."""
        return Response(fill(TEMPLATES / "metrics.txt", service=service), media_type="text/plain; version=0.0.4")

    app.router.routes += list(page_routes(service, app.openapi(), address))
    return app


def page_routes(service: Service, openapi: Mapping[str, Any], address: str) -> Iterator[Route]:
    """Yield the routes of the page, of its documentation and of their files, which do not change."""
    page = fill(
        "upload.html",
        formats=[name for name in FORMATS if name != "HEIF" or find_spec("pillow_heif")],
        models=[*service.models],
        beam_size=service.settings.decoding.arguments.get("beam_size"),
        hard_attention=bool(service.modes),
        megabytes=service.settings.megabytes,
        note=note_about(service.settings.checkpoints),
    )
    pages = {
        "/": ("text/html", page),
        "/docs": ("text/html", fill(TEMPLATES / "reference.html", openapi=openapi, address=address)),
        "/serve.js": ("text/javascript", fill(TEMPLATES / "serve.js", darkest=DARKEST)),
        "/style.css": ("text/css", fill("style.css")),
        "/health": ("application/json", '{"status":"ok"}'),
    }
    for path, (kind, content) in pages.items():
        yield Route(path, Response(content, media_type=kind), methods=["GET"])
