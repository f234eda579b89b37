"""The streaming reader called directly: beginnings, patterns, deletions, polling."""

from __future__ import annotations

import pickle
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql.streaming.datasource import ReadAllAvailable, ReadMaxBytes, ReadMaxRows
from pyspark.sql.types import BinaryType, LongType, StringType, StructType

from formats.entries import TIME_UNKNOWN_MS, Position
from formats.manifest import Purged, Retire, StreamDeleted, Truncate
from offloader.errors import BeyondEndError, InvalidCallError, NotFoundError, TrimmedError
from offloader.spark.options import SourceOptions
from offloader.spark.stream import IDLE_POLL_SECONDS, POLL_SECONDS, StreamingReader
from offloader.store.open import open_store
from offloader.testing.faulty_store import FaultyStore
from offloader.testing.manual_clock import ManualClock
from tests.support.streams import BASE_MS, StreamWriter, batch_of

SCHEMA = (
    StructType().add("stream", StringType()).add("ledger_id", LongType()).add("entry_id", LongType())
    .add("payload", BinaryType())
)  # fmt: skip
ALL = ReadAllAvailable()


@pytest.fixture
def writer(tmp_path: Path) -> StreamWriter:
    return StreamWriter(open_store(f"file://{tmp_path}/store"))


class Query:
    """A streaming query by hand, whose every question finds new manifests."""

    def __init__(self, writer: StreamWriter, **options: str) -> None:
        self.clock = ManualClock()
        self.options = {"store": writer.store.url, "stream": writer.stream, **options}
        self.reader = StreamingReader(SourceOptions.of(self.options), SCHEMA, clock=self.clock)
        self.offset: Any = self.reader.initialOffset()

    def latest(self) -> Any:
        self.clock.advance(IDLE_POLL_SECONDS)
        return self.reader.latestOffset(self.offset, self.reader.getDefaultReadLimit())

    def rows(self, start: Any, end: Any) -> list[tuple[str, int, int]]:
        found: list[tuple[str, int, int]] = []
        executors = pickle.loads(pickle.dumps(StreamingReader(SourceOptions.of(self.options), SCHEMA)))
        for partition in self.reader.partitions(start, end):
            for batch in executors.read(pickle.loads(pickle.dumps(partition))):
                columns = (batch[name].to_pylist() for name in ("stream", "ledger_id", "entry_id"))
                found += zip(*columns, strict=True)
        return found

    def batch(self) -> list[tuple[int, int]]:
        """The next batch's positions."""
        return [row[1:] for row in self.named_batch()]

    def named_batch(self) -> list[tuple[str, int, int]]:
        start, self.offset = self.offset, self.latest()
        return self.rows(start, self.offset)


def ids(ledger_id: int, first: int, stop: int) -> list[tuple[int, int]]:
    return [(ledger_id, entry_id) for entry_id in range(first, stop)]


def test_query_reads_existing_then_new_entries_and_otherwise_nothing(writer: StreamWriter) -> None:
    writer.add([batch_of(1, 0, 100)])
    query = Query(writer)
    assert query.batch() == ids(1, 0, 100)
    before = query.offset
    assert query.batch() == []
    assert query.offset == before
    assert before[writer.stream]["since"] == "1:-1"
    writer.log.commit([Truncate(Position(1, 3))])
    assert query.latest() == before, "a new manifest record alone is no reason for a batch"
    writer.add([batch_of(1, 100, 20)], closes=[1])
    writer.add([batch_of(5, 0, 20)])
    assert query.batch() == ids(1, 100, 120) + ids(5, 0, 20)
    assert query.offset[writer.stream]["position"] == "5:19"
    assert query.reader.reportLatestOffset()[writer.stream]["position"] == "5:19"  # type: ignore[index]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({}, ids(1, 0, 110)),
        ({"startFrom": "earliest"}, ids(1, 0, 110)),
        ({"startFrom": "latest"}, ids(1, 100, 110)),
        ({"start": "1:0"}, ids(1, 0, 110)),
        ({"start": "1:60"}, ids(1, 60, 110)),
        ({"since": str(BASE_MS + 1000 * 1070)}, ids(1, 70, 110)),
        ({"since": str(BASE_MS + 1000 * 1105)}, ids(1, 105, 110)),
        ({"since": str(BASE_MS + 1000 * 1070), "start": "1:80"}, ids(1, 80, 110)),
    ],
    ids=["default", "earliest", "latest", "first position", "position", "time", "time to come", "time and position"],
)
def test_query_begins_where_its_options_select(
    writer: StreamWriter, options: dict[str, str], expected: list[tuple[int, int]]
) -> None:
    writer.add([batch_of(1, 0, 100)])
    query = Query(writer, **options)
    writer.add([batch_of(1, 100, 10)])
    assert query.batch() == expected


