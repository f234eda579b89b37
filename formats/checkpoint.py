"""Manifest checkpoints: the header file that names a manifest's runs, and its ledgers in columns."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast
from uuid import UUID

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from formats.checked_json import ABSENT_BY_DEFAULT, CheckedDocument
from formats.checkpoint_parquet import (
    FILE_ROWS_MAX,
    FORMAT_KEY,
    ROW_BYTES_MIN,
    SegmentColumns,
    columns_in,
    encode_columns,
    open_columns,
    open_parquet,
)
from formats.entries import Position
from formats.errors import InconsistentError, located, require_at_most, require_equal
from formats.manifest import FACT_UNKNOWN, Gap, GapFilled, Totals, Writer

#: ``last_entry_id`` of a ledger that isn't known to be closed.
LAST_UNKNOWN = -2
#: Bits of ``flags``.
DELETED = 1
HOT_RELEASED = 2
#: Of an accepted source whose ledger contradicts the manifest: its hot copy remains untouched.
ASIDE = 4

_FORMAT = b"1"
#: Maximum ledgers of one file: runs are merged as long as eight of them together are below it.
FILE_LEDGERS_MAX = 2_097_152
#: Rows of a Parquet row group.
GROUP_LEDGERS_MAX = 1_048_576
#: Rows that are processed together.
_BATCH_ROWS = 65_536
_SCHEMA = pa.schema(
    [
        pa.field("ledger_id", pa.int64(), nullable=False),
        pa.field("last_entry_id", pa.int64(), nullable=False),
        pa.field("flags", pa.uint8(), nullable=False),
    ],
    metadata={FORMAT_KEY: _FORMAT},
)
#: Optional columns, present only if any ledger of the file has such a fact: earlier releases read the others.
_FACTS = ("payload_bytes", "created_ms")
_SCHEMA_WITH_FACTS = pa.schema(
    [*_SCHEMA, *(pa.field(name, pa.int64(), nullable=False) for name in _FACTS)], metadata={FORMAT_KEY: _FORMAT}
)


@dataclass(frozen=True, slots=True, eq=False, kw_only=True)
class LedgerColumns:
    """n ledgers, ascending; every column has shape (n,).

    Attributes:
        ledger_id: int64.
        last_entry_id: int64; -1 the ledger is empty, ``LAST_UNKNOWN`` it isn't recorded as closed.
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
        names = _SCHEMA_WITH_FACTS.names
        return cls(**{name: np.concatenate([getattr(part, name) for part in parts])[newest] for name in names})


def encode_ledgers(ledgers: LedgerColumns) -> bytes:
    """A Parquet file of ledger facts.

    Raises:
        LimitExceededError: it is too large to be read.
    """
    import pyarrow.parquet as pq

    require_at_most("rows", len(ledgers), FILE_LEDGERS_MAX)
    schema = _SCHEMA_WITH_FACTS if any((getattr(ledgers, name) != FACT_UNKNOWN).any() for name in _FACTS) else _SCHEMA
    arrays = [pa.array(getattr(ledgers, name), type=schema.field(name).type) for name in schema.names]
    sink = pa.BufferOutputStream()
    pq.write_table(
        pa.Table.from_arrays(arrays, schema=schema),
        sink,
        use_dictionary=["flags"],
        column_encoding={name: "DELTA_BINARY_PACKED" for name in schema.names if name != "flags"},
        compression="ZSTD",
        row_group_size=GROUP_LEDGERS_MAX,
    )
    return cast(bytes, sink.getvalue().to_pybytes())


def decode_ledgers(data: bytes, *, object_name: str = "") -> LedgerColumns:
    """The ledger facts in a Parquet file of ``encode_ledgers``; raises ``FormatError``."""
    with located(object_name):
        file = open_parquet(data, FILE_LEDGERS_MAX, _FORMAT, [_SCHEMA, _SCHEMA_WITH_FACTS])
        rows = file.metadata.num_rows
        columns: dict[str, NDArray[Any]] = {
            "ledger_id": np.empty(rows, np.int64),
            "last_entry_id": np.empty(rows, np.int64),
            "flags": np.empty(rows, np.uint8),
            **{name: np.full(rows, FACT_UNKNOWN, np.int64) for name in _FACTS},
        }
        try:
            start = 0
            for batch in file.iter_batches(batch_size=_BATCH_ROWS, use_threads=False):
                for name in batch.schema.names:
                    columns[name][start : start + batch.num_rows] = batch.column(name).to_numpy()
                start += batch.num_rows
            require_equal("rows", start, rows)
        except (pa.ArrowException, OSError, ValueError, TypeError) as error:
            raise InconsistentError(f"not a table of ledgers: {error}") from error
        ids = columns["ledger_id"]
        if (ids[1:] <= ids[:-1]).any():
            raise InconsistentError("ledgers", expected="ascending ids")
        return LedgerColumns(**columns)


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

    ``ledger_id`` is in the keys of a V1 segment, ``None`` for V2; ``object_bytes`` are of both objects.
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
class Checkpoint(CheckedDocument):
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
        fills: objects with entries of gaps, ascending. Earlier releases refuse a checkpoint that has any.
    """

    bytes_max = HEADER_BYTES_MAX
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
    fills: tuple[GapFilled, ...] = field(default=(), metadata=ABSENT_BY_DEFAULT)


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
        LimitExceededError: it is too large to be read.
    """
    body = header.encode()
    _require_ledgers(header)
    return encode_columns(segments, {_HEADER_KEY: body})


def decode_checkpoint(data: bytes, *, object_name: str = "") -> tuple[Checkpoint, SegmentColumns]:
    """Header and segments of a checkpoint object; raises ``FormatError``."""
    with located(object_name):
        file, metadata = open_columns(data)
        body = metadata.get(_HEADER_KEY)
        if body is None:
            raise InconsistentError("no checkpoint header")
        header = Checkpoint.decode(body)
        _require_runs(header)
        return header, columns_in(file, metadata)


def _require_runs(header: Checkpoint) -> None:
    """Checks runs before memory is allocated for them: impossible row counts, and runs named twice."""
    runs = (*header.runs, *header.ledger_runs)
    for run in runs:
        if run_record_id(run.name) is None:
            raise InconsistentError("name of a run", found=ascii(run.name)[:80])
    if len({run.name for run in runs}) < len(runs):
        raise InconsistentError("names of runs", expected="each once")
    for run in header.runs:
        _require_rows(run, min(FILE_ROWS_MAX, run.object_bytes // ROW_BYTES_MIN))
    for run in header.ledger_runs:
        _require_rows(run, FILE_LEDGERS_MAX)
    _require_ledgers(header)


def _require_ledgers(header: Checkpoint) -> None:
    require_at_most("ledgers", sum(run.rows for run in header.ledger_runs), LEDGERS_MAX)


def _require_rows(run: RunRef, rows_max: int) -> None:
    require_at_most("rows of a run", run.rows, rows_max)
    edges = [edge for each in run.dead for edge in (each.start, each.stop)]
    if edges != sorted(edges) or (edges and not 0 <= edges[0] <= edges[-1] <= run.rows):
        raise InconsistentError("dead rows of a run", expected=f"ascending, up to {run.rows}")
