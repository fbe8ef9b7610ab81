"""The application: routes behind the fence, static files, and errors as plain text that says what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, PlainTextResponse, Response
from starlette.exceptions import HTTPException
from starlette.staticfiles import StaticFiles

from labelwise.errors import LabelwiseError
from labelwise.server.auth import Guard
from labelwise.server.context import HERE, Desk
from labelwise.server.middleware import Fence
from labelwise.server.routes_gallery import gallery_routes
from labelwise.server.routes_label import label_routes

if TYPE_CHECKING:
    from labelwise.project import Project


def make_app(project: Project, guard: Guard) -> FastAPI:
    """The labelling page of `project`, which lets in whom `guard` lets in."""
    app = FastAPI(title="Labelwise", docs_url=None, redoc_url=None, openapi_url=None)
    desk = Desk(project, guard)
    app.include_router(label_routes(desk))
    app.include_router(gallery_routes(desk))
    app.mount("/static", StaticFiles(directory=HERE / "static"))

    @app.get("/favicon.ico")
    def icon() -> Response:
        """Browsers ask for it by this name whatever a page says: for files shown alone, and before a page is read."""
        return FileResponse(HERE / "static" / "icon.png", media_type="image/png")

    app.add_middleware(Fence, guard=guard, log=desk.log)

    @app.exception_handler(RequestValidationError)
    def invalid(request: Request, error: RequestValidationError) -> Response:
        fields = ", ".join(sorted({str(one["loc"][-1]) for one in error.errors()}))
        return PlainTextResponse(f"This request cannot be read; look at: {fields}.", 422)

    @app.exception_handler(HTTPException)
    def refused(request: Request, error: HTTPException) -> Response:
        return PlainTextResponse(str(error.detail), error.status_code)

    @app.exception_handler(LabelwiseError)
    def known(request: Request, error: LabelwiseError) -> Response:
        desk.log(f"{request.method} {request.url.path}: {error}")
        return PlainTextResponse(str(error), 503)

    return app
