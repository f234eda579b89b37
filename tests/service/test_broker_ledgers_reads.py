"""Brokers read whole ledgers over HTTP: plans, presigned blocks and entries, as a plugin decodes them."""

from __future__ import annotations

import itertools
import random
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import uuid4

import pytest

from formats.entries import EntryBatch, Position
from formats.extension import Codec
from formats.manifest import Gap, LedgersDeleted, Purged, Retire, Truncate
from formats.summary import Layout
from offloader.coverage import GapReason
from offloader.manifest.log import ManifestLog, load_manifest
from offloader.manifest.segment_table import AT_ROOT
from offloader.read.ledger_plan import LedgerTrimmed
from offloader.runtime.clock import SystemClock
from offloader.service.broker_ledgers import VIEW_AGE_S_MAX, VIEW_STALE_S_MAX, BrokerCaller, BrokerLedgers
from offloader.settings import Settings
from offloader.store.base import ObjectStore
from offloader.store.open import open_store
from offloader.store.wrappers import requests_of
from offloader.telemetry.recorder import NO_TELEMETRY
from offloader.testing.manual_clock import ManualClock
from offloader.write.backfill_service import fill_gaps
from offloader.write.offloader import LedgerOffloader
from tests.support.broker_frames import frame_entries
from tests.support.broker_requests import STREAM, Broker
from tests.support.http_process import ask, http_process
from tests.support.streams import StreamWriter, batch_of, random_batch
from tests.support.waiting import eventually

_names = itertools.count()


def sent(writer: StreamWriter, ledger_id: int) -> list[tuple[int, bytes]]:
    return [(entry.entry_id, entry.payload) for entry in writer.entries if entry.ledger_id == ledger_id]


@pytest.fixture
def store() -> ObjectStore:
    return open_store(f"memory://broker-{next(_names)}")


@pytest.fixture
def writer(store: ObjectStore) -> StreamWriter:
    return StreamWriter(store, STREAM)


@pytest.fixture
def broker(store: ObjectStore, tmp_path: Path) -> Iterator[Broker]:
    with http_process(tmp_path, streams=(), store=store) as (http, _):
        yield Broker(http.url)


def gap(ledger_id: int, first: int, last: int) -> Gap:
    return Gap(Position(ledger_id, first), Position(ledger_id, last), GapReason.UNDELIVERED)


def written(writer: StreamWriter) -> None:
    """Ledgers of each kind: several segments, several ledgers in one, compressed, of Pulsar's own form, filled."""
    generator = random.Random(1)
    writer.block_bytes = 64 * 1024
    writer.add([random_batch(generator, 7, 0, 300, 60_000)])
    writer.add([random_batch(generator, 7, 300, 50, 60_000), random_batch(generator, 9, 0, 80, 3000)], closes=(7, 9))
    writer.add([batch_of(10, 0, 90, size=900)], codec=Codec.ZSTD, closes=(10,))
    writer.add([batch_of(11, 0, 400, size=3000)], layout=Layout.V1, extension=False, closes=(11,))
    writer.add([batch_of(12, 0, 400, size=3000)], layout=Layout.V1, closes=(12,))
    writer.add([batch_of(13, 0, 100)])
    writer.log.commit([gap(13, 100, 101)])
    writer.add([batch_of(13, 102, 100)], closes=(13,))
    markers = EntryBatch.build(13, 100, [b"commit", b"abort"])
    fill_gaps(writer.log, markers, 100, 101)
    writer.entries += markers.entries()
    writer.entries.sort()


@pytest.mark.slow
def test_plan_is_the_same_for_everyone_but_for_its_urls(broker: Broker, writer: StreamWriter) -> None:
    written(writer)
    for ledger_id in (7, 13):
        plans = [broker.plan(ledger_id, query).json() for query in ("", f"?uuid={uuid4()}", "")]
        assert plans[0] == plans[1] == plans[2]


@pytest.mark.slow
def test_store_without_urls_gives_everything_through_entries(broker: Broker, writer: StreamWriter) -> None:
    written(writer)
    for ledger_id in (7, 9, 10, 11, 12, 13):
        plan = broker.plan(ledger_id).json()
        assert (plan["objects"], plan["expires_ms"]) == ([], None)
        assert {chunk["object"] for chunk in plan["chunks"]} == {-1}
        assert broker.whole(ledger_id) == sent(writer, ledger_id)


