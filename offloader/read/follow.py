"""Reading on as a stream grows: what is readable now, and then what becomes readable, for as long as the caller likes.

Owns when the manifest is looked at again. Must never give an entry twice, leave one out, or wait without a bound.
"""

from __future__ import annotations

import threading
from collections.abc import Generator
from contextlib import closing

from formats.entries import EntryBatch, Position
from offloader.clock import Clock
from offloader.read.reader import Reader

__all__ = ["follow"]

#: Seconds until the manifest is looked at again: at first, and at most, after nothing was new several times.
WAIT_S_MIN = 0.5
WAIT_S_MAX = 10.0


def follow(
    reader: Reader, start: Position | None, *, clock: Clock, stop: threading.Event | None = None
) -> Generator[EntryBatch, None, None]:
    """All entries from ``start``, those that will be readable later too, in order, each once.

    Looks at the manifest after 0.5 s, after twice as long each time that nothing is new, at most every 10 s.

    Args:
        reader: of the stream; it isn't changed.
        start: default: the first readable entry there is, or will be.
        clock: waits.
        stop: ends the iteration when it is set; default: it goes on for ever.

    Raises:
        Trimmed: what comes next was deleted meanwhile; names the first position that is left.
        what ``Reader.scan`` raises.
    """
    stop = stop or threading.Event()
    wait_s = WAIT_S_MIN
    current = reader
    while not stop.is_set():
        last = current.last_position
        if last is not None and (start is None or start <= last):
            with closing(current.scan(start, last)) as batches:
                yield from batches
            start, wait_s = Position(last.ledger_id, last.entry_id + 1), WAIT_S_MIN
        if clock.wait(stop, wait_s):
            return
        wait_s = min(2 * wait_s, WAIT_S_MAX)
        newer = current.refresh()
        if current is not reader:
            current.close()
        current = newer
