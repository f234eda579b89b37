"""Following a stream: every entry once and in order while it grows, until stopped."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable

import pytest

from formats.entries import Position
from formats.manifest import Retire, Truncate
from offloader.errors import TrimmedError
from offloader.read.fetch import Cache
from offloader.read.partitions import WAIT_S_MAX, WAIT_S_MIN, follow_all
from offloader.read.reader import open_stream_reader
from offloader.store.open import open_store
from offloader.testing.manual_clock import ManualClock
from tests.support.streams import StreamWriter, batch_of

names = itertools.count()


class SteppingClock(ManualClock):
    """At its n-th wait the n-th step happens; after the last one the follower is told to stop."""

    def __init__(self, *steps: Callable[[], object]) -> None:
        super().__init__()
        self._steps = list(steps)

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        if not self._steps:
            event.set()
        else:
            self._steps.pop(0)()
        return super().wait(event, timeout_s)


@pytest.fixture
def writer() -> StreamWriter:
    return StreamWriter(open_store(f"memory://follow-{next(names)}"))


def followed(writer: StreamWriter, start: Position | None, clock: ManualClock) -> list[Position]:
    reader = open_stream_reader(writer.store, writer.stream, cache=Cache(0))
    found = follow_all([reader], [start], clock=clock, stop=threading.Event())
    return [entry.position for _, batch in found for entry in batch.entries()]


def test_entries_are_followed_once_and_in_order_as_segments_are_committed(writer: StreamWriter) -> None:
    clock = SteppingClock(
        lambda: writer.add([batch_of(3, 0, 10)]),
        lambda: None,
        lambda: writer.add([batch_of(3, 10, 5), batch_of(5, 0, 3)], closes=[3]),
        lambda: writer.add([batch_of(5, 3, 1)]),
    )
    assert followed(writer, None, clock) == [entry.position for entry in writer.entries]
    assert len(writer.entries) == 19


def test_following_may_begin_at_a_position_that_does_not_exist_yet(writer: StreamWriter) -> None:
    writer.add([batch_of(3, 0, 10)])
    clock = SteppingClock(lambda: writer.add([batch_of(3, 10, 10)]))
    assert followed(writer, Position(3, 15), clock) == [Position(3, entry) for entry in range(15, 20)]


def test_waits_grow_while_nothing_is_new_and_are_short_again_afterwards(writer: StreamWriter) -> None:
    nothing = [lambda: None] * 6
    clock = SteppingClock(*nothing, lambda: writer.add([batch_of(3, 0, 10)]), *nothing[:2])
    followed(writer, None, clock)
    assert clock.waits_s[:7] == [min(WAIT_S_MIN * 2**n, WAIT_S_MAX) for n in range(7)]
    assert clock.waits_s[7:] == [WAIT_S_MIN, 2 * WAIT_S_MIN]


def test_following_truncated_entries_is_an_error_with_the_new_beginning(writer: StreamWriter) -> None:
    writer.add([batch_of(3, 0, 10)])

    def truncate() -> None:
        writer.add([batch_of(3, 10, 10)])
        writer.log.commit([Truncate(Position(3, 15))])

    with pytest.raises(TrimmedError) as error:
        followed(writer, None, SteppingClock(truncate))
    assert error.value.first_available == Position(3, 15)


def test_following_goes_on_after_ledgers_that_were_read_to_their_end_and_deleted(writer: StreamWriter) -> None:
    first = writer.add([batch_of(3, 0, 10)], closes=[3])

    def next_ledger() -> None:
        writer.add([batch_of(5, 0, 3)])
        writer.log.commit([Truncate(Position(5, 0)), Retire((first,))])

    assert followed(writer, None, SteppingClock(next_ledger)) == [entry.position for entry in writer.entries]
