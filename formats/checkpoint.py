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
from formats.checkpoint_ledgers import FILE_LEDGERS_MAX
from formats.checkpoint_parquet import FILE_ROWS_MAX, ROW_BYTES_MIN, decode_file, encode_columns
from formats.entries import Position
from formats.errors import Inconsistent, LimitExceeded
from formats.manifest import FACT_UNKNOWN, Gap, Totals, Writer
from formats.sealed_json import ABSENT_BY_DEFAULT, from_json, opened, sealed, to_json

__all__ = [
    "AssignedSegment",
    "AssigningEpoch",
    "Checkpoint",
    "KnownSource",
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
#: Bytes of the header. Most are dead rows, gaps, and segments that were replaced and aren't deleted yet.
HEADER_BYTES_MAX = 32 * 1024 * 1024
#: Ledgers in all runs together. A run of ledgers whose ids follow one another is small, however many there are.
LEDGERS_MAX = 8 * FILE_LEDGERS_MAX
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
    """What is known of a ledger; ``last_entry_id``: -1 empty, -2 not known to be closed; others: ``FACT_UNKNOWN``."""

    ledger_id: int
    last_entry_id: int
    flags: int
    payload_bytes: int = field(default=FACT_UNKNOWN, metadata=ABSENT_BY_DEFAULT)
    created_ms: int = field(default=FACT_UNKNOWN, metadata=ABSENT_BY_DEFAULT)


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownSource:
    """The ledger database that a stream's positions belong to.

    Attributes:
        uuid: of the database.
        token: of the newest start; the database has it.
        reserved: no ledger id up to here is given to a later start.
        reach: the newest position that the source had when its owner wrote last; ``None``: it was empty.
    """

    uuid: UUID
    token: str
    reserved: int
    reach: Position | None


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
        source: the ledger database that the stream's positions belong to; ``None``: none is known.
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
    source: KnownSource | None = field(default=None, metadata=ABSENT_BY_DEFAULT)
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
    """The checkpoint object; ``segments`` are those that are in no run.

    Raises:
        LimitExceeded: nobody could read it.
    """
    body = sealed({"format": CHECKPOINT_FORMAT, **to_json(header)}, bytes_max=HEADER_BYTES_MAX)
    _require_ledgers(header, "")
    return encode_columns(segments, {_HEADER_KEY: body})


def decode_checkpoint(data: bytes, *, object_name: str = "") -> tuple[Checkpoint, SegmentColumns]:
    """Header and segments of a checkpoint object; raises ``FormatError``."""
    metadata, segments = decode_file(data, object_name=object_name)
    body = metadata.get(_HEADER_KEY)
    if body is None:
        raise Inconsistent("no checkpoint header", object_name=object_name)
    found = opened(body, CHECKPOINT_FORMAT, object_name, bytes_max=HEADER_BYTES_MAX)
    header = cast(Checkpoint, from_json(Checkpoint, found, object_name))
    _require_runs(header, object_name)
    return header, segments()


def _require_runs(header: Checkpoint, object_name: str) -> None:
    """Refuses what room would be made for before the runs are read: rows that a run can't have, runs named twice."""
    runs = (*header.runs, *header.ledger_runs)
    for run in runs:
        if run_record_id(run.name) is None:
            raise Inconsistent("name of a run", object_name=object_name, found=ascii(run.name)[:80])
    if len({run.name for run in runs}) < len(runs):
        raise Inconsistent("names of runs", object_name=object_name, expected="each once")
    for run in header.runs:
        _require_rows(run, min(FILE_ROWS_MAX, run.object_bytes // ROW_BYTES_MIN), object_name)
    for run in header.ledger_runs:
        _require_rows(run, FILE_LEDGERS_MAX, object_name)
    _require_ledgers(header, object_name)


def _require_ledgers(header: Checkpoint, object_name: str) -> None:
    ledgers = sum(run.rows for run in header.ledger_runs)
    if ledgers > LEDGERS_MAX:
        raise LimitExceeded("ledgers", object_name=object_name, expected=f"at most {LEDGERS_MAX}", found=ledgers)


def _require_rows(run: RunRef, rows_max: int, object_name: str) -> None:
    if not 0 <= run.rows <= rows_max:
        raise LimitExceeded("rows of a run", object_name=object_name, expected=f"at most {rows_max}", found=run.rows)
    edges = [edge for each in run.dead for edge in (each.start, each.stop)]
    if edges != sorted(edges) or (edges and not 0 <= edges[0] <= edges[-1] <= run.rows):
        raise Inconsistent("dead rows of a run", object_name=object_name, expected=f"ascending, up to {run.rows}")
