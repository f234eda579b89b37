"""Export to an Iceberg table: every entry once after kills and beside other exporters, proven from the table alone."""

from __future__ import annotations

import itertools
import random
import signal
from concurrent.futures import ThreadPoolExecutor

import pytest

from formats.entries import EntryBatch, Position
from formats.pulsar.messages import BadEntry
from offloader.iceberg import files as data_files
from offloader.iceberg.columns import RowMaker
from tests.iceberg.lake import Lake, named_files, rows_by_duckdb
from tests.iceberg.test_iceberg_export import DAY_MS, ended, history, order, require_proven, victims
from tests.iceberg.test_iceberg_export import lake as lake
from tests.iceberg.test_iceberg_export import writer as writer
from tests.iceberg.victim import POINTS
from tests.support.streams import BASE_MS, StreamWriter, batch_of

pytestmark = pytest.mark.slow


def test_range_of_many_days_has_few_files_open_and_little_in_memory(
    lake: Lake, writer: StreamWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(data_files, "BUFFERED_BYTES_MAX", 8 * 1024)
    monkeypatch.setattr(data_files, "FILE_BYTES_MAX", 24 * 1024)
    days = 3 * data_files.OPEN_FILES_MAX
    times = [BASE_MS + DAY_MS * (each % days) for each in range(400)] + [BASE_MS] * 1000
    writer.add([batch_of(1, 0, 1400, size=100, times=times)])
    maker = RowMaker(lake.table(), writer.stream, BadEntry.ERROR, None)
    files = data_files.RangeFiles(lake.table(), writer.stream, maker.names)
    for batch in (
        batch_of(1, number, 10, size=100, times=times[number : number + 10]) for number in range(0, 1400, 10)
    ):
        [rows] = maker.rows(batch)
        files.add(rows)
        assert len(files._open) <= data_files.OPEN_FILES_MAX
        assert sum(each.waiting_bytes for each in files._open.values()) < data_files.BUFFERED_BYTES_MAX + 2048
    assert sum(each.record_count for each in files.close()) == 1400
    files.discard()
    assert lake.data_files() == []
    lake.export(writer)
    require_proven(lake, writer)


@pytest.mark.process
def test_every_entry_is_there_once_after_twenty_kills(lake: Lake, writer: StreamWriter) -> None:
    chance = random.Random(20)
    other = lake.writer("public/default/persistent/invoices")
    ledgers = itertools.count(1)

    def grow(count: int) -> None:
        for each in (writer, other):
            for ledger in itertools.islice(ledgers, count):
                times = [BASE_MS + DAY_MS * chance.randrange(2) for _ in range(20)]
                each.add([batch_of(ledger, 0, 20, times=times)], closes=[ledger])

    grow(2)
    points = [*POINTS, *chance.choices(list(POINTS), k=20 - len(POINTS))]
    with victims() as nursery:
        for point in points:
            grow(1)
            line = order(lake, [writer, other], point, str(chance.randint(1, 2)))
            assert ended(nursery, line) == -signal.SIGKILL, line
        assert ended(nursery, order(lake, [writer, other])) == 0
    require_proven(lake, writer, other)


@pytest.mark.process
def test_two_exporters_at_once_add_every_entry_once(lake: Lake) -> None:
    writers = [lake.writer(f"t/{name}") for name in ("a", "b")]
    for each, ledger in itertools.product(writers, range(1, 11)):
        each.add([batch_of(ledger, 0, 10)], closes=[ledger])
    with victims() as one, victims() as two, ThreadPoolExecutor(2) as threads:
        exits = threads.map(ended, (one, two), (order(lake, writers), order(lake, writers[::-1])))
        assert list(exits) == [0, 0]
    require_proven(lake, *writers)
    assert len(named_files(lake.foreign_table())) == 20


def test_second_export_adds_one_commit_with_only_what_is_new(lake: Lake, writer: StreamWriter) -> None:
    writer.add([batch_of(3, 0, 200)])
    lake.export(writer)
    assert lake.export(writer).ranges == ()
    before = lake.data_files()
    writer.add([batch_of(3, 200, 50), batch_of(4, 0, 100)], closes=[3, 4])
    writer.add([batch_of(7, 0, 60)])
    [second] = lake.export(writer).ranges
    assert (second.first, second.last, second.after) == (Position(3, 200), Position(7, 59), Position(3, 199))
    assert (second.entries, second.manifest) == (210, writer.log.state.record_id)
    assert set(before) < set(lake.data_files())
    assert len(history(lake.foreign_table())) == 2
    require_proven(lake, writer)


def test_each_range_of_segments_is_one_commit(lake: Lake, writer: StreamWriter) -> None:
    for ledger in range(1, 6):
        writer.add([batch_of(ledger, 0, 40)], closes=[ledger])
    sizes = [each.content.data_bytes for each in writer.log.state.offloaded()]
    done = lake.export(writer, range_bytes=2 * max(sizes))
    assert [each.entries for each in done.ranges] == [80, 80, 40]
    assert done.end == Position(5, 39)
    require_proven(lake, writer)


@pytest.mark.parametrize("time_ms", [253_402_300_800_000, -62_135_596_800_001, 2**62, -(2**63) + 1])
def test_time_outside_of_the_calendar_is_null(lake: Lake, writer: StreamWriter, time_ms: int) -> None:
    writer.add([EntryBatch.build(1, 0, [b"x", b"y"], [time_ms, BASE_MS])])
    lake.export(writer)
    assert [row[3] for row in rows_by_duckdb(lake.foreign_table())] == [None, BASE_MS]
