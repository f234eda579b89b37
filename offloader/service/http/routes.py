"""All routes of the HTTP interface with their description, and the files of the dashboard."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from importlib import resources
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Depends, FastAPI, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from formats.errors import FormatError
from offloader.errors import OffloaderError
from offloader.service import dashboard
from offloader.service.auth import Caller, Role, without_places
from offloader.service.broker_ledgers import BrokerLedgers
from offloader.service.http.broker_routes import WAIT_SHARE, BrokerThreads, broker_routes
from offloader.service.http.group_routes import group_routes
from offloader.service.http.middleware import BUG, CALLER, PROBLEM_HEADERS, PROBLEM_JSON, problem_document, problem_of
from offloader.service.http.schemas import (
    CURSOR_CHARS_MAX,
    POSITION,
    Applied,
    Cleaned,
    CleanupRequest,
    Committed,
    EntryPage,
    Health,
    Items,
    Known,
    LedgerRow,
    ListPage,
    OffloadRequest,
    Overview,
    Paused,
    PauseRequest,
    ProblemDetails,
    PublishRequest,
    Ready,
    Removed,
    SegmentRow,
    StreamName,
    StreamRow,
    SubscribeRequest,
    SubscriberName,
    SubscriberRow,
    Truncated,
    TruncateRequest,
    guarded_router,
    place_of,
    require_allowed,
    shown,
    write_cursor,
)
from offloader.service.queries import LIMIT_MAX, Page, ServiceControl, ServiceView, StreamOrder
from offloader.telemetry.prometheus import CONTENT_TYPE, Exposition
from offloader.times import TIME_FORMS


def command_routes(control: ServiceControl, *, answer_s: float) -> APIRouter:
    """Routes of the commands.

    Args:
        answer_s: response deadline, seconds.
    """
    router = guarded_router("/v1/streams/{stream}", tag="commands")

    @router.post("/offload")
    def offload(caller: Known, name: StreamName, body: OffloadRequest | None = None) -> Committed:
        """Complete the current segment now and wait for its commit. 503: not committed yet, retry.

        For a topic with partitions: all partitions that this process offloads, in `partitions`.
        """
        asked = body or OffloadRequest()
        wait_s = min(asked.wait_seconds, answer_s * WAIT_SHARE)
        return shown(Committed, control.offload(name, until=asked.until, timeout_s=wait_s, by=caller.name))

    @router.post("/pause")
    def pause(caller: Known, name: StreamName, body: PauseRequest | None = None) -> Paused:
        """Pause offloading until `resume`; new entries remain in the hot tier.

        For a topic with partitions: all partitions, in `partitions`.
        """
        return shown(Paused, control.pause(name, reason=(body or PauseRequest()).reason, by=caller.name))

    @router.post("/resume")
    def resume(caller: Known, name: StreamName) -> Paused:
        """Resume offloading a paused stream; for a topic with partitions all of them, in `partitions`."""
        return shown(Paused, control.resume(name, by=caller.name))

    @router.post("/cleanup")
    def clean(caller: Known, name: StreamName, body: CleanupRequest) -> Cleaned:
        """Approve a cleanup plan that retires more than half of the stream, and run it. 400: the plan has changed.

        For a topic with partitions: the topic's plan with all partitions, in `partitions`.
        """
        return shown(Cleaned, control.clean(name, plan=body.plan, by=caller.name))

    @router.post("/truncate")
    def truncate(caller: Known, name: StreamName, body: TruncateRequest) -> Truncated:
        """Move a stream's start position forward. Earlier entries become unreadable, and cleanup deletes them later.

        400: entries before the position aren't offloaded, or a broker still lists a ledger there. For a topic with
        partitions: the named ones, in `partitions`.
        """
        return shown(Truncated, control.truncate(name, body.before, by=caller.name))

    return router


def subscriber_routes(control: ServiceControl) -> APIRouter:
    """Routes that change subscribers."""
    router = guarded_router("/v1/streams/{stream}", tag="commands")

    @router.put("/subscribers/{subscriber}")
    def subscribe(
        caller: Known, name: StreamName, subscriber: SubscriberName, body: SubscribeRequest | None = None
    ) -> Applied:
        """Register a subscriber, or raise the generation of one."""
        asked = body or SubscribeRequest()
        return shown(
            Applied,
            control.subscribe(name, subscriber, start=asked.start, generation=asked.generation, by=caller.name),
        )

    @router.put("/subscribers/{subscriber}/position")
    def publish(caller: Known, name: StreamName, subscriber: SubscriberName, body: PublishRequest) -> Applied:
        """Publish a subscriber's position, so that retention may delete earlier entries.

        Repeating it is safe and keeps the subscriber active.
        """
        return shown(Applied, control.publish(name, subscriber, body.at, generation=body.generation, by=caller.name))

    @router.delete("/subscribers/{subscriber}")
    def unsubscribe(
        caller: Known,
        name: StreamName,
        subscriber: SubscriberName,
        generation: Annotated[
            int | None, Query(ge=0, lt=2**31, description="Do nothing if the subscriber has a higher one.")
        ] = None,
    ) -> Removed:
        """Remove a subscriber: it no longer holds back deletion."""
        return shown(Removed, control.unsubscribe(name, subscriber, generation=generation, by=caller.name))

    return router


def _seen(view: ServiceView, caller: Caller) -> ServiceView:
    """The view for a caller: only its streams, if its token is bound to streams."""
    return view if caller.streams is None else view.limited(caller.sees)


_NAME_CHARS_MAX = 1000
Limit = Annotated[int, Query(ge=1, le=LIMIT_MAX, description="Most items.")]
NameQuery = Annotated[str, Query(max_length=_NAME_CHARS_MAX)]


def process_routes(view: ServiceView, exposition: Exposition) -> APIRouter:
    """Routes of the process.

    Args:
        exposition: the metrics in Prometheus' format; with a filter only those of the accepted streams.
    """
    router = guarded_router(tag="process")

    @router.get("/healthz")
    async def healthz() -> Health:
        """Liveness: 200 if the process responds."""
        return Health(status="ok")

    @router.get("/readyz", responses={503: {"model": Ready, "description": "Not ready."}})
    def readyz(caller: Known, response: Response) -> Ready:
        """Readiness, and the current problems."""
        found = view.readiness()
        response.status_code = 200 if found.ready else 503
        is_told = caller.role is not None and caller.role >= Role.READ and caller.streams is None
        return Ready.model_validate(asdict(found) if is_told else {"ready": found.ready, "problems": None})

    @router.get("/metrics", response_class=Response, responses={200: {"content": {"text/plain": {}}}})
    def metrics(caller: Known) -> Response:
        """Metrics in Prometheus' text format (docs/reference/metrics.md)."""
        return Response(
            exposition(None if caller.streams is None else caller.sees), headers={"content-type": CONTENT_TYPE}
        )

    @router.get("/v1/overview", response_model_exclude_unset=True)
    def overview(caller: Known) -> Overview:
        """Overview of the process, without a store request: readiness, buffer, streams by mode, the last hour."""
        return shown(Overview, {**_seen(view, caller).overview(), "may": caller.operations()})

    @router.get("/v1/status", response_class=JSONResponse, responses={200: {"model": dict[str, Any]}})
    def status(caller: Known) -> Response:
        """The status document: every stream of the process (docs/how-to/status.md)."""
        return JSONResponse(_seen(view, caller).status())

    @router.get("/v1/config")
    def config(topic: NameQuery = "") -> Items[dict[str, Any]]:
        """Every effective setting of a topic, or of the process, with its source."""
        return Items[dict[str, Any]](items=view.config(topic))

    @router.get("/v1/errors")
    def errors(
        caller: Known,
        stream: Annotated[str | None, Query(max_length=_NAME_CHARS_MAX)] = None,
        limit: Limit = 100,
    ) -> Items[dict[str, Any]]:
        """The newest warnings and errors, the newest first."""
        return Items[dict[str, Any]](items=_seen(view, caller).errors(stream=stream, limit=limit))

    @router.get("/v1/decisions")
    def decisions(caller: Known, limit: Limit = 20) -> Items[dict[str, Any]]:
        """The latest retention decisions about all streams of this process, the newest first."""
        return Items[dict[str, Any]](items=_seen(view, caller).recent_decisions(limit))

    @router.get("/v1/orphans")
    def orphans(caller: Known) -> dict[str, Any]:
        """Orphans left by the latest search, and the last completion of cleanup and search."""
        return _seen(view, caller).orphans()

    return router


