"""The ASGI application: the web page, the JSON endpoint and its documentation, and the queue of their requests."""

import asyncio
import json
import re
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from dataclasses import dataclass
from fnmatch import fnmatch
from html import escape
from itertools import chain
from pathlib import Path
from time import perf_counter
from typing import Any, NamedTuple, TypeVar, cast, get_args
from weakref import WeakValueDictionary

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse, PlainTextResponse
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp, Receive, Scope, Send

from showattendtell import __version__
from showattendtell.extensions.serving.models import (
    FORMATS,
    MEGA,
    PHOTOGRAPH,
    ModelRegistry,
    count_pixels,
    read_form,
)
from showattendtell.extensions.serving.schemas import (
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
)
from showattendtell.extensions.serving.server import client_network
from showattendtell.visualization.figures import encode
from showattendtell.visualization.pages import ImageCaptions, Page, make_entry, render
from showattendtell.visualization.rendering import DARKEST, EXAMPLES, fill

Outputs = dict[str, list[ImageCaptions]]
"""The captions of each photograph, by model."""

TEMPLATES = Path(__file__).parent / "templates"
LARGE_PIXELS = 4_000_000  # more are decoded apart, so that others need not wait for them
ADDRESS = "http://server.invalid/"  # stands for that of the server in its documentation, which is rendered once

ERRORS: dict[int | str, dict[str, Any]] = {
    "4XX": {"model": ErrorResponse, "description": "the request cannot be answered"},
    "503": {"model": ErrorResponse, "description": "all places are taken; Retry-After says when to try again"},
}


Result = TypeVar("Result")


@dataclass(eq=False)
class Place:
    """A place of a request. Cancelling its task ends the request with status 503 and drops work that has not begun."""

    client: str
    task: asyncio.Task[Any]
    arriving: bool = True  # whether the body has not yet arrived


class RequestQueue:
    """A limited number of places for requests, and a thread that works on one of them at a time.

    Large photographs have a thread of their own, so that others do not wait while they are decoded.

    Args:
        capacity: number of places.
        seconds: time for a request to arrive, and again for its answer.
    """

    def __init__(self, capacity: int, seconds: float):
        self.capacity, self._seconds = capacity, seconds
        self._places: list[Place] = []
        self._turns: WeakValueDictionary[tuple[str, bool], asyncio.Lock] = WeakValueDictionary()
        self._threads = {False: ThreadPoolExecutor(1, "models"), True: ThreadPoolExecutor(1, "large")}

    @property
    def taken(self) -> int:
        """Number of places that are taken."""
        return len(self._places)

    @asynccontextmanager
    async def place(self, client: str) -> AsyncIterator[Place]:
        """Occupy a place for the whole of a request, so that its received data count.

        Raises `RequestError` if there is none, or if it is taken away.
        """
        self._make_room(client)
        place = Place(client, cast(asyncio.Task[Any], asyncio.current_task()))
        self._places.append(place)
        try:
            yield place
        except asyncio.CancelledError:
            reason = "the place of this request went to another client, or the server is shutting down"
            raise RequestError(503, f"{reason}; try again") from None
        finally:
            self._places.remove(place)

    def _make_room(self, client: str) -> None:
        """End the request of another client if all places are taken.

        It is one of the client with the most places if that has more than this one would have; otherwise one that has
        not arrived yet, of a client with as many.
        """
        if len(self._places) < self.capacity:
            return
        counts = Counter(place.client for place in self._places)
        heaviest, most = counts.most_common(1)[0]
        if most > counts[client] + 1:
            candidates = [place for place in self._places if place.client == heaviest]
        else:
            candidates = [place for place in self._places if place.arriving and counts[place.client] > counts[client]]
        if not candidates:
            raise RequestError(503, f"all {self.capacity} places are taken; try again in a moment")
        next((place for place in candidates if place.arriving), candidates[-1]).task.cancel()

    async def work(self, client: str, work: Callable[[], Result], large: bool = False) -> Result:
        """Return the result of the work. Clients take turns, however many requests one of them has.

        Raises `RequestError` if it takes too long.
        """
        turn = self._turns.setdefault((client, large), asyncio.Lock())
        try:
            async with asyncio.timeout(self._seconds), turn:
                return await asyncio.wrap_future(self._threads[large].submit(work))
        except TimeoutError:
            raise RequestError(503, f"the answer took longer than {self._seconds:g} seconds; try again") from None


