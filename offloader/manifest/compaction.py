"""Compaction of segments and facts into immutable runs, and the content of checkpoints. Does no I/O."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, fields, replace

import numpy as np

from formats.checkpoint import (
    Checkpoint,
    LedgerColumns,
    LedgerRow,
    RowRange,
    RunRef,
    encode_checkpoint,
    encode_ledgers,
    run_name,
)
from formats.checkpoint_parquet import SegmentColumns, encode_columns
from formats.checksum import crc32c
from offloader.coverage import runs_of
from offloader.manifest.ledger_table import LedgerFact, LedgerTable, SealedLedgers
from offloader.manifest.segment_table import (
    NO_ROWS,
    Rows,
    SealedSegments,
    SegmentStatus,
    SegmentTable,
    assigned_of,
    assigned_record,
    columns_of,
)
from offloader.manifest.state import ManifestState, SegmentSums

#: Smaller parts remain in the checkpoint itself and are written again with the next one.
RUN_ROWS_MIN = 4096
#: Number of runs of similar size that are merged into one of the next size.
MERGED_RUNS = 8
#: Merges of a row; after them its run is never merged again, so a row is written three times in all.
MERGES_MAX = 2
#: Fields of a view that its checkpoint has under the same names.
_SAME_FIELDS = {each.name for each in fields(ManifestState)} & {each.name for each in fields(Checkpoint)} - {"ledgers"}


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckpointPlan:
    """Objects to write for a checkpoint, in this order.

    Attributes:
        state: an equal view with the runs' names in it.
    """

    state: ManifestState
    runs: Sequence[tuple[str, bytes]]
    body: bytes
    crc32c: int


def compacted(state: ManifestState, *, run_rows_min: int = RUN_ROWS_MIN) -> ManifestState:
    """An equal view with its small parts merged.

    Args:
        run_rows_min: minimum rows of a separate run.
    """
    return replace(
        state,
        segments=_compacted_segments(state.segments, run_rows_min),
        ledgers=_compacted_ledgers(state.ledgers, run_rows_min),
    )


def plan_checkpoint(
    state: ManifestState, nonce: Callable[[], int], *, run_rows_min: int = RUN_ROWS_MIN, base_crc32c: int = 0
) -> CheckpointPlan:
    """Plans a checkpoint of ``state``.

    Args:
        nonce: 64 random bits for the name of each run.
        run_rows_min: as for ``compacted``.
        base_crc32c: of the object of checkpoint ``state.checkpoint_id``.
    """
    state = compacted(state, run_rows_min=run_rows_min)
    new: list[tuple[str, bytes]] = []

    def run_of(content: str, rows: int, body: bytes) -> RunRef:
        name = run_name(state.record_id, nonce(), content)
        new.append((name, body))
        return RunRef(name=name, rows=rows, object_bytes=len(body), crc32c=crc32c(body))

    loose = [part for part in state.segments.sealed if part.run is None and len(part) < run_rows_min]
    sealed = [
        part
        if part.run is not None
        else replace(part, run=run_of("segments", len(part.columns), encode_columns(part.columns, {})))
        for part in state.segments.sealed
        if part.run is not None or len(part) >= run_rows_min
    ]
    ledgers = tuple(
        facts
        if facts.run is not None
        else SealedLedgers(facts.columns, run_of("ledgers", len(facts.columns), encode_ledgers(facts.columns)))
        for facts in state.ledgers.sealed
    )
    header = Checkpoint(
        base_id=state.checkpoint_id,
        base_crc32c=base_crc32c,
        totals=state.totals(),
        committed_end=state.committed,
        assigned=tuple(map(assigned_of, state.assigned())),
        runs=tuple(map(_with_dead, sealed)),
        ledger_runs=tuple(facts.run for facts in ledgers if facts.run is not None),
        ledgers=tuple(LedgerRow(ledger_id, *fact) for ledger_id, fact in sorted(state.ledgers.tail.items())),
        **{name: getattr(state, name) for name in _SAME_FIELDS},
    )
    own = [_live(part) for part in loose]
    body = encode_checkpoint(header, SegmentColumns.concatenated(own) if own else columns_of([]))
    after = replace(
        state,
        segments=SegmentTable((*sealed, *loose), state.segments.tail, state.segments.order),
        ledgers=LedgerTable(ledgers, state.ledgers.tail),
        checkpoint_id=state.record_id,
    )
    return CheckpointPlan(state=after, runs=new, body=body, crc32c=crc32c(body))


def restored(
    stream: str,
    header: Checkpoint,
    own: SegmentColumns,
    runs: Sequence[SegmentColumns],
    ledger_runs: Sequence[LedgerColumns],
) -> ManifestState:
    """The view that a checkpoint holds.

    Args:
        runs, ledger_runs: of each run that the header names, in its order.
    """
    sealed = [SealedSegments(c, _rows_of(ref), ref) for c, ref in zip(runs, header.runs, strict=True)]
    if len(own):
        sealed.append(SealedSegments(own))
    facts = {
        row.ledger_id: LedgerFact(row.last_entry_id, row.flags, row.payload_bytes, row.created_ms)
        for row in header.ledgers
    }
    totals = header.totals
    return ManifestState(
        stream=stream,
        checkpoint_id=header.record_id,
        segments=SegmentTable(tuple(sealed), {each.uuid: assigned_record(each) for each in header.assigned}),
        ledgers=LedgerTable(tuple(map(SealedLedgers, ledger_runs, header.ledger_runs)), facts),
        sums=SegmentSums(totals.segments, totals.entries, totals.payload_bytes, totals.object_bytes),
        committed=header.committed_end,
        **{name: getattr(header, name) for name in _SAME_FIELDS},
    )


def _compacted_segments(table: SegmentTable, run_rows_min: int) -> SegmentTable:
    sealed: list[SealedSegments] = []
    loose: list[SegmentColumns] = []
    for part in table.sealed:
        is_small, is_mostly_dead = len(part) < run_rows_min, 2 * len(part.dead) > len(part.columns)
        if is_small and (part.run is None or is_mostly_dead):
            loose.append(_live(part))
        else:  # a run that is mostly tombstoned is rewritten without those rows
            sealed.append(SealedSegments(_live(part)) if is_mostly_dead else part)
    kept = {uuid: record for uuid, record in table.tail.items() if record.status is SegmentStatus.ASSIGNED}
    settled = [record for _, uuid in table.order if (record := table.tail[uuid]).status is not SegmentStatus.ASSIGNED]
    columns = SegmentColumns.concatenated([*loose, columns_of(settled)])
    if len(columns) >= run_rows_min:
        sealed.append(SealedSegments(columns))
        columns = columns.take(NO_ROWS)
    while (start := _merge_from([len(part) for part in sealed], run_rows_min)) is not None:
        sealed[start:] = [SealedSegments(SegmentColumns.concatenated([_live(part) for part in sealed[start:]]))]
    if len(columns):
        sealed.append(SealedSegments(columns))
    return SegmentTable(tuple(sealed), kept)


def _compacted_ledgers(table: LedgerTable, run_rows_min: int) -> LedgerTable:
    sealed, tail = list(table.sealed), table.tail
    if len(tail) >= run_rows_min:
        sealed.append(SealedLedgers(table.tail_columns()))
        tail = {}
    while (start := _merge_from([len(facts.columns) for facts in sealed], run_rows_min)) is not None:
        sealed[start:] = [SealedLedgers(LedgerColumns.merged([facts.columns for facts in sealed[start:]]))]
    return LedgerTable(tuple(sealed), tail)


def _merge_from(rows: Sequence[int], run_rows_min: int) -> int | None:
    """The first run to merge with all later ones, given their rows from oldest to newest; ``None``: no merge now."""
    for merges in range(1, MERGES_MAX + 1):
        limit = run_rows_min * MERGED_RUNS**merges
        small = next((count for count, size in enumerate(reversed(rows)) if size >= limit), len(rows))
        if small >= MERGED_RUNS:
            return len(rows) - small
    return None


def _live(part: SealedSegments) -> SegmentColumns:
    return part.columns.take(part.live_rows(0, len(part.columns))) if len(part.dead) else part.columns


def _with_dead(part: SealedSegments) -> RunRef:
    assert part.run is not None
    return replace(part.run, dead=tuple(RowRange(first, last + 1) for first, last in runs_of(part.dead)))


def _rows_of(run: RunRef) -> Rows:
    return np.concatenate([NO_ROWS, *(np.arange(each.start, each.stop, dtype=np.int64) for each in run.dead)])
