"""Parts of requests and responses: the caller, path parameters, bodies, and page cursors."""

from __future__ import annotations

import base64
import hashlib
import hmac
import logging
import zlib
from collections.abc import Mapping, Sequence
from http import HTTPStatus
from typing import Annotated, Any, Generic, Literal, TypeVar, cast
from urllib.parse import unquote_to_bytes

from fastapi import APIRouter, Depends, Path, Request
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from formats.keys import STREAM_BYTES_MAX
from offloader.errors import InvalidCallError, LimitReachedError, parsing
from offloader.ledgers.pulsar.topics import stream_of_managed_ledger
from offloader.manifest.names import stream_name
from offloader.service.auth import OPERATION_OF_ROUTE, Caller
from offloader.service.http.middleware import CALLER, PROBLEM_JSON
from offloader.stream_names import require_stream_name

#: A name in a path; names in keys are percent-encoded, and in paths once more.
_PART_CHARS_MAX = 3 * STREAM_BYTES_MAX


def caller_of(request: Request) -> Caller:
    """The caller, set by the middleware."""
    return cast(Caller, request.scope["state"][CALLER])


def require_allowed(request: Request) -> None:
    """Checks the caller against the table of operations, by the request's path and method. Raises ``NotAuthenticated``,
    ``NotAllowed``: the operation isn't allowed; ``NotFoundError``: its token is bound to other streams."""
    operation = OPERATION_OF_ROUTE[f"{request.method} {request.scope['route'].path}"]
    subscriber = request.path_params.get("subscriber")
    stream = request.path_params.get("stream")
    caller_of(request).may(
        operation,
        subscriber=None if subscriber is None else decoded(subscriber, "subscriber's name"),
        stream=None if stream is None else stream_name(decoded(stream, "stream's name")),
    )


Known = Annotated[Caller, Depends(caller_of)]


def decoded(part: str, what: str) -> str:
    """A decoded path segment. Raises ``InvalidCallError``: it isn't UTF-8."""
    with parsing(f"the {what} in the path isn't UTF-8", hint="percent-encode its UTF-8 bytes"):
        return unquote_to_bytes(part).decode()


def _stream_name(
    stream: Annotated[
        str,
        Path(
            description="The stream's name, or its topic's (`persistent://...`), percent-encoded as one path segment: "
            "`public%2Fdefault%2Fpersistent%2Forders`.",
            max_length=_PART_CHARS_MAX,
        ),
    ],
) -> str:
    name = stream_name(decoded(stream, "stream's name"))
    require_stream_name(name)
    return name


def _stream_of_broker(
    stream: Annotated[
        str,
        Path(
            description="The broker's name of the managed ledger, percent-encoded as one path segment: "
            "`public%2Fdefault%2Fpersistent%2Fmy%2Btopic`.",
            max_length=_PART_CHARS_MAX,
        ),
    ],
) -> str:
    given = decoded(stream, "managed ledger's name")
    name = stream_name(given) if "://" in given else stream_of_managed_ledger(given)
    require_stream_name(name)
    return name


def _subscriber_name(
    subscriber: Annotated[str, Path(description="Percent-encoded.", max_length=_PART_CHARS_MAX)],
) -> str:
    return decoded(subscriber, "subscriber's name")


StreamName = Annotated[str, Depends(_stream_name)]
#: The stream of a managed ledger named by a broker.
BrokerStream = Annotated[str, Depends(_stream_of_broker)]
SubscriberName = Annotated[str, Depends(_subscriber_name)]

POSITION = "A position is LEDGER:ENTRY."
#: Maximum length of a text from a client for display.
TEXT_CHARS_MAX = 1000
_At = str | dict[str, str]


class _Request(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, hide_input_in_errors=True)


class OffloadRequest(_Request):
    until: str = Field(default="", max_length=50, description=f"Last entry to offload; default: the newest. {POSITION}")
    wait_seconds: float = Field(
        default=30.0, ge=0, le=3600, description="Seconds to wait for the commit, at most http.answer_timeout."
    )