@pytest.mark.slow
def test_entries_of_any_range_are_frames_with_an_end_mark(broker: Broker, writer: StreamWriter) -> None:
    written(writer)
    for ledger_id, entries in ((7, 350), (10, 90), (11, 400), (13, 202)):
        wanted = sent(writer, ledger_id)
        for first, last in ((0, 0), (entries - 1, entries - 1), (0, entries - 1), (50, 88), (88, 89)):
            answer = broker.entries(ledger_id, first, last)
            assert answer.headers["content-type"] == "application/octet-stream"
            assert frame_entries(answer.body) == wanted[first : last + 1]


@pytest.mark.slow
def test_ledgers_are_the_same_after_a_compaction(broker: Broker, store: ObjectStore, writer: StreamWriter) -> None:
    writer.add([batch_of(7, 0, 100)])
    writer.add([batch_of(7, 100, 50), batch_of(9, 0, 60)], closes=(7, 9))
    writer.add([batch_of(10, 0, 90)], codec=Codec.ZSTD, closes=(10,))
    writer.add([batch_of(11, 0, 40)], layout=Layout.V1, closes=(11,))
    ledgers = (7, 9, 10, 11)
    before = {ledger_id: broker.whole(ledger_id) for ledger_id in ledgers}
    with closing(LedgerOffloader(store, Settings())) as offloader:
        assert offloader.history.compact(STREAM).replaced == 3
    assert {ledger_id: broker.whole(ledger_id) for ledger_id in ledgers} == before
    assert [each.content.end for each in load_manifest(store, STREAM).offloaded()[:1]] == [Position(10, 89)]


@pytest.mark.slow
def test_single_entries_of_a_large_plain_block_read_it_once(
    store: ObjectStore, writer: StreamWriter, broker: Broker
) -> None:
    writer.block_bytes = 32 * 1024 * 1024
    writer.add([batch_of(7, 0, 90, size=200_000)], layout=Layout.V1, extension=False, closes=(7,))
    plan = broker.plan(7).json()
    assert len(plan["chunks"]) == 5
    before = requests_of(store)["get"].requests
    assert broker.whole(7) == sent(writer, 7)
    # Its block, and nothing again for the other chunks but looks at the manifest.
    assert requests_of(store)["get"].requests - before <= 4


@pytest.mark.slow
def test_unknown_stream_is_not_found(broker: Broker) -> None:
    assert (broker.plan(7).status, broker.plan(7).json()["kind"]) == (404, "not_found")


@pytest.mark.slow
def test_plan_that_was_asked_for_before_and_the_next_ledgers_ask_the_store_for_nothing(
    broker: Broker, store: ObjectStore, writer: StreamWriter
) -> None:
    writer.add([batch_of(7, 0, 10), batch_of(9, 0, 10)], closes=(7, 9))
    assert (broker.plan(7).json()["next"], broker.plan(7).json()["uuid"]) == (9, None)
    before = requests_of(store)["get"].requests
    assert broker.plan(9).json()["next"] is None
    assert broker.plan(7).status == 200
    assert requests_of(store)["get"].requests == before


def test_plan_of_a_stream_that_nobody_read_for_a_while_waits_for_no_request_to_the_store(
    store: ObjectStore, writer: StreamWriter
) -> None:
    clock = ManualClock()
    ledgers = BrokerLedgers(store, settings=Settings(), clock=clock, recorder=NO_TELEMETRY, control=None, environ={})
    writer.add([batch_of(7, 0, 10), batch_of(8, 0, 10)], closes=(7, 8))

    def plan(ledger_id: int) -> dict[str, Any]:
        return ledgers.plan(STREAM, ledger_id, uuid=None, caller=BrokerCaller(name="broker"))

    plan(7)
    plan(8)
    writer.log.commit([Truncate(Position(8, 0)), LedgersDeleted((7,))])
    clock.advance(VIEW_AGE_S_MAX + 1)
    assert plan(7)["entries"] == 10  # out of the view that is a little old, which is read anew meanwhile
    with pytest.raises(LedgerTrimmed):
        eventually(lambda: plan(7) is None)
    writer.log.commit([LedgersDeleted((8,))])
    clock.advance(VIEW_STALE_S_MAX + 1)
    with pytest.raises(LedgerTrimmed):
        plan(8)
    ledgers.close()


