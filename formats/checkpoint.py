"""Manifest checkpoints: the header file that names a manifest's runs, and its ledgers in columns."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast
from uuid import UUID

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from formats.checked_json import ABSENT_BY_DEFAULT, from_json, opened, sealed, to_json
from formats.checkpoint_parquet import (
    FILE_ROWS_MAX,
    ROW_BYTES_MIN,
    ColumnLimits,
    SegmentColumns,
    decode_file,
    encode_columns,
    require_sizes,
)
from formats.entries import Position
from formats.errors import Inconsistent, LimitExceeded, UnsupportedVersion
from formats.manifest import FACT_UNKNOWN, Gap, Totals, Writer

__all__ = [
    "ASIDE",
    "DELETED",
    "FILE_LEDGERS_MAX",
    "HOT_RELEASED",
    "LAST_UNKNOWN",
    "AssignedSegment",
    "AssigningEpoch",
    "Checkpoint",
    "KnownSource",
    "LedgerColumns",
    "LedgerRow",
    "ReplacedSegment",
    "RowRange",
    "RunRef",
    "decode_checkpoint",
    "decode_ledgers",
    "encode_checkpoint",
    "encode_ledgers",
    "run_name",
    "run_record_id",
]

#: ``last_entry_id`` of a ledger that isn't known to be closed.
LAST_UNKNOWN = -2
#: Bits of ``flags``.
DELETED = 1
HOT_RELEASED = 2
#: Of an accepted source whose ledger contradicts the manifest: its hot copy stays untouched.
ASIDE = 4

_FORMAT_KEY, _FORMAT = b"offloader.format", b"1"
#: Most ledgers of one file: runs are merged as long as eight of them together stay below it.
FILE_LEDGERS_MAX = 2_097_152
#: Rows of a Parquet row group.
GROUP_LEDGERS_MAX = 1_048_576
#: Rows that are processed at once.
_BATCH_ROWS = 65_536
#: A page ends at 1 MiB, plus the last values added to it.
PAGE_BYTES_MAX = 2 * 1024 * 1024
_SCHEMA = pa.schema(
    [
        pa.field("ledger_id", pa.int64(), nullable=False),
        pa.field("last_entry_id", pa.int64(), nullable=False),
        pa.field("flags", pa.uint8(), nullable=False),
    ],
    metadata={_FORMAT_KEY: _FORMAT},
)
#: Optional columns, present only if any ledger of the file has such a fact: earlier releases read the others.
_FACTS = ("payload_bytes", "created_ms")
_SCHEMA_WITH_FACTS = pa.schema(
    [*_SCHEMA, *(pa.field(name, pa.int64(), nullable=False) for name in _FACTS)], metadata={_FORMAT_KEY: _FORMAT}
)

_LIMITS = ColumnLimits(
    columns=(len(_SCHEMA), len(_SCHEMA_WITH_FACTS)),
    rows_max=FILE_LEDGERS_MAX,
    group_rows_max=GROUP_LEDGERS_MAX,
    page_bytes_max=PAGE_BYTES_MAX,
)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class LedgerColumns:
    """n ledgers, ascending; every column has shape (n,).

    Attributes:
        ledger_id: int64.
        last_entry_id: int64; -1 the ledger is empty, ``LAST_UNKNOWN`` it isn't known to be closed.
        flags: uint8, of ``DELETED``, ``HOT_RELEASED`` and ``ASIDE``.
        payload_bytes, created_ms: int64, ``FACT_UNKNOWN`` if not reported by the source.
    """

    ledger_id: NDArray[np.int64]
    last_entry_id: NDArray[np.int64]
    flags: NDArray[np.uint8]
    payload_bytes: NDArray[np.int64]
    created_ms: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.ledger_id)

    @classmethod
    def merged(cls, parts: Sequence[LedgerColumns]) -> LedgerColumns:
        """The ledgers of all parts; of a ledger in several, the last part's facts."""
        ids = np.concatenate([part.ledger_id for part in parts])
        # A stable sort keeps the order of the parts within a ledger: the last row of each is the newest.
        order = np.argsort(ids, kind="stable")
        ids = ids[order]
        newest = order[np.append(ids[1:] != ids[:-1], True)] if len(ids) else order
        return cls(
            ledger_id=np.concatenate([part.ledger_id for part in parts])[newest],
            last_entry_id=np.concatenate([part.last_entry_id for part in parts])[newest],
            flags=np.concatenate([part.flags for part in parts])[newest],
            payload_bytes=np.concatenate([part.payload_bytes for part in parts])[newest],
            created_ms=np.concatenate([part.created_ms for part in parts])[newest],
        )

    @property
    def has_facts(self) -> bool:
        """Whether any source reported more than where its ledger ends."""
        return bool((self.payload_bytes != FACT_UNKNOWN).any() or (self.created_ms != FACT_UNKNOWN).any())