Served = Annotated[bool, Query(description="Only streams of this process, from memory, without store requests.")]
Cursor = Annotated[str, Query(max_length=CURSOR_CHARS_MAX, description="`next_cursor` of the previous page.")]
_Row = dict[str, Any]
_Page = TypeVar("_Page", bound=BaseModel)
#: Query of ``ServiceView`` about one stream -> schema of its list (``None``: an object), and description.
_OF_STREAM: Mapping[str, tuple[type[BaseModel] | None, str]] = {
    "ledgers": (
        Items[LedgerRow],
        "Ledgers of the stream's hot tier, if this process offloads it; for a topic those of all partitions.",
    ),
    "timeline": (
        None,
        "Readable segments with their ledgers and publish times, for a plot. For a topic: `partitions`.",
    ),
    "graph": (
        None,
        "Segments of the scalable topic of this name, or of this segment, parents first. For other streams: none.",
    ),
    "retention": (None, "The next retention decision with its reasons, as facts and as text."),
    "decisions": (Items[_Row], "The recorded retention decisions, the newest first."),
    "subscribers": (
        Items[SubscriberRow],
        "Subscribers with their positions, lags, and whether they hold back deletion.",
    ),
}


def stream_routes(view: ServiceView) -> APIRouter:
    """Routes of the streams; ``view`` answers."""
    router = guarded_router("/v1/streams", tag="streams")

    @router.get("", response_model_exclude_unset=True)
    def streams(
        caller: Known,
        order: StreamOrder = StreamOrder.NAME,
        contains: NameQuery = "",
        served: Served = False,
        cursor: Cursor = "",
        limit: Limit = 100,
    ) -> ListPage[StreamRow]:
        """List the streams of the store; streams of this process have their current status."""
        of = ("streams", order.value, contains, str(served))
        page = _seen(view, caller).streams(
            order=order, contains=contains, after=place_of(cursor, *of), limit=limit, served_only=served
        )
        return _page(ListPage[StreamRow], page, *of)

    @router.get("/{stream}", response_model_exclude_unset=True)
    def stream(caller: Known, name: StreamName, served: Served = False) -> StreamRow:
        """One stream's status from the process and the manifest. For a topic: sums, and `partitions`."""
        return shown(StreamRow, _seen(view, caller).stream(name, served_only=served))

    @router.get("/{stream}/segments", response_model_exclude_unset=True)
    def segments(name: StreamName, cursor: Cursor = "", limit: Limit = 100) -> ListPage[SegmentRow]:
        """Segments in the stream's order; for a topic with partitions those of all, one partition after the other."""
        page = view.segments(name, after=place_of(cursor, "segments", name), limit=limit)
        return _page(ListPage[SegmentRow], page, "segments", name)

    @router.get("/{stream}/entries", response_model_exclude_unset=True)
    def entries(
        name: StreamName,
        first: Annotated[str, Query(alias="from", max_length=50, description=f"First entry. {POSITION}")] = "",
        since: Annotated[str, Query(max_length=50, description=f"Instead of `from`, a time: {TIME_FORMS}.")] = "",
        until: Annotated[
            str, Query(max_length=50, description="Stop before the first entry published at or after this time.")
        ] = "",
        cursor: Cursor = "",
        limit: Limit = 100,
    ) -> EntryPage:
        """Entries, of both tiers if this process serves the stream; of all partitions of a topic, by publish time."""
        place = place_of(cursor, "entries", name)
        items, after = view.entries(name, first=first, since=since, until=until, after=place, limit=limit)
        return shown(EntryPage, {"items": items, "next_cursor": write_cursor(after, "entries", name)})

    for what, (shape, about) in _OF_STREAM.items():
        router.add_api_route(
            f"/{{stream}}/{what}",
            _answering(view, what, shape),
            name=what,
            description=about,
            response_model=shape or _Row,
            response_model_exclude_unset=True,
        )

    @router.get("/{stream}/cleanup")
    def cleanup(name: StreamName, limit: Limit = 100) -> _Row:
        """Plan of the next cleanup round, segment by segment. For a topic: sums, and `partitions`."""
        return view.cleanup_plan(name, limit=limit)

    @router.get("/{stream}/orphans")
    def orphans(name: StreamName, limit: Limit = 100) -> Items[_Row]:
        """Orphaned objects under the stream's prefix, from a new search; for a topic those of all partitions."""
        return Items[_Row](items=view.orphans_of(name, limit=limit))

    return router


