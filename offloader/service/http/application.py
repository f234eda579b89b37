"""The application behind the gate: all paths, their description, and errors as problem details.

Owns how the parts are put together. Must never read a request's body or caller itself.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from fastapi import Depends, FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from starlette.exceptions import HTTPException

from formats.errors import FormatError
from offloader.errors import OffloaderError
from offloader.service.control import ServiceControl
from offloader.service.dashboard.routes import page_routes
from offloader.service.http.answers import ProblemDetails
from offloader.service.http.asked import require_allowed
from offloader.service.http.command_routes import command_routes
from offloader.service.http.problems import BUG, PROBLEM_JSON, problem_document, problem_headers, problem_of
from offloader.service.http.process_routes import process_routes
from offloader.service.http.stream_routes import stream_routes
from offloader.service.view import ServiceView

__all__ = ["DESCRIPTION", "make_application"]

#: Where the interface describes itself (OpenAPI).
DESCRIPTION = "/v1/openapi.json"
_PROBLEMS_MAX = 20
_ABOUT = """Looks into a serving process and asks it for things (docs/HTTP.md).

Positions are `LEDGER:ENTRY`, times milliseconds since 1970 UTC. A stream's name is one part of a path, percent-encoded:
`public%2Fdefault%2Fpersistent%2Forders`. Errors are problem details (RFC 9457)."""


def make_application(
    view: ServiceView,
    control: ServiceControl,
    exposition: Callable[[], bytes],
    *,
    answer_s: float,
) -> FastAPI:
    """The application.

    Args:
        view, control, exposition: what it shows, does and measures.
        answer_s: seconds within which there has to be an answer.
    """
    from offloader import __version__

    app = FastAPI(
        title="offloader",
        version=__version__,
        description=_ABOUT,
        openapi_url=None,
        redirect_slashes=False,
        responses={
            code: {"model": ProblemDetails, "content": {PROBLEM_JSON: {}}} for code in (400, 401, 403, 404, 503)
        },
    )
    allowed = [Depends(require_allowed)]
    app.include_router(process_routes(view, exposition), dependencies=allowed)
    app.include_router(stream_routes(view), dependencies=allowed)
    app.include_router(command_routes(control, answer_s=answer_s), dependencies=allowed)
    app.include_router(page_routes())

    @app.get(DESCRIPTION, include_in_schema=False, dependencies=allowed)
    def description() -> JSONResponse:
        return JSONResponse(_description(app))

    app.add_exception_handler(HTTPException, _http_problem)
    app.add_exception_handler(RequestValidationError, _invalid)
    for ours in (OffloaderError, FormatError):
        app.add_exception_handler(ours, _refused)
    app.add_exception_handler(Exception, _bug)
    return app


def _description(app: FastAPI) -> dict[str, Any]:
    """OpenAPI, with how callers show who they are."""
    found = {**app.openapi(), "security": [{"token": []}]}
    token = {
        "type": "http",
        "scheme": "bearer",
        "description": "Roles: read, write, admin; or bound to a subscriber. Or a client certificate.",
    }
    found["components"] = {**found["components"], "securitySchemes": {"token": token}}
    return found


def _http_problem(_: Request, error: Exception) -> JSONResponse:
    """No such path, or not with this method."""
    assert isinstance(error, HTTPException)
    hint = f"{DESCRIPTION} describes what there is" if error.status_code in (404, 405) else ""
    document = problem_document(error.status_code, str(error.detail), hint=hint)
    return JSONResponse(document, error.status_code, error.headers, PROBLEM_JSON)


def _refused(_: Request, error: Exception) -> JSONResponse:
    document = problem_of(error) or BUG
    return JSONResponse(document, document["status"], problem_headers(document), PROBLEM_JSON)


def _bug(_: Request, error: Exception) -> JSONResponse:  # noqa: ARG001 - the gate logs it
    return JSONResponse(BUG, BUG["status"], media_type=PROBLEM_JSON)


def _invalid(_: Request, error: Exception) -> JSONResponse:
    """A parameter or a body that isn't what is described: every problem with its place, none with what was sent."""
    assert isinstance(error, RequestValidationError)
    problems: list[dict[str, Any]] = [
        {"where": ".".join(map(str, each["loc"]))[:200], "what": each["msg"]} for each in error.errors()[:_PROBLEMS_MAX]
    ]
    detail = "; ".join(f"{each['where']}: {each['what']}" for each in problems)
    document = problem_document(400, detail, hint=f"{DESCRIPTION} describes what there is", problems=problems)
    return JSONResponse(document, 400, media_type=PROBLEM_JSON)