class LedgerOffloadRequest(_Request):
    uuid: str = Field(default="", max_length=36, description="UUID of the broker's attempt.")
    last: int = Field(ge=0, lt=2**63, description="Last entry of the ledger.")
    length: int = Field(ge=0, lt=2**63, description="Payload bytes of all entries.")
    entries: int = Field(ge=1, le=2**63)
    created_ms: int | None = Field(
        default=None,
        ge=0,
        lt=2**63,
        description="Time at which the ledger was opened, if the broker knows it, ms since 1970 UTC.",
    )
    wait_seconds: float = Field(default=25.0, ge=0, le=25, description="Seconds to wait for the commit.")


class PauseRequest(_Request):
    reason: str = Field(default="", max_length=TEXT_CHARS_MAX, description="Reason, recorded in the manifest.")


class CleanupRequest(_Request):
    plan: str = Field(max_length=64, description="`plan` of the approved cleanup plan.")


class TruncateRequest(_Request):
    before: _At = Field(description='The new start position: "7:12", or for a partitioned topic {"0": "7:12"}.')


class SubscribeRequest(_Request):
    start: _At | None = Field(
        default=None, description='Initial position: "7:12", "latest", or by partition {"0": "7:12"}.'
    )
    generation: int = Field(default=0, ge=0, lt=2**31)


class PublishRequest(_Request):
    at: _At = Field(
        description='The first entry still needed: "7:12", "latest", or for a partitioned topic {"0": "7:12"}.'
    )
    generation: int | None = Field(
        default=None, ge=0, lt=2**31, description="Refuse unless the subscriber has this one."
    )


class GroupRequest(_Request):
    streams: list[str] = Field(min_length=1, max_length=1000, description="Names of streams or topics.")
    type: Literal["none", "manual", "automatic"] = Field(
        default="none",
        description="Effect on retention: none, hold back from published checkpoints (manual), or from automatic "
        "checkpoints.",
    )
    automatic_checkpoint_ms: int | None = Field(
        default=None, ge=0, lt=2**31, description="Time between two automatic checkpoints; 0: none; null: unchanged."
    )


class CheckpointRequest(_Request):
    name: str = Field(max_length=255, description="Unique in the group.")
    keep: bool = Field(default=True, description="Keep the checkpoint until it expires, so that it can be published.")


class TruncationRequest(_Request):
    checkpoint: str = Field(max_length=255, description="A kept checkpoint that all readers have passed.")


_log = logging.getLogger("offloader.service.http")

_Row = TypeVar("_Row")
_Shape = TypeVar("_Shape", bound=BaseModel)


class _Answer(BaseModel):
    model_config = ConfigDict(extra="allow")


class Lag(_Answer):
    """Entries in the hot tier that are not yet offloaded."""

    entries: int
    bytes: int = Field(description="Of payload.")
    seconds: float | None = Field(
        description="Publish time of the newest hot entry minus that of the newest committed one."
    )


class StreamRow(_Answer):
    """One stream: its status in this process, and its manifest's state."""

    stream: str
    namespace: str
    feed: str | None = Field(
        description="Feed that provides the stream to this process; null: it isn't offloaded by this process."
    )
    active: bool = Field(description="Whether this process offloads the stream; another process may.")
    mode: str | None = Field(
        default=None,
        description="live, catch-up, paused, stopped, standby, starting, ledger, deleted; disconnected: the hot tier "
        "doesn't respond; stalled: a backlog without progress.",
    )
    method: str | None = Field(default=None, description="streaming, ledger or none.")
    tail: str | None = Field(default=None, description="Newest entry of the hot tier.")
    offered: str | None = Field(default=None, description="Newest entry in the current segment.")
    committed: str | None = Field(default=None, description=f"End of the committed entries. {POSITION}")
    lag: Lag | None = None
    lag_known_ms: int | None = Field(
        default=None,
        description="Time at which the lag was last known; its seconds grow since then. null: it is known now.",
    )
    buffer: dict[str, int] | None = Field(default=None, description="bytes, and bytes_max.")
    segments: dict[str, int | None] | None = Field(
        default=None, description="Number of segments that are offloaded, assigned, failed."
    )
    entries_offloaded: int | None = None
    bytes_offloaded: int | None = Field(default=None, description="Of payload.")
    bytes_per_second: float | None = Field(
        default=None,
        description="Payload offloaded by this process, mean of the last five minutes; null: not served by this "
        "process.",
    )
    last_error: str | None = None
    last_progress_ms: int | None = Field(default=None, description="Time of the last segment commit.")
    stalled: str | None = Field(
        default=None, description="Reason why there is no progress; null: progress, or no backlog."
    )
    disconnected: str | None = Field(
        default=None, description="Reason why the hot tier can't be reached; null: it can."
    )
    partitions: list[dict[str, Any]] | None = Field(
        default=None,
        description="For a topic with partitions: the status of each, with its `partition`; the other fields are sums.",
    )