@dataclass
class Traffic:
    """Counts since the server was started: requests with photographs by status, their seconds, and captions of models,
    which are unsure or not."""

    answers: Counter[int]
    captions: Counter[bool]
    seconds: float = 0.0


class Service(NamedTuple):
    """State shared by all endpoints."""

    models: ModelRegistry
    queue: RequestQueue
    limits: Limits
    note: str
    traffic: Traffic

    async def answer(self, request: Request, make: Callable[[list[Upload], Outputs], bytes]) -> bytes:
        """Return the result of `_answer`, and count it."""
        started, status = perf_counter(), 500
        try:
            content, status = await self._answer(request, make), 200
            return content
        except RequestError as error:
            status = error.status_code
            raise
        finally:
            self.traffic.answers[status] += 1
            self.traffic.seconds += perf_counter() - started

    async def _answer(self, request: Request, make: Callable[[list[Upload], Outputs], bytes]) -> bytes:
        """Caption the photographs of the request's form and return the result of `make`, which a thread computes."""
        if request.headers.get("sec-fetch-site") == "cross-site":
            raise RequestError(403, "this server answers its own page and programs, not pages of other sites")
        client = client_network(request.client)
        async with self.queue.place(client) as place:
            photographs, options = await read_form(request, self.limits)
            place.arriving = False
            watch = asyncio.create_task(_cancel_when_disconnected(request, place))
            try:
                pixels = await self.queue.work(client, lambda: count_pixels(photographs, self.limits))

                def work() -> tuple[bytes, Outputs]:
                    outputs = self.models.describe(photographs, options, MEGA * self.limits.megapixels)
                    return make(photographs, outputs), outputs

                content, outputs = await self.queue.work(client, work, pixels > LARGE_PIXELS)
                self.traffic.captions.update(one.unsure for one in chain.from_iterable(outputs.values()))
                return content
            finally:
                watch.cancel()

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


