"""What a fenced stream does: nothing, but look from time to time whether its successor is gone.

Owns that look and its timer. Must never take a stream back itself: it says when that is right.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from formats.entries import Position
from offloader.errors import OffloaderError
from offloader.settings import OffloadSettings
from offloader.workers import Workers
from offloader.write.ownership.opening import Ownership

__all__ = ["Revival"]

_log = logging.getLogger("offloader.stream")


class Revival:
    """Calls ``reopen`` when a lost stream is abandoned.

    Args:
        stream: its name, for the log.
        ownership: is asked whether the stream is abandoned.
        tail: the newest entry in the hot tier, as far as it is known.
        reopen: takes the stream back.
    """

    def __init__(
        self,
        stream: str,
        ownership: Ownership,
        settings: OffloadSettings,
        workers: Workers,
        *,
        tail: Callable[[], Position | None],
        reopen: Callable[[], object],
    ) -> None:
        self._stream = stream
        self._ownership = ownership
        self._settings = settings
        self._workers = workers
        self._tail = tail
        self._reopen = reopen
        self._lock = threading.Lock()
        self._watching = False

    @property
    def is_lost(self) -> bool:
        """Whether the stream is lost, and watched."""
        return self._watching

    def watch(self) -> None:
        """The stream is lost from now on."""
        with self._lock:
            self._watching = True
        self._look_later()

    def stop(self) -> bool:
        """The stream isn't watched any more: taken back, or stopped for good. Whether it was."""
        with self._lock:
            watched, self._watching = self._watching, False
        return watched

    def _look_later(self) -> None:
        self._workers.call_after(self._settings.takeover_after_seconds, self._look)

    def _look(self) -> None:
        if not self._watching:
            return
        try:
            abandoned = self._ownership.is_abandoned(self._tail())
        except OffloaderError as error:
            _log.warning("stream %s is fenced, and can't be looked at: %s", self._stream, error)
            abandoned = False
        if abandoned:
            _log.warning("stream %s: its owner is silent and data waits: taking it back", self._stream)
            self._reopen()
        else:
            self._look_later()