class SegmentRow(_Answer):
    """One segment as recorded in the manifest; sizes are known once it is complete."""

    uuid: str
    layout: str = Field(description="V1: one ledger; V2: one or more.")
    status: str
    first: str
    last: str | None
    ledgers: list[int]
    entries: int | None = None
    payload_bytes: int | None = None
    object_bytes: int | None = Field(default=None, description="Size of its data and index objects.")
    publish_time_min_ms: int | None = None
    publish_time_max_ms: int | None = None
    offloaded_ms: int | None
    data: str = Field(description="Key of its data object.")
    index: str = Field(description="Key of its index object.")


class EntryRow(_Answer):
    """One entry."""

    position: str = Field(description=POSITION)
    publish_time_ms: int | None = Field(description="null: not known.")
    payload_base64: str
    stream: str | None = Field(default=None, description="For a topic with partitions: the partition's stream.")
    partition: int | None = Field(default=None, description="For a topic with partitions: the partition's number.")


class EntryPage(_Answer):
    items: list[EntryRow]
    next_cursor: str | None = Field(
        description="Pass it as `cursor` to get the next page; null: no further entries at present."
    )


class LedgerRow(_Answer):
    """One ledger of the hot tier."""

    ledger_id: int
    closed: bool
    entries: int | None
    size_bytes: int | None
    stream: str | None = Field(default=None, description="For a topic with partitions: the partition's stream.")
    partition: int | None = Field(default=None, description="For a topic with partitions: the partition's number.")


class SubscriberRow(_Answer):
    """A subscriber of a stream."""

    subscriber: str
    generation: int
    cut: dict[str, str] | None = Field(description="The first entries still needed, by segment of the stream.")
    activity: str = Field(description="Whether the subscriber holds back deletion.")
    lag_bytes: int
    lag_entries: int


class GroupRow(_Answer):
    """A reader group."""

    group: str
    generation: int | None = Field(default=None, description="Raised by each change of the configuration.")
    type: str | None = None
    streams: list[str] | None = None
    readers: dict[str, int] | None = Field(default=None, description="Readers with their numbers of partitions.")
    checkpoints: list[dict[str, Any]] | None = None
    published: dict[str, dict[str, str]] | None = Field(
        default=None, description="The first entries still needed, by stream and partition."
    )
    owed: list[dict[str, str]] | None = Field(default=None, description="Changes not yet applied to streams.")
    refused: list[dict[str, str]] | None = Field(
        default=None, description="Changes that streams refused, with the reason."
    )
    error: str | None = Field(default=None, description="Reason why its document can't be read.")


class ProblemDetails(_Answer):
    """An error as problem details (RFC 9457)."""

    type: str
    title: str
    status: int
    detail: str = Field(description="What failed, on which object, and why.")
    kind: str = Field(
        description="Kind of error: invalid_request, not_found, retry_later, fenced, data_corruption, denied, bug, "
        "...; for brokers also trimmed, source_mismatch, not_owner"
    )
    hint: str = Field(description="The remedy as text; may be empty.")
    retryable: bool = Field(description="Whether the same request may succeed later.")


