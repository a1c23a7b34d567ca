"""The ASGI application: the web page, the JSON endpoint and its documentation; and the forms of requests, which are
read within limits into memory only."""

import asyncio
import math
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from typing import Any, TypeVar, get_args

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse
from PIL import Image
from pydantic import ValidationError
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.requests import ClientDisconnect

from showattendtell import __version__
from showattendtell.data.image_limits import CostlyImageError
from showattendtell.data.images import open_content
from showattendtell.serving.models import ModelRegistry, RequestQueue
from showattendtell.serving.schemas import (
    MAX_BEAM_SIZE,
    AttentionMode,
    CaptionRequest,
    CaptionsResponse,
    ErrorResponse,
    Limits,
    ModelInfo,
    ModelsResponse,
    RequestError,
    Upload,
    clean,
)
from showattendtell.serving.server import FormError, InMemoryParser, ReadBody, client_network
from showattendtell.visualization.pages import ImageCaptions, Page, make_entry, render
from showattendtell.visualization.rendering import DARKEST, EXAMPLE_FOLDER, EXAMPLES, fill

Made = TypeVar("Made")
Outputs = dict[str, list[ImageCaptions]]
"""The captions of each photograph, by model."""

PHOTOGRAPH = "photograph"
"""The field of the form that holds a file."""

FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF")
FIELDS = 32
FIELD_BYTES = 2000
MEGA = 1_000_000


ERROR_RESPONSES: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorResponse, "description": description}
    for status, description in {
        400: "the form cannot be read",
        403: "the request comes from a page of another site",
        408: "the form did not arrive in time",
        413: "too many bytes or pixels",
        415: "no form, or no photograph",
        422: "a field that is missing, unknown or out of range; a photograph that is damaged or takes long to decode",
        503: "the queue is full; Retry-After says when to try again",
    }.items()
}


async def read_form(request: Request, limits: Limits) -> tuple[list[Upload], CaptionRequest]:
    """Read the form of a request: its photographs and options.

    Raises `RequestError` for other content, too many photographs, a timeout, a body as soon as it is too large, and
    invalid options.
    """
    kind = request.headers.get("content-type", "").partition(";")[0].strip()
    if kind.lower() != "multipart/form-data":
        sent = clean(kind) or "nothing"
        raise RequestError(415, f"a form is needed, multipart/form-data with a field '{PHOTOGRAPH}'; {sent} was sent")
    parts = {"max_files": limits.photographs, "max_fields": FIELDS, "max_part_size": FIELD_BYTES}
    try:
        async with asyncio.timeout(limits.seconds):
            parsed = await InMemoryParser(request.headers, _limited(request, limits), **parts).parse()
    except FormError as fault:
        raise RequestError(400, f"the form cannot be read ({fault.message.removesuffix('.')}); send it again") from None
    except ClientDisconnect:
        raise RequestError(400, "the form ended before all of it was received; send it again") from None
    except asyncio.CancelledError:
        raise RequestError(503, "the server is shutting down; try again when it has restarted") from None
    except TimeoutError:
        raise RequestError(408, f"the form did not arrive within {limits.seconds:g} seconds; send less") from None
    photographs: list[Upload] = []
    fields: dict[str, list[str]] = {}
    for field, value in parsed.multi_items():
        if not isinstance(value, UploadFile):
            fields.setdefault(field, []).append(value)
        elif field == PHOTOGRAPH:
            photographs.append(Upload(file_name(value.filename or ""), await value.read()))
        else:
            raise RequestError(422, f"there is no field '{clean(field)}' for files; send photographs as '{PHOTOGRAPH}'")
    if not photographs:
        raise RequestError(422, f"there is no photograph; send at least one file as the field '{PHOTOGRAPH}'")
    return photographs, read_options(fields)


async def _limited(request: Request, limits: Limits) -> AsyncGenerator[bytes, None]:
    """Yield the body as it arrives, up to its maximum size."""
    most = limits.request_megabytes * MEGA
    too_large = f"the request has more than {limits.request_megabytes:g} MB; send fewer or smaller photographs"
    length = request.headers.get("content-length", "0")
    if length.isdecimal() and int(length) > most:
        raise RequestError(413, too_large)
    received = 0
    async for chunk in request.stream():
        received += len(chunk)
        if received > most:
            raise RequestError(413, too_large)
        yield chunk


def file_name(path: str) -> str:
    """Return the last part of a path of any operating system; browsers send a quotation mark as %22."""
    return clean(path.replace("%22", '"').replace("\\", "/").rpartition("/")[2]) or PHOTOGRAPH