@pytest.mark.parametrize("limit", [{"maxEntriesPerTrigger": "7"}, {"maxBytesPerTrigger": "1000"}], ids=str)
def test_limit_excludes_entries_before_the_beginning(writer: StreamWriter, limit: dict[str, str]) -> None:
    writer.add([batch_of(1, 0, 1000)])
    query = Query(writer, since=str(BASE_MS + 1000 * 1900), **limit)
    assert query.batch()[0] == (1, 900)


def test_a_beginning_outside_of_the_stream_is_refused(writer: StreamWriter) -> None:
    writer.add([batch_of(1, 10, 10)])
    with pytest.raises(TrimmedError, match="1:9"):
        Query(writer, start="1:9")
    with pytest.raises(BeyondEndError, match="1:20"):
        Query(writer, start="1:20")


def test_latest_start_is_stable_when_the_first_batch_is_planned_again(writer: StreamWriter) -> None:
    writer.add([batch_of(1, 0, 100)])
    query = Query(writer, startFrom="latest")
    writer.add([batch_of(1, 100, 10)])
    end = query.latest()
    writer.add([batch_of(1, 110, 10)])
    again = Query(writer, startFrom="latest")
    assert [row[1:] for row in again.rows(again.offset, end)] == ids(1, 100, 110)


@pytest.mark.slow
@pytest.mark.parametrize("retired", [50, 0])
def test_first_batch_from_the_beginning_that_lost_entries_is_not_repeated_without_them(
    writer: StreamWriter, retired: int
) -> None:
    first = writer.add([batch_of(1, 0, 50)])
    writer.add([batch_of(1, 50, 50)])
    strict, lenient = Query(writer), Query(writer, failOnDataLoss="false")
    end = strict.latest()
    assert lenient.latest() == end
    writer.log.commit([Truncate(Position(1, retired)), *([Retire((first,))] if retired else [])])
    again, lenient_again = Query(writer), Query(writer, failOnDataLoss="false")
    if retired:
        with pytest.raises(TrimmedError, match=r"now begins at 1:50, but the query begins at 1:0"):
            again.rows(again.offset, end)
    else:
        assert [row[1:] for row in again.rows(again.offset, end)] == ids(1, 0, 100)
    assert [row[1:] for row in lenient_again.rows(lenient_again.offset, end)] == ids(1, retired, 100)


def test_streams_that_appear_under_a_pattern_are_read_from_their_beginning(writer: StreamWriter) -> None:
    writer.add([batch_of(1, 0, 10)])
    query = Query(writer, stream="public/*", startFrom="latest")
    assert query.named_batch() == []
    other = StreamWriter(writer.store, "public/default/persistent/payments")
    assert query.named_batch() == []
    other.add([batch_of(7, 0, 5)])
    writer.add([batch_of(1, 10, 2)])
    assert sorted(query.named_batch()) == [(writer.stream, 1, 10), (writer.stream, 1, 11)] + [
        (other.stream, 7, n) for n in range(5)
    ]
    assert query.named_batch() == []


def test_a_pattern_may_fit_no_stream_yet_and_bounds_those_that_appear(writer: StreamWriter) -> None:
    query = Query(writer, stream="other/*", start="7:3")
    assert query.offset == {}
    assert query.latest() == {}
    other = StreamWriter(writer.store, "other/default/persistent/payments")
    other.add([batch_of(7, 0, 5)])
    assert query.batch() == ids(7, 3, 5)


def test_limits_are_passed_to_spark_and_ignored_for_read_all_triggers(writer: StreamWriter) -> None:
    writer.add([batch_of(1, 0, 100)])
    query = Query(writer, maxEntriesPerTrigger="30")
    assert query.reader.getDefaultReadLimit() == ReadMaxRows(30)
    assert [query.batch() for _ in range(5)] == [ids(1, 0, 30), ids(1, 30, 60), ids(1, 60, 90), ids(1, 90, 100), []]
    both = Query(writer, maxEntriesPerTrigger="10", maxBytesPerTrigger="100000000")
    assert both.reader.getDefaultReadLimit() == ReadMaxBytes(100_000_000)
    assert both.batch() == ids(1, 0, 10)
    assert both.rows(both.offset, both.reader.latestOffset(both.offset, ALL))[-1][1:] == (1, 99)
    assert Query(writer).reader.getDefaultReadLimit() == ALL


def test_available_now_ends_at_what_was_there_when_it_began(writer: StreamWriter) -> None:
    writer.add([batch_of(1, 0, 50)])
    query = Query(writer, stream="public/*", maxEntriesPerTrigger="30")
    query.reader.prepareForTriggerAvailableNow()
    writer.add([batch_of(1, 50, 50)])
    StreamWriter(writer.store, "public/default/persistent/later").add([batch_of(9, 0, 5)])
    assert [query.batch() for _ in range(3)] == [ids(1, 0, 30), ids(1, 30, 50), []]
    end = query.offset
    assert query.latest() == end