def _answering(view: ServiceView, what: str, shape: type[BaseModel] | None) -> Callable[..., Any]:
    def answer(name: StreamName) -> Any:
        found = getattr(view, what)(name)
        return found if shape is None else shown(shape, {"items": found})

    return answer


def _page(shape: type[_Page], page: Page[_Row], *of: str) -> _Page:
    return shown(
        shape,
        {"items": list(page.items), "next_cursor": write_cursor(page.next_after, *of), "total": page.total},
    )


_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
#: Headers of the dashboard's files: only scripts, styles, images and addresses of this origin, no inline code, no
#: framing.
PAGE_HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    # Another release has different files with the same names.
    "Cache-Control": "no-cache",
}


@dataclass(frozen=True, slots=True)
class PageFile:
    """One file.

    Attributes:
        media_type: for ``Content-Type``.
        etag: of these bytes, quotation marks included.
    """

    body: bytes
    media_type: str
    etag: str


@cache
def page_files() -> Mapping[str, PageFile]:
    """Path of a URL -> file: ``/`` is the page itself, the rest lies below ``/dashboard/``. They hold no data, and need
    no authentication."""
    found = {}
    for entry in resources.files(dashboard).iterdir():
        if (media_type := _TYPES.get(entry.name.rpartition(".")[2])) is not None:
            body = entry.read_bytes()
            path = "/" if entry.name == "index.html" else f"/dashboard/{entry.name}"
            found[path] = PageFile(body, media_type, f'"{hashlib.sha256(body).hexdigest()[:32]}"')
    return found


