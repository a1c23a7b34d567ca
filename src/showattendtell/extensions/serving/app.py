"""The ASGI application: the web page, the JSON endpoint and its documentation, and the work on their requests."""

import asyncio
import json
from collections import Counter
from collections.abc import Callable, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from itertools import chain
from pathlib import Path
from time import perf_counter
from typing import Annotated, Any, get_args

from fastapi import APIRouter, FastAPI, Form, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, PlainTextResponse
from fastapi.routing import APIRoute
from starlette.exceptions import HTTPException
from starlette.formparsers import MultiPartParser
from starlette.middleware.trustedhost import TrustedHostMiddleware
from starlette.routing import Route
from starlette.types import Message, Receive

from showattendtell import __version__
from showattendtell.extensions.serving.models import FORMATS, Outputs, ServedModel, check_pixels, describe
from showattendtell.extensions.serving.schemas import (
    MAX_BEAM_SIZE,
    MEGA,
    AttentionMode,
    CaptionForm,
    CaptionsResponse,
    ErrorResponse,
    Limits,
    ModelInfo,
    ModelsResponse,
    RequestError,
    Upload,
    clean,
)
from showattendtell.visualization.figures import encode
from showattendtell.visualization.pages import Page, make_entry, render
from showattendtell.visualization.rendering import DARKEST, EXAMPLES, fill

Make = Callable[[list[Upload], Outputs], bytes]
"""Computes the content of an answer."""

Handler = Callable[[Request], Coroutine[Any, Any, Response]]

TEMPLATES = Path(__file__).parent / "templates"

ERRORS: dict[int | str, dict[str, Any]] = {
    "4XX": {"model": ErrorResponse, "description": "the request cannot be answered"},
    "503": {"model": ErrorResponse, "description": "all places are taken; Retry-After says when to try again"},
}


class Service:
    """The served models, a thread that works on one request at a time, and counts since the server was started:
    requests with photographs by status, their seconds, and captions of which a model is unsure or not."""

    def __init__(self, models: dict[str, ServedModel], limits: Limits):
        self.models, self.limits = models, limits
        self.places_taken, self._thread = 0, ThreadPoolExecutor(1, "models")
        self.answers, self.captions, self.seconds = Counter[int](), Counter[bool](), 0.0

    async def answer(self, request: Request, handle: Handler) -> Response:
        """Return the answer of a request with photographs by its handler, and count it."""
        started, status = perf_counter(), 500
        try:
            response = await self._answer(request, handle)
            status = response.status_code
            return response
        except HTTPException as error:
            status = error.status_code
            raise
        finally:
            self.answers[status] += 1
            self.seconds += perf_counter() - started

    async def _answer(self, request: Request, handle: Handler) -> Response:
        """Handle a request if there is a place for it, within limited time."""
        if request.headers.get("sec-fetch-site") == "cross-site":
            raise RequestError(403, "this server answers its own page and programs, not pages of other sites")
        if self.places_taken == self.limits.waiting:
            raise RequestError(503, f"all {self.limits.waiting} places are taken; try again in a moment")
        self.places_taken += 1
        try:
            async with asyncio.timeout(self.limits.seconds):
                return await handle(Request(request.scope, self._limited(request)))
        except RequestValidationError as error:
            raise RequestError(422, describe_faults(error.errors())) from None
        except TimeoutError:
            raise RequestError(408, f"it took longer than {self.limits.seconds:g} seconds; send less") from None
        except asyncio.CancelledError:
            raise RequestError(503, "the server is shutting down; try again") from None
        finally:
            self.places_taken -= 1

    def _limited(self, request: Request) -> Receive:
        """Return the function that reads the body of a request, with an error if it is too large."""
        declared, received = int(request.headers.get("content-length", 0)), 0

        async def receive() -> Message:
            nonlocal received
            message = await request.receive()
            received += len(message.get("body", b""))
            if max(declared, received) > self.limits.request_megabytes * MEGA:
                raise RequestError(413, f"the request has more than {self.limits.request_megabytes:g} MB; send less")
            return message

        return receive

    async def caption(self, request: Request, form: CaptionForm, make: Make) -> bytes:
        """Return the answer that `make` computes of the captions of the photographs in a form."""
        fields = await request.form()  # has been read
        for name, value in form:
            if len(fields.getlist(name)) > 1 and not isinstance(value, tuple | list):
                raise RequestError(422, f"the field {name} has several values; send one")
        photographs = [Upload(file_name(file.filename or ""), await file.read()) for file in form.photograph]

        def work() -> tuple[bytes, Outputs]:
            check_pixels(photographs, self.limits)
            outputs = describe(self.models, photographs, form, MEGA * self.limits.megapixels)
            return make(photographs, outputs), outputs

        done = asyncio.wrap_future(self._thread.submit(work))  # if it is cancelled, work that has not begun is dropped
        hung_up = asyncio.create_task(_wait_until_disconnected(request))
        hung_up.add_done_callback(lambda _: done.cancel())
        try:
            content, outputs = await done
        finally:
            hung_up.cancel()
        self.captions.update(one.unsure for one in chain.from_iterable(outputs.values()))
        return content

    def overview(self) -> ModelsResponse:
        """Return the names of the models, as the field model accepts them, and the limits of a request."""
        return ModelsResponse(
            models=[ModelInfo(name=name, hard_attention=bool(model.hard)) for name, model in self.models.items()],
            beam_size=getattr(next(iter(self.models.values())).decoding, "beam_size", None),
            attention=[*get_args(AttentionMode)],
            formats=[*FORMATS],
            limits=self.limits._asdict(),
        )

    async def metrics(self) -> Response:
        """Return counts of requests and captions, in the text format of Prometheus."""
        return Response(fill(TEMPLATES / "metrics.txt", service=self), media_type="text/plain; version=0.0.4")


