"""Paths about the process: whether it lives and is ready, its metrics, status, settings, errors and decisions.

Owns these paths. Must never show more than a role may see: who isn't known hears yes or no.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from fastapi.responses import JSONResponse

from offloader.metrics import CONTENT_TYPE
from offloader.service.auth import Role
from offloader.service.http.answers import Health, Items, Overview, Ready, shown
from offloader.service.http.asked import caller_of
from offloader.service.view import LIMIT_MAX, ServiceView

__all__ = ["Limit", "NameQuery", "process_routes"]

_NAME_CHARS_MAX = 1000
Limit = Annotated[int, Query(ge=1, le=LIMIT_MAX, description="Most items.")]
NameQuery = Annotated[str, Query(max_length=_NAME_CHARS_MAX)]


def process_routes(view: ServiceView, exposition: Callable[[], bytes]) -> APIRouter:
    """The paths.

    Args:
        view: answers.
        exposition: the metrics in Prometheus' format.
    """
    router = APIRouter(tags=["process"])

    @router.get("/healthz")
    async def healthz() -> Health:
        """Whether the process answers at all."""
        return Health(status="ok")

    @router.get("/readyz", responses={503: {"model": Ready, "description": "Something is missing."}})
    def readyz(request: Request, response: Response) -> Ready:
        """Whether the process does its work, and what is missing."""
        found = view.readiness()
        role = caller_of(request).role
        response.status_code = 200 if found.ready else 503
        problems = None if role is None or role < Role.READ else [asdict(each) for each in found.problems]
        return Ready.model_validate({"ready": found.ready, "problems": problems})

    @router.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
    def metrics() -> Response:
        """For Prometheus, in its text format (docs/OBSERVING.md)."""
        return Response(exposition(), headers={"content-type": CONTENT_TYPE})

    @router.get("/v1/overview", response_model_exclude_unset=True)
    def overview() -> Overview:
        """The process in short: readiness, store, buffer, how many streams are in which mode."""
        return shown(Overview, view.overview())

    @router.get("/v1/status", response_class=JSONResponse, responses={200: {"model": dict[str, Any]}})
    def status() -> Response:
        """The status document: every stream of the process (docs/OBSERVING.md)."""
        return JSONResponse(view.status())

    @router.get("/v1/config")
    def config(topic: NameQuery = "") -> Items[dict[str, Any]]:
        """Every effective setting of a topic, or of the process, and where it comes from."""
        return Items[dict[str, Any]](items=view.config(topic))

    @router.get("/v1/errors")
    def errors(
        stream: Annotated[str | None, Query(max_length=_NAME_CHARS_MAX)] = None, limit: Limit = 100
    ) -> Items[dict[str, Any]]:
        """The newest warnings and errors, the newest first."""
        return Items[dict[str, Any]](items=view.errors(stream=stream, limit=limit))

    @router.get("/v1/decisions")
    def decisions(limit: Limit = 20) -> Items[dict[str, Any]]:
        """The newest decisions of retention about any stream of this process, the newest first."""
        return Items[dict[str, Any]](items=view.recent_decisions(limit))

    @router.get("/v1/orphans")
    def orphans() -> dict[str, Any]:
        """What the newest search for orphans left, and when cleanup and that search ended last."""
        return view.orphans()

    return router