@pytest.mark.slow
def test_ledger_that_was_let_go_is_gone_and_an_unknown_one_is_not_found(broker: Broker, writer: StreamWriter) -> None:
    for ledger_id in (7, 8):
        writer.add([batch_of(ledger_id, 0, 10)], closes=(ledger_id,))
    writer.log.commit([Truncate(Position(8, 0))])
    for answer in (broker.plan(7), broker.entries(7, 0, 9)):
        assert (answer.status, answer.json()["kind"], answer.json()["retryable"]) == (410, "trimmed", False)
    assert broker.whole(8) == sent(writer, 8)
    assert broker.plan(9).json()["kind"] == broker.entries(9, 0, 1).json()["kind"] == "not_found"


@pytest.mark.slow
def test_plan_older_than_a_deletion_ends_with_trimmed(broker: Broker, store: ObjectStore, writer: StreamWriter) -> None:
    uuid = writer.add([batch_of(7, 0, 10)], closes=(7,))
    writer.add([batch_of(8, 0, 10)], closes=(8,))
    assert broker.plan(7).status == 200
    writer.log.commit([Truncate(Position(8, 0)), LedgersDeleted((7,)), Retire((uuid,))])
    store.delete(list(writer.keys(uuid)))
    writer.log.commit([Purged((uuid,), writer.log.state.record_id)])
    answer = broker.entries(7, 0, 9)
    assert (answer.status, answer.json()["kind"], answer.json()["retryable"]) == (410, "trimmed", False)
    assert broker.plan(7).status == 410
    assert broker.whole(8) == sent(writer, 8)


@pytest.mark.slow
def test_truncated_part_of_a_ledger_is_gone_and_the_rest_is_read(broker: Broker, writer: StreamWriter) -> None:
    writer.add([batch_of(7, 0, 100)], closes=(7,))
    writer.log.commit([Truncate(Position(7, 30))])
    gone, *rest = broker.plan(7).json()["chunks"]
    assert (gone["first"], gone["last"], gone["object"], rest[0]["first"]) == (0, 29, -1, 30)
    answer = broker.entries(7, 0, 29)
    assert (answer.status, answer.json()["kind"]) == (410, "trimmed")
    assert frame_entries(broker.entries(7, 30, 99).body) == sent(writer, 7)[30:]


@pytest.mark.slow
def test_missing_object_is_no_deletion(broker: Broker, store: ObjectStore, writer: StreamWriter) -> None:
    uuid = writer.add([batch_of(7, 0, 10)], closes=(7,))
    store.delete(list(writer.keys(uuid)))
    for answer in (broker.plan(7), broker.entries(7, 0, 9)):
        assert (answer.status, answer.json()["kind"]) == (500, "data_corruption")
        assert str(uuid) in answer.json()["detail"]


@pytest.mark.slow
def test_unfilled_gap_and_a_hole_are_errors(broker: Broker, writer: StreamWriter) -> None:
    writer.add([batch_of(7, 0, 10)])
    writer.log.commit([gap(7, 10, 10)])
    writer.add([batch_of(7, 11, 10)], closes=(7,))
    for answer in (broker.plan(7), broker.entries(7, 0, 20)):
        assert (answer.status, answer.json()["kind"], answer.json()["retryable"]) == (503, "retry_later", True)
        assert "10..10" in answer.json()["detail"]
    assert frame_entries(broker.entries(7, 0, 9).body) == sent(writer, 7)[:10]


@pytest.mark.slow
def test_ledger_that_grew_after_a_look_is_seen_whole(broker: Broker, writer: StreamWriter) -> None:
    writer.add([batch_of(7, 0, 10)])
    answer = broker.plan(7)
    assert (answer.status, answer.json()["retryable"]) == (503, True)
    assert frame_entries(broker.entries(7, 0, 9).body) == sent(writer, 7)
    assert broker.entries(7, 0, 10).json()["error"] == "BeyondEndError"
    writer.add([batch_of(7, 10, 10)], closes=(7,))
    assert frame_entries(broker.entries(7, 0, 19).body) == sent(writer, 7)
    assert broker.plan(7).json()["last"] == 19