def test_entries_deleted_unread_are_an_error_that_names_the_head(writer: StreamWriter) -> None:
    first = writer.add([batch_of(1, 0, 50)])
    query = Query(writer, maxEntriesPerTrigger="20")
    lenient = Query(writer, maxEntriesPerTrigger="20", failOnDataLoss="false")
    assert query.batch() == lenient.batch() == ids(1, 0, 20)
    planned = query.latest()
    writer.add([batch_of(1, 50, 50)])
    writer.log.commit([Truncate(Position(1, 50)), Retire((first,))])
    with pytest.raises(TrimmedError, match=r"now begins at 1:50, .* up to 1:19 .*failOnDataLoss=false") as caught:
        query.latest()
    assert caught.value.first_available == Position(1, 50)
    with pytest.raises(TrimmedError, match="begins at 1:50"):
        query.rows(query.offset, planned)
    lenient.clock.advance(IDLE_POLL_SECONDS)
    assert lenient.rows(query.offset, planned) == []
    assert lenient.batch() == ids(1, 50, 70)


def test_entries_deleted_after_planning_are_an_error_or_skipped(writer: StreamWriter) -> None:
    first = writer.add([batch_of(1, 0, 50)])
    writer.add([batch_of(1, 50, 50)])
    strict, lenient = Query(writer), Query(writer, failOnDataLoss="false")
    planned = [(query, query.reader.partitions(query.offset, query.latest())) for query in (strict, lenient)]
    record = writer.log.commit([Truncate(Position(1, 50)), Retire((first,))]).record_id
    writer.log.commit([Purged((first,), record)])
    writer.store.delete(list(writer.keys(first)))
    found = []
    for query, partitions in planned:
        rows = (batch for each in partitions for batch in query.reader.read(each))
        if query is strict:
            with pytest.raises(TrimmedError, match="1:50"):
                list(rows)
        else:
            found = [entry_id for batch in rows for entry_id in batch["entry_id"].to_pylist()]
    assert found == list(range(50, 100))


def test_start_time_keeps_messages_without_a_recorded_time(writer: StreamWriter) -> None:
    writer.add([batch_of(1, 0, 10)], closes=[1])
    writer.add([batch_of(2, 0, 10, times=TIME_UNKNOWN_MS)], closes=[2])
    writer.add([batch_of(3, 0, 10)])
    start = str(BASE_MS + 1000 * 3005)
    assert Query(writer, since=start).offset[writer.stream]["position"] == "3:4"
    schema = StructType().add("value", BinaryType())
    options = {"store": writer.store.url, "stream": writer.stream, "since": start, "content": "messages"}
    messages = StreamingReader(SourceOptions.of(options), schema)
    assert messages.initialOffset()[writer.stream]["position"] == "2:-1"


def test_a_query_that_read_up_to_the_head_loses_nothing_by_trimming(writer: StreamWriter) -> None:
    first = writer.add([batch_of(1, 0, 50)], closes=[1])
    query = Query(writer)
    assert query.batch() == ids(1, 0, 50)
    writer.add([batch_of(2, 0, 50)])
    writer.log.commit([Truncate(Position(2, 0)), Retire((first,))])
    assert query.batch() == ids(2, 0, 50)


@pytest.mark.slow
def test_a_deleted_stream_is_a_loss_under_a_pattern_and_an_error_by_name(writer: StreamWriter) -> None:
    StreamWriter(writer.store, "public/default/persistent/stays").add([batch_of(9, 0, 5)])
    writer.add([batch_of(1, 0, 50)])
    named, pattern = Query(writer), Query(writer, stream="public/*")
    lenient = Query(writer, stream="public/*", failOnDataLoss="false")
    for query in (named, pattern, lenient):
        query.batch()
    start = named.offset
    writer.log.commit([StreamDeleted()])
    with pytest.raises(NotFoundError, match="deleted"):
        named.latest()
    with pytest.raises(TrimmedError, match=r"orders was deleted; 1:49 was the last position read"):
        pattern.latest()
    assert writer.stream in start
    assert lenient.batch() == []
    assert list(lenient.offset) == ["public/default/persistent/stays"]