async def _cancel_when_disconnected(request: Request, place: Place) -> None:
    """Drop the work of a request, whose body has been read, when its client closes the connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
    place.task.cancel()


def _form(answer: dict[str, Any]) -> dict[str, Any]:
    """Return what FastAPI documents of an endpoint that takes the form."""
    files = {
        "type": "array",
        "items": {"type": "string", "format": "binary"},
        "description": "one photograph or several; their file names are returned and not used otherwise",
    }
    properties = {PHOTOGRAPH: files, **CaptionRequest.model_json_schema()["properties"]}
    form = {"type": "object", "properties": properties, "required": [PHOTOGRAPH]}
    return {
        "responses": {**ERRORS, 200: answer},
        "response_class": Response,
        "openapi_extra": {"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": form}}}},
    }


router = APIRouter()


@router.post("/api/caption", **_form({"model": CaptionsResponse, "description": "the captions"}))
async def caption(request: Request) -> Response:
    """Caption photographs; return log p, beta and the attention map of each word."""
    return Response(await request.app.state.service.answer(request, _captions), media_type="application/json")


@router.post("/api/picture", **_form({"content": {"image/png": {}}, "description": "the picture"}))
async def picture(request: Request) -> Response:
    """Caption one photograph with one model; return a PNG with a panel for each word."""
    return Response(await request.app.state.service.answer(request, _picture), media_type="image/png")


@router.post("/cards", include_in_schema=False)
async def cards(request: Request) -> HTMLResponse:
    """Return the captioned photographs as HTML for the page."""
    return HTMLResponse(await request.app.state.service.answer(request, _cards))


@router.get("/api/models")
async def overview(request: Request) -> ModelsResponse:
    """Return the names of the models, as the field model accepts them, and the limits of a request."""
    return request.app.state.service.overview()


@router.get("/metrics", response_class=PlainTextResponse)
async def metrics(request: Request) -> Response:
    """Return counts of requests and captions, in the text format of Prometheus."""
    service: Service = request.app.state.service
    text = fill(TEMPLATES / "metrics.txt", traffic=service.traffic, queue=service.queue)
    return Response(text, media_type="text/plain; version=0.0.4")


def _captions(photographs: list[Upload], outputs: Outputs) -> bytes:
    return CaptionsResponse.of([one.name for one in photographs], outputs).model_dump_json().encode()


def _picture(photographs: list[Upload], outputs: Outputs) -> bytes:
    if len(photographs) * len(outputs) > 1:
        raise RequestError(422, "a picture is of one photograph and one model; send one of each")
    [[output]] = outputs.values()
    return encode(output.plot())


def _cards(photographs: list[Upload], outputs: Outputs) -> bytes:
    pairs = zip(photographs, zip(*outputs.values(), strict=True), strict=True)
    entries = [make_entry(photograph.name, captions) for photograph, captions in pairs]
    return render(Page("", list(outputs), entries), "cards.html").encode()


def add_pages(app: FastAPI) -> None:
    """Add the pages, which are rendered once: they are the same for everyone."""
    service, openapi = app.state.service, app.openapi()
    site = fill(
        "upload.html",
        overview=service.overview().model_dump(),
        note=service.note,
        beams=MAX_BEAM_SIZE,
        gated=[True, False],
    )
    reference = fill(TEMPLATES / "reference.html", openapi=openapi, address=ADDRESS)
    pages = {
        "/": ("text/html", site.encode()),
        "/docs": ("text/html", reference.encode()),
        "/openapi.json": ("application/json", json.dumps(openapi).encode()),
        "/serve.js": ("text/javascript", fill(TEMPLATES / "serve.js", darkest=DARKEST).encode()),
        "/style.css": ("text/css", fill("style.css").encode()),
        "/health": ("application/json", b'{"status":"ok"}'),
        "/favicon.ico": ("image/x-icon", b""),
    }
    pages |= {f"/examples/{file.name}": ("image/jpeg", file.read_bytes()) for file in EXAMPLES.iterdir()}

    async def page(request: Request) -> Response:
        kind, content = pages[request.scope["path"]]
        if kind == "text/html":
            content = content.replace(ADDRESS.encode(), escape(str(request.base_url)).encode())
        return Response(content, media_type=kind)

    for path in pages:
        app.add_route(path, page)


async def http_error(request: Request, error: Exception) -> Response:
    """Answer with the sentence of an error; to OPTIONS, with the methods that the address has."""
    assert isinstance(error, HTTPException)
    sentence, headers = error.detail, dict(error.headers or {})
    if "Allow" in headers:
        head = {"HEAD"} if "GET" in headers["Allow"] else set()
        headers["Allow"] = ", ".join(sorted({*headers["Allow"].split(", "), "OPTIONS"} | head))
        if request.method == "OPTIONS":
            return Response(status_code=204, headers=headers)
    if not isinstance(error, RequestError):
        sentence = f"{sentence.lower()}; GET / is the page, GET /docs documents the endpoints"
    return JSONResponse({"error": sentence}, error.status_code, headers)


async def server_error(_: Request, error: Exception) -> JSONResponse:
    return JSONResponse({"error": "internal error of the server; the reason is in its terminal"}, 500)


class Front:
    """Middleware that refuses other names of this server, and answers HEAD as GET, whose content uvicorn leaves out.

    A page of another site could read the answers under a name of its own for this server. Checks of proxies have no
    name, in HTTP/1.0.

    Args:
        hosts: accepted host names; `*.example.org` are all below it, and `*` is any.
    """

    def __init__(self, app: ASGIApp, hosts: Sequence[str]):
        self._app, self._hosts = app, [host.lower() for host in hosts]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        app, headers = self._app, Headers(scope=scope)
        name = re.sub(r":\d*$", "", headers.get("host", "").lower()).strip("[]")
        if "host" in headers and not any(fnmatch(name, pattern) for pattern in self._hosts):
            app = JSONResponse({"error": "the server does not have this host name; see its setting allowed_hosts"}, 400)
        await app({**scope, "method": scope["method"].replace("HEAD", "GET")}, receive, send)


def make_app(models: ModelRegistry, limits: Limits, hosts: Sequence[str], note: str) -> FastAPI:
    """Create the application.

    Args:
        hosts: accepted host names, see `Front`.
        note: what users of the page should know about the models.
    """
    app = FastAPI(
        title="showattendtell",
        version=__version__,
        summary="Captions of photographs, and where the model looked at each word",
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        exception_handlers={HTTPException: http_error, Exception: server_error},
    )
    app.add_middleware(Front, hosts=hosts)
    queue, traffic = RequestQueue(limits.waiting, limits.seconds), Traffic(Counter(), Counter())
    app.state.service = Service(models, queue, limits, note, traffic)
    app.include_router(router)
    add_pages(app)
    return app