async def _wait_until_disconnected(request: Request) -> None:
    """Wait until the client of a request, whose body has been read, closes the connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def file_name(path: str) -> str:
    """Return the last part of a path of any operating system; browsers send a quotation mark as %22."""
    return clean(path.replace("%22", '"').replace("\\", "/").rpartition("/")[2]) or "photograph"


def describe_faults(errors: Sequence[Any]) -> str:
    """Return a sentence about the first errors of pydantic in the fields of a form."""
    faults = []
    for detail in errors[:3]:
        name = clean(str((*detail["loc"], "a field")[1]))
        if detail["type"] == "extra_forbidden":
            faults.append(f"there is no field '{name}'; available: {', '.join(CaptionForm.model_fields)}")
        else:
            faults.append(f"{name}: {detail['msg'][0].lower()}{detail['msg'][1:]}")
    return "; ".join(faults)


def make_captions(photographs: list[Upload], outputs: Outputs) -> bytes:
    """Caption photographs; return log p, beta and the attention map of each word."""
    return CaptionsResponse.of([one.name for one in photographs], outputs).model_dump_json().encode()


def make_picture(photographs: list[Upload], outputs: Outputs) -> bytes:
    """Caption one photograph with one model; return a PNG with a panel for each word."""
    if len(photographs) * len(outputs) > 1:
        raise RequestError(422, "a picture is of one photograph and one model; send one of each")
    [[output]] = outputs.values()
    return encode(output.plot())


def make_cards(photographs: list[Upload], outputs: Outputs) -> bytes:
    """Return the captioned photographs as HTML for the page."""
    pairs = zip(photographs, zip(*outputs.values(), strict=True), strict=True)
    entries = [make_entry(photograph.name, captions) for photograph, captions in pairs]
    return render(Page("", list(outputs), entries), "cards.html").encode()


class PhotographRoute(APIRoute):
    """The route of a form with photographs, which has a place while it is received and answered."""

    def get_route_handler(self) -> Handler:
        handle = super().get_route_handler()

        async def limited(request: Request) -> Response:
            service: Service = request.app.state.service
            return await service.answer(request, handle)

        return limited


def add_endpoint(router: APIRouter, path: str, make: Make, kind: str, **answer: Any) -> None:
    """Add an endpoint that takes the form with photographs.

    Args:
        kind: media type of what `make` returns.
        answer: what FastAPI documents of it; nothing for an endpoint that is not documented.
    """

    async def endpoint(
        request: Request, form: Annotated[CaptionForm, Form(media_type="multipart/form-data")]
    ) -> Response:
        service: Service = request.app.state.service
        return Response(await service.caption(request, form, make), media_type=kind)

    router.add_api_route(
        path,
        endpoint,
        methods=["POST"],
        description=make.__doc__ or "",
        responses={**ERRORS, 200: answer},
        response_class=Response,
        include_in_schema=bool(answer),
    )


def add_pages(app: FastAPI, overview: ModelsResponse, note: str, address: str) -> None:
    """Add the pages, which are rendered once: they are the same for everyone."""
    openapi = app.openapi()
    site = fill("upload.html", overview=overview.model_dump(), note=note, beams=MAX_BEAM_SIZE, gated=[True, False])
    pages: dict[str, tuple[str, str | bytes]] = {
        "/": ("text/html", site),
        "/docs": ("text/html", fill(TEMPLATES / "reference.html", openapi=openapi, address=address)),
        "/openapi.json": ("application/json", json.dumps(openapi)),
        "/serve.js": ("text/javascript", fill(TEMPLATES / "serve.js", darkest=DARKEST)),
        "/style.css": ("text/css", fill("style.css")),
        "/health": ("application/json", '{"status":"ok"}'),
    }
    pages |= {f"/examples/{file.name}": ("image/jpeg", file.read_bytes()) for file in EXAMPLES.iterdir()}
    for path, (kind, content) in pages.items():
        app.router.routes.append(Route(path, Response(content, media_type=kind), methods=["GET"]))


async def http_error(_: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, HTTPException)
    return JSONResponse({"error": error.detail}, error.status_code, error.headers)


def make_app(models: dict[str, ServedModel], limits: Limits, hosts: Sequence[str], note: str, address: str) -> FastAPI:
    """Create the application.

    Args:
        hosts: accepted host names, as `TrustedHostMiddleware` takes them.
        note: what users of the page should know about the models.
        address: the URL of the server, for its documentation.
    """
    app = FastAPI(
        title="showattendtell",
        version=__version__,
        summary="Captions of photographs, and where the model looked at each word",
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        exception_handlers={HTTPException: http_error},
        form_limits={"max_files": limits.photographs, "max_fields": 32, "max_part_size": 2000},
    )
    # a page of another site could read the answers under a name of its own for this server
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=hosts, www_redirect=False)
    MultiPartParser.spool_max_size = 2**40  # no temporary files
    service = app.state.service = Service(models, limits)
    router, png = APIRouter(route_class=PhotographRoute), "image/png"
    captions = {"model": CaptionsResponse, "description": "the captions"}
    add_endpoint(router, "/api/caption", make_captions, "application/json", **captions)
    add_endpoint(router, "/api/picture", make_picture, png, content={png: {}}, description="the picture")
    add_endpoint(router, "/cards", make_cards, "text/html")
    app.include_router(router)
    app.add_api_route("/api/models", service.overview)
    app.add_api_route("/metrics", service.metrics, response_class=PlainTextResponse)
    add_pages(app, service.overview(), note, address)
    return app
