"""Documents beside a stream's manifest: leases, holds, deletion records, truncations and retention state."""

from __future__ import annotations

import re
from contextlib import suppress
from dataclasses import dataclass, field
from typing import TypeVar
from urllib.parse import quote, unquote
from uuid import UUID

from formats.checked_json import ABSENT_BY_DEFAULT, CheckedDocument
from formats.entries import Position
from formats.keys import stream_prefix


@dataclass(frozen=True, slots=True)
class Lease(CheckedDocument):
    """A reader's lease, and its length, counted from the last write of the object."""

    uuid: UUID
    stream: str
    reader: str
    seconds: int


def lease_prefix(stream: str) -> str:
    """Prefix of a stream's lease keys."""
    return f"{stream_prefix(stream)}leases/"


def lease_key(stream: str, uuid: UUID) -> str:
    """Key of one lease."""
    return f"{lease_prefix(stream)}{uuid}"


def lease_uuid(key: str, stream: str) -> UUID | None:
    """The lease of a key; ``None`` for any other key."""
    with suppress(ValueError):
        found = UUID(key.removeprefix(lease_prefix(stream)))
        return found if lease_key(stream, found) == key else None
    return None


#: No stream's name can begin like this.
GLOBAL_HOLD_KEY = "_hold"


@dataclass(frozen=True, slots=True)
class GlobalHold(CheckedDocument):
    """A global hold: who set it, when (ms since 1970 UTC) and why."""

    by: str
    since_ms: int
    reason: str


#: Likewise.
STORE_IDENTITY_KEY = "_store"


@dataclass(frozen=True, slots=True)
class StoreIdentity(CheckedDocument):
    """The random id of a store, created once at its root. A copy of the whole store has the same one."""

    uuid: UUID


#: Our objects at a store's root that belong to no stream.
ROOT_KEYS = frozenset({GLOBAL_HOLD_KEY, STORE_IDENTITY_KEY})

_NAME = re.compile(r"[0-9]{16}-[0-9a-f]{16}")
_NUMBER = re.compile(r"[0-9]{20}")
_SUFFIX = ".json"


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletedSegment:
    """One segment of a deletion batch.

    Attributes:
        keys: of its objects; empty if the objects are kept and only the manifest dropped them.
        first, last: its range; ``None``: it had none any more.
    """

    uuid: UUID
    keys: tuple[str, ...]
    first: Position | None
    last: Position | None
    entries: int
    object_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class DeletionRecord(CheckedDocument):
    """One deletion batch.

    Attributes:
        name: of the object, in the order of time.
        action: ``purge`` or ``release``.
        rule: why its segments may be deleted.
        retire_record: the record that retired them; 0: none did.
        planned_ms: when it was written first, ms since 1970 UTC by the earlier clock.
        done_ms: when everything was deleted; ``None``: not yet.
        tried_ms: time of the last attempt, 0: none.
    """

    name: str
    stream: str
    incarnation: UUID
    action: str
    by: str
    rule: str
    retire_record: int
    segments: tuple[DeletedSegment, ...]
    planned_ms: int
    done_ms: int | None = None
    attempts: int = 0
    tried_ms: int = 0
    problem: str = ""


@dataclass(frozen=True, slots=True)
class AwaitedReaders(CheckedDocument):
    """The leases that existed after record ``retire_record`` was durable: the purge waits for these only."""

    incarnation: UUID
    retire_record: int
    leases: tuple[UUID, ...]


def deletion_prefix(stream: str, *, done: bool) -> str:
    """Prefix of a stream's deletion record keys: of finished ones, or of unfinished ones."""
    return f"{stream_prefix(stream)}retention/{'deleted' if done else 'deleting'}/"


def deletion_key(stream: str, name: str, *, done: bool) -> str:
    """Key of one deletion record."""
    return f"{deletion_prefix(stream, done=done)}{name}{_SUFFIX}"


