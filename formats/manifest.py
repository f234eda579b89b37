"""Manifest records, their edits, the boundary and the catalogue entry: values and bytes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, cast
from uuid import UUID

from formats.checked_json import ABSENT_BY_DEFAULT, CheckedDocument, from_json, opened, sealed, to_json
from formats.entries import Position
from formats.errors import InconsistentError, UnsupportedVersionError, located
from formats.summary import SegmentSummary

#: ``payload_bytes`` or ``created_ms`` of a ledger whose source doesn't report them.
FACT_UNKNOWN = -1


@dataclass(frozen=True, slots=True)
class Edit:
    """Base of all edits in a record; each class names its ``kind``, which is in the record."""

    kind: ClassVar[str]

    def __init_subclass__(cls, kind: str = "") -> None:
        if kind:  # a class that dataclass() makes again for its slots has it already
            cls.kind = kind


@dataclass(frozen=True, slots=True)
class OpenEpoch(Edit, kind="open_epoch"):
    """A writer took over the stream; lower epochs are fenced from here on.

    Attributes:
        source: uuid of the ledger database that the writer offloads; ``None``: it has no identity, or the writer
            offloads none. The stream's known source is then kept.
        token: random; the database has had it since before this record.
        reserved: later starts get ledger ids above this one; ``None``: nothing more is reserved.
        accepted: an operator declared this source the stream's, whatever the previous one.
    """

    epoch: int
    source: UUID | None = field(default=None, metadata=ABSENT_BY_DEFAULT)
    token: str = field(default="", metadata=ABSENT_BY_DEFAULT)
    reserved: int | None = field(default=None, metadata=ABSENT_BY_DEFAULT)
    accepted: bool = field(default=False, metadata=ABSENT_BY_DEFAULT)


@dataclass(frozen=True, slots=True)
class ReserveLedgers(Edit, kind="reserve_ledgers"):
    """The source may assign ledger ids up to ``reserved``; later starts get ids above."""

    reserved: int


@dataclass(frozen=True, slots=True)
class LedgerClosed(Edit, kind="ledger_closed"):
    """The source closed ``ledger_id`` at ``last_entry_id`` (-1: it is empty).

    ``payload_bytes`` and ``created_ms`` distinguish different ledgers of one id; ``FACT_UNKNOWN``: the source doesn't
    report them.
    """

    ledger_id: int
    last_entry_id: int
    payload_bytes: int = field(default=FACT_UNKNOWN, metadata=ABSENT_BY_DEFAULT)
    created_ms: int = field(default=FACT_UNKNOWN, metadata=ABSENT_BY_DEFAULT)


@dataclass(frozen=True, slots=True)
class Assign(Edit, kind="assign"):
    """A segment is assigned, before its first byte is uploaded. ``end`` is known for historical ones only."""

    uuid: UUID
    layout: int
    begin: Position
    end: Position | None
    assigned_ms: int
    driver: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Offloaded(Edit, kind="offloaded"):
    """Both objects of an assigned segment are in the store; ``summary`` describes them."""

    uuid: UUID
    summary: SegmentSummary
    offloaded_ms: int


@dataclass(frozen=True, slots=True)
class Failed(Edit, kind="failed"):
    """An assigned segment won't be offloaded under this uuid; its objects may be deleted."""

    uuid: UUID
    reason: str


@dataclass(frozen=True, slots=True)
class Gap(Edit, kind="gap"):
    """Entries that provably no tier has."""

    first: Position
    last: Position
    reason: str


@dataclass(frozen=True, slots=True)
class GapFilled(Edit, kind="gap_filled"):
    """An object keeps entries of recorded gaps: readers aren't given them, the broker reads whole ledgers with them.

    It holds every entry from ``first`` to ``last``, of one ledger, that is in a gap, and no other one.
    """

    uuid: UUID
    first: Position
    last: Position
    entries: int
    payload_bytes: int
    object_bytes: int
    crc32c: int


@dataclass(frozen=True, slots=True)
class Adopt(Edit, kind="adopt"):
    """Objects of another writer become part of the stream. ``owned``: this project may delete them."""

    uuid: UUID
    summary: SegmentSummary
    driver: Mapping[str, str]
    owned: bool


