"""A manifest's checkpoint: everything that its records add up to, as one Parquet file that names sealed runs.

Owns the checkpoint's header and the names of runs. Must never decide what is sealed, nor fold a record.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import cast
from uuid import UUID

from formats.checkpoint_columns import SegmentColumns
from formats.checkpoint_parquet import decode_file, encode_columns
from formats.entries import Position
from formats.errors import Inconsistent
from formats.manifest import Gap, Totals, Writer
from formats.sealed_json import ABSENT_BY_DEFAULT, from_json, opened, sealed, to_json

__all__ = [
    "AssignedSegment",
    "AssigningEpoch",
    "Checkpoint",
    "LedgerRow",
    "ReplacedSegment",
    "RowRange",
    "RunRef",
    "decode_checkpoint",
    "encode_checkpoint",
    "run_name",
    "run_record_id",
]

CHECKPOINT_FORMAT = 1
_HEADER_KEY = b"offloader.checkpoint"
_RUN_NAME = re.compile(r"([0-9]{20})-([0-9a-f]{16})\.(segments|ledgers)\.parquet")


@dataclass(frozen=True, slots=True)
class RowRange:
    """Rows ``start`` (included) to ``stop`` (excluded)."""

    start: int
    stop: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRef:
    """A sealed run: an immutable object of segments or of ledgers beside the checkpoint.

    Attributes:
        name: of the object, below the manifest's prefix; see ``run_name``.
        rows: how many it has.
        object_bytes, crc32c: of the object.
        dead: rows that don't count any more: removed, or newer in the checkpoint or in a later run.
    """

    name: str
    rows: int
    object_bytes: int
    crc32c: int
    dead: tuple[RowRange, ...] = ()


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """What is known of a ledger; ``last_entry_id``: -1 empty, -2 not known to be closed."""

    ledger_id: int
    last_entry_id: int
    flags: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignedSegment:
    """A segment that is promised and not there yet."""

    uuid: UUID
    epoch: int
    layout: int
    begin: Position
    end: Position | None
    assigned_ms: int
    driver: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplacedSegment:
    """A segment whose entries are in others since record ``retire_record``; its objects are deleted after the grace.

    Attributes:
        ledger_id: in the keys of a V1 segment; ``None`` for V2.
        object_bytes: of both objects.
    """

    uuid: UUID
    ledger_id: int | None
    retire_record: int
    object_bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class AssigningEpoch:
    """An epoch that assigned segments: the nonce of the record that opened it, and the newest record that assigned."""

    nonce: str
    record_id: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Checkpoint:
    """The header of a checkpoint: all of a manifest's view but the segments in columns.

    Attributes:
        record_id: the newest record in it.
        base_id: the checkpoint it was built upon, 0 for none.
        owner: who opened the current epoch.
        writer, time_ms: of record ``record_id``.
        runs, ledger_runs: sealed runs of segments, and of ledgers from the oldest to the newest.
        ledgers: newer than the ledger runs.
        assigned: segments without objects.
        rewrites: likewise, but of entries that others hold.
        replaced: segments whose entries are in others, and whose objects aren't deleted yet.
        committed_from: where the run begins that ends at ``committed_end``, while ranges in front of it aren't all
            there; ``None``: with the first range there is.
        assigning: the epochs that assigned segments, from the oldest on.
        base_crc32c: of the checkpoint it was built upon; 0: not known.
    """

    record_id: int
    base_id: int
    incarnation: UUID
    epoch: int
    owner: Writer
    writer: Writer
    time_ms: int
    totals: Totals
    committed_end: Position | None
    newest_end: Position | None
    head: Position | None
    method: str
    paused: bool
    held: bool
    stream_deleted: bool
    gaps: tuple[Gap, ...]
    assigned: tuple[AssignedSegment, ...]
    rewrites: tuple[AssignedSegment, ...]
    replaced: tuple[ReplacedSegment, ...]
    runs: tuple[RunRef, ...]
    ledger_runs: tuple[RunRef, ...]
    ledgers: tuple[LedgerRow, ...]
    committed_from: Position | None = field(default=None, metadata=ABSENT_BY_DEFAULT)
    assigning: tuple[AssigningEpoch, ...] = field(default=(), metadata=ABSENT_BY_DEFAULT)
    base_crc32c: int = field(default=0, metadata=ABSENT_BY_DEFAULT)


def run_name(record_id: int, nonce: int, content: str) -> str:
    """Name of a run sealed at record ``record_id``.

    Two checkpointers at once never share one: ``nonce`` is 64 random bits. ``content``: ``segments`` or ``ledgers``.
    """
    return f"{record_id:020d}-{nonce:016x}.{content}.parquet"


def run_record_id(name: str) -> int | None:
    """The record at which a run was sealed; ``None`` when ``name`` isn't a run's."""
    match = _RUN_NAME.fullmatch(name)
    return None if match is None else int(match[1])


def encode_checkpoint(header: Checkpoint, segments: SegmentColumns) -> bytes:
    """The checkpoint object; ``segments`` are those that are in no run."""
    return encode_columns(segments, {_HEADER_KEY: sealed({"format": CHECKPOINT_FORMAT, **to_json(header)})})


def decode_checkpoint(data: bytes, *, object_name: str = "") -> tuple[Checkpoint, SegmentColumns]:
    """Header and segments of a checkpoint object; raises ``FormatError``."""
    metadata, segments = decode_file(data, object_name=object_name)
    body = metadata.get(_HEADER_KEY)
    if body is None:
        raise Inconsistent("no checkpoint header", object_name=object_name)
    header = cast(Checkpoint, from_json(Checkpoint, opened(body, CHECKPOINT_FORMAT, object_name), object_name))
    for run in (*header.runs, *header.ledger_runs):
        if run_record_id(run.name) is None:
            raise Inconsistent("name of a run", object_name=object_name, found=ascii(run.name)[:80])
    return header, segments()
