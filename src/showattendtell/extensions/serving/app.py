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
from itertools import chain
from pathlib import Path
from time import perf_counter
from typing import Any, TypeVar, cast, get_args
from weakref import WeakValueDictionary

from fastapi import FastAPI, Request, Response
from fastapi.responses import JSONResponse, PlainTextResponse
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.routing import Route
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

Make = Callable[[list[Upload], Outputs], bytes]
"""Computes the content of an answer."""

TEMPLATES = Path(__file__).parent / "templates"
LARGE_PIXELS = 4_000_000  # more are decoded apart, so that others need not wait for them

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
        self.places: list[Place] = []
        self._turns: WeakValueDictionary[tuple[str, bool], asyncio.Lock] = WeakValueDictionary()
        self._threads = {False: ThreadPoolExecutor(1, "models"), True: ThreadPoolExecutor(1, "large")}

    @asynccontextmanager
    async def place(self, client: str) -> AsyncIterator[Place]:
        """Occupy a place for the whole of a request, so that its received data count.

        Raises `RequestError` if there is none, or if it is taken away.
        """
        self._make_room(client)
        place = Place(client, cast(asyncio.Task[Any], asyncio.current_task()))
        self.places.append(place)
        try:
            yield place
        except asyncio.CancelledError:
            reason = "the place of this request went to another client, or the server is shutting down"
            raise RequestError(503, f"{reason}; try again") from None
        finally:
            self.places.remove(place)

    def _make_room(self, client: str) -> None:
        """End the request of another client if all places are taken.

        It is one of the client with the most places if that has more than this one would have; otherwise one that has
        not arrived yet, of a client with as many.
        """
        if len(self.places) < self.capacity:
            return
        counts = Counter(place.client for place in self.places)
        heaviest, most = counts.most_common(1)[0]
        if most > counts[client] + 1:
            candidates = [place for place in self.places if place.client == heaviest]
        else:
            candidates = [place for place in self.places if place.arriving and counts[place.client] > counts[client]]
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


class Service:
    """The served models, the queue of their requests, and counts since the server was started: requests with
    photographs by status, their seconds, and captions of which a model is unsure or not."""

    def __init__(self, models: ModelRegistry, limits: Limits):
        self.models, self.limits = models, limits
        self.queue = RequestQueue(limits.waiting, limits.seconds)
        self.answers, self.captions, self.seconds = Counter[int](), Counter[bool](), 0.0

    async def answer(self, request: Request, make: Make) -> bytes:
        """Return the answer that `make` computes of the captions of the request's photographs, and count it."""
        started, status = perf_counter(), 500
        try:
            content, status = await self._answer(request, make), 200
            return content
        except RequestError as error:
            status = error.status_code
            raise
        finally:
            self.answers[status] += 1
            self.seconds += perf_counter() - started

    async def _answer(self, request: Request, make: Make) -> bytes:
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
            finally:
                watch.cancel()
        self.captions.update(one.unsure for one in chain.from_iterable(outputs.values()))
        return content

    def overview(self) -> ModelsResponse:
        """Return the names of the models, as the field model accepts them, and the limits of a request."""
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

    async def metrics(self) -> Response:
        """Return counts of requests and captions, in the text format of Prometheus."""
        return Response(fill(TEMPLATES / "metrics.txt", service=self), media_type="text/plain; version=0.0.4")


async def _cancel_when_disconnected(request: Request, place: Place) -> None:
    """Drop the work of a request, whose body has been read, when its client closes the connection."""
    while (await request.receive())["type"] != "http.disconnect":
        pass
    place.task.cancel()


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


def add_endpoint(app: FastAPI, service: Service, path: str, make: Make, kind: str, **answer: Any) -> None:
    """Add an endpoint that takes the form with photographs.

    Args:
        kind: media type of what `make` returns.
        answer: what FastAPI documents of it; nothing for an endpoint that is not documented.
    """

    async def endpoint(request: Request) -> Response:
        return Response(await service.answer(request, make), media_type=kind)

    files = {
        "type": "array",
        "items": {"type": "string", "format": "binary"},
        "description": "one photograph or several; their file names are returned and not used otherwise",
    }
    properties = {PHOTOGRAPH: files, **CaptionRequest.model_json_schema()["properties"]}
    form = {"type": "object", "properties": properties, "required": [PHOTOGRAPH]}
    app.add_api_route(
        path,
        endpoint,
        methods=["POST"],
        description=make.__doc__ or "",
        responses={**ERRORS, 200: answer},
        response_class=Response,
        openapi_extra={"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": form}}}},
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
        "/favicon.ico": ("image/x-icon", b""),
    }
    pages |= {f"/examples/{file.name}": ("image/jpeg", file.read_bytes()) for file in EXAMPLES.iterdir()}
    for path, (kind, content) in pages.items():
        app.router.routes.append(Route(path, Response(content, media_type=kind), methods=["GET"]))


async def http_error(request: Request, error: Exception) -> Response:
    """Answer with the sentence of an error; to OPTIONS, with the methods that the address has."""
    assert isinstance(error, HTTPException)
    if request.method == "OPTIONS" and error.headers:
        methods = {*error.headers["Allow"].split(", "), "OPTIONS"}
        methods |= {"HEAD"} if "GET" in methods else set()
        return Response(status_code=204, headers={"Allow": ", ".join(sorted(methods))})
    sentence = error.detail
    if not isinstance(error, RequestError):
        sentence = f"{sentence.lower()}; GET / is the page, GET /docs documents the endpoints"
    return JSONResponse({"error": sentence}, error.status_code, error.headers)


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


def make_app(models: ModelRegistry, limits: Limits, hosts: Sequence[str], note: str, address: str) -> FastAPI:
    """Create the application.

    Args:
        hosts: accepted host names, see `Front`.
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
        exception_handlers={HTTPException: http_error, Exception: server_error},
    )
    app.add_middleware(Front, hosts=hosts)
    service, json_kind, png = Service(models, limits), "application/json", "image/png"
    captions = {"model": CaptionsResponse, "description": "the captions"}
    add_endpoint(app, service, "/api/caption", make_captions, json_kind, **captions)
    add_endpoint(app, service, "/api/picture", make_picture, png, content={png: {}}, description="the picture")
    add_endpoint(app, service, "/cards", make_cards, "text/html")
    app.add_api_route("/api/models", service.overview)
    app.add_api_route("/metrics", service.metrics, response_class=PlainTextResponse)
    add_pages(app, service.overview(), note, address)
    return app
