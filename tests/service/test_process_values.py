"""Small parts of the serving process: pages, recent errors, the process lock, reloadable settings."""

from __future__ import annotations

import itertools
import logging
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offloader.errors import AccessDeniedError, InvalidCallError, StoreUnavailableError
from offloader.service.answers import KeptAnswers
from offloader.service.process import ASKED_EACH_TIME, RecentErrors, is_live, reloaded
from offloader.service.providers.embedded import ProcessLock
from offloader.service.queries import StreamOrder, page_of
from offloader.settings.layered import PROCESS_SECTIONS, SettingsFile, conflicts
from offloader.testing.manual_clock import ManualClock

# --- pages ----------------------------------------------------------------------------------------------------------

rows = st.lists(
    st.builds(
        lambda name, lag, error: {
            "stream": name,
            "lag": None if lag is None else {"seconds": lag / 4, "bytes": lag},
            "bytes_per_second": None if lag is None else lag / 3,
            "stalled": None,
            "last_error": error,
        },
        st.text(min_size=1, max_size=4),
        st.none() | st.integers(0, 20),
        st.sampled_from([None, "broken"]),
    ),
    unique_by=lambda row: row["stream"],
    max_size=20,
)


@pytest.mark.slow
@given(rows, st.sampled_from(StreamOrder), st.integers(1, 7), st.data())
def test_pages_contain_each_stream_once_while_streams_come_and_go(
    given_rows: list[dict[str, Any]], order: StreamOrder, limit: int, data: st.DataObject
) -> None:
    there, after, found = list(given_rows), "", list[str]()
    gone: set[str] = set()
    while True:
        page = page_of(there, order, after=after, limit=limit)
        assert len(page.items) <= limit
        found += [str(row["stream"]) for row in page.items]
        if page.next_after is None:
            break
        after = page.next_after
        leaving = data.draw(st.sampled_from([None, *there]))
        if leaving is not None:
            there = [row for row in there if row is not leaving]
            gone.add(leaving["stream"])
    whole = [row["stream"] for row in page_of(given_rows, order, after="", limit=len(given_rows) or 1).items]
    assert [name for name in found if name not in gone] == [name for name in whole if name not in gone]
    assert len(found) == len(set(found))
    if order is StreamOrder.NAME:
        assert whole == sorted(whole)
    if order is StreamOrder.RATE:
        rates = {row["stream"]: row["bytes_per_second"] or 0.0 for row in given_rows}
        assert [rates[name] for name in whole] == sorted(rates.values(), reverse=True)
    if order is StreamOrder.TROUBLE:
        broken = [row["stream"] for row in given_rows if row["last_error"]]
        assert set(whole[: len(broken)]) == set(broken)


@pytest.mark.parametrize(
    "after", ["x", "[]", '["lag", 0, 0, 0, "a"]', '["name", null, 0, 0, "a"]', '["name", 0, 0, 0, 5]']
)
def test_invalid_cursor_is_refused(after: str) -> None:
    with pytest.raises(InvalidCallError, match="not a place in the order name"):
        page_of([], StreamOrder.NAME, after=after, limit=1)


# --- recent errors --------------------------------------------------------------------------------------------------


@pytest.fixture
def recent() -> Iterator[RecentErrors]:
    handler, logger = RecentErrors(kept_max=3), logging.getLogger("offloader")
    logger.addHandler(handler)
    logger.setLevel("INFO")
    yield handler
    logger.removeHandler(handler)


def test_warnings_are_kept_and_counted_the_newest_first(recent: RecentErrors) -> None:
    log = logging.getLogger("offloader.stream")
    log.info("not of interest")
    for seconds in (1, 2, 3):
        log.warning("stream %s waits %d s", "a", seconds, extra={"stream": "a", "event": "waits"})
    log.error("stream b stopped\nfor good", extra={"stream": "b"})
    newest, waits = recent.newest()
    assert (newest.level, newest.stream, newest.message) == ("error", "b", "stream b stopped for good")
    assert (waits.count, waits.message, waits.event) == (3, "stream a waits 3 s", "waits")
    assert [each.stream for each in recent.newest(stream="a")] == ["a"]
    for name in "cdef":
        log.warning("stream %s", name, extra={"stream": name})
    assert [each.stream for each in recent.newest()] == ["f", "e", "d"]


def test_logged_error_has_its_hint_and_no_traceback(recent: RecentErrors) -> None:
    log = logging.getLogger("offloader.service")
    for error in (StoreUnavailableError("no answer", hint="look at the network"), ValueError("x" * 5000)):
        try:
            raise error
        except Exception:
            log.exception("it failed")
    bug, known = recent.newest()
    assert (known.message, known.hint) == ("it failed: no answer", "look at the network")
    assert bug.message.startswith("it failed: ValueError: xxx")
    assert len(bug.message) == 2000


