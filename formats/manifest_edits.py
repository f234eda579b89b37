"""What a manifest record can say happened, one value for each kind of edit.

Owns the kinds and their fields, which are part of the record format. Must never decide whether an edit is allowed:
that is ``offloader.manifest.apply``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import ClassVar
from uuid import UUID

from formats.entries import Position
from formats.sealed_json import ABSENT_BY_DEFAULT
from formats.segment import SegmentSummary

__all__ = [
    "EDIT_KINDS",
    "FACT_UNKNOWN",
    "Adopt",
    "Assign",
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
    "Truncate",
    "UndoRetire",
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
