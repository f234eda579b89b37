"""Segments replaced by a rewrite: both objects are deleted after the grace period, none before its record."""

from __future__ import annotations

import pytest

from formats.documents import DeletedSegment, DeletionRecord
from formats.entries import Position
from formats.keys import data_key, index_key, new_segment_uuid
from formats.manifest import Replace, Rewrite, Rewritten
from formats.summary import Layout
from offloader.errors import OffloaderError
from offloader.gc.sweep import write_batch
from offloader.read.reader import open_stream_reader
from offloader.testing.faulty_store import Fault
from tests.gc.cleaning import STREAM, Bench
from tests.support.streams import batch_of, build, put_objects


def rewritten() -> tuple[Bench, set[str]]:
    """The segments of ledgers 1 and 2 are V1 ones now; and the keys of what they were."""
    bench, by = Bench(grace_period="1h"), []
    log, old = bench.writer.log, tuple(bench.writer.uuids[:2])
    for number in (1, 2):
        uuid = new_segment_uuid(log.state.incarnation, number)
        finished, data = build([batch_of(number, 0, 10)], 1024, Layout.V1, closed={number})
        log.commit([Rewrite(uuid, 1, finished.summary.begin, finished.summary.end, 5, bench.memory.driver_metadata)])
        put_objects(bench.memory, log, uuid, number, finished, data)
        by.append(Rewritten(uuid, finished.summary))
    log.commit([Replace(old, tuple(by), 6)])
    return bench, {key(STREAM, uuid) for uuid in old for key in (data_key, index_key)}


def require_whole(bench: Bench) -> None:
    with open_stream_reader(bench.memory, STREAM) as reader:
        assert len(reader.read(Position(1, 0), Position(4, 9))) == 40


def test_replaced_segments_go_after_grace_period_and_new_ones_stay() -> None:
    bench, old = rewritten()
    assert bench.run().swept.purged == 0
    assert bench.stored() == bench.named() | old
    bench.hours(2)
    done = bench.run()
    assert (done.swept.purged, done.swept.deleted_objects) == (2, 4)
    assert bench.stored() == bench.named()
    assert bench.state.replaced == ()
    require_whole(bench)


def test_deletion_batch_without_a_record_deletes_nothing() -> None:
    bench, old = rewritten()
    bench.hours(2)
    # Twice a process dies just before the record: the second one finds what the first one wrote down.
    for _ in range(2):
        bench.store.set_faults([Fault(call=1, verb="put", key_part="/manifest/", calls=1000)])
        with pytest.raises(OffloaderError):
            bench.run()
        bench.store.set_faults([])
        assert old <= bench.stored()
        assert len(bench.state.replaced) == 2
    bench.run()
    assert bench.stored() == bench.named()
    require_whole(bench)


def test_promised_segment_is_not_deleted_by_a_batch_naming_it() -> None:
    bench = Bench(grace_period="1h")
    log = bench.writer.log
    uuid = new_segment_uuid(log.state.incarnation, 1)
    finished, data = build([batch_of(1, 0, 10)], 1024, Layout.V1, closed={1})
    log.commit([Rewrite(uuid, 1, finished.summary.begin, finished.summary.end, 5, bench.memory.driver_metadata)])
    put_objects(bench.memory, log, uuid, 1, finished, data)
    keys = data_key(STREAM, uuid, 1), index_key(STREAM, uuid, 1)
    now_ms = bench.clock.now_ms()
    batch = DeletionRecord(
        name=f"{now_ms:016d}-{bytes(8).hex()}",
        stream=STREAM,
        incarnation=log.state.incarnation,
        action="purge",
        by="somebody",
        rule="a mistake",
        retire_record=1,
        segments=(DeletedSegment(uuid=uuid, keys=keys, first=None, last=None, entries=0, object_bytes=0),),
        planned_ms=now_ms,
    )
    write_batch(bench.memory, batch)
    bench.run()
    log.commit([Replace(tuple(bench.writer.uuids[:1]), (Rewritten(uuid, finished.summary),), 6)])
    require_whole(bench)
