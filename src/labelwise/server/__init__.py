"""The labelling page: a small web server on one project, for people with a browser and a keyboard.

`make_app(project, auth)` makes the application, `serve(project)` runs it and the worker. Both need the extra `app`.
"""

from __future__ import annotations

from labelwise.errors import extra

try:
    import fastapi  # noqa: F401
    import jinja2  # noqa: F401
    import uvicorn  # noqa: F401
except ImportError as error:  # pragma: no cover - the tests install the extra
    raise extra(error.name or "fastapi", "app") from error

from labelwise.server.app import make_app
from labelwise.server.auth import Auth
from labelwise.server.serve import serve

__all__ = ["Auth", "make_app", "serve"]
