"""Manifest records and the edits in them: values <-> bytes.

Owns the JSON layout of a record, which is final and versioned. Must never decide whether an edit is allowed:
that is ``offloader.manifest.state``.
"""

from __future__ import annotations

import dataclasses
import json
import types
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, Union, cast, get_args, get_origin, get_type_hints
from uuid import UUID

from formats.checksum import crc32c
from formats.entries import Position
from formats.errors import BadMagic, ChecksumMismatch, FormatError, Inconsistent, Truncated, UnsupportedVersion
from formats.segment import SegmentSummary

__all__ = [
    "BOUNDARY_FORMAT",
    "CATALOG_FORMAT",
    "EDIT_KINDS",
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
    "Resume",
    "Retire",
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

_CRC_SUFFIX = b',"crc32c":"%08x"}'
_CRC_SUFFIX_BYTES = len(_CRC_SUFFIX % 0)


@dataclass(frozen=True, slots=True)
class Edit:
    """Base of everything a record can say happened."""

    kind: ClassVar[str]


@dataclass(frozen=True, slots=True)
class OpenEpoch(Edit):
    """A writer took the stream; lower epochs are fenced from here on."""

    kind = "open_epoch"
    epoch: int


@dataclass(frozen=True, slots=True)
class LedgerClosed(Edit):
    """A fact from the source: ``ledger_id`` ends at ``last_entry_id`` (-1: it is empty)."""

    kind = "ledger_closed"
    ledger_id: int
    last_entry_id: int


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
    """One numbered, immutable step of a stream's manifest."""

    record_id: int
    incarnation: UUID
    epoch: int
    writer: Writer
    time_ms: int
    edits: tuple[Edit, ...]
    totals: Totals


@dataclass(frozen=True, slots=True)
class Boundary:
    """Records below ``first_kept_id`` may be gone; they are folded into checkpoint ``checkpoint_id`` (0: none)."""

    first_kept_id: int
    checkpoint_id: int


@dataclass(frozen=True, slots=True)
class CatalogEntry:
    """Says that a stream exists and which incarnation of it is the living one."""

    stream: str
    incarnation: UUID
    created_ms: int


def encode_record(record: Record) -> bytes:
    """The bytes of a record; the same record always gives the same bytes."""
    body = cast("dict[str, Any]", _to_json(record))
    body["format"] = RECORD_FORMAT
    body["edits"] = [{"edit": edit.kind, **cast("dict[str, Any]", _to_json(edit))} for edit in record.edits]
    return _sealed(body)


def decode_record(data: bytes, *, object_name: str = "") -> Record:
    """The record in ``data``.

    Raises:
        FormatError: not a record, damaged, or written by a later release.
    """
    body = _opened(data, RECORD_FORMAT, object_name)
    edits = body.pop("edits", None)
    if not isinstance(edits, list):
        raise Inconsistent("edits are not a list", object_name=object_name, found=type(edits).__name__)
    body["edits"] = []
    record = _from_json(Record, body, object_name)
    return cast(Record, dataclasses.replace(record, edits=tuple(_edit(edit, object_name) for edit in edits)))


def encode_boundary(boundary: Boundary) -> bytes:
    """The bytes of a boundary object."""
    return _sealed({"format": BOUNDARY_FORMAT, **cast("dict[str, Any]", _to_json(boundary))})


def decode_boundary(data: bytes, *, object_name: str = "") -> Boundary:
    """The boundary in ``data``; raises ``FormatError``."""
    return cast(Boundary, _from_json(Boundary, _opened(data, BOUNDARY_FORMAT, object_name), object_name))


def encode_catalog_entry(entry: CatalogEntry) -> bytes:
    """The bytes of a catalogue entry."""
    return _sealed({"format": CATALOG_FORMAT, **cast("dict[str, Any]", _to_json(entry))})


def decode_catalog_entry(data: bytes, *, object_name: str = "") -> CatalogEntry:
    """The catalogue entry in ``data``; raises ``FormatError``."""
    return cast(CatalogEntry, _from_json(CatalogEntry, _opened(data, CATALOG_FORMAT, object_name), object_name))


def _edit(value: object, object_name: str) -> Edit:
    if not isinstance(value, dict):
        raise Inconsistent("an edit is not an object", object_name=object_name, found=type(value).__name__)
    fields = dict(value)
    name = fields.pop("edit", None)
    kind = EDIT_KINDS.get(name) if isinstance(name, str) else None
    if kind is None:
        raise UnsupportedVersion("unknown edit, written by a later release?", object_name=object_name, found=name)
    return cast(Edit, _from_json(kind, fields, object_name))


def _sealed(body: dict[str, Any]) -> bytes:
    text = json.dumps(body, separators=(",", ":"), sort_keys=True, ensure_ascii=False, allow_nan=False).encode()
    return text[:-1] + _CRC_SUFFIX % crc32c(text[:-1])


def _opened(data: bytes, version: int, object_name: str) -> dict[str, Any]:
    # The CRC stands at a fixed distance from the end and covers the raw bytes before it, so that checking it depends
    # on no JSON library writing the same text twice.
    if len(data) < _CRC_SUFFIX_BYTES + 1:
        raise Truncated("too short", object_name=object_name, expected=f"> {_CRC_SUFFIX_BYTES}", found=len(data))
    if data[:1] != b"{":
        raise BadMagic("not a JSON object", object_name=object_name, offset=0, expected="{", found=repr(data[:1]))
    body_bytes, suffix = data[:-_CRC_SUFFIX_BYTES], data[-_CRC_SUFFIX_BYTES:]
    expected = _CRC_SUFFIX % crc32c(body_bytes)
    if suffix != expected:
        raise ChecksumMismatch(
            "CRC-32C", object_name=object_name, offset=len(body_bytes), expected=repr(expected), found=repr(suffix)
        )
    try:
        body = json.loads(body_bytes + b"}")
    except (ValueError, RecursionError) as error:
        raise Inconsistent(f"not JSON: {error}", object_name=object_name) from error
    found = body.pop("format", None)
    if found != version or isinstance(found, bool):
        raise UnsupportedVersion("format", object_name=object_name, expected=version, found=found)
    return cast("dict[str, Any]", body)


def _to_json(value: object) -> object:
    if isinstance(value, Position):
        return [value.ledger_id, value.entry_id]
    if isinstance(value, UUID):
        return str(value)
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return {f.name: _to_json(getattr(value, f.name)) for f in dataclasses.fields(value)}
    if isinstance(value, tuple):
        return [_to_json(item) for item in value]
    if isinstance(value, Mapping):
        return {str(key): _to_json(item) for key, item in value.items()}
    if isinstance(value, int) and not isinstance(value, bool):
        return int(value)
    return value


def _from_json(kind: Any, value: object, object_name: str, path: str = "") -> Any:
    """``value`` as ``kind``; every mismatch is a ``FormatError`` that names the place."""
    origin = get_origin(kind)
    if origin in (Union, types.UnionType):
        if value is None:
            return None
        kind = next(option for option in get_args(kind) if option is not type(None))
        origin = get_origin(kind)
    if kind is Position:
        return _position(value, object_name, path)
    if dataclasses.is_dataclass(kind):
        return _dataclass(kind, value, object_name, path)
    if origin is tuple and isinstance(value, list):
        item = get_args(kind)[0]
        return tuple(_from_json(item, v, object_name, f"{path}[{i}]") for i, v in enumerate(value))
    if origin is Mapping and isinstance(value, dict) and all(isinstance(v, str) for v in value.values()):
        return value
    if kind is UUID and isinstance(value, str):
        try:
            return UUID(value)
        except ValueError as error:
            raise _mismatch("a UUID", value, object_name, path) from error
    if kind is Edit:
        return value
    if isinstance(kind, type) and _is_scalar(kind, value):
        try:
            return kind(value)
        except ValueError as error:  # a number that is no member of an enumeration
            raise _mismatch(kind.__name__, value, object_name, path) from error
    raise _mismatch(getattr(kind, "__name__", str(kind)), value, object_name, path)


def _is_scalar(kind: type, value: object) -> bool:
    if kind is bool or isinstance(value, bool):
        return kind is bool and isinstance(value, bool)
    if issubclass(kind, int):
        return isinstance(value, int) and abs(value) < 2**63
    return issubclass(kind, str) and isinstance(value, str)


def _dataclass(kind: Any, value: object, object_name: str, path: str) -> Any:
    if not isinstance(value, dict):
        raise _mismatch("an object", value, object_name, path)
    hints = get_type_hints(kind)
    names = [f.name for f in dataclasses.fields(kind)]
    unknown, missing = sorted(set(value) - set(names)), [name for name in names if name not in value]
    if unknown:
        raise UnsupportedVersion(f"unknown field {path}{unknown[0]}", object_name=object_name, expected=", ".join(names))
    if missing:
        raise Inconsistent(f"field {path}{missing[0]} is missing", object_name=object_name)
    return kind(**{name: _from_json(hints[name], value[name], object_name, f"{path}{name}.") for name in names})


def _position(value: object, object_name: str, path: str) -> Position:
    if (
        isinstance(value, list)
        and len(value) == 2
        and all(isinstance(v, int) and not isinstance(v, bool) and abs(v) < 2**63 for v in value)
    ):
        return Position(value[0], value[1])
    raise _mismatch("[ledger id, entry id]", value, object_name, path)


def _mismatch(expected: str, value: object, object_name: str, path: str) -> FormatError:
    return Inconsistent(f"field {path.rstrip('.')}", object_name=object_name, expected=expected, found=repr(value)[:60])
