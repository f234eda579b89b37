"""Manifest records, boundary and catalogue entry: values <-> bytes.

Owns their JSON layouts, which are final and versioned. Must never decide whether an edit is allowed: that is
``offloader.manifest.apply``.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import cast
from uuid import UUID

from formats.entries import Position
from formats.errors import Inconsistent, UnsupportedVersion
from formats.manifest_edits import (
    EDIT_KINDS,
    FACT_UNKNOWN,
    Adopt,
    Assign,
    Edit,
    Failed,
    Gap,
    Hold,
    HotReleased,
    LedgerClosed,
    LedgersDeleted,
    Offloaded,
    OpenEpoch,
    Pause,
    Purged,
    Release,
    Replace,
    ReserveLedgers,
    Restore,
    Resume,
    Retire,
    Rewrite,
    Rewritten,
    SetAside,
    SetMethod,
    StreamDeleted,
    Truncate,
    UndoRetire,
)
from formats.sealed_json import ABSENT_BY_DEFAULT, from_json, opened, sealed, to_json

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
