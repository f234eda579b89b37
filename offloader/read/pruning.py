"""Selects runs of entries that a filter may match, by their positions and publish times. Does no I/O.

Arrow decides: each run becomes a fragment whose partition expression states the known facts, and Arrow returns the
fragments that can satisfy the filter. A filter that Arrow cannot simplify keeps every run. So pruning never drops a
matching entry; the caller evaluates the filter on the entries of the kept runs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.dataset as ds
from pyarrow.fs import LocalFileSystem

from formats.entries import TIME_UNKNOWN_MS
from offloader.read.ranges import Run

#: Runs that are tested together first: only the members of a matching group are tested one by one.
GROUP_RUNS = 64
#: Columns whose values are known for a run.
PRUNED_COLUMNS = ("stream", "ledger_id", "entry_id", "publish_time")
_TIME = pa.timestamp("ms", tz="UTC")


@dataclass(frozen=True, slots=True)
class Pruner:
    """The filter of a scan over the entries of one stream.

    Args:
        schema: of the entries, with all ``PRUNED_COLUMNS``.
    """

    stream: str
    filter: pc.Expression
    schema: pa.Schema

    def may_match(self, runs: Sequence[Run]) -> list[bool]:
        """For each run, whether the filter may match one of its entries."""
        if not any(name in str(self.filter) for name in PRUNED_COLUMNS):
            return [True] * len(runs)
        starts = range(0, len(runs), GROUP_RUNS)
        groups = self._test([_hull(runs[start : start + GROUP_RUNS]) for start in starts])
        chosen = [
            number
            for start, is_kept in zip(starts, groups, strict=True)
            if is_kept
            for number in range(start, min(start + GROUP_RUNS, len(runs)))
        ]
        found = dict(zip(chosen, self._test([runs[number] for number in chosen]), strict=True))
        return [found.get(number, False) for number in range(len(runs))]

    def _test(self, runs: Sequence[Run]) -> list[bool]:
        if not runs:
            return []
        # The paths only number the fragments: a file is opened when a fragment is read, which never happens here.
        fragments = ds.FileSystemDataset.from_paths(
            [str(number) for number in range(len(runs))],
            schema=self.schema,
            format=ds.IpcFileFormat(),
            filesystem=LocalFileSystem(),
            partitions=[self._facts(run) for run in runs],
        )
        kept = {int(fragment.path) for fragment in fragments.get_fragments(filter=self.filter)}
        return [number in kept for number in range(len(runs))]

    def _facts(self, run: Run) -> pc.Expression:
        ledger, entry, time = (ds.field(name) for name in ("ledger_id", "entry_id", "publish_time"))
        facts = (ds.field("stream") == self.stream) & (ledger >= run.first.ledger_id) & (ledger <= run.last.ledger_id)
        if run.first.ledger_id == run.last.ledger_id:
            facts &= (entry >= run.first.entry_id) & (entry <= run.last.entry_id)
        if run.time_max_ms != TIME_UNKNOWN_MS:
            # Some entries of the run may have no publish time.
            facts &= (time >= pa.scalar(run.time_min_ms, _TIME)) | time.is_null()
            facts &= (time <= pa.scalar(run.time_max_ms, _TIME)) | time.is_null()
        return facts


def _hull(runs: Sequence[Run]) -> Run:
    """One run with the entries of all; its times are unknown if those of one run are."""
    is_timed = all(run.time_max_ms != TIME_UNKNOWN_MS for run in runs)
    return Run(
        runs[0].first,
        runs[-1].last,
        min(run.time_min_ms for run in runs) if is_timed else TIME_UNKNOWN_MS,
        max(run.time_max_ms for run in runs) if is_timed else TIME_UNKNOWN_MS,
    )
