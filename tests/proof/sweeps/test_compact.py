"""Merging segments: any stream, and a failure or a crash at every request of the store."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st

from formats.entries import EntryBatch, Position
from offloader.errors import OffloaderError, OutcomeUnknownError, StoreUnavailableError
from offloader.manifest.log import load_manifest
from offloader.testing.faulty_store import Fault
from tests.support.readback import unaccounted_keys
from tests.support.streams import batch_of
from tests.write.test_compact import STREAM, CompactionBench, sized


def small_segments() -> CompactionBench:
    """Two results of several ledgers each; the last ledger is open."""
    bench = CompactionBench(settings=sized(1150))
    for ledger in (1, 2, 3, 4):
        bench.writer.add([batch_of(ledger, 0, 2, size=100)])
        bench.writer.add([batch_of(ledger, 2, 2, size=100)], closes=[ledger] * (ledger < 4))
    return bench


#: Of ``small_segments``, merged.
MERGED = [(Position(1, 0), Position(3, 1)), (Position(3, 2), Position(4, 3))]


@pytest.mark.slow
@pytest.mark.parametrize("calls", [1, 10_000], ids=["failure", "crash"])
@pytest.mark.parametrize("error", [StoreUnavailableError, OutcomeUnknownError], ids=lambda error: error.__name__)
@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_compaction_failing_at_any_request_is_continued_by_the_next(
    after: bool, error: type[OffloaderError], calls: int
) -> None:
    number, failed = 0, 0
    while True:
        number += 1
        bench = small_segments()
        bench.store.set_faults(
            [Fault(call=number, after=after, error=error), Fault(call=number + 1, error=error, calls=calls - 1)]
        )
        try:
            bench.compact()
        except OffloaderError:
            failed += 1
        bench.require_whole()
        made = len(bench.store.calls)
        bench.store.set_faults([])
        bench.compact()
        bench.require_whole()
        assert bench.ends() == MERGED
        if made < number:
            break
    assert failed > 20, "most requests matter"


@pytest.mark.slow
def test_a_crash_leaves_no_object_that_cleanup_could_not_find() -> None:
    """Objects of promises are named until the next epoch gives them up; then the sweeper finds them by their uuid."""
    number = 0
    while True:
        number += 1
        bench = small_segments()
        bench.store.set_faults([Fault(call=number, error=StoreUnavailableError, calls=10_000)])
        try:
            bench.compact()
        except OffloaderError:
            state = load_manifest(bench.memory, STREAM)
            promised = {str(each.uuid) for each in state.rewrites}
            replaced = {str(each.uuid) for each in state.replaced}
            for key in unaccounted_keys(bench.memory, STREAM):
                assert any(uuid in key for uuid in promised | replaced), key
        else:
            break
    assert number > 20


@st.composite
def pieces(draw: st.DrawFn) -> list[list[EntryBatch]]:
    """The batches of each segment of a stream, in order."""
    segments: list[list[EntryBatch]] = []
    generator = random.Random(draw(st.integers(0, 2**32)))
    ledger, first = 1, 0
    for _ in range(draw(st.integers(1, 12))):
        batches = []
        for _ in range(draw(st.integers(1, 3))):
            size = draw(st.integers(1, 9))
            batches.append(batch_of(ledger, first, size, size=generator.randint(8, 200)))
            if draw(st.booleans()):
                ledger, first = ledger + draw(st.integers(1, 3)), 0
            else:
                first += size
        segments.append(batches)
    return segments


def add_all(bench: CompactionBench, segments: Sequence[Sequence[EntryBatch]]) -> None:
    ledgers = [batch.ledger_id for batches in segments for batch in batches]
    for number, batches in enumerate(segments):
        later = {batch.ledger_id for rest in segments[number + 1 :] for batch in rest}
        own = {batch.ledger_id for batch in batches}
        bench.writer.add(batches, closes=sorted(own - later - {ledgers[-1]}))


@pytest.mark.slow
@given(pieces(), st.integers(1050, 5000))
def test_any_stream_keeps_every_entry_and_a_second_run_of_the_plan_is_smaller(
    segments: list[list[EntryBatch]], size_bytes: int
) -> None:
    bench = CompactionBench(settings=sized(size_bytes))
    add_all(bench, segments)
    before = len(bench.ends())
    done = bench.compact()
    bench.require_whole()
    assert len(bench.ends()) == before - done.replaced + len(done.merged)
    for _, summary in done.merged:
        assert summary.payload_bytes + 12 * summary.entries <= size_bytes
    runs = 0
    while bench.compact().merged:
        runs += 1
        assert runs < 12
    bench.require_whole()
