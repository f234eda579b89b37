"""Manifest records, their edits, the boundary and the catalogue entry: values and bytes."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar, cast
from uuid import UUID

from formats.checked_json import ABSENT_BY_DEFAULT, from_json, opened, sealed, to_json
from formats.entries import Position
from formats.errors import Inconsistent, UnsupportedVersion
from formats.segment import SegmentSummary

__all__ = [
    "BOUNDARY_BYTES_MAX",
    "BOUNDARY_FORMAT",
    "CATALOG_BYTES_MAX",
    "CATALOG_FORMAT",
    "EDIT_KINDS",
    "FACT_UNKNOWN",
    "RECORD_BYTES_MAX",
    "RECORD_FORMAT",
    "Adopt",
    "Assign",
    "Boundary",
    "CatalogEntry",
    "Edit",
    "Failed",
    "Gap",
    "Hold",
    "HotReleased",
    "LedgerClosed",
    "LedgersDeleted",
    "Offloaded",
    "OpenEpoch",
    "Pause",
    "Purged",
    "Record",
    "Release",
    "Replace",
    "ReserveLedgers",
    "Restore",
    "Resume",
    "Retire",
    "Rewrite",
    "Rewritten",
    "SetAside",
    "SetMethod",
    "StreamDeleted",
    "Totals",
    "Truncate",
    "UndoRetire",
    "Writer",
    "decode_boundary",
    "decode_catalog_entry",
    "decode_record",
    "encode_boundary",
    "encode_catalog_entry",
    "encode_record",
]

#: ``payload_bytes`` or ``created_ms`` of a ledger whose source doesn't report them.
FACT_UNKNOWN = -1


@dataclass(frozen=True, slots=True)
class Edit:
    """Base of all edits in a record."""

    kind: ClassVar[str]


@dataclass(frozen=True, slots=True)
class OpenEpoch(Edit):
    """A writer took over the stream; lower epochs are fenced from here on.

    Attributes:
        source: uuid of the ledger database that the writer offloads; ``None``: it has no identity, or the writer
            offloads none. The stream's known source is then kept.
        token: random; the database has had it since before this record.
        reserved: later starts get ledger ids above this one; ``None``: nothing more is reserved.
        accepted: an operator declared this source the stream's, whatever the previous one.
    """

    kind = "open_epoch"
    epoch: int
    source: UUID | None = field(default=None, metadata=ABSENT_BY_DEFAULT)
    token: str = field(default="", metadata=ABSENT_BY_DEFAULT)
    reserved: int | None = field(default=None, metadata=ABSENT_BY_DEFAULT)
    accepted: bool = field(default=False, metadata=ABSENT_BY_DEFAULT)


@dataclass(frozen=True, slots=True)
class ReserveLedgers(Edit):
    """The source may assign ledger ids up to ``reserved``; later starts get ids above."""

    kind = "reserve_ledgers"
    reserved: int


@dataclass(frozen=True, slots=True)
class LedgerClosed(Edit):
    """The source closed ``ledger_id`` at ``last_entry_id`` (-1: it is empty).

    ``payload_bytes`` and ``created_ms`` distinguish different ledgers of one id; ``FACT_UNKNOWN``: the source doesn't
    report them.
    """

    kind = "ledger_closed"
    ledger_id: int
    last_entry_id: int
    payload_bytes: int = field(default=FACT_UNKNOWN, metadata=ABSENT_BY_DEFAULT)
    created_ms: int = field(default=FACT_UNKNOWN, metadata=ABSENT_BY_DEFAULT)


@dataclass(frozen=True, slots=True)
class Assign(Edit):
    """A segment is assigned, before its first byte is uploaded. ``end`` is known for historical ones only."""

    kind = "assign"
    uuid: UUID
    layout: int
    begin: Position
    end: Position | None
    assigned_ms: int
    driver: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Offloaded(Edit):
    """Both objects of an assigned segment are in the store; ``summary`` describes them."""

    kind = "offloaded"
    uuid: UUID
    summary: SegmentSummary
    offloaded_ms: int


@dataclass(frozen=True, slots=True)
class Failed(Edit):
    """An assigned segment won't be offloaded under this uuid; its objects may be deleted."""

    kind = "failed"
    uuid: UUID
    reason: str


@dataclass(frozen=True, slots=True)
class Gap(Edit):
    """Entries that provably no tier has."""

    kind = "gap"
    first: Position
    last: Position
    reason: str


@dataclass(frozen=True, slots=True)
class Adopt(Edit):
    """Objects of another writer become part of the stream. ``owned``: this project may delete them."""

    kind = "adopt"
    uuid: UUID
    summary: SegmentSummary
    driver: Mapping[str, str]
    owned: bool


@dataclass(frozen=True, slots=True)
class Release(Edit):
    """Adopted segments leave the manifest; their objects stay."""

    kind = "release"
    uuids: tuple[UUID, ...]


@dataclass(frozen=True, slots=True)
class Truncate(Edit):
    """The stream now begins at ``head``."""

    kind = "truncate"
    head: Position


@dataclass(frozen=True, slots=True)
class LedgersDeleted(Edit):
    """These ledgers are deleted from the stream: the only mark that makes segments deletable."""

    kind = "ledgers_deleted"
    ledger_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class HotReleased(Edit):
    """The hot copies of these ledgers may be deleted; nothing in the cold tier becomes deletable."""

    kind = "hot_released"
    ledger_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SetAside(Edit):
    """These ledgers of an accepted source contradict the manifest: they are never offloaded, released or deleted."""

    kind = "set_aside"
    ledger_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Retire(Edit):
    """These segments will be deleted after the grace period; readers no longer see them."""

    kind = "retire"
    uuids: tuple[UUID, ...]


