"""Which segment takes an entry when the open one closes at that moment."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from typing import Any
from uuid import uuid4

import pytest

from formats.entries import EntryBatch, Position
from offloader.runtime.clock import SystemClock
from offloader.settings import OffloadSettings, Settings, Size
from offloader.store.memory import MemoryStore
from offloader.write.offloader import LedgerOffloader
from offloader.write.quota import StreamQuota
from offloader.write.segment import OffloadHandle
from offloader.write.stream_state import SegmentQueue

SETTINGS = Settings()


def batch(first: int, count: int) -> EntryBatch:
    return EntryBatch.build(7, first, [b"x" * 10] * count, [5] * count)


class Bench:
    """A queue whose handles close when ``closing_calls`` says so: at that offer, just before it is taken."""

    def __init__(
        self, offloader: LedgerOffloader, closing_calls: set[int], settings: OffloadSettings = SETTINGS.offload
    ) -> None:
        self._offloader = offloader
        self._closing_calls = closing_calls
        self._buffer = StreamQuota(1 << 20)
        self.handles: list[OffloadHandle] = []
        self.offers = 0
        self.queue = SegmentQueue(self._open, self._buffer, settings)

    def _open(self, after: Position | None) -> OffloadHandle:
        handle = self._offloader.streaming_offload(uuid4(), {}, after=after, buffer=self._buffer, sending=False)
        taken = handle.offer_batch

        def offer_batch(*given: Any, **named: Any) -> int:
            self.offers += 1
            if self.offers in self._closing_calls:
                handle.close()
            return taken(*given, **named)

        handle.offer_batch = offer_batch  # type: ignore[method-assign]
        self.handles.append(handle)
        return handle


@pytest.fixture
def offloader() -> Iterator[LedgerOffloader]:
    with closing(LedgerOffloader(MemoryStore("segment-queue", "", SystemClock()), SETTINGS)) as opened:
        yield opened


@pytest.mark.parametrize("closing_call", [1, 2, 3])
def test_offers_move_to_the_next_segment_when_one_closes(offloader: LedgerOffloader, closing_call: int) -> None:
    bench = Bench(offloader, {closing_call})
    for first in (0, 5, 10):
        assert bench.queue.offer(batch(first, 5)) == 5
    assert bench.queue.offered == Position(7, 14)
    waiting = [each for each in (bench.queue.first, bench.queue.following) if each is not None]
    assert [each.handle.last_offered() is not None for each in waiting] == [True] * len(waiting)
    assert waiting[-1].handle.last_offered() == Position(7, 14)
    assert [each.begin for each in waiting] == (
        [Position(7, 0)] if closing_call == 1 else [Position(7, 0), Position(7, 5 * (closing_call - 1))]
    )


def test_nothing_is_taken_when_the_last_allowed_segment_closes(offloader: LedgerOffloader) -> None:
    bench = Bench(offloader, {2, 4})
    assert [bench.queue.offer(batch(first, 5)) for first in (0, 5, 10)] == [5, 5, 0]
    assert bench.queue.offered == Position(7, 9)
    assert bench.queue.offer(batch(10, 5)) == 0, "until one of the two is complete"


def test_a_segment_closes_when_it_has_its_size_and_not_a_byte_earlier(offloader: LedgerOffloader) -> None:
    # An entry of 10 bytes has 22 bytes with its header.
    settings = OffloadSettings(segment_size_max=Size(220))
    bench = Bench(offloader, set(), settings)
    assert bench.queue.offer(batch(0, 9)) == 9
    assert bench.queue.gathering is not None
    assert bench.queue.gathering.handle.wire_bytes == 198
    assert bench.queue.offer(EntryBatch.build(7, 9, [b"x" * 9], [5])) == 1
    assert bench.queue.gathering is not None
    assert bench.queue.gathering.handle.wire_bytes == 219
    assert bench.queue.offer(EntryBatch.build(7, 10, [b""], [5])) == 1
    assert bench.queue.gathering is None, "closed: 231 bytes"

    exactly = Bench(offloader, set(), settings)
    assert exactly.queue.offer(batch(0, 10)) == 10
    assert exactly.queue.gathering is None, "closed: 220 bytes"