def deletion_name(key: str, stream: str, *, done: bool) -> str | None:
    """The name of the deletion record with a key; ``None`` for any other key. It begins with 16 digits: the time."""
    name = key.removeprefix(deletion_prefix(stream, done=done)).removesuffix(_SUFFIX)
    return name if _NAME.fullmatch(name) and deletion_key(stream, name, done=done) == key else None


def awaited_prefix(stream: str) -> str:
    """Prefix of the keys of lists of awaited readers."""
    return f"{stream_prefix(stream)}retention/awaited/"


def awaited_key(stream: str, retire_record: int) -> str:
    """Key of the list of readers that the purge of a retirement waits for."""
    return f"{awaited_prefix(stream)}{retire_record:020d}{_SUFFIX}"


def awaited_number(key: str, stream: str) -> int | None:
    """The retire record of a key; ``None`` for any other key."""
    number = key.removeprefix(awaited_prefix(stream)).removesuffix(_SUFFIX)
    return int(number) if _NUMBER.fullmatch(number) and awaited_key(stream, int(number)) == key else None


@dataclass(frozen=True, slots=True)
class PartitionHead:
    """The first kept position of one partition's stream, in that incarnation only."""

    stream: str
    incarnation: UUID
    head: Position


@dataclass(frozen=True, slots=True)
class TruncationIntent(CheckedDocument):
    """A truncation of several streams as one.

    Attributes:
        topic: the name above the partitions.
        forced: also where earlier entries aren't offloaded.
        time_ms: since when, ms since 1970 UTC.
        is_done: every partition begins there by now.
    """

    topic: str
    heads: tuple[PartitionHead, ...]
    forced: bool
    by: str
    time_ms: int
    is_done: bool = False


def intent_key(topic: str) -> str:
    """Key of a topic's intent."""
    return f"{stream_prefix(topic)}retention/truncation.json"


#: Nonces of earlier changes kept in a document: a writer whose response was lost finds its own among them.
NONCES_KEPT = 128
#: Prefix of the keys of all reader groups: no stream's name can begin like this.
GROUP_PREFIX = "_groups/"


@dataclass(frozen=True, slots=True)
class Version:
    """Version of a document.

    Attributes:
        revision: counts the changes, from 1.
        nonce: of this change alone.
        before: the nonces of the changes before it, the newest first, ``NONCES_KEPT`` at most.
        written_ms: by the writer's clock, ms since 1970 UTC.
    """

    revision: int
    nonce: str
    before: tuple[str, ...]
    written_ms: int


#: Of a document that isn't written yet.
NO_VERSION = Version(0, "", (), 0)


@dataclass(frozen=True, slots=True)
class PartitionRow:
    """A partition's number and the incarnation of its stream to which positions in this document refer."""

    number: int
    incarnation: UUID


@dataclass(frozen=True, slots=True)
class CutRow:
    """Everything before ``position`` in one partition. A partition without a row: nothing."""

    partition: int
    position: Position


@dataclass(frozen=True, slots=True)
class SizeRow:
    """Bytes before ``position``, and before its ledger, in one partition since the stream was created."""

    partition: int
    position: Position
    payload_bytes: int
    entries: int
    ledger_payload_bytes: int
    ledger_entries: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriberRow:
    """One subscriber.

    Attributes:
        generation: only positions published with this generation count.
        updated_ms: when its row was changed last; ``active_ms``: when it was last active.
        cut: position up to which it has consumed; ``None``: it has never published.
        start: where it began; ``None``: at the stream's beginning.
    """

    name: str
    generation: int
    updated_ms: int
    active_ms: int
    cut: tuple[CutRow, ...] | None
    start: tuple[CutRow, ...] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscribers(CheckedDocument):
    """The registry of one stream or partitioned topic, ascending by name."""

    name: str
    partitions: tuple[PartitionRow, ...]
    subscribers: tuple[SubscriberRow, ...] = ()
    version: Version = NO_VERSION


