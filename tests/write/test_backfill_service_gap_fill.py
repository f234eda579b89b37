"""Entries of gaps that the broker sends: stored once, recorded and read back, whatever others write meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import count

import numpy as np
import pytest

from formats.entries import EntryBatch, Position
from formats.frames import FRAMES_BYTES_MAX
from formats.keys import fill_key, is_segment_uuid_of, object_owner
from formats.manifest import Edit, Gap, LedgerClosed, LedgersDeleted, Purged, Retire, StreamDeleted
from offloader.coverage import GapReason
from offloader.errors import (
    CorruptError,
    InvalidCallError,
    LimitReachedError,
    ObjectChangedError,
    ObjectMissingError,
    OutcomeUnknownError,
    SourceMismatchError,
    TrimmedError,
)
from offloader.manifest.load import load_manifest
from offloader.manifest.log import ManifestLog
from offloader.manifest.state import EditRefusedError
from offloader.read.cold import read_fill
from offloader.read.reader import open_stream_reader
from offloader.runtime.clock import SystemClock
from offloader.store.base import ObjectStore
from offloader.store.memory import MemoryStore
from offloader.store.wrappers import Request, StoreWrapper
from offloader.testing.manual_clock import ManualClock
from offloader.write.backfill_service import fill_gaps, missing_runs
from tests.support.streams import StreamWriter, batch_of

_names = count()


def new_store() -> MemoryStore:
    return MemoryStore(f"gap-fill-{next(_names)}", "", ManualClock())


def given(*ids: int, ledger_id: int = 7, size: int = 20) -> EntryBatch:
    """What the broker has at these ids."""
    payloads = [f"marker {ledger_id}:{each}".encode().ljust(size, b"-") for each in ids]
    made = EntryBatch.build(ledger_id, 0, payloads)
    return EntryBatch(ledger_id, np.array(ids, dtype=np.int64), made.payloads, made.publish_times_ms)


def pairs(batch: EntryBatch) -> list[tuple[int, bytes]]:
    return [(entry.entry_id, entry.payload) for entry in batch.entries()]


def gap(first: int, last: int, ledger_id: int = 7) -> Gap:
    return Gap(Position(ledger_id, first), Position(ledger_id, last), GapReason.UNDELIVERED)


def written(store: ObjectStore, *more: Edit) -> StreamWriter:
    """Ledger 7 with entries 0..4, 6..8, 11..14 and gaps 5, 9..10, 15 at its end; ledger 8 with 0..4."""
    writer = StreamWriter(store)
    for first, last, after in ((0, 4, gap(5, 5)), (6, 8, gap(9, 10)), (11, 14, gap(15, 15))):
        writer.add([batch_of(7, first, last - first + 1)])
        writer.log.commit([after])
    writer.log.commit([LedgerClosed(7, 15), *more])
    writer.add([batch_of(8, 0, 5)])
    return writer


def filled(store: ObjectStore, writer: StreamWriter) -> list[list[tuple[int, bytes]]]:
    """The entries of each fill, as the store has them."""
    return [pairs(read_fill(store, writer.stream, each)) for each in load_manifest(store, writer.stream).fills]


def fill_objects(store: ObjectStore) -> list[str]:
    return [info.key for info in store.list("").objects if info.key.endswith("-fill")]


def test_missing_entries_of_several_runs_become_one_object_and_readers_see_none_of_them() -> None:
    store = new_store()
    writer = written(store)
    before = list(open_stream_reader(store, writer.stream).read(Position(7, 0), Position(8, 4)))
    assert missing_runs(writer.log.state, 7, 15) == [(5, 5), (9, 10), (15, 15)]
    assert missing_runs(writer.log.state, 7, 9) == [(5, 5), (9, 9)]
    batch = given(5, 9, 10, 15)

    assert fill_gaps(writer.log, batch, 0, 15) == 4

    assert filled(store, writer) == [pairs(batch)]
    assert missing_runs(writer.log.state, 7, 15) == []
    (fill,) = writer.log.state.fills
    assert (fill.first, fill.last, fill.entries) == (Position(7, 5), Position(7, 15), 4)
    assert list(open_stream_reader(store, writer.stream).read(Position(7, 0), Position(8, 4))) == before
    key = fill_key(writer.stream, fill.uuid)
    assert fill_objects(store) == [key]
    assert is_segment_uuid_of(fill.uuid, writer.log.state.incarnation)
    owner = object_owner(store.head(key).metadata)
    assert owner is not None
    assert owner.incarnation == writer.log.state.incarnation


def test_a_writer_that_owns_nothing_records_them() -> None:
    store = new_store()
    writer = written(store)
    other = ManifestLog(store, writer.stream, clock=SystemClock(), writer_name="another process")
    assert fill_gaps(other, given(5), 5, 5) == 1
    writer.add([batch_of(8, 5, 5)])  # its owner goes on
    assert len(load_manifest(store, writer.stream).fills) == 1


def test_the_same_entries_again_change_nothing() -> None:
    store = new_store()
    writer = written(store)
    assert fill_gaps(writer.log, given(5, 9, 10), 0, 10) == 3
    record_id, objects = writer.log.state.record_id, fill_objects(store)
    assert fill_gaps(writer.log, given(5, 9, 10), 0, 10) == 3
    assert fill_gaps(writer.log, given(9, 10), 6, 10) == 2
    assert fill_gaps(writer.log, given(10), 10, 10) == 1
    assert fill_gaps(writer.log, EntryBatch.build(7, 0, []), 0, 10) == 0
    assert (writer.log.load().record_id, fill_objects(store)) == (record_id, objects)


def test_entries_around_those_that_are_stored_become_objects_of_their_own() -> None:
    store = new_store()
    writer = written(store)
    fill_gaps(writer.log, given(9, 10), 9, 10)
    assert fill_gaps(writer.log, given(5, 9, 10, 15), 0, 15) == 4
    assert filled(store, writer) == [pairs(given(5)), pairs(given(9, 10)), pairs(given(15))]
    assert fill_gaps(writer.log, given(5, 15), 0, 15) == 2, "those that are stored needn't come again"


def test_what_is_on_its_way_between_gaps_divides_them() -> None:
    store = new_store()
    writer = StreamWriter(store)
    writer.add([batch_of(7, 0, 5)])
    writer.log.commit([gap(5, 5), gap(9, 9)])  # 6..8 aren't offloaded yet
    assert fill_gaps(writer.log, given(5, 9), 0, 9) == 2
    assert filled(store, writer) == [pairs(given(5)), pairs(given(9))]


@pytest.mark.parametrize(
    ("ids", "first", "last", "why"),
    [
        ((5, 6), 0, 8, "received entry 6, which is in no recorded gap"),
        ((5, 9), 0, 10, "entry 10 is missing and wasn't received"),
        ((9, 10), 0, 10, "entry 5 is missing and wasn't received"),
        ((), 0, 15, "entry 5 is missing and wasn't received"),
        ((5, 9, 10), 5, 9, "received entries 5 to 10 for the range 5 to 9"),
        ((5, 9, 10, 15, 16), 0, 20, "received entry 16, but the ledger ends at 15"),
    ],
)
def test_other_entries_than_the_missing_ones_are_refused(ids: Sequence[int], first: int, last: int, why: str) -> None:
    store = new_store()
    writer = written(store)
    with pytest.raises(InvalidCallError, match=why):
        fill_gaps(writer.log, given(*ids), first, last)
    assert fill_objects(store) == []


def test_a_huge_range_costs_nothing() -> None:
    store = new_store()
    writer = StreamWriter(store)
    writer.add([batch_of(7, 0, 5)])
    writer.log.commit([Gap(Position(7, 5), Position(9, -1), GapReason.UNDELIVERED)])
    with pytest.raises(InvalidCallError, match="entry 6 is missing"):
        fill_gaps(writer.log, given(5), 0, 2**62)


def test_other_bytes_for_an_entry_that_is_stored_are_another_source() -> None:
    store = new_store()
    writer = written(store)
    fill_gaps(writer.log, given(5, 9, 10), 0, 10)
    with pytest.raises(SourceMismatchError, match="have other bytes"):
        fill_gaps(writer.log, given(9, 10, size=21), 9, 10)
    with pytest.raises(SourceMismatchError):
        fill_gaps(writer.log, given(5, 9, 10, 15, size=21), 0, 15)
    assert len(writer.log.load().fills) == 1


def test_too_much_at_once_and_a_deleted_ledger_are_refused_by_name() -> None:
    store = new_store()
    writer = written(store)
    with pytest.raises(LimitReachedError, match="send fewer entries per call"):
        fill_gaps(writer.log, given(5, size=FRAMES_BYTES_MAX), 5, 5)
    writer.log.commit([LedgersDeleted((7,))])
    with pytest.raises(TrimmedError, match="deleted from the stream"):
        fill_gaps(writer.log, given(5), 5, 5)
    assert fill_objects(store) == []


class Meddling(StoreWrapper):
    """Calls ``meddle`` once, before the first record that is created after ``armed``."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.meddle: list[object] = []

    def around(self, request: Request, call):  # type: ignore[no-untyped-def]
        if self.meddle and request.verb == "put" and request.key.endswith(".json"):
            self.meddle.pop()()  # type: ignore[operator]
        return call()


