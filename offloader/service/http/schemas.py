"""What requests and responses carry: the caller, names in the path, bodies, and page cursors."""

from __future__ import annotations

import base64
import hashlib
import hmac
import logging
import zlib
from collections.abc import Mapping
from typing import Annotated, Any, Generic, Literal, TypeVar, cast
from urllib.parse import unquote_to_bytes

from fastapi import Depends, Path, Request
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from formats.keys import STREAM_BYTES_MAX
from offloader.errors import InvalidCall, LimitReached, parsing
from offloader.ledgers.pulsar.topics import stream_of_managed_ledger
from offloader.manifest.names import stream_name
from offloader.service.auth import OPERATION_OF_ROUTE, Caller
from offloader.service.http.middleware import CALLER
from offloader.stream_names import require_stream_name

#: A name in a path, percent-encoded once more than in keys.
_PART_CHARS_MAX = 3 * STREAM_BYTES_MAX


def caller_of(request: Request) -> Caller:
    """The caller, set by the middleware."""
    return cast(Caller, request.scope["state"][CALLER])


def require_allowed(request: Request) -> None:
    """Checks the caller against the table of operations, by the request's path and method. Raises ``NotAuthenticated``,
    ``NotAllowed``: the caller may not; ``NotFound``: its token is bound to other streams."""
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
    """A part of a path. Raises ``InvalidCall``: it isn't UTF-8."""
    with parsing(f"the {what} in the path isn't UTF-8", hint="percent-encode its UTF-8 bytes"):
        return unquote_to_bytes(part).decode()