def page_routes() -> APIRouter:
    """``/`` and its files."""
    router = APIRouter()
    for path, file in page_files().items():
        router.add_api_route(path, _sending(file), methods=["GET", "HEAD"], include_in_schema=False)
    return router


def _sending(file: PageFile) -> Callable[[Request], Response]:
    headers = {**PAGE_HEADERS, "ETag": file.etag}

    def answer(request: Request) -> Response:
        if request.headers.get("if-none-match") == file.etag:
            return Response(status_code=304, headers=headers)
        return Response(file.body, media_type=file.media_type, headers=headers)

    return answer


#: Path of the OpenAPI description.
DESCRIPTION = "/v1/openapi.json"
_PROBLEMS_MAX = 20
_ABOUT = """Queries and commands of a serving process (docs/reference/http.md).

Positions are `LEDGER:ENTRY`, times milliseconds since 1970 UTC. A stream's name is one percent-encoded path segment:
`public%2Fdefault%2Fpersistent%2Forders`. Errors are problem details (RFC 9457)."""


def make_application(
    view: ServiceView,
    control: ServiceControl,
    exposition: Exposition,
    *,
    ledgers: BrokerLedgers,
    threads: BrokerThreads,
    answer_s: float,
) -> FastAPI:
    """The application.

    Args:
        view, control, exposition: queries, commands and metrics.
        ledgers: for brokers; ``threads``: of their routes.
        answer_s: response deadline, seconds.
    """
    from offloader import __version__

    app = FastAPI(
        title="offloader",
        version=__version__,
        description=_ABOUT,
        openapi_url=None,
        redirect_slashes=False,
    )
    for router in (
        process_routes(view, exposition),
        stream_routes(view),
        command_routes(control, answer_s=answer_s),
        subscriber_routes(control),
        group_routes(control),
        broker_routes(ledgers, threads, answer_s=answer_s),
        page_routes(),
    ):
        app.router.routes.extend(router.routes)

    @app.get(DESCRIPTION, include_in_schema=False, dependencies=[Depends(require_allowed)])
    def description() -> JSONResponse:
        return JSONResponse(_description(app))

    app.add_exception_handler(HTTPException, _http_problem)
    app.add_exception_handler(RequestValidationError, _invalid)
    for kind in (OffloaderError, FormatError, Exception):  # the gate logs other errors
        app.add_exception_handler(kind, _refused)
    return app


def _description(app: FastAPI) -> dict[str, Any]:
    token = {
        "type": "http",
        "scheme": "bearer",
        "description": "A token with the role read, write or admin, a broker token, or a token bound to a subscriber "
        "or streams. Alternatively a client certificate.",
    }
    found = app.openapi()
    return {
        **found,
        "security": [{"token": []}],
        "components": {
            "schemas": {**found["components"]["schemas"], ProblemDetails.__name__: ProblemDetails.model_json_schema()},
            "securitySchemes": {"token": token},
        },
    }


def _http_problem(_: Request, error: Exception) -> JSONResponse:
    """Unknown path or method."""
    assert isinstance(error, HTTPException)
    hint = f"see {DESCRIPTION} for the available routes" if error.status_code in (404, 405) else ""
    document = problem_document(error.status_code, str(error.detail), hint=hint)
    return JSONResponse(document, error.status_code, error.headers, PROBLEM_JSON)


def _refused(request: Request, error: Exception) -> JSONResponse:
    document = problem_of(error) or BUG
    caller: Caller | None = getattr(request.state, CALLER, None)
    if caller is not None and caller.streams is not None:
        document = {**document, **{name: without_places(document[name]) for name in ("detail", "hint")}}
    return JSONResponse(document, document["status"], PROBLEM_HEADERS.get(document["status"]), PROBLEM_JSON)


def _invalid(_: Request, error: Exception) -> JSONResponse:
    """Invalid parameters or body: every problem with its location, without the values sent."""
    assert isinstance(error, RequestValidationError)
    problems: list[dict[str, Any]] = [
        {"where": ".".join(map(str, each["loc"]))[:200], "what": each["msg"]} for each in error.errors()[:_PROBLEMS_MAX]
    ]
    document = problem_document(
        400,
        "; ".join(f"{each['where']}: {each['what']}" for each in problems),
        hint=f"see {DESCRIPTION} for the parameters",
        problems=problems,
    )
    return JSONResponse(document, 400, media_type=PROBLEM_JSON)
