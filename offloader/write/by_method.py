"""What brings one stream's entries into the cold tier, by its method, for an application that appends them."""

from __future__ import annotations

import logging
import threading

from formats.entries import Position
from offloader.errors import Closed, InvalidCall, OffloaderError
from offloader.ledgers.base import LedgerSource
from offloader.manifest.log import ManifestLog
from offloader.manifest.state import EditRefused, StreamPaused
from offloader.write.history.ledger_trigger import LedgerTrigger
from offloader.write.offloader import LedgerOffloader
from offloader.write.stream.status import StreamStatus
from offloader.write.stream.streaming import StreamOffload

__all__ = ["RESTART_S_MIN", "MethodOffload"]

_log = logging.getLogger("offloader.stream")

#: First wait before a stream that stopped because the manifest refused its edits is started again; it doubles.
RESTART_S_MIN = 1.0
RESTART_S_MAX = 300.0


class MethodOffload:
    """Streaming, the ledger method, or nothing. Thread-safe; ``begin`` and ``end`` are called by one at a time.

    Args:
        offloader: of the process.
        source: the hot tier.
        stream: its name.

    Attributes:
        method: ``streaming``, ``ledger`` or ``none``.
    """

    def __init__(self, offloader: LedgerOffloader, source: LedgerSource, stream: str, method: str) -> None:
        self._offloader, self._source, self._stream = offloader, source, stream
        self.method = method
        self._lock = threading.Lock()
        self._offload: StreamOffload | None = None
        #: Held, because who looks at streams doesn't: its last look says how this one ended.
        self._ended: StreamOffload | None = None
        self._trigger: LedgerTrigger | None = None
        self._restart_s = RESTART_S_MIN

    @property
    def is_running(self) -> bool:
        return self._offload is not None or self._trigger is not None

    def begin(self, log: ManifestLog | None = None) -> None:
        """Starts by the method as it is now.

        Args:
            log: with the epoch of this start; ``None``: one is opened when there is something to offload.
        """
        if self.method == "streaming":
            self._offload = self._offloader.offload_stream(
                self._source, self._stream, log=log, on_refused=self._refused
            )
        elif self.method == "ledger":
            self._trigger = self._offloader.offload_closed_ledgers(self._source, self._stream)

    def end(self) -> None:
        """Stops, leaving what isn't committed to the next start."""
        offload, self._offload = self._offload, None
        trigger, self._trigger = self._trigger, None
        if offload is not None:
            offload.stop()
        if trigger is not None:
            trigger.stop()
            trigger.wait()

    def offload(self, until: Position | None = None, *, timeout_s: float | None = None) -> Position | None:
        """See ``ManagedLedger.offload``."""
        offload, trigger = self._offload, self._trigger
        if offload is not None:
            try:
                return offload.offload(until, timeout_s=timeout_s)
            except StreamPaused:
                raise
            except EditRefused:
                # The manifest says something else than this stream knew: it begins anew, from what the manifest says.
                return self._restarted(offload).offload(until, timeout_s=timeout_s)
        if trigger is None:
            raise InvalidCall(f"stream {self._stream} isn't offloaded: its method is none")
        result = trigger.offload()
        if result.errors:
            raise result.errors[0]
        self._restart_s = RESTART_S_MIN
        return result.committed

    def look_again(self) -> None:
        """The manifest may say by now that the stream is paused, or that it goes on."""
        for each in (self._offload, self._trigger):
            if each is not None:
                each.look_again()

    def status(self) -> StreamStatus | None:
        """Of the streaming offload; ``None`` with another method."""
        offload = self._offload
        return None if offload is None else offload.status()

    def close(self, *, drain: bool) -> OffloaderError | None:
        """Ends for good; why not everything is committed, if ``drain`` was to see to that."""
        failure: OffloaderError | None = None
        if drain and self._offload is not None:
            try:
                self.offload()
            except StreamPaused:
                pass  # as somebody wants it: what isn't offloaded is the hot tier's
            except OffloaderError as error:
                failure = error
        with self._lock:
            offload, self._offload = self._offload, None
            self._ended = offload
        if offload is not None:
            offload.stop()
        if self._trigger is not None:
            self._trigger.stop()
        return failure

    def _refused(self) -> None:
        """The stream stopped by itself because the manifest took no record of it: it is started again soon."""
        offload = self._offload
        if offload is not None:
            wait_s, self._restart_s = self._restart_s, min(2 * self._restart_s, RESTART_S_MAX)
            self._offloader.call_after(wait_s, lambda: self._restart_later(offload))

    def _restart_later(self, stopped: StreamOffload) -> None:
        try:
            self._restarted(stopped)
        except Closed:
            pass
        except OffloaderError as error:
            _log.warning("stream %s isn't offloaded: %s", self._stream, error)
            self._refused()

    def _restarted(self, stopped: StreamOffload) -> StreamOffload:
        """The stream in place of one that stopped by itself."""
        with self._lock:
            if self._offload is stopped:
                stopped.stop()
                _log.warning("stream %s is started again: the manifest refused its record", self._stream)
                self._offload = self._offloader.offload_stream(self._source, self._stream, on_refused=self._refused)
            if self._offload is None:
                raise Closed(f"stream {self._stream} was stopped")
            return self._offload