# --- the lock -------------------------------------------------------------------------------------------------------

HOLDER = """
import sys, pathlib
from offloader.service.providers.embedded import ProcessLock
lock = ProcessLock(pathlib.Path(sys.argv[1]))
print(lock.take(), flush=True)
sys.stdin.readline()
"""


@pytest.mark.process
def test_process_holds_the_lock_until_it_ends(tmp_path: Path) -> None:
    lock = ProcessLock(tmp_path / "lock")
    command = [sys.executable, "-c", HOLDER, str(lock.path)]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == "True\n"
        assert not lock.take()
        assert lock.holder().endswith(f"/{other.pid}")
        other.kill()
    assert lock.take()
    assert lock.take()
    assert lock.is_held
    again = ProcessLock(lock.path)
    assert not again.take()
    lock.give()
    assert again.take()
    again.give()


def test_lock_in_an_impossible_place_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(AccessDeniedError, match="No such file"):
        ProcessLock(tmp_path / "nowhere" / "lock").take()


# --- reloading ------------------------------------------------------------------------------------------------------


def test_reload_keeps_and_reports_fixed_settings() -> None:
    old = SettingsFile("x.toml", {"": {"store.retries_max": 1, "offload.codec": "zstd", "serve.streams": ["a"]}})
    new = SettingsFile(
        "x.toml",
        {
            "": {
                "limits.requests_per_s": 5.0,
                "offload.codec": "none",
                "serve.streams": ["b"],
                "offload.method": "streaming",
            },
            "topics.a": {"retention.policy": "consumption"},
        },
    )
    found = reloaded(old, new)
    assert found.file.layers == {
        "": {"store.retries_max": 1, "offload.codec": "none", "serve.streams": ["b"], "offload.method": "streaming"},
        "topics.a": {"retention.policy": "consumption"},
    }
    assert found.changed == ("offload.codec", "offload.method", "serve.streams", "[topic a] retention.policy")
    assert found.needs_restart == ("limits.requests_per_s", "store.retries_max")
    assert reloaded(found.file, found.file).changed == ()


def test_reload_is_refused_if_it_contradicts_values_that_only_a_restart_replaces() -> None:
    old = SettingsFile("x.toml", {"": {"offload.offload_memory_size_max": 64 << 20}})
    larger = {"offload.offload_memory_size_max": 256 << 20, "offload.offload_buffer_size_max": 128 << 20}
    assert list(conflicts(SettingsFile("x.toml", {"": larger}))) == []
    with pytest.raises(InvalidCallError, match=r"is above offload\.offload_memory") as refused:
        reloaded(old, SettingsFile("x.toml", {"": {"offload.method": "streaming", **larger}}))
    assert "not in force before a restart: offload.offload_memory" in refused.value.message
    fitting = {**larger, "offload.method": "streaming", "offload.offload_buffer_size_max": 32 << 20}
    assert reloaded(old, SettingsFile("x.toml", {"": fitting})).changed != ()


def test_live_settings_exist_and_process_settings_are_fixed() -> None:
    known = set(SettingsFile().values_of(""))
    assert known >= ASKED_EACH_TIME
    sections = {name.partition(".")[0] for name in known if is_live(name) and name not in ASKED_EACH_TIME}
    assert not sections & PROCESS_SECTIONS


# --- kept answers ---------------------------------------------------------------------------------------------------


Kept = tuple[Callable[[str, Callable[[], int]], int], ManualClock]


@pytest.fixture
def kept_answers() -> Iterator[Kept]:
    """What is kept for ten seconds, of two names."""
    clock = ManualClock()
    with ThreadPoolExecutor(1) as threads:
        kept = KeptAnswers[int](threads, clock, is_away=lambda: "", kept_max=2)
        yield partial(kept.get, age_s_max=10.0, deadline_s=None), clock


def test_cached_responses_are_reused_while_young_and_bounded(kept_answers: Kept) -> None:
    answer, clock = kept_answers
    made = itertools.count()
    assert [answer("a", made.__next__) for _ in range(3)] == [0, 0, 0]
    clock.advance(9.9)
    assert answer("a", made.__next__) == 0
    clock.advance(0.2)
    assert answer("a", made.__next__) == 1
    assert [answer(name, made.__next__) for name in ("b", "c", "b", "a")] == [2, 3, 2, 4], "two are kept"


def test_cached_response_ages_from_its_request_and_failures_are_not_cached(kept_answers: Kept) -> None:
    answer, clock = kept_answers

    def slow() -> int:
        clock.advance(8)
        return 1

    def failing() -> int:
        raise StoreUnavailableError("the store doesn't answer")

    assert answer("a", slow) == 1
    clock.advance(3)
    with pytest.raises(StoreUnavailableError):
        answer("a", failing)
    assert answer("a", lambda: 2) == 2