@dataclass(frozen=True, slots=True)
class RecordRow:
    """A cut at the tail at ``time_ms``, and the bytes before it since creation, ``None`` where unknown."""

    time_ms: int
    payload_bytes: int | None
    cut: tuple[CutRow, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Records(CheckedDocument):
    """The retention set.

    Attributes:
        records: ascending by time.
        head_ms: time of the newest record at or before the head; ``None``: nothing was truncated yet.
        sizes: of one position in partitions that were truncated, the base of other sizes: the manifest drops earlier
            segments.
    """

    name: str
    partitions: tuple[PartitionRow, ...]
    records: tuple[RecordRow, ...] = ()
    head_ms: int | None = None
    sizes: tuple[SizeRow, ...] = ()
    version: Version = NO_VERSION


@dataclass(frozen=True, slots=True)
class DecisionRow:
    """One decision; ``record`` is its JSON text, in the layout of its writer."""

    time_ms: int
    record: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Decisions(CheckedDocument):
    """The last decisions, the oldest first."""

    name: str
    decisions: tuple[DecisionRow, ...] = ()
    version: Version = NO_VERSION


@dataclass(frozen=True, slots=True)
class StreamCutRow:
    """A cut of one of a group's streams; ``partitions``: the incarnations of its positions, as far as known."""

    stream: str
    cut: tuple[CutRow, ...]
    partitions: tuple[PartitionRow, ...] = field(default=(), metadata=ABSENT_BY_DEFAULT)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointRow:
    """A checkpoint of a reader group.

    Attributes:
        name: its name, unique in the group.
        kept: whether it is kept until it expires; others are removed when a later one is complete.
        waiting: readers that haven't reported their position at it.
        behind: readers that haven't read anything after it.
        cuts: positions of the readers, ascending by stream.
        released: whether all have passed it and an automatic group has published it.
    """

    name: str
    kept: bool
    created_ms: int
    waiting: tuple[str, ...]
    behind: tuple[str, ...]
    cuts: tuple[StreamCutRow, ...]
    released: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class ToDoRow:
    """A pending change of a stream's registry by a group.

    ``action``: ``add``, ``remove`` or ``publish``; ``partitions`` as of ``StreamCutRow``.
    """

    action: str
    stream: str
    generation: int
    cut: tuple[CutRow, ...] | None = None
    partitions: tuple[PartitionRow, ...] = field(default=(), metadata=ABSENT_BY_DEFAULT)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberRow:
    """A reader that joined a group.

    Attributes:
        session: random text of this join; a later join under the same name has another one.
        beat: revision of the document that the reader wrote last.
        seen_ms: time of that revision, once a later one was written; see ``GroupState.clock_ms``.
    """

    name: str
    session: str
    beat: int
    seen_ms: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignmentRow:
    """A partition or segment of one of a group's streams, and the reader that reads it.

    Attributes:
        partition: its number, or the segment's id; 0 for a stream without partitions.
        incarnation: of the partition's stream, to which ``position`` refers.
        reader: its name; empty: the partition has no reader.
        epoch: the group's epoch in which that reader got it.
        position: everything before it is consumed; ``None``: nothing is.
        is_finished: all of a sealed segment is consumed; it has no reader any more.
    """

    stream: str
    partition: int
    incarnation: UUID
    reader: str
    epoch: int
    position: Position | None
    is_finished: bool = field(default=False, metadata=ABSENT_BY_DEFAULT)


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupState(CheckedDocument):
    """A reader group over several streams.

    Attributes:
        name: its name, and that of its subscribers.
        generation: raised by each change of the configuration; -1: the group was never created.
        retention: ``none``, ``manual`` or ``automatic``.
        streams: names, ascending.
        starts, ends: where it begins and ends reading, of streams where that isn't their beginning and end.
        outstanding_checkpoints_max: checkpoints that may wait for readers at the same time.
        refresh_ms: maximum age of a reader's view of this document.
        readers: names of the active ones, ascending.
        checkpoints: in the order of their creation.
        to_do: pending changes of the streams' registries, in order.
        published: the cuts that were published last, ascending by stream.
        published_ms: when that was; 0: never.
        checkpoint_ms: when the last automatic checkpoint was begun; 0: never.
        deleted: whether the group is deleted. Its generation is kept, so that late writes of an earlier group of the
            name
            don't affect a later one.
        heartbeat_ms: time between two writes of a reader that has nothing to report.
        expiry_ms: silence after which a reader loses its partitions.
        renew_ms: age at which the published cuts are published again, as a sign of life.
        members: readers that joined, ascending by name; they are in ``readers`` too.
        assignments: ascending by stream and partition.
        epoch: raised by each change of an assignment.
        clock_ms, store_ms: the group's time and the store's time of the version before this one; 0: none.
    """

    name: str
    generation: int
    retention: str
    streams: tuple[str, ...]
    automatic_checkpoint_ms: int
    outstanding_checkpoints_max: int
    refresh_ms: int
    starts: tuple[StreamCutRow, ...] = ()
    ends: tuple[StreamCutRow, ...] = ()
    readers: tuple[str, ...] = ()
    checkpoints: tuple[CheckpointRow, ...] = ()
    to_do: tuple[ToDoRow, ...] = ()
    published: tuple[StreamCutRow, ...] = ()
    published_ms: int = 0
    checkpoint_ms: int = 0
    deleted: bool = False
    heartbeat_ms: int = field(default=10_000, metadata=ABSENT_BY_DEFAULT)
    expiry_ms: int = field(default=30_000, metadata=ABSENT_BY_DEFAULT)
    renew_ms: int = field(default=60_000, metadata=ABSENT_BY_DEFAULT)
    members: tuple[MemberRow, ...] = field(default=(), metadata=ABSENT_BY_DEFAULT)
    assignments: tuple[AssignmentRow, ...] = field(default=(), metadata=ABSENT_BY_DEFAULT)
    epoch: int = field(default=0, metadata=ABSENT_BY_DEFAULT)
    clock_ms: int = field(default=0, metadata=ABSENT_BY_DEFAULT)
    store_ms: int = field(default=0, metadata=ABSENT_BY_DEFAULT)
    version: Version = NO_VERSION


@dataclass(frozen=True, slots=True)
class TopicEntry(CheckedDocument):
    """A partitioned topic with a retention state, and the incarnations of its partitions."""

    topic: str
    incarnation: UUID
    partitions: tuple[PartitionRow, ...]


Document = TypeVar("Document", Subscribers, Records, Decisions, GroupState)
#: Last part of the keys, by kind of document.
_NAMES = {Subscribers: "subscribers", Records: "records", Decisions: "decisions"}
_KEY = re.compile(rf"([0-9a-f]{{8}}(?:-[0-9a-f]{{4}}){{3}}-[0-9a-f]{{12}})/(?:{'|'.join(_NAMES.values())})")


def retention_prefix(name: str) -> str:
    """Prefix of all retention documents of a stream or topic."""
    return f"{stream_prefix(name)}retention/"


def document_key(kind: type[Document], name: str, incarnation: UUID) -> str:
    """Key of a document of one incarnation of a stream or topic; incarnations share no keys."""
    return f"{retention_prefix(name)}{incarnation}/{_NAMES[kind]}"


def document_keys(name: str, incarnation: UUID) -> list[str]:
    """The keys of all possible documents of one incarnation of a stream or topic."""
    return [f"{retention_prefix(name)}{incarnation}/{last}" for last in _NAMES.values()]


def incarnation_of_retention_key(key: str, name: str) -> UUID | None:
    """The incarnation of a document's key; ``None`` for any other key."""
    match = _KEY.fullmatch(key.removeprefix(retention_prefix(name)))
    return None if match is None or not key.startswith(retention_prefix(name)) else UUID(match[1])


def topic_key(topic: str) -> str:
    """Key of a partitioned topic's entry, shared by all its incarnations."""
    return f"{retention_prefix(topic)}topic"


def group_key(name: str) -> str:
    """Key of a reader group."""
    return f"{GROUP_PREFIX}{quote(name, safe='')}"


def group_of_key(key: str) -> str | None:
    """The group of a key; ``None`` for any other key."""
    name = unquote(key.removeprefix(GROUP_PREFIX))
    return name if group_key(name) == key else None