@dataclass(frozen=True, slots=True)
class Release(Edit, kind="release"):
    """Adopted segments leave the manifest; their objects are kept."""

    uuids: tuple[UUID, ...]


@dataclass(frozen=True, slots=True)
class Truncate(Edit, kind="truncate"):
    """The stream now begins at ``head``."""

    head: Position


@dataclass(frozen=True, slots=True)
class LedgersDeleted(Edit, kind="ledgers_deleted"):
    """These ledgers are deleted from the stream: the only mark that makes segments deletable."""

    ledger_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class HotReleased(Edit, kind="hot_released"):
    """The hot copies of these ledgers may be deleted; nothing in the cold tier becomes deletable."""

    ledger_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SetAside(Edit, kind="set_aside"):
    """These ledgers of an accepted source contradict the manifest: they are never offloaded, released or deleted."""

    ledger_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Retire(Edit, kind="retire"):
    """These segments will be deleted after the grace period; readers no longer see them."""

    uuids: tuple[UUID, ...]


@dataclass(frozen=True, slots=True)
class Purged(Edit, kind="purged"):
    """The objects of segments retired by record ``retire_record`` are deleted next. Irreversible."""

    uuids: tuple[UUID, ...]
    retire_record: int


@dataclass(frozen=True, slots=True)
class UndoRetire(Edit, kind="undo_retire"):
    """Segments retired by record ``retire_record`` are readable again."""

    uuids: tuple[UUID, ...]
    retire_record: int


@dataclass(frozen=True, slots=True)
class Restore(Edit, kind="restore"):
    """The stream begins at ``head`` again (``None``: as before), and these ledgers are no longer deleted from it."""

    head: Position | None
    ledger_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Rewrite(Edit, kind="rewrite"):
    """Assigns a segment for entries that others already hold; it counts only once it has replaced them."""

    uuid: UUID
    layout: int
    begin: Position
    end: Position
    assigned_ms: int
    driver: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A segment assigned by ``rewrite`` is in the store; ``summary`` describes it."""

    uuid: UUID
    summary: SegmentSummary


@dataclass(frozen=True, slots=True)
class Replace(Edit, kind="replace"):
    """The segments ``by`` now hold the entries of ``uuids``, which are retired for good."""

    uuids: tuple[UUID, ...]
    by: tuple[Rewritten, ...]
    offloaded_ms: int


@dataclass(frozen=True, slots=True)
class Recover(Edit, kind="recover"):
    """The segments ``by``, assigned by ``rewrite``, hold entries of recorded gaps, which shrink by them."""

    by: tuple[Rewritten, ...]
    offloaded_ms: int


@dataclass(frozen=True, slots=True)
class SetMethod(Edit, kind="set_method"):
    """Offload method of the stream from here on: ``streaming``, ``ledger`` or ``none``."""

    method: str


@dataclass(frozen=True, slots=True)
class Pause(Edit, kind="pause"):
    """Offloading stops until ``resume``."""

    reason: str


@dataclass(frozen=True, slots=True)
class Resume(Edit, kind="resume"):
    """Offloading continues."""


@dataclass(frozen=True, slots=True)
class Hold(Edit, kind="hold"):
    """``on``: nothing of the stream is deleted until the hold is off."""

    on: bool
    reason: str


@dataclass(frozen=True, slots=True)
class StreamDeleted(Edit, kind="stream_deleted"):
    """The last record of an incarnation."""


EDIT_KINDS: Mapping[str, type[Edit]] = {kind.kind: kind for kind in Edit.__subclasses__()}


#: Version of records; a reader refuses any other.
RECORD_FORMAT = 1
#: Limit of a record: about a hundred thousand ledgers or segments; larger ones have to be split.
RECORD_BYTES_MAX = 16 * 1024 * 1024
#: Limit of a boundary: three numbers.
BOUNDARY_BYTES_MAX = 4 * 1024
#: Limit of a catalogue entry: a stream's name, escaped, a uuid and a time.
CATALOG_BYTES_MAX = 16 * 1024


@dataclass(frozen=True, slots=True)
class Writer:
    """The writer of a record: a display name, its URL (empty: none), a nonce of this record."""

    name: str
    url: str
    nonce: str


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over the committed segments after the record's edits, for display and as a check of the fold."""

    segments: int
    entries: int
    payload_bytes: int
    object_bytes: int
    first: Position | None
    last: Position | None


