"""The streams of the serving process.

Owns which there are and how they end together. Must never let one that can't be started, drained or stopped keep
another from it.
"""

from __future__ import annotations

import logging
import threading
from collections import Counter
from collections.abc import Callable
from typing import Any

from formats.stream_names import levels_above
from offloader.clock import Clock
from offloader.effective_settings import SettingsFile
from offloader.errors import Closed, Fenced, InvalidCall, LimitReached, NotFound, OffloaderError
from offloader.ledgers.base import LedgerSource
from offloader.manifest.state import StreamPaused
from offloader.service.feeds import Problem
from offloader.service.served_stream import ServedStream
from offloader.settings import Settings
from offloader.stream_names import name_clash, require_stream_name
from offloader.workers import Workers
from offloader.write.offloader import LedgerOffloader

__all__ = ["LOOK_S", "ServedStreams"]

_log = logging.getLogger("offloader.service")

#: Time between two looks for streams that stopped on an error.
LOOK_S = 5.0
#: Threads that start and stop streams; a source may take its time to say which ledgers it has.
STARTERS = 4
#: Problems of streams that are named one by one; of more only the number is.
PROBLEMS_NAMED_MAX = 20


class ServedStreams:
    """See ``offloader.service.feeds.Streams``. Thread-safe.

    Args:
        offloader: of the process.
        file: the settings in force; replaced by ``use``.
        clock: for deadlines and waits.
    """

    def __init__(self, offloader: LedgerOffloader, file: SettingsFile, clock: Clock) -> None:
        self._offloader, self._clock = offloader, clock
        self._file = file
        self._serve = file.settings_of("").serve
        self._workers = Workers(STARTERS, clock)
        # Guards the table.
        self._lock = threading.Lock()
        self._streams: dict[str, ServedStream] = {}
        #: Names above those of the streams, and how many streams are below each.
        self._levels = Counter[str]()
        self._closed = False
        self._aborted = threading.Event()

    def start(self) -> None:
        """Looks after the streams from now on."""
        self._workers.call_after(LOOK_S, self._look)

    # --- what feeds ask ------------------------------------------------------------------------------------------

    @property
    def file(self) -> SettingsFile:
        """The settings in force."""
        return self._file

    def settings_of(self, name: str) -> Settings:
        return self._file.settings_of(name)

    def add(
        self,
        name: str,
        source: LedgerSource,
        *,
        feed: str,
        adjust: Callable[[Settings], Settings] = lambda settings: settings,
        active: bool | None = True,
    ) -> ServedStream:
        require_stream_name(name)
        stream = ServedStream(
            name,
            source,
            feed=feed,
            settings=self.settings_of(name),
            adjust=adjust,
            offloader=self._offloader,
            workers=self._workers,
            clock=self._clock,
            restart_s_max=self._serve.restart_seconds_max,
            active=active,
        )
        with self._lock:
            if self._closed:
                raise Closed("the process is stopping")
            there = self._streams.get(name)
            if there is not None:
                raise InvalidCall(f"stream {name} is there already: feed {there.feed} brought it", hint="name it once")
            self._require_own_level(name)
            if len(self._streams) >= self._serve.streams_max:
                raise LimitReached(
                    f"stream {name} isn't offloaded: there are {len(self._streams)} already",
                    hint="raise serve.streams_max, or spread the streams over several processes",
                )
            self._streams[name] = stream
            self._levels.update(levels_above(name))
        stream.begin()
        return stream

    def remove(self, name: str, *, drain: bool = True, within_s: float | None = None) -> bool:
        stream = self.get(name)
        if stream is None:
            return False
        if drain and stream.has_to_drain:
            self._drain(stream, stream.settings.offload.drain_seconds_max if within_s is None else within_s)
        stream.end()
        with self._lock:
            if self._streams.get(name) is stream:
                del self._streams[name]
                self._levels.subtract(levels_above(name))
        return True

    def _require_own_level(self, name: str) -> None:
        """Of two names of which one begins with the other only one can be kept; the store may know neither yet."""
        clash = next((each for each in levels_above(name) if each in self._streams), None)
        if clash is None and self._levels[name] > 0:
            clash = next(each for each in self._streams if each.startswith(f"{name}/"))
        if clash is not None:
            raise name_clash(name, clash)

    # --- what the process asks -----------------------------------------------------------------------------------

    def get(self, name: str) -> ServedStream | None:
        """The stream of that name."""
        with self._lock:
            return self._streams.get(name)

    def require(self, name: str) -> ServedStream:
        """The stream of that name.

        Raises:
            NotFound: it isn't served here.
        """
        found = self.get(name)
        if found is None:
            raise NotFound(f"stream {name} isn't offloaded by this process", hint="ask the process that offloads it")
        return found

    def all(self) -> list[ServedStream]:
        """Every stream."""
        with self._lock:
            return list(self._streams.values())

    def source_of(self, name: str) -> LedgerSource | None:
        """The hot tier of a stream, where it is served here."""
        stream = self.get(name)
        return None if stream is None else stream.source

    def use(self, file: SettingsFile) -> None:
        """Other settings from here on; streams whose own changed obey soon."""
        with self._lock:
            self._file, self._serve = file, file.settings_of("").serve
        for stream in self.all():
            stream.use(file.settings_of(stream.name))

    def documents(self) -> list[dict[str, Any]]:
        """Rows of streams that have none of a ``StreamOffload``."""
        return [row for stream in self.all() if (row := stream.document()) is not None]

    def labels(self) -> dict[str, dict[str, Any]]:
        """Of each stream what its row in the status document says beside what it does."""
        return {
            each.name: {"feed": each.feed, "active": each.is_active, "method": each.settings.offload.method}
            for each in self.all()
        }

    def problems(self) -> list[Problem]:
        """Streams that aren't offloaded although they should be; they don't make the process unready: others are."""
        failing = [(each.name, each.error) for each in self.all() if each.error is not None]
        found = [
            Problem(where=f"stream {name}", what=error.message, hint=error.hint)
            for name, error in failing[:PROBLEMS_NAMED_MAX]
            if error is not None
        ]
        if len(failing) > PROBLEMS_NAMED_MAX:
            rest = len(failing) - PROBLEMS_NAMED_MAX
            found.append(Problem(where="streams", what=f"{rest} more aren't offloaded although they should be"))
        return found

    # --- the end -------------------------------------------------------------------------------------------------

    def abort(self) -> None:
        """Whoever drains stops waiting, and no more is drained."""
        self._aborted.set()
        for stream in self.all():
            stream.end()

    def close(self, *, drain: bool, on_drained: Callable[[int], object] = lambda _: None) -> int:
        """Takes no further stream, completes the current segments all together within the longest of their
        ``drain_seconds_max``, and ends every stream. Closing twice is fine.

        Args:
            on_drained: called with how many streams are left to be drained, now and then.

        Returns:
            How many streams weren't drained; what they have is left to the next start.
        """
        with self._lock:
            self._closed = True
        streams, left = self.all(), 0
        if drain:
            draining = [stream for stream in streams if stream.has_to_drain]
            for stream in draining:
                stream.request_drain()
            deadline_s = self._clock.monotonic_s()
            deadline_s += max((each.settings.offload.drain_seconds_max for each in draining), default=0.0)
            for number, stream in enumerate(draining):
                left += not self._drain(stream, max(deadline_s - self._clock.monotonic_s(), 0.0))
                on_drained(len(draining) - number - 1)
        for stream in streams:
            stream.end()
        self._workers.close()
        return left

    def _drain(self, stream: ServedStream, within_s: float) -> bool:
        if self._aborted.is_set():
            return False
        try:
            stream.drain(within_s)
        except (StreamPaused, Fenced):
            pass  # as somebody wants it, or another process's by now: what isn't offloaded is the hot tier's
        except OffloaderError as error:
            extra = {"event": "drain_failed", "stream": stream.name}
            _log.warning("stream %s isn't drained: %s", stream.name, error, extra=extra)
            return False
        return True

    def _look(self) -> None:
        for stream in self.all():
            stream.look()
        if not self._closed:
            self._workers.call_after(LOOK_S, self._look)
