"""The ASGI application: the web page and the JSON endpoint."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse
from starlette.exceptions import HTTPException
from starlette.middleware.trustedhost import TrustedHostMiddleware

from showattendtell import __version__
from showattendtell.serving.connections import ReadBody, client_network
from showattendtell.serving.limits import Limits, RequestError
from showattendtell.serving.models import ModelRegistry
from showattendtell.serving.pages import (
    draw_strip,
    make_cards,
    render_cards,
    render_reference,
    render_script,
    render_site,
    render_style,
)
from showattendtell.serving.queue import RequestQueue
from showattendtell.serving.requests import MOST_BEAMS, PHOTOGRAPH, CaptionRequest, Form, check, read_form, read_request
from showattendtell.serving.responses import CaptionsResponse, ErrorResponse, ModelsResponse, make_answer, make_overview

Made = TypeVar("Made")

FAULTS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorResponse, "description": description}
    for status, description in {
        400: "the form cannot be read",
        408: "it did not come in time",
        413: "too many bytes or pixels",
        415: "no form, or no photograph",
        422: "a field that is missing, unknown or out of range; a photograph that is damaged or takes long to decode",
        503: "all places are taken; Retry-After says when to come again",
    }.items()
}


class Service:
    """State shared by all endpoints."""

    def __init__(self, models: ModelRegistry, line: RequestQueue, limits: Limits):
        self.models, self.line, self.limits = models, line, limits

    async def answer(self, request: Request, make: Callable[[ModelRegistry, Form, CaptionRequest], Made]) -> Made:
        """Return the result of `make` for the request's form, computed in the thread of the models."""
        if request.headers.get("sec-fetch-site") == "cross-site":
            raise RequestError(403, "this server answers its own page and programs, not pages of other sites")
        client = client_network(request.client.host if request.client else "")
        with self.line.place(client):
            form = await read_form(request, self.limits)
            wishes = read_request(form.fields)
            return await self.line.work(client, lambda: self._made(make, form, wishes), _disconnected(request))

    def _made(
        self, make: Callable[[ModelRegistry, Form, CaptionRequest], Made], form: Form, wishes: CaptionRequest
    ) -> Made:
        check(form.photographs, self.limits)
        return make(self.models, form, wishes)


async def _disconnected(request: Request) -> None:
    """Return when the client has closed its connection; for requests whose body has been read."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def service(request: Request) -> Service:
    return request.app.state.service


def _body() -> dict[str, Any]:
    """Return the OpenAPI description of the form."""
    schema = CaptionRequest.model_json_schema()
    files = {
        "type": "array",
        "items": {"type": "string", "format": "binary"},
        "description": "one photograph or several; their names are shown again, and nothing else is made of them",
    }
    properties = {PHOTOGRAPH: files, **schema["properties"]}
    form = {"type": "object", "properties": properties, "required": [PHOTOGRAPH]}
    return {"requestBody": {"required": True, "content": {"multipart/form-data": {"schema": form}}}}


router = APIRouter()


@router.post("/api/caption", responses=FAULTS, openapi_extra=_body())
async def caption(request: Request) -> CaptionsResponse:
    """Caption photographs; return log p, beta and the attention map of each word."""
    return await service(request).answer(
        request, lambda models, form, wishes: make_answer(form.photographs, models.describe(form.photographs, wishes))
    )


@router.post(
    "/api/picture",
    responses={**FAULTS, 200: {"content": {"image/png": {}}, "description": "the picture"}},
    response_class=Response,
    openapi_extra=_body(),
)
async def picture(request: Request) -> Response:
    """Caption one photograph with one model; return a PNG with a panel for each word, as the command caption does."""
    return Response(await service(request).answer(request, draw_strip), media_type="image/png")


@router.get("/api/models")
async def overview(request: Request) -> ModelsResponse:
    """Return the names of the models, as the field model accepts them, and the limits of a request."""
    return make_overview(service(request).models, service(request).limits)


@router.post("/cards", include_in_schema=False)
async def cards(request: Request) -> HTMLResponse:
    """Return the captioned photographs as HTML for the page."""
    return HTMLResponse(render_cards(await service(request).answer(request, make_cards)))


@router.get("/", include_in_schema=False)
async def site(request: Request) -> HTMLResponse:
    response = make_overview(service(request).models, service(request).limits)
    return HTMLResponse(render_site(response.model_dump(), MOST_BEAMS))


@router.get("/docs", include_in_schema=False)
async def reference(request: Request) -> HTMLResponse:
    return HTMLResponse(render_reference(request.app.openapi(), str(request.base_url)))


@router.get("/serve.js", include_in_schema=False)
async def script() -> Response:
    return Response(render_script(), media_type="text/javascript")


@router.get("/serve.css", include_in_schema=False)
async def style() -> Response:
    return Response(render_style(), media_type="text/css")


async def tell_refusal(_: Request, refusal: Exception) -> JSONResponse:
    assert isinstance(refusal, RequestError)
    return JSONResponse({"error": str(refusal)}, refusal.status, refusal.headers)


async def tell_http(request: Request, fault: Exception) -> JSONResponse:
    assert isinstance(fault, HTTPException)
    known = "GET / is the page, GET /docs says what else there is"
    return JSONResponse({"error": f"{fault.detail.lower()}; {known}"}, fault.status_code, fault.headers)


async def tell_failure(_: Request, fault: Exception) -> JSONResponse:
    return JSONResponse({"error": "the server failed, and has written why where it was started"}, 500)


def make_app(models: ModelRegistry, line: RequestQueue, limits: Limits, hosts: Sequence[str]) -> FastAPI:
    """Create the application.

    Args:
        hosts: accepted host names, so that a page of another site cannot use a name of its own for this server.
    """
    app = FastAPI(
        title="showattendtell",
        version=__version__,
        summary="Captions of photographs, and where the model looked at each word",
        docs_url=None,
        redoc_url=None,
        exception_handlers={RequestError: tell_refusal, HTTPException: tell_http, Exception: tell_failure},
    )
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=[*hosts], www_redirect=False)
    app.add_middleware(ReadBody)
    app.state.service = Service(models, line, limits)
    app.include_router(router)
    return app
