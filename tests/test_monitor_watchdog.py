"""The watchdog: a stream with data and no progress is reported, and no other."""

from __future__ import annotations

from typing import Any

import pytest

from formats.entries import Position
from offloader.monitor import Watchdog
from offloader.write.stream import Mode
from offloader.write.stream_state import StreamStatus


def status(**given: Any) -> StreamStatus:
    """A stream that is ten entries behind."""
    defaults: dict[str, Any] = {
        "mode": Mode.CATCH_UP,
        "buffer_bytes": 0,
        "buffer_bytes_max": 1000,
        "tail": Position(1, 19),
        "offered": Position(1, 9),
        "committed": Position(1, 9),
        "segments_committed": 0,
        "segments_failed": 0,
        "offers_refused": 0,
        "error": "",
    }
    return StreamStatus(**{**defaults, **given})


def dog() -> Watchdog:
    return Watchdog(no_progress_s=100.0, segment_age_s=600.0)


def test_data_and_no_progress_for_so_long_is_a_stall_with_a_reason() -> None:
    watchdog = dog()
    assert watchdog.look(0.0, {"s": status()}) == {}
    assert watchdog.look(99.0, {"s": status()}) == {}
    stall = watchdog.look(100.0, {"s": status(error="the disk is full")})["s"]
    assert stall.seconds == 100.0
    assert stall.reason == (
        "stream s: entries up to 1:19 wait, committed end 1:9; no progress for 100 s; last error: the disk is full"
    )


def test_overdue_request_is_the_stall_reason_of_its_own_stream_only() -> None:
    watchdog = dog()
    both = {"s": status(error="an old error"), "t": status(error="an old error")}
    watchdog.look(0.0, both)
    stalls = watchdog.look(100.0, both, {"s": "put of k has had no answer for 95 s"})
    assert stalls["s"].reason.endswith("no progress for 100 s; put of k has had no answer for 95 s")
    assert stalls["t"].reason.endswith("no progress for 100 s; last error: an old error")


def test_nothing_committed_yet_is_a_stall_too() -> None:
    watchdog = dog()
    watchdog.look(0.0, {"s": status(committed=None, offered=None)})
    assert "committed end none" in watchdog.look(100.0, {"s": status(committed=None, offered=None)})["s"].reason


def test_a_stream_without_data_is_never_stalled_however_long() -> None:
    watchdog = dog()
    for now_s in (0.0, 1e6):
        assert watchdog.look(now_s, {"idle": status(tail=None), "done": status(tail=Position(1, 9))}) == {}


def test_stall_time_counts_from_new_data_and_not_the_last_commit() -> None:
    watchdog = dog()
    watchdog.look(0.0, {"s": status(tail=Position(1, 9))})
    watchdog.look(1000.0, {"s": status(tail=Position(1, 9))})
    assert watchdog.look(1050.0, {"s": status()}) == {}
    assert watchdog.look(1101.0, {"s": status()}).keys() == {"s"}


@pytest.mark.parametrize("moved", [{"committed": Position(1, 12)}, {"offered": Position(1, 12)}])
def test_progress_restarts_the_stall_time(moved: dict[str, Any]) -> None:
    watchdog = dog()
    watchdog.look(0.0, {"s": status()})
    assert watchdog.look(90.0, {"s": status(**moved)}) == {}
    assert watchdog.look(189.0, {"s": status(**moved)}) == {}
    assert watchdog.look(190.0, {"s": status(**moved)}).keys() == {"s"}


def test_segment_failing_repeatedly_makes_no_progress() -> None:
    watchdog = dog()
    looks = [
        watchdog.look(10.0 * turn, {"s": status(offered=Position(1, 9 + turn % 5), segments_failed=turn)})
        for turn in range(20)
    ]
    assert looks[10] == {}
    assert looks[-1].keys() == {"s"}


def test_more_entries_coming_in_is_no_progress() -> None:
    watchdog = dog()
    watchdog.look(0.0, {"s": status()})
    assert watchdog.look(100.0, {"s": status(tail=Position(9, 9), offers_refused=50)}).keys() == {"s"}


def test_a_live_segment_that_gathers_may_take_its_age() -> None:
    watchdog = dog()
    gathering = status(mode=Mode.LIVE, offered=Position(1, 19))
    watchdog.look(0.0, {"s": gathering})
    assert watchdog.look(699.0, {"s": gathering}) == {}
    assert watchdog.look(700.0, {"s": gathering}).keys() == {"s"}


def test_fenced_stream_is_a_stall_at_once_and_a_stopped_one_is_none() -> None:
    watchdog = dog()
    stopped = {
        "fenced": status(mode=Mode.STOPPED, error="epoch 7 has it", error_kind="FencedError"),
        "stopped": status(mode=Mode.STOPPED, error="stream stopped was stopped", error_kind="ClosedError"),
        "done": status(mode=Mode.STOPPED, error="epoch 7 has it", error_kind="FencedError", tail=Position(1, 9)),
    }
    stalls = watchdog.look(0.0, stopped)
    assert stalls.keys() == {"fenced"}
    assert stalls["fenced"].reason.endswith("it stopped: epoch 7 has it")


def test_removed_streams_are_forgotten() -> None:
    watchdog = dog()
    for turn in range(100):
        watchdog.look(float(turn), {f"stream-{turn}": status()})
    assert len(watchdog._seen) == 1