def encode_ledgers(ledgers: LedgerColumns) -> bytes:
    """A Parquet file of ledger facts.

    Raises:
        LimitExceeded: it is too large to be read.
    """
    schema = _SCHEMA_WITH_FACTS if ledgers.has_facts else _SCHEMA
    arrays = [pa.array(getattr(ledgers, name), type=schema.field(name).type) for name in schema.names]
    sink = pa.BufferOutputStream()
    wide = [name for name in schema.names if name != "flags"]
    pq.write_table(
        pa.Table.from_arrays(arrays, schema=schema),
        sink,
        use_dictionary=["flags"],
        column_encoding=dict.fromkeys(wide, "DELTA_BINARY_PACKED"),
        compression="ZSTD",
        row_group_size=GROUP_LEDGERS_MAX,
    )
    body = cast(bytes, sink.getvalue().to_pybytes())
    require_sizes(body, _LIMITS)
    return body


def decode_ledgers(data: bytes, *, object_name: str = "") -> LedgerColumns:
    """The ledger facts in a Parquet file of ``encode_ledgers``; raises ``FormatError``."""
    rows = require_sizes(data, _LIMITS, object_name=object_name)
    columns: dict[str, NDArray[Any]] = {
        "ledger_id": np.empty(rows, np.int64),
        "last_entry_id": np.empty(rows, np.int64),
        "flags": np.empty(rows, np.uint8),
        **{name: np.full(rows, FACT_UNKNOWN, np.int64) for name in _FACTS},
    }
    try:
        file = pq.ParquetFile(pa.BufferReader(data))
        found = (file.schema_arrow.metadata or {}).get(_FORMAT_KEY)
        if found != _FORMAT:
            raise UnsupportedVersion("format", object_name=object_name, expected=_FORMAT, found=found)
        if not any(map(file.schema_arrow.equals, (_SCHEMA, _SCHEMA_WITH_FACTS))):
            raise Inconsistent("columns", object_name=object_name, expected=_SCHEMA.names, found=file.schema_arrow)
        start = 0
        for batch in file.iter_batches(batch_size=_BATCH_ROWS, use_threads=False):
            for name in batch.schema.names:
                columns[name][start : start + batch.num_rows] = batch.column(name).to_numpy()
            start += batch.num_rows
        if start != rows:
            raise Inconsistent("rows", object_name=object_name, expected=rows, found=start)
    except (pa.ArrowException, OSError, ValueError, TypeError) as error:
        raise Inconsistent(f"not a table of ledgers: {error}", object_name=object_name) from error
    ids = columns["ledger_id"]
    if (ids[1:] <= ids[:-1]).any():
        raise Inconsistent("ledgers", object_name=object_name, expected="ascending ids")
    return LedgerColumns(**columns)


CHECKPOINT_FORMAT = 1
#: Limit of the header. Most of it is tombstoned rows, gaps, and replaced segments that aren't deleted yet.
HEADER_BYTES_MAX = 32 * 1024 * 1024
#: Ledgers in all runs together. A run of consecutive ledger ids is small, however many there are.
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
    """An immutable object of segments or of ledgers beside the checkpoint.

    Attributes:
        name: of the object, below the manifest's prefix; see ``run_name``.
        rows: how many it has.
        object_bytes, crc32c: of the object.
        dead: tombstoned rows: removed, or newer in the checkpoint or in a later run.
    """

    name: str
    rows: int
    object_bytes: int
    crc32c: int
    dead: tuple[RowRange, ...] = ()


@dataclass(frozen=True, slots=True)
class LedgerRow:
    """Facts of a ledger; ``last_entry_id``: -1 empty, -2 not known to be closed; others: ``FACT_UNKNOWN``."""

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
        reserved: later starts get ledger ids above this one.
        reach: the newest position that the source had when its owner wrote last; ``None``: it was empty.
    """

    uuid: UUID
    token: str
    reserved: int
    reach: Position | None


@dataclass(frozen=True, slots=True, kw_only=True)
class AssignedSegment:
    """A segment that is assigned and not offloaded yet."""

    uuid: UUID
    epoch: int
    layout: int
    begin: Position
    end: Position | None
    assigned_ms: int
    driver: Mapping[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplacedSegment:
    """A segment that record ``retire_record`` replaced by others; its objects are deleted after the grace period.

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
        owner: the writer that opened the current epoch.
        writer, time_ms: of record ``record_id``.
        runs, ledger_runs: runs of segments, and of ledgers from the oldest to the newest.
        ledgers: newer than the ledger runs.
        assigned: segments without objects.
        rewrites: likewise, but of entries that others hold.
        replaced: segments whose entries are in others, and whose objects aren't deleted yet.
        committed_from: where the run begins that ends at ``committed_end``, while ranges in front of it are incomplete;
            ``None``: with the first range.
        source: the ledger database that the stream's positions belong to; ``None`` if unknown.
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
    """Name of a run written at record ``record_id``.

    ``nonce``, 64 random bits, keeps concurrent checkpointers' names distinct. ``content``: ``segments`` or ``ledgers``.
    """
    return f"{record_id:020d}-{nonce:016x}.{content}.parquet"


def run_record_id(name: str) -> int | None:
    """The record at which a run was written; ``None`` when ``name`` isn't a run's."""
    match = _RUN_NAME.fullmatch(name)
    return None if match is None else int(match[1])


def encode_checkpoint(header: Checkpoint, segments: SegmentColumns) -> bytes:
    """The checkpoint object; ``segments`` are those that are in no run.

    Raises:
        LimitExceeded: it is too large to be read.
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
    """Checks runs before memory is allocated for them: impossible row counts, and runs named twice."""
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
