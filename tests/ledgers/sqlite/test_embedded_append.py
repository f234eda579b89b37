"""Appending, rolling over and reading back."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from formats.entries import EntryBatch, Position
from offloader.errors import ClosedError, InvalidCallError, LimitReachedError
from offloader.ledgers.base import LedgerInfo
from offloader.ledgers.sqlite.chunks import CHUNK_BYTES, must_roll
from offloader.ledgers.sqlite.embedded import EmbeddedLedgers
from offloader.ledgers.sqlite.stream import chunks_from
from offloader.settings import Duration, LedgerSettings, Size
from tests.ledgers.ledger_cases import START_MS, TurnedClock, payloads_of, read_all
from tests.support.presence import there

#: Opens ledgers: ``make(url, **settings)``.
Make = Callable[..., EmbeddedLedgers]


@pytest.fixture
def clock() -> TurnedClock:
    return TurnedClock()


@pytest.fixture
def make(tmp_path: Path, clock: TurnedClock) -> Iterator[Make]:
    opened = []

    def make(url: str | None = None, **settings: Any) -> EmbeddedLedgers:
        ledgers = EmbeddedLedgers(url or str(tmp_path / "l.db"), settings=LedgerSettings(**settings), clock=clock)
        opened.append(ledgers)
        return ledgers

    yield make
    for ledgers in opened:
        ledgers.close()


def test_appended_entries_read_back_with_positions_and_times(make: Make) -> None:
    stream = make().open_stream("s")
    (batch,) = stream.append([b"a", b"", b"ccc"], [5, 6, 7])
    assert [e.position for e in batch.entries()] == [Position(1, 0), Position(1, 1), Position(1, 2)]
    assert read_all(stream) == [(Position(1, 0), b"a", 5), (Position(1, 1), b"", 6), (Position(1, 2), b"ccc", 7)]


def test_without_times_entries_are_published_now(make: Make) -> None:
    stream = make().open_stream("s")
    stream.append([b"a", b"b"])
    assert [time for _, _, time in read_all(stream)] == [START_MS, START_MS]


@pytest.mark.slow
@pytest.mark.parametrize(
    "payloads",
    [
        [b"x", b"yy"],
        (b"x", b"yy"),
        pa.array([b"x", b"yy"]),
        pa.array([b"before", b"x", b"yy", b"after"]).slice(1, 2),
        pa.array([b"x", b"yy"], pa.large_binary()),
        pa.array(["x", "yy"]),
        pa.chunked_array([[b"x"], [b"yy"]]),
    ],
    ids=["list", "tuple", "array", "slice", "large", "strings", "chunked"],
)
@pytest.mark.parametrize("times", [[1, 2], np.array([1, 2]), np.array([1, 2], dtype=np.int32), (1, 2)])
def test_payloads_and_times_may_be_any_sequence(make: Make, payloads: Any, times: Any) -> None:
    stream = make().open_stream("s")
    stream.append(payloads, times)
    assert [(p, t) for _, p, t in read_all(stream)] == [(b"x", 1), (b"yy", 2)]


def test_single_time_applies_to_all_entries(make: Make) -> None:
    stream = make().open_stream("s")
    stream.append([b"x", b"yy"], 9)
    stream.append([b"z"], np.int64(-1))  # type: ignore[arg-type]  # a number, though not one of Python's own
    assert [t for _, _, t in read_all(stream)] == [9, 9, -1]


def test_the_caller_may_change_its_times_afterwards(make: Make) -> None:
    stream = make().open_stream("s")
    times = np.array([1, 2])
    (batch,) = stream.append([b"x", b"y"], times)
    times[:] = 0
    assert batch.publish_times_ms.tolist() == [1, 2]


def test_the_caller_may_change_its_payloads_afterwards(make: Make) -> None:
    stream = make().open_stream("s")
    heard: list[EntryBatch] = []
    stream.subscribe(heard.append)
    body = np.frombuffer(b"onetwo", dtype=np.uint8).copy()
    offsets = pa.py_buffer(np.array([0, 3, 6], dtype=np.int32))
    (batch,) = stream.append(pa.BinaryArray.from_buffers(pa.binary(), 2, [None, offsets, pa.py_buffer(body)]))
    body[:] = 0
    for each in (batch, heard[0]):
        assert each.payloads.to_pylist() == [b"one", b"two"]
    assert [payload for _, payload, _ in read_all(stream)] == [b"one", b"two"]


def test_no_payloads_append_nothing(make: Make) -> None:
    stream = make().open_stream("s")
    heard: list[EntryBatch] = []
    stream.subscribe(heard.append)
    assert stream.append([]) == []
    assert heard == []
    assert stream.last_position() is None


@pytest.mark.slow
@pytest.mark.parametrize(
    ("payloads", "times"),
    [
        (b"one", 1),
        ("text", 1),
        ([1, 2], 1),
        ([b"x", None], 1),
        (pa.array([1, 2]), 1),
        ([b"x"], [1, 2]),
        ([b"x", b"y"], [1]),
        ([b"x"], [1.5]),
        ([b"x"], ["1"]),
        ([b"x"], [[1]]),
        ([b"x"], [2**70]),
        (None, 1),
    ],
)
def test_invalid_input_is_refused_and_changes_nothing(make: Make, payloads: Any, times: Any) -> None:
    stream = make().open_stream("s")
    with pytest.raises(InvalidCallError, match="append to stream 's'") as caught:
        stream.append(payloads, times)
    assert "\n" not in str(caught.value)
    assert stream.last_position() is None


def test_a_ledger_takes_the_entry_that_fills_it_and_closes_at_once(make: Make, clock: TurnedClock) -> None:
    stream = make(ledger_size_max=10).open_stream("s")
    batches = stream.append([b"aaaa", b"bbbb", b"cccc", b"dddd"])
    assert [(b.first, b.last) for b in batches] == [
        (Position(1, 0), Position(1, 2)),
        (Position(2, 0), Position(2, 0)),
    ]
    first, second = stream.ledgers()
    assert (first.closed, first.entries, first.size_bytes, first.closed_ms) == (True, 3, 12, START_MS)
    assert (second.closed, second.entries, second.closed_ms) == (False, 1, None)


def test_a_ledger_closes_at_its_number_of_entries(make: Make) -> None:
    stream = make(ledger_entries_max=3).open_stream("s")
    batches = stream.append([b"%d" % i for i in range(8)])
    assert [(b.ledger_id, len(b)) for b in batches] == [(1, 3), (2, 3), (3, 2)]
    assert [ledger.closed for ledger in stream.ledgers()] == [True, True, False]
    assert payloads_of(stream) == [b"%d" % i for i in range(8)]


def test_old_ledger_is_closed_at_the_next_append(make: Make, clock: TurnedClock) -> None:
    stream = make(ledger_age_max=Duration("1m")).open_stream("s")
    stream.append([b"a"])
    clock.time_ms += 59_999
    stream.append([b"b"])
    clock.time_ms += 1
    assert [ledger.closed for ledger in stream.ledgers()] == [False]
    stream.append([b"c"])
    assert [(ledger.closed, ledger.entries) for ledger in stream.ledgers()] == [(True, 2), (False, 1)]


def test_an_old_ledger_without_entries_is_used(make: Make, clock: TurnedClock) -> None:
    stream = make(ledger_age_max=Duration("1m")).open_stream("s")
    clock.time_ms += 10 * 60_000
    stream.append([b"a"])
    assert [ledger.entries for ledger in stream.ledgers()] == [1]


def test_backward_clock_rolls_no_ledger_over(make: Make, clock: TurnedClock) -> None:
    stream = make(ledger_age_max=Duration("1m")).open_stream("s")
    stream.append([b"a"])
    clock.time_ms -= 10 * 60_000
    stream.append([b"b"])
    assert len(stream.ledgers()) == 1


@pytest.mark.parametrize(
    ("entries", "size_bytes", "age_ms", "rolls"),
    [(0, 0, 10**9, False), (1, 1, 0, False), (9, 1, 0, False), (10, 1, 0, True), (1, 99, 0, False), (1, 100, 0, True),
     (1, 1, 59_999, False), (1, 1, 60_000, True), (1, 1, -(10**9), False)],
)  # fmt: skip
def test_full_or_old_ledger_must_roll(entries: int, size_bytes: int, age_ms: int, rolls: bool) -> None:
    ledger = LedgerInfo(ledger_id=1, closed=False, entries=entries, size_bytes=size_bytes, created_ms=START_MS)
    settings = LedgerSettings(ledger_size_max=Size(100), ledger_entries_max=10, ledger_age_max=Duration("1.0m"))
    assert must_roll(ledger, START_MS + age_ms, settings) is rolls


def test_a_ledger_is_closed_on_request(make: Make, clock: TurnedClock) -> None:
    stream = make().open_stream("s")
    assert stream.close_ledger() is None
    stream.append([b"a"])
    clock.time_ms += 5
    closed = stream.close_ledger()
    assert closed is not None
    assert (closed.ledger_id, closed.closed, closed.entries, closed.closed_ms) == (1, True, 1, START_MS + 5)
    assert stream.close_ledger() is None
    assert stream.append([b"b"])[0].first == Position(2, 0)


def test_ledger_ids_are_unique_over_the_database_and_never_used_again(make: Make) -> None:
    ledgers = make()
    a, b = ledgers.open_stream("a"), ledgers.open_stream("b")
    a.append([b"1"])
    b.append([b"2"])
    a.close_ledger()
    a.append([b"3"])
    assert [x.ledger_id for x in a.ledgers()] == [1, 3]
    assert [x.ledger_id for x in b.ledgers()] == [2]
    a.close_ledger()
    a.delete(3)
    assert a.append([b"4"])[0].ledger_id == 4
    assert payloads_of(b) == [b"2"]
    assert ledgers.streams() == ["a", "b"]


def test_reading_gives_at_least_one_entry_and_as_many_as_fit(make: Make) -> None:
    stream = make().open_stream("s")
    stream.append([b"aaaa", b"bbbb", b"cccc"])
    stream.append([b"dddd"])

    def taken(entry_id: int, max_bytes: int) -> list[bytes]:
        batch = stream.read(Position(1, entry_id), max_bytes)
        return [] if batch is None else batch.payloads.to_pylist()

    assert taken(0, 0) == [b"aaaa"]
    assert taken(0, 7) == [b"aaaa"]
    assert taken(0, 8) == [b"aaaa", b"bbbb"]
    assert taken(1, 12) == [b"bbbb", b"cccc", b"dddd"]
    assert taken(3, 1) == [b"dddd"]
    assert taken(4, 1) == []


def test_a_read_from_the_first_entry_of_a_row_loads_no_row_that_it_leaves_out(tmp_path: Path, make: Make) -> None:
    """A read of 4 MiB at the beginning of a row once loaded, checked and copied 5 MiB."""
    stream = make().open_stream("s")
    stream.append([b"x" * 1024] * 4096)
    with closing(sqlite3.connect(tmp_path / "l.db")) as connection:

        def rows(entry_id: int, max_bytes: int) -> list[int]:
            return [chunk.first_entry_id for chunk in chunks_from(connection, 1, entry_id, max_bytes)]

        assert rows(0, CHUNK_BYTES) == [0]
        assert rows(1024, 2 * CHUNK_BYTES) == [1024, 2048]
        assert rows(1024, 2 * CHUNK_BYTES + 1) == [1024, 2048, 3072]
        assert rows(1025, CHUNK_BYTES) == [1024, 2048], "of the first row it isn't known what counts"


def test_reading_continues_at_the_next_ledger_with_entries(make: Make) -> None:
    ledgers = make()
    stream = ledgers.open_stream("s")
    stream.append([b"a"])
    stream.close_ledger()
    stream.append([b"b"])
    stream = ledgers.open_stream("s")
    assert [(x.ledger_id, x.entries) for x in stream.ledgers()] == [(1, 1), (2, 1), (3, 0)]
    for start in (Position(-5, 3), Position(0, 0), Position(1, -7), Position(1, 0)):
        assert there(stream.read(start, 100)).first == Position(1, 0)
    for start in (Position(1, 1), Position(1, 2**80), Position(2, 0)):
        assert there(stream.read(start, 100)).first == Position(2, 0)
    for start in (Position(2, 1), Position(3, 0), Position(99, 0), Position(2**80, 0)):
        assert stream.read(start, 100) is None


def test_reading_continues_after_a_deleted_ledger(make: Make) -> None:
    stream = make(ledger_entries_max=2).open_stream("s")
    stream.append([b"a", b"b", b"c", b"d", b"e"])
    stream.delete(1)
    stream.delete(1)
    stream.delete(77)
    assert [x.ledger_id for x in stream.ledgers()] == [2, 3]
    assert payloads_of(stream) == [b"c", b"d", b"e"]
    assert stream.first_position() == Position(2, 0)


def test_an_open_ledger_isnt_deleted(make: Make) -> None:
    stream = make().open_stream("s")
    stream.append([b"a"])
    with pytest.raises(InvalidCallError, match="stream 's' ledger 1 is open"):
        stream.delete(1)
    assert payloads_of(stream) == [b"a"]


def test_another_streams_ledger_isnt_deleted(make: Make) -> None:
    ledgers = make()
    a, b = ledgers.open_stream("a"), ledgers.open_stream("b")
    a.append([b"1"])
    a.close_ledger()
    b.delete(1)
    assert payloads_of(a) == [b"1"]


def test_first_and_last_position_follow_the_entries(make: Make) -> None:
    stream = make(ledger_entries_max=2).open_stream("s")
    assert (stream.first_position(), stream.last_position()) == (None, None)
    stream.append([b"a", b"b", b"c"])
    assert (stream.first_position(), stream.last_position()) == (Position(1, 0), Position(2, 0))


def test_everything_survives_closing(make: Make, tmp_path: Path) -> None:
    ledgers = make(ledger_entries_max=3)
    stream = ledgers.open_stream("s")
    stream.append([b"%d" % i for i in range(7)], notes={"n": b"v"})
    stream.release(Position(1, 2))
    before = read_all(stream)
    ledgers.close()
    stream = make().open_stream("s")
    assert read_all(stream) == before
    assert stream.get_note("n") == b"v"
    assert stream.released_position() == Position(1, 2)


def test_released_position_never_decreases(make: Make) -> None:
    stream = make().open_stream("s")
    assert stream.released_position() is None
    for position in (Position(2, 5), Position(1, 9), Position(2, 4), Position(2, 6)):
        stream.release(position)
    assert stream.released_position() == Position(2, 6)


def test_notes_are_set_with_the_append_or_not_at_all(make: Make) -> None:
    stream = make().open_stream("s")
    assert stream.get_note("offset") is None
    stream.append([b"a"], notes={"offset": b"1"})
    assert stream.get_note("offset") == b"1"
    with pytest.raises(InvalidCallError):
        stream.append([None], notes={"offset": b"2"})
    assert stream.get_note("offset") == b"1"
    stream.append([], notes={"offset": b"3"})
    stream.put_note("other", b"")
    assert (stream.get_note("offset"), stream.get_note("other")) == (b"3", b"")


def test_notes_belong_to_their_stream(make: Make) -> None:
    ledgers = make()
    a, b = ledgers.open_stream("a"), ledgers.open_stream("b")
    a.put_note("k", b"1")
    assert b.get_note("k") is None


def test_a_note_has_a_limit(make: Make) -> None:
    stream = make().open_stream("s")
    with pytest.raises(LimitReachedError, match="note 'k' has 1048577 bytes"):
        stream.put_note("k", bytes(1024 * 1024 + 1))
    with pytest.raises(InvalidCallError, match="note 'k'"):
        stream.append([b"x"], notes={"k": "text"})  # type: ignore[dict-item]
    assert stream.last_position() is None


def test_large_batches_become_bounded_chunks_and_large_entries_one_each(make: Make) -> None:
    stream = make().open_stream("s")
    big = bytes(CHUNK_BYTES + 5)
    stream.append([b"x" * 100_000] * 25 + [big, big, b"tail"])
    with stream._database.reading() as connection:
        rows = connection.execute("SELECT entries, length(payload) FROM chunks ORDER BY first_entry_id").fetchall()
    assert rows == [(10, 1_000_000), (10, 1_000_000), (5, 500_000), (1, len(big)), (1, len(big)), (1, 4)]
    assert payloads_of(stream)[-3:] == [big, big, b"tail"]


@pytest.mark.slow
def test_many_entries_without_bytes_are_stored_in_bounded_chunks(make: Make) -> None:
    stream = make().open_stream("s")
    stream.append([b""] * 150_000, np.arange(150_000))
    batch = there(stream.read(Position(1, 0), 0))
    assert len(batch) >= 1
    assert [t for _, _, t in read_all(stream)] == list(range(150_000))


def test_a_memory_database_needs_no_file_and_is_its_own(make: Make) -> None:
    one, other = make("sqlite://:memory:"), make(":memory:")
    stream = one.open_stream("s")
    stream.append([b"a"])
    assert payloads_of(one.view_stream("s")) == [b"a"]
    assert other.streams() == []


def test_listeners_receive_every_batch_in_order_before_append_returns(make: Make) -> None:
    stream = make(ledger_entries_max=2).open_stream("s")
    heard: list[EntryBatch] = []
    stream.subscribe(heard.append)
    returned = stream.append([b"a", b"b", b"c"])
    assert heard == returned
    assert [b.payloads.to_pylist() for b in heard] == [[b"a", b"b"], [b"c"]]


def test_a_listener_sees_its_batch_as_durable(make: Make) -> None:
    ledgers = make()
    stream = ledgers.open_stream("s")
    seen = []
    stream.subscribe(lambda batch: seen.append(ledgers.view_stream("s").last_position()))
    stream.append([b"a", b"b"])
    assert seen == [Position(1, 1)]


def test_no_listener_is_called_after_its_cancellation(make: Make) -> None:
    stream = make().open_stream("s")
    first, second = list[EntryBatch](), list[EntryBatch]()
    subscription = stream.subscribe(first.append)
    stream.subscribe(second.append)
    stream.append([b"a"])
    subscription.cancel()
    subscription.cancel()
    stream.append([b"b"])
    assert (len(first), len(second)) == (1, 2)


def test_listener_may_cancel_its_own_subscription(make: Make) -> None:
    stream = make().open_stream("s")
    heard: list[EntryBatch] = []

    def once(batch: EntryBatch) -> None:
        heard.append(batch)
        subscription.cancel()

    subscription = stream.subscribe(once)
    stream.append([b"a"])
    stream.append([b"b"])
    assert len(heard) == 1


def test_failing_listener_is_logged_and_affects_no_other(make: Make, caplog: pytest.LogCaptureFixture) -> None:
    stream = make().open_stream("s")
    heard: list[EntryBatch] = []

    def fail(batch: EntryBatch) -> None:
        raise RuntimeError("no")

    stream.subscribe(fail)
    stream.subscribe(heard.append)
    assert len(stream.append([b"a"])) == 1
    assert len(heard) == 1
    assert "stream s: a listener failed at 1:0" in caplog.text


@pytest.mark.slow
def test_threads_append_and_read_at_once_without_tearing_a_call(make: Make) -> None:
    """Four writers, two readers: each call's entries stay together and in order, and what was read once stays."""
    stream = make(ledger_entries_max=37).open_stream("s")
    heard: list[bytes] = []
    stream.subscribe(lambda batch: heard.extend(batch.payloads.to_pylist()))
    done = threading.Event()
    problems: list[str] = []

    def write(name: int) -> None:
        for call in range(25):
            stream.append([b"%d:%d:%d" % (name, call, i) for i in range(5)])

    def read() -> None:
        before: list[bytes] = []
        while not done.is_set():
            now = payloads_of(stream)
            if now[: len(before)] != before:
                problems.append(f"{len(before)} entries read before are not the first of {len(now)}")
            before = now

    writers = [threading.Thread(target=write, args=(n,)) for n in range(4)]
    readers = [threading.Thread(target=read) for _ in range(2)]
    for thread in writers + readers:
        thread.start()
    for thread in writers:
        thread.join()
    done.set()
    for thread in readers:
        thread.join()
    stored = payloads_of(stream)
    assert problems == []
    assert stored == heard
    assert len(stored) == 4 * 25 * 5
    calls = [stored[i : i + 5] for i in range(0, len(stored), 5)]
    assert all(len({p.rsplit(b":", 1)[0] for p in call}) == 1 for call in calls)


def test_closed_database_refuses_calls(make: Make) -> None:
    ledgers = make()
    stream = ledgers.open_stream("s")
    ledgers.close()
    ledgers.close()
    for call in (lambda: stream.append([b"x"]), stream.ledgers, lambda: ledgers.open_stream("t"), ledgers.streams):
        with pytest.raises(ClosedError, match="is closed"):
            call()


def test_nothing_is_found_from_above_the_highest_ledger_id_on(make: Make) -> None:
    stream = make().open_stream("s", above=2**63 - 2)
    stream.append([b"entry"])
    assert there(stream.read(Position(2**63 - 1, 0), 100)).ledger_id == 2**63 - 1
    assert stream.read(Position(2**63, 0), 100) is None
