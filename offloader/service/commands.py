"""Commands to a serving process: offload now, pause, resume, register and publish."""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

from formats.entries import Position
from offloader.errors import InvalidCall, NotFound
from offloader.read.reader import load_stream
from offloader.retention.subscribers import CutLike, StreamRetention, open_retention
from offloader.runtime.clock import Clock
from offloader.service.process import ServingProcess
from offloader.store.base import ObjectStore
from offloader.write.backfill_service import BackfillService

_log = logging.getLogger("offloader.service.commands")

#: Instead of a position: the current end.
LATEST = "latest"


class ServiceControl:
    """Executes commands. Thread-safe.

    Args:
        store: of the streams, open for writing.
    """

    def __init__(self, store: ObjectStore, *, clock: Clock, process: ServingProcess) -> None:
        self._store, self._clock, self._process = store, clock, process

    def offload(self, name: str, *, until: str = "", timeout_s: float, by: str) -> dict[str, Any]:
        """Closes and completes the current segment of a stream that is served here, and waits for it.

        Args:
            until: last entry to offload; default: the newest one now.
            timeout_s: limit of the wait; offloading continues after it.
            by: the caller, for the log.

        Raises:
            InvalidCall: ``until`` is no position.
            NotFound: no such stream is served here.
            As ``StreamSupervisor.offload``.
        """
        last = _position(until, "until") if until else None
        _tell("offload", name, by)
        committed = self._process.streams.require(name).offload(last, timeout_s=timeout_s)
        return {"stream": name, "committed": None if committed is None else str(committed)}

    def complete(self, name: str, until: Position, *, timeout_s: float) -> None:
        """As ``offload``, for callers that ask often: it isn't logged."""
        self._process.streams.require(name).offload(until, timeout_s=timeout_s)

    def pause(self, name: str, *, reason: str = "", by: str) -> dict[str, Any]:
        """Assigns no further segment of a stream until ``resume``. Raises ``NotFound``: no such stream; Fenced: it was
        deleted."""
        return self._record(name, "pause", lambda runs: runs.pause(name, reason), by)

    def resume(self, name: str, *, by: str) -> dict[str, Any]:
        """Resumes a paused stream. Raises as ``pause``."""
        return self._record(name, "resume", lambda runs: runs.resume(name), by)

    def subscribe(
        self, name: str, subscriber: str, *, start: object = None, generation: int = 0, by: str
    ) -> dict[str, Any]:
        """Registers a subscriber, or raises its generation.

        Args:
            start: its initial position, as ``publish``'s ``at``; default: the stream's beginning.

        Raises: as ``StreamRetention.add``.
        """
        retention = self._retention(name)
        begin = None if start is None else _cut(retention, start, "start")
        found = retention.add(subscriber, generation=generation, start=begin)
        _tell("subscribe", name, by, subscriber)
        return {"stream": name, **found.as_json()}

    def publish(
        self, name: str, subscriber: str, at: object, *, generation: int | None = None, by: str
    ) -> dict[str, Any]:
        """Records a subscriber's position.

        Args:
            at: the first entry still needed: ``"7:12"``, ``"latest"``, or of a partitioned topic ``{"0": "7:12"}``.
            generation: refused unless the subscriber has this one.

        Raises: as ``StreamRetention.publish``; InvalidCall: ``at`` is none of these.
        """
        retention = self._retention(name)
        found = retention.publish(subscriber, _cut(retention, at, "at"), generation=generation)
        _tell("publish", name, by, subscriber)
        return {"stream": name, **found.as_json()}

    def unsubscribe(self, name: str, subscriber: str, *, generation: int | None = None, by: str) -> dict[str, Any]:
        """Removes a subscriber: it holds nothing back any more. Raises ``NotFound``: no such stream or subscriber."""
        retention = self._retention(name)
        if subscriber not in retention.registry().subscribers:
            raise NotFound(f"nobody called {subscriber} subscribes to stream {name}", hint="list its subscribers")
        removed = retention.remove(subscriber, generation=generation)
        _tell("unsubscribe", name, by, subscriber)
        return {"stream": name, "subscriber": subscriber, "removed": removed}

    def _record(self, name: str, what: str, change: Callable[[BackfillService], bool], by: str) -> dict[str, Any]:
        changed = change(self._process.history)
        if changed:
            _tell(what, name, by)
            served = self._process.streams.get(name)
            if served is not None:
                served.wake()
        state = load_stream(self._store, name)
        committed = state.committed_end()
        return {
            "stream": name,
            "paused": state.paused,
            "changed": changed,
            "assigned": len(state.assigned()),
            "committed": None if committed is None else str(committed),
        }

    def _retention(self, name: str) -> StreamRetention:
        return open_retention(self._store, name, source_of=self._process.streams.source_of, clock=self._clock)


def _cut(retention: StreamRetention, given: object, what: str) -> CutLike:
    if given == LATEST:
        return retention.tail()
    if isinstance(given, str):
        return _position(given, what)
    if isinstance(given, Mapping) and given and all(isinstance(each, str) for each in given.values()):
        return {_partition(number, what): _position(text, what) for number, text in given.items()}
    raise InvalidCall(
        f"{what}: neither a position, nor {LATEST}, nor positions by partition", hint='"7:12" or {"0": "7:12"}'
    )


def _partition(number: object, what: str) -> int:
    text = str(number)
    if not text.isascii() or not text.isdecimal() or len(text) > 10:
        raise InvalidCall(f"{what}: {ascii(text)[:40]} is no partition's number", hint='{"3": "7:12"}')
    return int(text)


def _position(text: str, what: str) -> Position:
    try:
        return Position.parse(text)
    except ValueError as cause:
        raise InvalidCall(f"{what}: {cause}", hint="the stream's segments list the positions there are") from cause


def _tell(what: str, stream: str, by: str, subscriber: str = "") -> None:
    extra = {"event": "asked", "stream": stream, "command": what, "by": by, "subscriber": subscriber}
    _log.info("%s of stream %s, asked by %s", what, stream, by, extra=extra)
