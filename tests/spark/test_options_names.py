"""Names and times in the options of the data source, without Spark."""

from __future__ import annotations

from pathlib import Path

import pytest
from pyspark.sql.types import StructType

from offloader.errors import InvalidCallError
from offloader.manifest.names import matching_streams
from offloader.runtime.clock import SystemClock
from offloader.spark.jobs.verify import pinned_streams
from offloader.spark.options import Needs, SourceOptions, require_fixed_start
from offloader.spark.scan import pinned_states, streams_named
from offloader.spark.source import OffloaderDataSource
from offloader.store.open import open_store
from offloader.times import time_ms_of
from tests.spark.reading import planned
from tests.support.streams import StreamWriter, batch_of

STREAM = "shop/eu/persistent/orders"


def options(url: str, **more: str) -> SourceOptions:
    return SourceOptions.of({"store": url, **more})


@pytest.fixture
def url(tmp_path: Path) -> str:
    store = open_store(f"file://{tmp_path}/store")
    for number in (0, 1):
        StreamWriter(store, f"{STREAM}-partition-{number}").add([batch_of(3 + number, 0, 5)])
    StreamWriter(store, "shop/eu/persistent/plain").add([batch_of(9, 0, 5)])
    return store.url


def test_topics_and_their_partitions_are_streams_of_a_query(url: str) -> None:
    store = open_store(url)
    partitions = [f"{STREAM}-partition-{number}" for number in (0, 1)]
    named = {
        "persistent://shop/eu/orders": partitions,
        STREAM: partitions,
        "persistent://shop/eu/orders-partition-1": partitions[1:],
        "persistent://shop/eu/plain": ["shop/eu/persistent/plain"],
        "persistent://shop/eu/*-0": partitions[:1],
    }
    for name, streams in named.items():
        assert streams_named(options(url, stream=name), store) == streams, name
        assert [state.stream for state in pinned_states(options(url, stream=name), store)] == streams
    with pytest.raises(InvalidCallError, match="is no persistent topic"):
        options(url, stream="persistent://orders")


def test_position_bounds_the_partitions_of_a_topic(url: str) -> None:
    """As with a pattern, a partition may lie outside."""
    slices = planned(options(url, stream=STREAM, start="4:0"), Needs.PAYLOADS, open_store(url))
    assert len(slices) == 1


def test_relative_time_is_an_option(url: str) -> None:
    before_ms = SystemClock().now_ms()
    found = options(url, stream=STREAM, since="-1h", until="2033-01-01").start_ms
    assert found is not None
    assert before_ms - 3_600_000 <= found <= SystemClock().now_ms() - 3_600_000
    with pytest.raises(InvalidCallError, match="option since: '1h' is not a time"):
        options(url, stream=STREAM, since="1h")


def test_streaming_query_refuses_a_start_that_moves_when_it_is_restarted(url: str) -> None:
    given = {"store": url, "stream": STREAM, "since": "-1h"}
    with pytest.raises(
        InvalidCallError, match="since: -1h would be a different time after a restart of the query"
    ) as caught:
        OffloaderDataSource(given).streamReader(StructType([]))
    assert "use an absolute time: 20" in caught.value.hint
    require_fixed_start({**given, "since": "2026-11-25"})


def test_jobs_take_topics_with_partitions(url: str) -> None:
    """Verification and export pin the streams of a name; backfill looks for them among those of the hot tier."""
    partitions = [f"{STREAM}-partition-{number}" for number in (0, 1)]
    for name in ("persistent://shop/eu/orders", STREAM):
        pinned = pinned_streams([name, f"{STREAM}-partition-1"], {"store": url})
        assert [state.stream for state, _ in pinned] == partitions
        assert matching_streams(name, [*partitions, "shop/eu/persistent/plain"]) == partitions


@pytest.mark.parametrize("form", ["2013-07-04", "2013-07-04T12:00:00Z", "2013-07-04T14:00:00+02:00", "1372939200000"])
def test_times_of_a_query_are_written_as_on_the_command_line(url: str, form: str) -> None:
    found = options(url, stream=STREAM, since=form, until=form)
    assert found.start_ms == found.end_ms == time_ms_of(form, option="", now_ms=0)