def guarded_router(prefix: str = "", *, tag: str, checks: Sequence[Any] = (), codes: Sequence[int] = ()) -> APIRouter:
    """An empty router whose routes ask for the operation's role.

    The application takes over its routes as they are: ``include_router`` would make each of them a second time. The
    description refers to the schema of problems by its name, because FastAPI would compile it for each route and code.

    Args:
        prefix: of all paths.
        checks: further functions to call first.
        codes: further status codes of problems.
    """
    content = {PROBLEM_JSON: {"schema": {"$ref": f"#/components/schemas/{ProblemDetails.__name__}"}}}
    codes = (400, 401, 403, 404, 503, *codes)
    return APIRouter(
        prefix=prefix,
        tags=[tag],
        dependencies=[Depends(each) for each in (require_allowed, *checks)],
        responses={code: {"description": HTTPStatus(code).phrase, "content": content} for code in codes},
    )


class LedgerOffloaded(_Answer):
    """Whether a ledger is in the cold tier."""

    committed: bool = Field(description="Whether the ledger is complete and equals the broker's in entries and length.")
    missing: list[list[int]] = Field(
        description="First and last entry of ranges that readers do not receive: send them, then repeat the request."
    )


class LedgerChunk(_Answer):
    """Consecutive entries that are read together."""

    first: int
    last: int
    bytes: int = Field(description="Payload bytes; approximate for objects written by Pulsar.")
    object: int = Field(description="Index into `objects`; -1: only available from `/entries`.")
    start: int = Field(description="First byte of whole blocks in the object.")
    stop: int = Field(description="The byte after them.")
    blocks: list[tuple[int, int, int | None, int]] = Field(
        description="First byte, the byte after the last, CRC-32C of all bytes between (null: not known), first entry."
    )


class LedgerPlan(_Answer):
    """Plan for reading a ledger."""

    last: int
    length: int = Field(description="Payload bytes of all entries.")
    entries: int
    expires_ms: int | None = Field(description="Expiry of the URLs, ms since 1970 UTC; null: no URLs.")
    next: int | None = Field(description="The next ledger that is in the cold tier; null: none yet.")
    uuid: str | None = Field(
        description="UUID of the attempt of Pulsar's offloader that wrote the ledger; null: any attempt."
    )
    objects: list[str] = Field(description="URLs for ranged GETs without further authentication.")
    chunks: list[LedgerChunk] = Field(description="In order, without gaps; equal for all callers.")


class LedgerFilled(_Answer):
    stored: int = Field(description="Number of stored entries.")


class Health(_Answer):
    status: str


class ReadyProblem(_Answer):
    where: str
    what: str
    hint: str = ""
    since_ms: int | None = None
    blocks_ready: bool


class Ready(_Answer):
    ready: bool
    problems: list[ReadyProblem] | None = Field(description="Current problems; only for callers with the role read.")


class ListPage(_Answer, Generic[_Row]):
    items: list[_Row]
    next_cursor: str | None = Field(
        description="Pass it as `cursor` to get the next page; null: this is the last page."
    )
    total: int = Field(description="Current number of items on all pages.")


class Items(_Answer, Generic[_Row]):
    items: list[_Row]


class Committed(_Answer):
    stream: str
    committed: str | None = Field(description=f"End of the entries readable in the cold tier. {POSITION}")


class Paused(_Answer):
    stream: str
    paused: bool
    changed: bool = Field(description="false: it was in this state before.")
    assigned: int = Field(description="Segments in progress; they will complete.")
    committed: str | None


class Cleaned(_Answer):
    stream: str
    retired: int = Field(description="Segments hidden from readers; they can be restored until the grace period ends.")
    released: int
    purged: int
    deleted_objects: int
    deleted_bytes: int


class Truncated(_Answer):
    stream: str
    head: str | None = Field(description=f"The stream's start position; null: see `partitions`. {POSITION}")
    moved: bool = Field(description="Whether the start position moved.")
    segments: int = Field(description="Offloaded segments before the start position.")
    entries: int = Field(description="Entries in them.")


class Applied(_Answer):
    stream: str
    subscriber: str
    generation: int