@dataclass(frozen=True, slots=True)
class Record:
    """One numbered, immutable step of a stream's manifest.

    ``source_end``: the newest position that the owner's source had before this record; ``None``: the record isn't the
    owner's, or its source is empty or has no identity.
    ``previous_nonce``: nonce of the record before, which detects a lost record whose number is created again; empty:
    there is none before.
    """

    record_id: int
    incarnation: UUID
    epoch: int
    writer: Writer
    time_ms: int
    edits: tuple[Edit, ...]
    totals: Totals
    source_end: Position | None = field(default=None, metadata=ABSENT_BY_DEFAULT)
    previous_nonce: str = field(default="", metadata=ABSENT_BY_DEFAULT)


@dataclass(frozen=True, slots=True)
class Boundary(CheckedDocument):
    """Records below ``first_kept_id`` may be deleted; the newest checkpoint is ``checkpoint_id`` (0: none).

    ``checkpoint_crc32c`` is of that checkpoint's object, which holds the checksums of its runs: so a flipped bit
    anywhere in a manifest is detected. Record ``newest_id`` certainly existed and has ``newest_nonce`` (0 and empty:
    not set yet); no deletion relies on a later record.

    ``subscribers_revision`` is a revision of the registry of subscribers that certainly existed; 0: there is none.
    """

    bytes_max = BOUNDARY_BYTES_MAX
    first_kept_id: int
    checkpoint_id: int
    checkpoint_crc32c: int = 0
    newest_id: int = field(default=0, metadata=ABSENT_BY_DEFAULT)
    newest_nonce: str = field(default="", metadata=ABSENT_BY_DEFAULT)
    subscribers_revision: int = field(default=0, metadata=ABSENT_BY_DEFAULT)


@dataclass(frozen=True, slots=True)
class CatalogEntry(CheckedDocument):
    """Names a stream and its living incarnation.

    Attributes:
        replaces: earlier incarnations that this one was rebuilt from.
    """

    bytes_max = CATALOG_BYTES_MAX
    stream: str
    incarnation: UUID
    created_ms: int
    replaces: tuple[UUID, ...] = field(default=(), metadata=ABSENT_BY_DEFAULT)


def encode_record(record: Record) -> bytes:
    """The bytes of a record; the same record always gives the same bytes.

    Raises:
        LimitExceededError: more than ``RECORD_BYTES_MAX``.
    """
    body = to_json(record)
    body["format"] = RECORD_FORMAT
    body["edits"] = [{"edit": edit.kind, **to_json(edit)} for edit in record.edits]
    return sealed(body, bytes_max=RECORD_BYTES_MAX)


def decode_record(data: bytes, *, object_name: str = "") -> Record:
    """The record in ``data``.

    Raises:
        FormatError: not a record, damaged, or written by a later release.
    """
    with located(object_name):
        body = opened(data, RECORD_FORMAT, bytes_max=RECORD_BYTES_MAX)
        edits = body.pop("edits", None)
        if not isinstance(edits, list):
            raise InconsistentError("edits are not a list", found=type(edits).__name__)
        return cast(
            Record, dataclasses.replace(from_json(Record, {**body, "edits": []}), edits=tuple(map(_edit, edits)))
        )


def _edit(value: object) -> Edit:
    if not isinstance(value, dict):
        raise InconsistentError("an edit is not an object", found=type(value).__name__)
    fields = dict(value)
    name = fields.pop("edit", None)
    kind = EDIT_KINDS.get(name) if isinstance(name, str) else None
    if kind is None:
        raise UnsupportedVersionError("unknown edit, written by a later release?", found=name)
    return cast(Edit, from_json(kind, fields))
