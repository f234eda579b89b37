"""The last hour of a process: bytes by minute, bounded, and the mean rate of the last minutes."""

from __future__ import annotations

from offloader.settings import TelemetrySettings
from offloader.telemetry.prometheus import Metrics
from offloader.telemetry.recorder import MINUTES_MAX, LastHour
from offloader.testing.manual_clock import ManualClock


def test_bytes_are_counted_in_the_minute_of_their_commit() -> None:
    clock = ManualClock()
    hour = LastHour(clock)
    assert hour.document() == {"minute_bytes": [0], "bytes_per_second": 0.0}
    hour.add(30)
    clock.advance(30)
    hour.add(60)
    assert hour.document() == {"minute_bytes": [90], "bytes_per_second": 3.0}
    clock.advance(90)
    hour.add(30)
    assert hour.document() == {"minute_bytes": [90, 0, 30], "bytes_per_second": 1.0}


def test_rate_is_the_mean_of_five_minutes_and_an_old_burst_leaves_it() -> None:
    clock = ManualClock()
    hour = LastHour(clock)
    hour.add(30_000)
    clock.advance(60 * 5)
    assert hour.document()["bytes_per_second"] == 0.0
    assert hour.document()["minute_bytes"] == [30_000, 0, 0, 0, 0, 0]


def test_rate_of_a_stream_is_its_part_of_the_mean_and_0_when_it_is_idle() -> None:
    clock = ManualClock()
    hour = LastHour(clock)
    clock.advance(60)
    hour.add(600, "a")
    clock.advance(60)
    hour.add(1200, "a")
    hour.add(300, "b")
    clock.advance(30)
    assert (hour.rate_of("a"), hour.rate_of("b"), hour.rate_of("c")) == (12.0, 2.0, 0.0)
    assert hour.document()["bytes_per_second"] == 14.0
    clock.advance(60 * 4)
    assert (hour.rate_of("a"), hour.rate_of("b")) == (1200 / 270, 300 / 270)
    clock.advance(60)
    assert (hour.rate_of("a"), hour.rate_of("b")) == (0.0, 0.0)


def test_an_hour_is_kept_and_no_more_even_after_a_long_rest() -> None:
    clock = ManualClock()
    hour = LastHour(clock)
    for minute in range(100):
        hour.add(minute)
        clock.advance(60)
    assert hour.document()["minute_bytes"] == [*range(41, 100), 0]
    clock.advance(86_400 * 30)
    assert hour.document()["minute_bytes"] == [0] * MINUTES_MAX


def test_metrics_fill_it_from_what_becomes_readable() -> None:
    clock = ManualClock()
    metrics = Metrics(TelemetrySettings(), clock)
    metrics.add("bytes_offloaded_total", 700, stream="a/b/persistent/c")
    metrics.add("bytes_offloaded_total", 300, stream="a/b/persistent/d")
    metrics.add("uploaded_bytes_total", 9_000, stream="a/b/persistent/d")
    assert metrics.last_hour.document()["minute_bytes"] == [1000]
    clock.advance(10)
    assert [metrics.last_hour.rate_of(f"a/b/persistent/{name}") for name in "cd"] == [70.0, 30.0]