class Removed(_Answer):
    stream: str
    subscriber: str
    removed: bool = Field(description="false: the subscriber's generation is higher than the given one.")


class LastHour(_Answer):
    minute_bytes: list[int] = Field(
        description="Offloaded bytes by minute, the oldest first, including the current minute."
    )
    bytes_per_second: float = Field(description="Mean of the last five minutes.")


class Overview(_Answer):
    """Overview of the process."""

    software: str
    pid: int
    now_ms: int
    seen_ms: int = Field(description="Time at which the process collected its streams' status.")
    started_ms: int
    ready: bool
    problems: list[ReadyProblem]
    store: dict[str, Any] | None
    health: dict[str, Any] = Field(
        default={},
        description="Reachability of the store, and of the sources by feed: up (null: not known), why, since_ms.",
    )
    buffer: dict[str, int]
    streams: dict[str, Any]
    last_hour: LastHour
    awaiting_approval: list[dict[str, Any]] = Field(
        description="Cleanups of more than half of a stream that need an admin's approval."
    )
    may: list[str] = Field(default=[], description="Names of the operations that the caller may perform.")


def shown(shape: type[_Shape], document: Mapping[str, Any]) -> _Shape:
    """A document validated against its schema. A document that violates the schema is logged and returned unchanged."""
    try:
        return shape.model_validate(document)
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors()[:5])
        _log.warning(
            "a response violates its schema: %s: %s",
            shape.__name__,
            problems,
            extra={"event": "http_shape", "shape": shape.__name__},
        )
        return shape.model_construct(**document)


#: Maximum length of a cursor. It contains a stream's name, or a position in each of up to 1,000 partitions. A request
#: with it stays below the default of ``http.header_size_max``.
CURSOR_CHARS_MAX = 12 * 1024
#: A longer place is compressed.
PLACE_BYTES_MIN, PLACE_BYTES_MAX = 1024, 64 * 1024
_CHECK_BYTES = 6
_COMPRESSED = "compressed"


def write_cursor(place: str | None, *of: str) -> str | None:
    """The cursor of a place in the list ``of``: its path, order and filters; ``None``: the list ends.

    Raises:
        LimitReachedError: it would be longer than ``CURSOR_CHARS_MAX``.
    """
    if place is None:
        return None
    raw = place.encode()
    if len(raw) <= PLACE_BYTES_MIN:
        raw = _check(of) + raw
    else:
        # Digits hardly repeat: matches would cost more than they save.
        compress = zlib.compressobj(strategy=zlib.Z_HUFFMAN_ONLY)
        raw = _check((_COMPRESSED, *of)) + compress.compress(raw) + compress.flush()
    cursor = base64.urlsafe_b64encode(raw).rstrip(b"=").decode()
    if len(cursor) > CURSOR_CHARS_MAX or len(place) > PLACE_BYTES_MAX:
        raise LimitReachedError("the cursor of the next page is too long", hint="request a single partition")
    return cursor


def place_of(cursor: str, *of: str) -> str:
    """The place at which a page begins; empty for an empty cursor (the first page). Raises ``InvalidCallError``: not a
    cursor of this list."""
    if not cursor:
        return ""
    try:
        raw = base64.b64decode(cursor + "=" * (-len(cursor) % 4), b"-_", validate=True)
        check, rest = raw[:_CHECK_BYTES], raw[_CHECK_BYTES:]
        if hmac.compare_digest(check, _check((_COMPRESSED, *of))):
            whole = zlib.decompressobj()
            check, rest = _check(of), whole.decompress(rest, PLACE_BYTES_MAX)
            rest = rest if whole.eof else b""
        place = rest.decode()
    except (ValueError, zlib.error):
        check, place = b"", ""
    if len(cursor) > CURSOR_CHARS_MAX or not place or not hmac.compare_digest(check, _check(of)):
        raise InvalidCallError(
            "cursor: not a cursor of this list", hint="use next_cursor of the previous page, with the same filters"
        )
    return place


def _check(of: tuple[str, ...]) -> bytes:
    return hashlib.sha256("\0".join(of).encode()).digest()[:_CHECK_BYTES]