def test_a_checkpoint_of_another_store_is_refused(writer: StreamWriter, tmp_path: Path) -> None:
    writer.add([batch_of(1, 0, 50)])
    query = Query(writer)
    start, end = query.offset, query.latest()
    end[writer.stream]["position"] = "1:70"
    with pytest.raises(
        BeyondEndError, match=r"ends at 1:49, but the query's checkpoint has 1:70 .*checkpoint directory"
    ):
        query.rows(start, end)
    other = StreamWriter(open_store(f"file://{tmp_path}/other"), writer.stream)
    other.add([batch_of(1, 0, 80)])
    elsewhere = Query(other)
    elsewhere.offset = start
    with pytest.raises(TrimmedError, match=r"was deleted and created again"):
        elsewhere.latest()
    with pytest.raises(TrimmedError, match=r"was deleted before it was read up to 1:70"):
        elsewhere.rows(start, end)


def test_idle_query_limits_its_store_requests(writer: StreamWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    writer.add([batch_of(1, 0, 50)])
    store = FaultyStore(writer.store)
    monkeypatch.setattr(SourceOptions, "open_store", lambda *_, **__: store)
    query = Query(writer)
    query.batch()
    calls = len(store.calls)
    for _ in range(100):
        assert query.reader.latestOffset(query.offset, ALL) == query.offset
    assert len(store.calls) == calls
    query.latest()
    assert [verb for verb, *_ in store.calls[calls:]] == ["get", "list", "get"], (
        "the next record, a listing, the boundary"
    )


@pytest.mark.slow
def test_idle_look_costs_three_requests_a_stream_and_one_listing(
    writer: StreamWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Also of a stream with a checkpoint of many segments."""
    for ledger in range(1, 41):
        writer.add([batch_of(ledger, 0, 2)], closes=[ledger])
    writer.log.checkpoint()
    others = [StreamWriter(writer.store, f"public/default/persistent/orders-{each}") for each in range(3)]
    for each in others:
        each.add([batch_of(1, 0, 5)])
    store = FaultyStore(writer.store)
    monkeypatch.setattr(SourceOptions, "open_store", lambda *_, **__: store)
    query = Query(writer, stream="public/default/persistent/orders*")
    query.batch()
    calls = len(store.calls)
    query.latest()
    verbs = [verb for verb, *_ in store.calls[calls:]]
    assert (verbs.count("get"), verbs.count("list"), len(verbs)) == (2 * 4, 4 + 1, 3 * 4 + 1)
    others[0].add([batch_of(1, 5, 5)])
    assert query.named_batch() == [(others[0].stream, 1, each) for each in range(5, 10)]


def test_query_looks_less_often_while_nothing_comes(writer: StreamWriter, monkeypatch: pytest.MonkeyPatch) -> None:
    writer.add([batch_of(1, 0, 50)])
    store = FaultyStore(writer.store)
    monkeypatch.setattr(SourceOptions, "open_store", lambda *_, **__: store)
    query = Query(writer)
    query.batch()

    def looks(seconds: int) -> list[int]:
        """Seconds at which the store is asked."""
        found = []
        for second in range(seconds):
            query.clock.advance(POLL_SECONDS)
            calls = len(store.calls)
            query.reader.latestOffset(query.offset, ALL)
            found += [second + 1] if len(store.calls) > calls else []
        return found

    looks(20)
    assert len(looks(60)) == 6
    writer.add([batch_of(1, 50, 1)])
    assert query.batch() == ids(1, 50, 51)
    assert looks(20) == [1, 3, 7, 15]


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"content": "segments"}, "content=segments can't be streamed"),
        ({"stop": "1:5"}, "option stop belongs to spark.read,"),
        ({"until": "2026-01-01"}, "option until belongs to spark.read,"),
        ({"asOfManifest": "3"}, "option asOfManifest belongs to spark.read,"),
        ({"leaseSeconds": "60"}, "option leaseSeconds belongs to spark.read,"),
        ({"startFrom": "latest", "start": "1:5"}, "startFrom=latest contradicts start"),
        ({"startFrom": "somewhere"}, "is not one of earliest, latest"),
        ({"maxEntriesPerTrigger": "0"}, "not a positive integer"),
        ({"subscriber": "a\tb"}, "isn't a valid subscriber name"),
        ({"subscriberRenewSeconds": "0"}, "not a positive integer"),
    ],
    ids=str,
)
def test_options_that_a_stream_has_no_use_for_are_refused(
    writer: StreamWriter, options: dict[str, str], expected: str
) -> None:
    with pytest.raises(InvalidCallError, match=expected):
        Query(writer, **options)


@pytest.mark.parametrize(
    "options", [{"startFrom": "latest"}, {"maxBytesPerTrigger": "5"}, {"failOnDataLoss": "false"}], ids=str
)
def test_a_scan_refuses_what_only_a_stream_has_a_use_for(writer: StreamWriter, options: dict[str, str]) -> None:
    given = SourceOptions.of({"store": writer.store.url, "stream": writer.stream, **options})
    with pytest.raises(InvalidCallError, match=f"option {next(iter(options))} belongs to spark.readStream"):
        given.require_batch()
