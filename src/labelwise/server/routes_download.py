"""Routes of downloads: labels, history and predictions as CSV, and the model as a zip file."""

from __future__ import annotations

import io
import zipfile
from typing import TYPE_CHECKING

from fastapi import APIRouter, Request
from fastapi.responses import PlainTextResponse, Response

from labelwise.errors import LabelError
from labelwise.server.context import Context, person

if TYPE_CHECKING:
    from labelwise.project import Project


def download_routes(context: Context) -> APIRouter:
    """All routes of downloads. Each file is made when it is asked for, from every answer so far."""
    routes = APIRouter()
    project = context.project

    @routes.get("/download/labels.csv")
    def labels(request: Request) -> Response:
        from labelwise.project.exchange.entries import entries
        from labelwise.project.exchange.tables import csv_text

        person(request, "own")
        return _file(csv_text(project, entries(project)).encode("utf-8"), "text/csv", _name(project, "labels.csv"))

    @routes.get("/download/history.csv")
    def history(request: Request) -> Response:
        from labelwise.project.exchange.columns import csv_of
        from labelwise.project.exchange.history import history_columns

        person(request, "own")
        content = csv_of(history_columns(project.store.events()))
        return _file(content.encode("utf-8"), "text/csv", _name(project, "history.csv"))

    @routes.get("/download/predictions.csv")
    def predictions(request: Request) -> Response:
        from labelwise.project.exchange.columns import csv_of
        from labelwise.project.exchange.tables import predictions_columns
        from labelwise.project.predict.predictions import predict

        person(request, "own")
        try:
            content = csv_of(predictions_columns(project, predict(project)))
        except LabelError as error:
            return PlainTextResponse(f"There are no predictions yet: {error}.", 409)
        return _file(content.encode("utf-8"), "text/csv", _name(project, "predictions.csv"))

    @routes.get("/download/model.zip")
    def model(request: Request) -> Response:
        from labelwise.project.predict.saved_model import model_files
        from labelwise.project.predict.trained import train

        person(request, "own")
        try:
            files = model_files(project.settings.name, *train(project))
        except LabelError as error:
            return PlainTextResponse(f"There is no model yet: {error}.", 409)
        packed = io.BytesIO()
        with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in files.items():
                archive.writestr(f"model/{name}", content)
        return _file(packed.getvalue(), "application/zip", _name(project, "model.zip"))

    return routes


def _name(project: Project, ending: str) -> str:
    """A file name from the name of the project, safe in a header and on every system."""
    plain = "".join(c if c.isascii() and (c.isalnum() or c in "-_") else "_" for c in project.settings.name)
    return f"{plain[:60]}-{ending}"


def _file(content: bytes, kind: str, name: str) -> Response:
    headers = {"Content-Disposition": f'attachment; filename="{name}"', "Cache-Control": "no-store"}
    return Response(content, media_type=kind, headers=headers)
