"""What a paused stream does: it completes what is on its way, assigns nothing, and looks whether it may go on.

Owns noticing both. Must never give up a segment that is assigned, nor send a request while nothing waits.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from offloader.errors import Closed, NotFound
from offloader.manifest.log import ManifestLog
from offloader.workers import Timer, Workers
from offloader.write.stream.state import StreamState
from offloader.write.stream.status import Mode

__all__ = ["LOOK_FIRST_S", "LOOK_MAX_S", "Pausing"]

_log = logging.getLogger("offloader.stream")

#: While entries wait in a paused stream it looks whether it was resumed: after so long, then half as often each time.
LOOK_FIRST_S = 5.0
#: And at least so often. A look is three requests.
LOOK_MAX_S = 60.0


class Pausing:
    """Used by a stream's steps, one at a time; only ``look_again`` may be called by others.

    Args:
        shared: the stream's state.
        log: its manifest.
        workers: for the timer.
        schedule: makes another step.
    """

    def __init__(
        self, shared: StreamState, log: ManifestLog, workers: Workers, *, schedule: Callable[[], None]
    ) -> None:
        self._shared, self._log, self._workers, self._schedule = shared, log, workers, schedule
        self._looking = 0
        self._delay_s = LOOK_FIRST_S
        self._timer: Timer | None = None

    def look_again(self) -> None:
        """The manifest may say something else by now: the next step reads it."""
        with self._shared.lock:
            self._shared.looks_asked += 1
        self._schedule()

    def is_on(self) -> bool:
        """Whether the stream is paused, as far as its manifest is known: every commit looks, and who was told to.

        Raises: what loading a manifest raises.
        """
        self._looking = self._shared.looks_asked
        if self._looking != self._shared.looks_done:
            try:
                self._log.load()
            except NotFound:
                return False  # nothing of it was ever offloaded
        return self._log.is_loaded and self._log.state.paused

    def rest(self) -> None:
        """Lets go of what no record has assigned: the hot tier has it."""
        shared = self._shared
        with shared.changed:
            if shared.mode is Mode.STOPPED:
                return
            begins, shared.mode = shared.mode is not Mode.PAUSED, Mode.PAUSED
            dropped = shared.queue.keep_assigned(self._log.state.committed_end())
            waits = shared.is_behind
            if waits and self._timer is None:
                self._timer = self._workers.call_after(self._delay_s, self._look)
            shared.is_watched = self._timer is not None
            shared.looks_done = self._looking
            shared.changed.notify_all()
        if begins:
            _log.info("stream %s is paused", shared.stream)
        for segment in dropped:
            segment.handle.abandon(Closed("the stream is paused"), abort=True)
        shared.buffer.stop_waiting()

    def end(self) -> bool:
        """The stream isn't paused: it reads on where it stopped. Whether it was paused and nothing is on its way."""
        shared = self._shared
        with shared.changed:
            shared.looks_done = self._looking
            if shared.mode is not Mode.PAUSED:
                return False
            shared.mode, shared.is_watched = Mode.CATCH_UP, False
            timer, self._timer, self._delay_s = self._timer, None, LOOK_FIRST_S
            shared.changed.notify_all()
        if timer is not None:
            timer.cancel()
        _log.info("stream %s is resumed", shared.stream)
        return shared.queue.first is None

    def _look(self) -> None:
        with self._shared.lock:
            self._timer = None
            self._delay_s = min(2 * self._delay_s, LOOK_MAX_S)
        self.look_again()
