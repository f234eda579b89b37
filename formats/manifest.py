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

#: ``payload_bytes`` or ``created_ms`` of a ledger whose source doesn't tell them.
FACT_UNKNOWN = -1


@dataclass(frozen=True, slots=True)
class Edit:
    """Base of everything a record can say happened."""

    kind: ClassVar[str]


@dataclass(frozen=True, slots=True)
class OpenEpoch(Edit):
    """A writer took the stream; lower epochs are fenced from here on.

    Attributes:
        source: uuid of the ledger database that the writer offloads; ``None``: it has no identity, or the writer
            offloads none. The one that was known stays the stream's then.
        token: random; the database has it since before this record.
        reserved: no ledger id up to here is given to a later start; ``None``: nothing more is reserved.
        accepted: an operator declared this source the stream's, whatever was known of the one before.
    """

    kind = "open_epoch"
    epoch: int
    source: UUID | None = field(default=None, metadata=ABSENT_BY_DEFAULT)
    token: str = field(default="", metadata=ABSENT_BY_DEFAULT)
    reserved: int | None = field(default=None, metadata=ABSENT_BY_DEFAULT)
    accepted: bool = field(default=False, metadata=ABSENT_BY_DEFAULT)


@dataclass(frozen=True, slots=True)
class ReserveLedgers(Edit):
    """The source may give ledger ids up to ``reserved``, and no later start gives them again."""

    kind = "reserve_ledgers"
    reserved: int


@dataclass(frozen=True, slots=True)
class LedgerClosed(Edit):
    """A fact from the source: ``ledger_id`` ends at ``last_entry_id`` (-1: it is empty).

    ``payload_bytes`` and ``created_ms`` show whether a ledger of that id is still the same one; ``FACT_UNKNOWN``: the
    source doesn't tell.
    """

    kind = "ledger_closed"
    ledger_id: int
    last_entry_id: int
    payload_bytes: int = field(default=FACT_UNKNOWN, metadata=ABSENT_BY_DEFAULT)
    created_ms: int = field(default=FACT_UNKNOWN, metadata=ABSENT_BY_DEFAULT)


@dataclass(frozen=True, slots=True)
class Assign(Edit):
    """A segment exists from now on, before its first byte is uploaded. ``end`` is known for historical ones only."""

    kind = "assign"
    uuid: UUID
    layout: int
    begin: Position
    end: Position | None
    assigned_ms: int
    driver: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Offloaded(Edit):
    """Both objects of an assigned segment are in the store, as ``summary`` says."""

    kind = "offloaded"
    uuid: UUID
    summary: SegmentSummary
    offloaded_ms: int


@dataclass(frozen=True, slots=True)
class Failed(Edit):
    """An assigned segment will never be offloaded under this uuid; whatever it left may be swept."""

    kind = "failed"
    uuid: UUID
    reason: str


@dataclass(frozen=True, slots=True)
class Gap(Edit):
    """Entries that were, provably, nowhere to be read."""

    kind = "gap"
    first: Position
    last: Position
    reason: str


@dataclass(frozen=True, slots=True)
class Adopt(Edit):
    """Objects that somebody else wrote become part of the stream. ``owned``: we may delete them."""

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
    """The stream begins at ``head`` now."""

    kind = "truncate"
    head: Position


@dataclass(frozen=True, slots=True)
class LedgersDeleted(Edit):
    """These ledgers are gone from the stream: the only mark that makes segments deletable."""

    kind = "ledgers_deleted"
    ledger_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class HotReleased(Edit):
    """The hot copies of these ledgers may go; nothing in the cold tier becomes deletable."""

    kind = "hot_released"
    ledger_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class SetAside(Edit):
    """These ledgers of an accepted source contradict the manifest: they are never offloaded, released or deleted."""

    kind = "set_aside"
    ledger_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Retire(Edit):
    """These segments will be deleted after the grace period; readers don't see them any more."""

    kind = "retire"
    uuids: tuple[UUID, ...]


@dataclass(frozen=True, slots=True)
class Purged(Edit):
    """The objects of segments retired by record ``retire_record`` are deleted next. No way back."""

    kind = "purged"
    uuids: tuple[UUID, ...]
    retire_record: int


@dataclass(frozen=True, slots=True)
class UndoRetire(Edit):
    """Segments retired by record ``retire_record`` are back."""

    kind = "undo_retire"
    uuids: tuple[UUID, ...]
    retire_record: int


@dataclass(frozen=True, slots=True)
class Restore(Edit):
    """The stream begins at ``head`` again (``None``: as before), and these ledgers aren't gone from it after all."""

    kind = "restore"
    head: Position | None
    ledger_ids: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Rewrite(Edit):
    """A segment of entries that others hold already exists from now on; it counts only once it has replaced them."""

    kind = "rewrite"
    uuid: UUID
    layout: int
    begin: Position
    end: Position
    assigned_ms: int
    driver: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Rewritten:
    """A segment promised by ``rewrite`` whose objects are in the store, as ``summary`` says."""

    uuid: UUID
    summary: SegmentSummary


@dataclass(frozen=True, slots=True)
class Replace(Edit):
    """The segments ``by`` hold now what ``uuids`` held, entry by entry; those are retired and can't come back."""

    kind = "replace"
    uuids: tuple[UUID, ...]
    by: tuple[Rewritten, ...]
    offloaded_ms: int


@dataclass(frozen=True, slots=True)
class SetMethod(Edit):
    """How the stream is offloaded from here on: ``streaming``, ``ledger`` or ``none``."""

    kind = "set_method"
    method: str


@dataclass(frozen=True, slots=True)
class Pause(Edit):
    """Offloading stops until ``resume``."""

    kind = "pause"
    reason: str


@dataclass(frozen=True, slots=True)
class Resume(Edit):
    """Offloading goes on."""

    kind = "resume"


@dataclass(frozen=True, slots=True)
class Hold(Edit):
    """``on``: nothing of the stream is deleted until it is off again."""

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
#: Bytes of a record: those of a hundred thousand ledgers or segments; one more has to be two.
RECORD_BYTES_MAX = 16 * 1024 * 1024
#: Bytes of a boundary: three numbers.
BOUNDARY_BYTES_MAX = 4 * 1024
#: Bytes of a catalogue entry: a stream's name, escaped, a uuid and a time.
CATALOG_BYTES_MAX = 16 * 1024


@dataclass(frozen=True, slots=True)
class Writer:
    """Who wrote a record: a name for people, a URL where it can be asked (empty: none), a nonce of this record."""

    name: str
    url: str
    nonce: str


@dataclass(frozen=True, slots=True)
class Totals:
    """Sums over the committed segments after the record's edits, for people and as a check of the fold."""

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
    ``previous_nonce`` is that of the record before, so that a lost record whose number is created again is noticed;
    empty: there is none before, or an earlier release wrote this one.
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
    """Records below ``first_kept_id`` may be gone; the newest checkpoint is ``checkpoint_id`` (0: none).

    ``checkpoint_crc32c`` is of that checkpoint's object, which names the checksums of its runs: so a flipped bit
    anywhere in a manifest is noticed. Record ``newest_id`` certainly existed and has ``newest_nonce`` (0 and empty:
    nobody relied on one yet); nothing is destroyed on the word of a later one.
    """

    first_kept_id: int
    checkpoint_id: int
    checkpoint_crc32c: int = 0
    newest_id: int = field(default=0, metadata=ABSENT_BY_DEFAULT)
    newest_nonce: str = field(default="", metadata=ABSENT_BY_DEFAULT)


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """Says that a stream exists and which incarnation of it is the living one."""

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
