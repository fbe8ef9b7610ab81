"""The application: routes behind the middleware, static files, and errors as plain text that says what to do."""

from __future__ import annotations

from typing import TYPE_CHECKING

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import FileResponse, PlainTextResponse, Response
from starlette.exceptions import HTTPException
from starlette.staticfiles import StaticFiles

from labelwise.errors import ArgumentError, LabelwiseError
from labelwise.server.access import EVERY, Access
from labelwise.server.auth import Auth
from labelwise.server.context import PACKAGE, Context
from labelwise.server.middleware import AuthMiddleware
from labelwise.server.routes_download import download_routes
from labelwise.server.routes_gallery import gallery_routes
from labelwise.server.routes_grid import grid_routes
from labelwise.server.routes_label import label_routes
from labelwise.server.routes_people import people_routes
from labelwise.server.routes_review import review_routes

if TYPE_CHECKING:
    from labelwise.project import Project


def make_app(project: Project, auth: Auth, every: float = EVERY) -> FastAPI:
    """The labelling page of `project`, for everyone whom `auth` admits; see `Access` for `every`."""
    app = FastAPI(title="Labelwise", docs_url=None, redoc_url=None, openapi_url=None)
    context = Context(project, auth, Access(auth, project.store, every))
    app.include_router(label_routes(context))
    app.include_router(grid_routes(context))
    app.include_router(gallery_routes(context))
    app.include_router(review_routes(context))
    app.include_router(people_routes(context))
    app.include_router(download_routes(context))
    app.mount("/static/charts", StaticFiles(packages=[("labelwise.report", "static")]))
    app.mount("/static", StaticFiles(directory=PACKAGE / "static"))

    @app.get("/favicon.ico")
    def icon() -> Response:
        """Browsers ask for this name whatever a page says: for single files, and before a page is read."""
        return FileResponse(PACKAGE / "static" / "icon.png", media_type="image/png")

    app.add_middleware(AuthMiddleware, auth=auth, access=context.access, log=context.log)

    @app.exception_handler(RequestValidationError)
    def invalid(request: Request, error: RequestValidationError) -> Response:
        fields = ", ".join(sorted({str(one["loc"][-1]) for one in error.errors()}))
        return PlainTextResponse(f"This request is not valid. Check: {fields}.", 422)

    @app.exception_handler(HTTPException)
    def refused(request: Request, error: HTTPException) -> Response:
        return PlainTextResponse(str(error.detail), error.status_code)

    @app.exception_handler(LabelwiseError)
    def known(request: Request, error: LabelwiseError) -> Response:
        if isinstance(error, ArgumentError):  # of the request, not of the server
            return PlainTextResponse(str(error), 422)
        context.log(f"{request.method} {request.url.path}: {error}")
        return PlainTextResponse(str(error), 503)

    return app