def _stream_name(
    stream: Annotated[
        str,
        Path(
            description="The stream's name, or its topic's (`persistent://...`), percent-encoded as one part: "
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
            description="The managed ledger's name as the broker has it, percent-encoded as one part: "
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
#: Of a managed ledger, which brokers name.
BrokerStream = Annotated[str, Depends(_stream_of_broker)]
SubscriberName = Annotated[str, Depends(_subscriber_name)]

POSITION = "A position is LEDGER:ENTRY."
#: Longest text from a client for people to read.
TEXT_CHARS_MAX = 1000
_At = str | dict[str, str]


class _Request(BaseModel):
    model_config = ConfigDict(extra="forbid", strict=True, hide_input_in_errors=True)


class OffloadRequest(_Request):
    until: str = Field(
        default="", max_length=50, description=f"Last entry that has to be in it; default: the newest. {POSITION}"
    )
    wait_seconds: float = Field(
        default=30.0, ge=0, le=3600, description="How long to wait for the commit, at most http.answer_timeout."
    )


class LedgerOffloadRequest(_Request):
    uuid: str = Field(default="", max_length=36, description="Of the broker's attempt.")
    last: int = Field(ge=0, lt=2**63, description="Its last entry.")
    length: int = Field(ge=0, lt=2**63, description="Payload bytes of all entries.")
    entries: int = Field(ge=1, le=2**63)
    created_ms: int | None = Field(
        default=None, ge=0, lt=2**63, description="When it was opened, as far as the broker knows."
    )
    wait_seconds: float = Field(default=25.0, ge=0, le=25, description="How long to wait for the commit.")


class PauseRequest(_Request):
    reason: str = Field(default="", max_length=TEXT_CHARS_MAX, description="Why, for who reads the manifest.")


class CleanupRequest(_Request):
    plan: str = Field(max_length=64, description="`plan` of the plan that is approved.")


class TruncateRequest(_Request):
    before: _At = Field(description='The first position that stays: "7:12", or of a partitioned topic {"0": "7:12"}.')


class SubscribeRequest(_Request):
    start: _At | None = Field(
        default=None, description='Where it begins: "7:12", "latest", or {"0": "7:12"} by partition.'
    )
    generation: int = Field(default=0, ge=0, lt=2**31)


class PublishRequest(_Request):
    at: _At = Field(
        description='The first entry still needed: "7:12", "latest", or of a partitioned topic {"0": "7:12"}.'
    )
    generation: int | None = Field(
        default=None, ge=0, lt=2**31, description="Refuse unless the subscriber has this one."
    )


class GroupRequest(_Request):
    streams: list[str] = Field(min_length=1, max_length=1000, description="Names of streams or topics.")
    type: Literal["none", "manual", "automatic"] = Field(
        default="none", description="How it holds data back: not at all, up to what is published, up to checkpoints."
    )
    automatic_checkpoint_ms: int | None = Field(
        default=None, ge=0, lt=2**31, description="Time between two automatic checkpoints; 0: none; null: as it is."
    )


class CheckpointRequest(_Request):
    name: str = Field(max_length=255, description="Unique in the group.")
    keep: bool = Field(default=True, description="Keep it until it expires, so that it can be published.")


class TruncationRequest(_Request):
    checkpoint: str = Field(max_length=255, description="A kept checkpoint that all readers have passed.")


_log = logging.getLogger("offloader.service.http")

_Row = TypeVar("_Row")
_Shape = TypeVar("_Shape", bound=BaseModel)


class _Answer(BaseModel):
    model_config = ConfigDict(extra="allow")


class Lag(_Answer):
    """What the hot tier has and the cold tier has not."""

    entries: int
    bytes: int = Field(description="Of payload.")
    seconds: float | None = Field(description="Newest hot entry against newest committed one, by publish time.")


class StreamRow(_Answer):
    """One stream: what this process does with it, and what its manifest says."""

    stream: str
    namespace: str
    feed: str | None = Field(description="What brings it to this process; null: it isn't offloaded here.")
    active: bool = Field(description="Whether this process offloads it; another one may.")
    mode: str | None = Field(
        default=None,
        description="live, catch-up, paused, stopped, standby, starting, ledger, deleted; disconnected: its hot tier "
        "doesn't answer; stalled: entries wait in vain.",
    )
    method: str | None = Field(default=None, description="streaming, ledger or none.")
    tail: str | None = Field(default=None, description="Newest entry of the hot tier.")
    offered: str | None = Field(default=None, description="Newest entry in the current segment.")
    committed: str | None = Field(default=None, description=f"End of what the cold tier has. {POSITION}")
    lag: Lag | None = None
    lag_known_ms: int | None = Field(
        default=None, description="When the lag was known last; since then its seconds grow. null: it is known now."
    )
    buffer: dict[str, int] | None = Field(default=None, description="bytes, and bytes_max.")
    segments: dict[str, int | None] | None = Field(
        default=None, description="How many are offloaded, assigned, failed."
    )
    entries_offloaded: int | None = None
    bytes_offloaded: int | None = Field(default=None, description="Of payload.")
    bytes_per_second: float | None = Field(
        default=None,
        description="Payload that this process offloaded, mean of the last five minutes; null: it isn't served here.",
    )
    last_error: str | None = None
    last_progress_ms: int | None = Field(default=None, description="When a segment was committed last.")
    stalled: str | None = Field(default=None, description="Why there is no progress; null: there is, or nothing to do.")
    disconnected: str | None = Field(default=None, description="Why its hot tier can't be asked; null: it can.")
    partitions: list[dict[str, Any]] | None = Field(
        default=None, description="Of a topic with partitions: each of them, with its `partition`; the rest are sums."
    )


class SegmentRow(_Answer):
    """One segment, as the manifest records it; sizes once it is complete."""

    uuid: str
    layout: str = Field(description="V1: one ledger; V2: one or more.")
    status: str
    first: str
    last: str | None
    ledgers: list[int]
    entries: int | None = None
    payload_bytes: int | None = None
    object_bytes: int | None = Field(default=None, description="Of its data and its index.")
    publish_time_min_ms: int | None = None
    publish_time_max_ms: int | None = None
    offloaded_ms: int | None
    data: str = Field(description="Key of its data object.")
    index: str = Field(description="Key of its index object.")


class EntryRow(_Answer):
    """One entry."""

    position: str = Field(description=POSITION)
    publish_time_ms: int | None = Field(description="Null: not known.")
    payload_base64: str
    stream: str | None = Field(default=None, description="Of a topic with partitions: the partition's stream.")
    partition: int | None = Field(default=None, description="Likewise its number.")


class EntryPage(_Answer):
    items: list[EntryRow]
    next_cursor: str | None = Field(
        description="Give it as `cursor` for the next page; null: this is all there is now."
    )


class LedgerRow(_Answer):
    """One ledger of the hot tier."""

    ledger_id: int
    closed: bool
    entries: int | None
    size_bytes: int | None
    stream: str | None = Field(default=None, description="Of a topic with partitions: the partition's stream.")
    partition: int | None = Field(default=None, description="Likewise its number.")


class SubscriberRow(_Answer):
    """Somebody who consumes a stream."""

    subscriber: str
    generation: int
    cut: dict[str, str] | None = Field(description="The first entries still needed, by segment of the stream.")
    activity: str = Field(description="Whether it holds data back.")
    lag_bytes: int
    lag_entries: int


class GroupRow(_Answer):
    """A reader group."""

    group: str
    generation: int | None = Field(default=None, description="Raised by each change of the configuration.")
    type: str | None = None
    streams: list[str] | None = None
    readers: dict[str, int] | None = Field(default=None, description="Each reader and how many partitions it has.")
    checkpoints: list[dict[str, Any]] | None = None
    published: dict[str, dict[str, str]] | None = Field(
        default=None, description="By stream and partition the first entries that are still needed."
    )
    owed: list[dict[str, str]] | None = Field(default=None, description="Changes that streams don't have yet.")
    refused: list[dict[str, str]] | None = Field(default=None, description="Changes that streams refused, and why.")
    error: str | None = Field(default=None, description="Why its document can't be read.")


class ProblemDetails(_Answer):
    """RFC 9457."""

    type: str
    title: str
    status: int
    detail: str = Field(description="What, where, why.")
    kind: str = Field(
        description="What to do: invalid_request, not_found, retry_later, fenced, data_corruption, denied, bug, ...; "
        "to brokers also trimmed, source_mismatch, not_owner"
    )
    hint: str = Field(description="What to do, in words; may be empty.")
    retryable: bool = Field(description="Whether the same request may succeed later.")


class LedgerOffloaded(_Answer):
    """Whether a ledger is in the cold tier."""

    committed: bool = Field(description="Every entry is there, and number and length are the broker's.")
    missing: list[list[int]] = Field(
        description="First and last entry of ranges that readers aren't given: send them, then ask again."
    )


class LedgerChunk(_Answer):
    """Consecutive entries that are read together."""

    first: int
    last: int
    bytes: int = Field(description="Of payload; about, in objects that Pulsar wrote.")
    object: int = Field(description="Index into `objects`; -1: only `/entries` has them.")
    start: int = Field(description="First byte of whole blocks in the object.")
    stop: int = Field(description="The byte after them.")
    blocks: list[tuple[int, int, int | None, int]] = Field(
        description="First byte, the byte after the last, CRC-32C of all bytes between (null: not known), first entry."
    )


class LedgerPlan(_Answer):
    """How to read a ledger."""

    last: int
    length: int = Field(description="Payload bytes of all entries.")
    entries: int
    expires_ms: int | None = Field(
        description="When the URLs end to be valid, ms since 1970 UTC; null: there are none."
    )
    next: int | None = Field(description="The next ledger that is in the cold tier; null: none yet.")
    uuid: str | None = Field(description="Of the attempt of Pulsar's own offloader that wrote it; null: any attempt's.")
    objects: list[str] = Field(description="URLs for ranged GETs without further authentication.")
    chunks: list[LedgerChunk] = Field(description="In order, without a gap; the same for everyone.")


class LedgerFilled(_Answer):
    stored: int = Field(description="Entries that are stored now.")


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
    problems: list[ReadyProblem] | None = Field(description="What is missing; only for those who may read.")


class ListPage(_Answer, Generic[_Row]):
    items: list[_Row]
    next_cursor: str | None = Field(description="Give it as `cursor` for the next page; null: this was the last one.")
    total: int = Field(description="Items on all pages, now.")


class Items(_Answer, Generic[_Row]):
    items: list[_Row]


class Committed(_Answer):
    stream: str
    committed: str | None = Field(description=f"End of what is readable in the cold tier. {POSITION}")


class Paused(_Answer):
    stream: str
    paused: bool
    changed: bool = Field(description="False: it was so already.")
    assigned: int = Field(description="Segments under way; they complete.")
    committed: str | None


class Cleaned(_Answer):
    stream: str
    retired: int = Field(description="Segments that readers don't see any more; they can be restored for a time.")
    released: int
    purged: int
    deleted_objects: int
    deleted_bytes: int


class Truncated(_Answer):
    stream: str
    head: str | None = Field(description=f"Where it begins now; null: see `partitions`. {POSITION}")
    moved: bool = Field(description="Whether it begins later than before.")
    segments: int = Field(description="Offloaded segments before it.")
    entries: int = Field(description="Entries in them.")


class Applied(_Answer):
    stream: str
    subscriber: str
    generation: int


class Removed(_Answer):
    stream: str
    subscriber: str
    removed: bool = Field(description="False: its generation is higher than the one given.")


class LastHour(_Answer):
    minute_bytes: list[int] = Field(description="Offloaded by minute, the oldest first, the last one not over yet.")
    bytes_per_second: float = Field(description="Mean of the last five minutes.")


class Overview(_Answer):
    """The process in short."""

    software: str
    pid: int
    now_ms: int
    seen_ms: int = Field(description="When the process looked at its streams.")
    started_ms: int
    ready: bool
    problems: list[ReadyProblem]
    store: dict[str, Any] | None
    health: dict[str, Any] = Field(
        default={},
        description="Whether the store, and the sources by feed, answer: up (null: not known), why, since_ms.",
    )
    buffer: dict[str, int]
    streams: dict[str, Any]
    last_hour: LastHour
    awaiting_approval: list[dict[str, Any]] = Field(
        description="Cleanups of more than half of a stream: an admin may approve."
    )
    may: list[str] = Field(default=[], description="Names of the operations that the caller may do.")


def shown(shape: type[_Shape], document: Mapping[str, Any]) -> _Shape:
    """A document in its schema. A document that violates it is returned as it is: the data matters more than its
    description. The log has the difference."""
    try:
        return shape.model_validate(document)
    except ValidationError as error:
        problems = "; ".join(f"{'.'.join(map(str, each['loc']))}: {each['msg']}" for each in error.errors()[:5])
        _log.warning(
            "an answer isn't as described: %s: %s",
            shape.__name__,
            problems,
            extra={"event": "http_shape", "shape": shape.__name__},
        )
        return shape.model_construct(**document)


#: A place contains a stream's name, or a position in each of up to 1,000 partitions. The head of a request with it is
#: below the default of ``http.header_size_max``.
CURSOR_CHARS_MAX = 12 * 1024
#: A longer place is compressed.
PLACE_BYTES_MIN, PLACE_BYTES_MAX = 1024, 64 * 1024
_CHECK_BYTES = 6
_COMPRESSED = "compressed"


def write_cursor(place: str | None, *of: str) -> str | None:
    """The cursor of a place in the list ``of``: its path, order and filters; ``None``: the list ends.

    Raises:
        LimitReached: it would be longer than ``CURSOR_CHARS_MAX``.
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
        raise LimitReached("the place of the next page is too long", hint="ask for one partition")
    return cursor


def place_of(cursor: str, *of: str) -> str:
    """The place where a page begins; empty for an empty cursor: the first page. Raises ``InvalidCall``: not a cursor of
    this list."""
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
        raise InvalidCall(
            "cursor: no place in this list", hint="take next_cursor of the page before, with the same filters"
        )
    return place


def _check(of: tuple[str, ...]) -> bytes:
    return hashlib.sha256("\0".join(of).encode()).digest()[:_CHECK_BYTES]