def check(photographs: Sequence[Upload], limits: Limits) -> None:
    """Check the size, the format and the number of pixels of photographs, without decoding them.

    Raises `RequestError` for a file that is too large or not of an accepted format, and for too many pixels in total.
    """
    for name, content in photographs:
        if len(content) > limits.file_megabytes * MEGA:
            raise RequestError(413, f"{name} has more than {limits.file_megabytes:g} MB; send a smaller copy")
    if sum(map(_count_pixels, photographs)) > limits.megapixels * MEGA:
        sent = photographs[0].name if len(photographs) == 1 else "the photographs together"
        raise RequestError(
            413, f"{sent}: more than {limits.megapixels:g} million pixels; send smaller copies, or fewer at once"
        )


def _count_pixels(photograph: Upload) -> float:
    """Return the number of pixels according to the header."""
    try:
        with open_content(photograph.content, FORMATS) as image:
            return image.width * image.height
    except CostlyImageError as error:
        raise RequestError(422, f"image {photograph.name} {error}") from None
    except Image.DecompressionBombError:
        return math.inf
    except Exception as error:  # Pillow raises many types for a damaged file
        format_names = f"{', '.join(FORMATS[:-1])} or {FORMATS[-1]}"
        raise RequestError(415, f"{photograph.name} is not a {format_names} file that can be read") from error


def read_options(fields: Mapping[str, list[str]]) -> CaptionRequest:
    """Read the request options from the form's fields, without empty ones; raise `RequestError` if invalid."""
    non_empty = {name: [value for value in values if value] for name, values in fields.items()}
    options = {name: values if name == "model" else values[-1] for name, values in non_empty.items() if values}
    try:
        return CaptionRequest.model_validate(options)
    except ValidationError as error:
        raise RequestError(
            422, "; ".join(_sentence(detail["loc"], detail["msg"]) for detail in error.errors()[:3])
        ) from None


def _sentence(location: tuple[int | str, ...], message: str) -> str:
    name = clean(str(location[0])) if location else "a field"  # its name is not a string
    if message.startswith("Extra inputs"):
        return f"there is no field '{name}'; available: photograph, {', '.join(CaptionRequest.model_fields)}"
    return f"{name}: {message[0].lower()}{message[1:]}"


class Service:
    """State shared by all endpoints."""

    def __init__(self, models: ModelRegistry, queue: RequestQueue, limits: Limits, note: str = ""):
        self.models, self.queue, self.limits, self.note = models, queue, limits, note

    async def answer(self, request: Request, make: Callable[[list[Upload], Outputs], Made], max_items: int = 0) -> Made:
        """Caption the photographs of the request's form and return the result of `make`.

        Both are computed in the thread of the models.

        Args:
            max_items: maximum number of photographs and of models; 0 for the limits of the server.
        """
        if request.headers.get("sec-fetch-site") == "cross-site":
            raise RequestError(403, "this server answers its own page and programs, not pages of other sites")
        client = client_network(request.client.host if request.client else "")
        with self.queue.slot(client):
            photographs, options = await read_form(request, self.limits)

            def work() -> Made:
                check(photographs, self.limits)
                if max_items and max(len(photographs), len(options.model)) > max_items:
                    raise RequestError(422, "a picture is of one photograph and one model; send one of each")
                return make(photographs, self.models.describe(photographs, options))

            return await self.queue.work(client, work, _disconnected(request))

    def overview(self) -> ModelsResponse:
        return ModelsResponse(
            models=[
                ModelInfo(name=name, hard_attention=bool(model.hard), languages=model.languages)
                for name, model in self.models.by_name.items()
            ],
            beam_size=self.models.beam_size,
            attention=[*get_args(AttentionMode)],
            formats=[*FORMATS],
            limits=self.limits._asdict(),
        )