@pytest.mark.slow
def test_adopted_ledger_has_the_uuid_that_the_broker_names(broker: Broker, store: ObjectStore) -> None:
    writer = StreamWriter(store, STREAM)
    driver = {**store.driver_metadata, **AT_ROOT}
    uuid = writer.add([batch_of(7, 0, 10)], layout=Layout.V1, extension=False, closes=(7,), driver=driver)
    for key in writer.keys(uuid, 7):
        body, info = store.get(key)
        store.put(key.rpartition("/")[2], body, metadata=info.metadata)
    assert broker.plan(7, f"?uuid={uuid}").json()["uuid"] == broker.plan(7).json()["uuid"] == str(uuid)
    for answer in (broker.plan(7, f"?uuid={uuid4()}"), broker.entries(7, 0, 1, f"&uuid={uuid4()}")):
        assert (answer.status, answer.json()["kind"]) == (409, "source_mismatch")


@pytest.mark.slow
def test_other_clusters_broker_is_refused(store: ObjectStore, tmp_path: Path) -> None:
    StreamWriter(store, STREAM).add([batch_of(7, 0, 10)], closes=(7,))
    sections = {"broker": {"source": "east"}}
    with http_process(tmp_path, sections, streams=(), store=store) as (http, _):
        assert Broker(http.url, **{"Offloader-Source": "east"}).plan(7).status == 200
        assert Broker(http.url).plan(7).status == 200
        other = Broker(http.url, **{"Offloader-Source": "west"})
        for answer in (other.plan(7), other.entries(7, 0, 1), other.plan(99)):
            assert (answer.status, answer.json()["kind"]) == (409, "source_mismatch")
            assert "west" in answer.json()["detail"]
            assert "east" in answer.json()["detail"]


@pytest.mark.slow
def test_reads_are_counted_for_each_broker(store: ObjectStore, tmp_path: Path) -> None:
    StreamWriter(store, STREAM).add([batch_of(7, 0, 10)], closes=(7,))
    with http_process(tmp_path, streams=(), store=store) as (http, _):
        broker = Broker(http.url)
        broker.plan(7)
        broker.entries(7, 0, 4)
        lines = ask(f"{http.url}/metrics").body.decode().splitlines()
    assert 'offloader_broker_plan_requests_total{broker="127.0.0.1"} 1.0' in lines
    assert 'offloader_broker_planned_bytes_total{broker="127.0.0.1"} 200.0' in lines
    assert 'offloader_broker_read_requests_total{broker="127.0.0.1"} 1.0' in lines
    assert 'offloader_broker_read_bytes_total{broker="127.0.0.1"} 100.0' in lines
    assert {"offloader_broker_plan_seconds_count 1.0", "offloader_broker_read_seconds_count 1.0"} <= set(lines)
    [took] = [line for line in lines if line.startswith('offloader_broker_answer_seconds_total{broker="127.0.0.1"} ')]
    assert 0 < float(took.rpartition(" ")[2]) < 60


@pytest.mark.slow
def test_blocks_that_brokers_read_again_are_counted_as_found_in_memory(tmp_path: Path) -> None:
    with http_process(tmp_path, streams=()) as (http, process):
        StreamWriter(process.store, STREAM).add([batch_of(7, 0, 10)], codec=Codec.ZSTD, closes=(7,))
        broker = Broker(http.url)
        found = [hits_of(http.url)]
        for _ in range(2):
            broker.entries(7, 0, 9)
            found.append(hits_of(http.url))
    (none, no_broker), first, again = found
    assert (none, no_broker) == (0, 0)
    # Its index and its one block.
    assert again == (first[0] + 2, first[1] + 2)


def hits_of(url: str) -> tuple[float, float]:
    """Of all reads of streams, and of those of the broker of this machine."""
    lines = ask(f"{url}/metrics").body.decode().splitlines()
    names = ("offloader_cache_hits_total{", 'offloader_broker_cache_hits_total{broker="127.0.0.1"}')
    streams, broker = (sum(float(line.split()[-1]) for line in lines if line.startswith(name)) for name in names)
    return streams, broker


@pytest.mark.slow
def test_maintainers_log_is_used_for_reading_only(store: ObjectStore, broker: Broker, writer: StreamWriter) -> None:
    writer.add([batch_of(7, 0, 10)], closes=(7,))
    before = ManifestLog(store, STREAM, clock=SystemClock()).load().record_id
    broker.whole(7)
    assert ManifestLog(store, STREAM, clock=SystemClock()).load().record_id == before