@dataclass(frozen=True, slots=True)
class Purged(Edit):
    """The objects of segments retired by record ``retire_record`` are deleted next. Irreversible."""

    kind = "purged"
    uuids: tuple[UUID, ...]
    retire_record: int


@dataclass(frozen=True, slots=True)
class UndoRetire(Edit):
    """Segments retired by record ``retire_record`` are readable again."""

    kind = "undo_retire"
    uuids: tuple[UUID, ...]
    retire_record: int


@dataclass(frozen=True, slots=True)
class Restore(Edit):
    """The stream begins at ``head`` again (``None``: as before), and these ledgers are no longer deleted from it."""

    kind = "restore"
    head: Position | None
    ledger_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Rewrite(Edit):
    """Assigns a segment for entries that others already hold; it counts only once it has replaced them."""

    kind = "rewrite"
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
class Replace(Edit):
    """The segments ``by`` now hold the entries of ``uuids``, which are retired for good."""

    kind = "replace"
    uuids: tuple[UUID, ...]
    by: tuple[Rewritten, ...]
    offloaded_ms: int


@dataclass(frozen=True, slots=True)
class SetMethod(Edit):
    """Offload method of the stream from here on: ``streaming``, ``ledger`` or ``none``."""

    kind = "set_method"
    method: str


@dataclass(frozen=True, slots=True)
class Pause(Edit):
    """Offloading stops until ``resume``."""

    kind = "pause"
    reason: str


@dataclass(frozen=True, slots=True)
class Resume(Edit):
    """Offloading continues."""

    kind = "resume"


@dataclass(frozen=True, slots=True)
class Hold(Edit):
    """``on``: nothing of the stream is deleted until the hold is off."""

    kind = "hold"
    on: bool
    reason: str


@dataclass(frozen=True, slots=True)
class StreamDeleted(Edit):
    """The last record of an incarnation."""

    kind = "stream_deleted"


EDIT_KINDS: Mapping[str, type[Edit]] = {kind.kind: kind for kind in Edit.__subclasses__()}


#: Versions of the three documents; a reader refuses any other.
RECORD_FORMAT = 1
BOUNDARY_FORMAT = 1
CATALOG_FORMAT = 1
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
    there is none before, or an earlier release wrote this one.
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
class Boundary:
    """Records below ``first_kept_id`` may be deleted; the newest checkpoint is ``checkpoint_id`` (0: none).

    ``checkpoint_crc32c`` is of that checkpoint's object, which holds the checksums of its runs: so a flipped bit
    anywhere in a manifest is detected. Record ``newest_id`` certainly existed and has ``newest_nonce`` (0 and empty:
    not set yet); no deletion relies on a later record.
    """

    first_kept_id: int
    checkpoint_id: int
    checkpoint_crc32c: int = 0
    newest_id: int = field(default=0, metadata=ABSENT_BY_DEFAULT)
    newest_nonce: str = field(default="", metadata=ABSENT_BY_DEFAULT)


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """Names a stream and its living incarnation."""

    stream: str
    incarnation: UUID
    created_ms: int


def encode_record(record: Record) -> bytes:
    """The bytes of a record; the same record always gives the same bytes.

    Raises:
        LimitExceeded: more than ``RECORD_BYTES_MAX``.
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
    body = opened(data, RECORD_FORMAT, object_name, bytes_max=RECORD_BYTES_MAX)
    edits = body.pop("edits", None)
    if not isinstance(edits, list):
        raise Inconsistent("edits are not a list", object_name=object_name, found=type(edits).__name__)
    body["edits"] = []
    record = cast(Record, from_json(Record, body, object_name))
    return dataclasses.replace(record, edits=tuple(_edit(edit, object_name) for edit in edits))


def encode_boundary(boundary: Boundary) -> bytes:
    """The bytes of a boundary object."""
    return sealed({"format": BOUNDARY_FORMAT, **to_json(boundary)}, bytes_max=BOUNDARY_BYTES_MAX)


def decode_boundary(data: bytes, *, object_name: str = "") -> Boundary:
    """The boundary in ``data``; raises ``FormatError``."""
    body = opened(data, BOUNDARY_FORMAT, object_name, bytes_max=BOUNDARY_BYTES_MAX)
    return cast(Boundary, from_json(Boundary, body, object_name))


def encode_catalog_entry(entry: CatalogEntry) -> bytes:
    """The bytes of a catalogue entry."""
    return sealed({"format": CATALOG_FORMAT, **to_json(entry)}, bytes_max=CATALOG_BYTES_MAX)


def decode_catalog_entry(data: bytes, *, object_name: str = "") -> CatalogEntry:
    """The catalogue entry in ``data``; raises ``FormatError``."""
    body = opened(data, CATALOG_FORMAT, object_name, bytes_max=CATALOG_BYTES_MAX)
    return cast(CatalogEntry, from_json(CatalogEntry, body, object_name))


def _edit(value: object, object_name: str) -> Edit:
    if not isinstance(value, dict):
        raise Inconsistent("an edit is not an object", object_name=object_name, found=type(value).__name__)
    fields = dict(value)
    name = fields.pop("edit", None)
    kind = EDIT_KINDS.get(name) if isinstance(name, str) else None
    if kind is None:
        raise UnsupportedVersion("unknown edit, written by a later release?", object_name=object_name, found=name)
    return cast(Edit, from_json(kind, fields, object_name))