def test_of_two_who_store_the_same_entries_one_is_recorded_and_both_are_told_so() -> None:
    store = new_store()
    writer = written(store)
    other = ManifestLog(store, writer.stream, clock=SystemClock())
    other.load()
    meddling = Meddling(store)
    slow = ManifestLog(meddling, writer.stream, clock=SystemClock())
    meddling.meddle.append(lambda: fill_gaps(other, given(5, 9, 10), 0, 10))
    assert fill_gaps(slow, given(5, 9, 10, 15), 0, 15) == 4
    assert filled(store, writer) == [pairs(given(5, 9, 10)), pairs(given(15))]
    assert len(fill_objects(store)) == 3, "the loser's object is an orphan"


def test_a_ledger_that_is_deleted_meanwhile_gets_no_fill() -> None:
    store = new_store()
    writer = written(store)
    meddling = Meddling(store)
    slow = ManifestLog(meddling, writer.stream, clock=SystemClock())
    meddling.meddle.append(lambda: writer.log.commit([LedgersDeleted((7,))]))
    with pytest.raises(TrimmedError):
        fill_gaps(slow, given(5), 5, 5)
    assert load_manifest(store, writer.stream).fills == ()


class Lossy(StoreWrapper):
    """Loses the answers of the next record puts; those in ``drops`` don't even arrive."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self.lost = 0
        self.dropped = 0

    def around(self, request: Request, call):  # type: ignore[no-untyped-def]
        if request.verb == "put" and request.key.endswith(".json"):
            if self.dropped:
                self.dropped -= 1
                raise OutcomeUnknownError("no answer")
            if self.lost:
                self.lost -= 1
                call()
                raise OutcomeUnknownError("no answer")
        return call()


def test_a_record_whose_answer_is_lost_is_recorded_once() -> None:
    store = new_store()
    writer = written(store)
    lossy = Lossy(store)
    log = ManifestLog(lossy, writer.stream, clock=SystemClock())
    lossy.lost = 1
    assert fill_gaps(log, given(5), 5, 5) == 1
    assert filled(store, writer) == [pairs(given(5))]


def test_while_it_is_unknown_whether_the_record_arrived_nothing_is_promised() -> None:
    store = new_store()
    writer = written(store)
    lossy = Lossy(store)
    log = ManifestLog(lossy, writer.stream, clock=SystemClock())
    lossy.dropped = 100
    with pytest.raises(OutcomeUnknownError):
        fill_gaps(log, given(5), 5, 5)
    lossy.dropped = 0
    assert fill_gaps(log, given(5), 5, 5) == 1
    assert filled(store, writer) == [pairs(given(5))]


def test_a_fill_that_was_damaged_replaced_or_removed_is_an_error_of_that_kind() -> None:
    store = new_store()
    writer = written(store)
    fill_gaps(writer.log, given(5, 9, 10), 0, 10)
    (fill,) = writer.log.state.fills
    key = fill_key(writer.stream, fill.uuid)
    whole = bytes(store.get(key)[0])
    for at in range(len(whole)):
        store.put(key, whole[:at] + bytes([whole[at] ^ 1]) + whole[at + 1 :])
        with pytest.raises(CorruptError, match="CRC-32C"):
            read_fill(store, writer.stream, fill)
    for other in (whole[:-1], whole + b"\0", whole * 100):
        store.put(key, other)
        with pytest.raises(ObjectChangedError, match=f"expected {len(whole)} bytes, found {len(other)}"):
            read_fill(store, writer.stream, fill)
    store.delete([key])
    with pytest.raises(ObjectMissingError, match="but the manifest records it"):
        read_fill(store, writer.stream, fill)


def test_a_fill_whose_ledger_was_purged_is_trimmed_not_missing() -> None:
    store = new_store()
    writer = written(store)
    fill_gaps(writer.log, given(5), 5, 5)
    (fill,) = writer.log.state.fills
    store.delete([fill_key(writer.stream, fill.uuid)])
    log = writer.log
    log.commit([LedgersDeleted((7,)), Retire(tuple(writer.uuids[:3]))])
    log.commit([Purged(tuple(writer.uuids[:3]), log.state.record_id)])
    assert log.state.fills == ()
    with pytest.raises(TrimmedError, match="ledger 7 was deleted"):
        read_fill(store, writer.stream, fill)


def test_a_deleted_stream_takes_no_fill() -> None:
    store = new_store()
    writer = written(store)
    writer.log.commit([StreamDeleted()])
    with pytest.raises(EditRefusedError, match="was deleted"):
        fill_gaps(writer.log, given(5), 5, 5)
    assert fill_objects(store) == []