async def _disconnected(request: Request) -> None:
    """Return when the client has closed its connection; for requests whose body has been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def service(request: Request) -> Service:
    return request.app.state.service


def _body() -> dict[str, Any]:
    """Return the OpenAPI description of the form."""
    files = {
        "type": "array",
        "items": {"type": "string", "format": "binary"},
        "description": "one photograph or several; their file names are returned and not used otherwise",
    }
    properties = {PHOTOGRAPH: files, **CaptionRequest.model_json_schema()["properties"]}
    form = {"type": "object", "properties": properties, "required": [PHOTOGRAPH]}
    return {"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": form}}}}


router = APIRouter()


@router.post("/api/caption", responses=ERROR_RESPONSES, openapi_extra=_body())
async def caption(request: Request) -> CaptionsResponse:
    """Caption photographs; return log p, beta and the attention map of each word."""
    return await service(request).answer(
        request, lambda photographs, outputs: CaptionsResponse.of([one.name for one in photographs], outputs)
    )


@router.post(
    "/api/picture",
    responses={**ERROR_RESPONSES, 200: {"content": {"image/png": {}}, "description": "the picture"}},
    response_class=Response,
    openapi_extra=_body(),
)
async def picture(request: Request) -> Response:
    """Caption one photograph with one model; return a PNG with a panel for each word, as the command caption does."""
    return Response(await service(request).answer(request, _draw, max_items=1), media_type="image/png")


def _draw(_: list[Upload], outputs: Outputs) -> bytes:
    from showattendtell.visualization.figures import encode
    from showattendtell.visualization.heatmaps import heatmap_figure

    [[output]] = outputs.values()
    return encode(heatmap_figure(*output.as_drawn(), output.caption))


@router.get("/api/models")
async def overview(request: Request) -> ModelsResponse:
    """Return the names of the models, as the field model accepts them, and the limits of a request."""
    return service(request).overview()


@router.post("/cards", include_in_schema=False)
async def cards(request: Request) -> HTMLResponse:
    """Return the captioned photographs as HTML for the page."""
    return HTMLResponse(await service(request).answer(request, _cards))


def _cards(photographs: list[Upload], outputs: Outputs) -> str:
    pairs = zip(photographs, zip(*outputs.values(), strict=True), strict=True)
    entries = [make_entry(photograph.name, captions) for photograph, captions in pairs]
    return render(Page("", list(outputs), entries), "cards.html")


@router.get("/", include_in_schema=False)
async def site(request: Request) -> HTMLResponse:
    overview = service(request).overview().model_dump()
    note = service(request).note
    content = {"overview": overview, "note": note, "beams": MAX_BEAM_SIZE, "gated": [True, False], "examples": EXAMPLES}
    return HTMLResponse(fill("serve.html", **content))


@router.get("/examples/{name}", include_in_schema=False)
async def example(name: str) -> Response:
    if name not in {one.file for one in EXAMPLES}:
        raise HTTPException(404)
    return Response((EXAMPLE_FOLDER / name).read_bytes(), media_type="image/jpeg")


@router.get("/docs", include_in_schema=False)
async def reference(request: Request) -> HTMLResponse:
    openapi, address = request.app.openapi(), str(request.base_url)
    return HTMLResponse(fill("reference.html", openapi=openapi, address=address, spell=spell_schema))


def spell_schema(schema: Mapping[str, Any]) -> str:
    """Return in words what kind of value a JSON schema describes."""
    if "$ref" in schema:
        return schema["$ref"].rpartition("/")[2]
    if "anyOf" in schema:
        return " or ".join(spell_schema(option) for option in schema["anyOf"] if option.get("type") != "null")
    if "enum" in schema:
        return ", ".join(map(str, schema["enum"]))
    if schema.get("type") == "array":
        return f"list of {spell_schema(schema['items'])}"
    if schema.get("format") == "binary":
        return "file"
    bounds = [f"from {schema['minimum']:g}"] if "minimum" in schema else []
    bounds += [f"to {schema['maximum']:g}"] if "maximum" in schema else []
    return " ".join([schema.get("type", "any"), *bounds])


@router.get("/serve.js", include_in_schema=False)
async def script() -> Response:
    return Response(fill("serve.js", darkest=DARKEST), media_type="text/javascript")


@router.get("/style.css", include_in_schema=False)
async def style() -> Response:
    return Response(fill("style.css"), media_type="text/css")


async def request_error(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestError)
    return JSONResponse({"error": str(error)}, error.status, error.headers)


async def http_error(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    hint = "GET / is the page, GET /docs documents the endpoints"
    return JSONResponse({"error": f"{error.detail.lower()}; {hint}"}, error.status_code, error.headers)


async def server_error(_: Request, error: Exception) -> JSONResponse:
    return JSONResponse({"error": "internal error of the server; the reason is in its terminal"}, 500)


def make_app(
    models: ModelRegistry, queue: RequestQueue, limits: Limits, hosts: Sequence[str], note: str = ""
) -> FastAPI:
    """Create the application.

    Args:
        note: what users of the page should know about the models.
        hosts: accepted host names, so that a page of another site cannot use a name of its own for this server.
    """
    app = FastAPI(
        title="showattendtell",
        version=__version__,
        summary="Captions of photographs, and where the model looked at each word",
        docs_url=None,
        redoc_url=None,
        exception_handlers={RequestError: request_error, HTTPException: http_error, Exception: server_error},
    )
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=[*hosts], www_redirect=False)
    app.add_middleware(ReadBody)
    app.state.service = Service(models, queue, limits, note)
    app.include_router(router)
    return app
