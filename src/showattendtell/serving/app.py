"""The web page and the JSON endpoint."""

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

from fastapi import APIRouter, FastAPI, Request, Response
from fastapi.responses import HTMLResponse, JSONResponse
from starlette.exceptions import HTTPException
from starlette.middleware.trustedhost import TrustedHostMiddleware

from showattendtell import __version__
from showattendtell.report.site import render_cards, render_reference, render_script, render_site, render_style
from showattendtell.serving.answers import Answer, Fault, Overview, make_answer, make_overview
from showattendtell.serving.limits import Limits
from showattendtell.serving.line import Line
from showattendtell.serving.models import Models
from showattendtell.serving.pictures import draw_strip, make_cards
from showattendtell.serving.refusal import Refusal
from showattendtell.serving.uploads import PHOTOGRAPH, Form, check, read_form
from showattendtell.serving.wishes import MOST_BEAMS, Wishes, read_wishes

Made = TypeVar("Made")

FAULTS: dict[int | str, dict[str, Any]] = {
    status: {"model": Fault, "description": description}
    for status, description in {
        400: "the form cannot be read",
        408: "it did not come in time",
        413: "too many bytes or pixels",
        415: "no form, or no photograph",
        422: "a field that is missing, unknown or out of range; a photograph that is damaged",
        503: "all places are taken; Retry-After says when to come again",
    }.items()
}


class Service:
    """What the addresses share."""

    def __init__(self, models: Models, line: Line, limits: Limits):
        self.models, self.line, self.limits = models, line, limits

    async def answer(self, request: Request, make: Callable[[Models, Form, Wishes], Made]) -> Made:
        """What `make` makes of the request's form, in the thread of the models."""
        if request.headers.get("sec-fetch-site") == "cross-site":
            raise Refusal(403, "this server answers its own page and programs, not pages of other sites")
        with self.line.place():
            form = await read_form(request, self.limits)
            wishes = read_wishes(form.fields)
            return await self.line.work(lambda: self._made(make, form, wishes))

    def _made(self, make: Callable[[Models, Form, Wishes], Made], form: Form, wishes: Wishes) -> Made:
        check(form.photographs, self.limits)
        return make(self.models, form, wishes)


def service(request: Request) -> Service:
    return request.app.state.service


def _body() -> dict[str, Any]:
    """The form, as OpenAPI describes it."""
    schema = Wishes.model_json_schema()
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
async def caption(request: Request) -> Answer:
    """Captions of photographs, word by word, with where the model looked."""
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
    """A PNG of one photograph with a panel a word, as the command caption writes it; of one model."""
    return Response(await service(request).answer(request, draw_strip), media_type="image/png")


@router.get("/api/models")
async def overview(request: Request) -> Overview:
    """The models by the names that the field model takes, and what may be sent."""
    return make_overview(service(request).models, service(request).limits)


@router.post("/cards", include_in_schema=False)
async def cards(request: Request) -> HTMLResponse:
    """The photographs as the page shows them."""
    return HTMLResponse(render_cards(await service(request).answer(request, make_cards)))


@router.get("/", include_in_schema=False)
async def site(request: Request) -> HTMLResponse:
    told = make_overview(service(request).models, service(request).limits)
    return HTMLResponse(render_site(told.model_dump(), MOST_BEAMS))


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
    assert isinstance(refusal, Refusal)
    return JSONResponse({"error": str(refusal)}, refusal.status, refusal.headers)


async def tell_http(request: Request, fault: Exception) -> JSONResponse:
    assert isinstance(fault, HTTPException)
    known = "GET / is the page, GET /docs says what else there is"
    return JSONResponse({"error": f"{fault.detail.lower()}; {known}"}, fault.status_code, fault.headers)


async def tell_failure(_: Request, fault: Exception) -> JSONResponse:
    return JSONResponse({"error": "the server failed, and has written why where it was started"}, 500)


def make_app(models: Models, line: Line, limits: Limits, hosts: Sequence[str]) -> FastAPI:
    """The application.

    Args:
        hosts: the names under which it may be asked for, so that no page of another site can call itself so.
    """
    app = FastAPI(
        title="showattendtell",
        version=__version__,
        summary="Captions of photographs, and where the model looked at each word",
        docs_url=None,
        redoc_url=None,
        exception_handlers={Refusal: tell_refusal, HTTPException: tell_http, Exception: tell_failure},
    )
    app.add_middleware(TrustedHostMiddleware, allowed_hosts=[*hosts], www_redirect=False)
    app.state.service = Service(models, line, limits)
    app.include_router(router)
    return app
