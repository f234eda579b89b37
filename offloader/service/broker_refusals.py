"""Offload requests of brokers that this process refuses. They are problems, because the broker keeps the ledgers.

A refusal ends when the ledger is accepted, or when no broker has requested it for ``REFUSED_S_MAX``: the topic was
deleted, or another process serves the requests.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterator
from dataclasses import dataclass

from offloader.errors import ErrorKind, NotFoundError, OffloaderError
from offloader.runtime.clock import Clock
from offloader.service.streams import PROBLEMS_NAMED_MAX, ProviderProblem
from offloader.telemetry.recorder import Reading

_log = logging.getLogger("offloader.service.broker")

#: Time without a request after which a refusal ends: three times the maximum interval between two triggers.
REFUSED_S_MAX = 1800.0
#: Time after which the refusal of a stream without a manifest counts: another process may be about to create it.
UNKNOWN_S = 60.0
#: Maximum number of streams with a recorded refusal; the oldest are dropped.
STREAMS_MAX = 10_000


@dataclass(slots=True)
class _Refusal:
    ledger_id: int
    error: OffloaderError
    since_ms: int
    since_s: float
    asked_s: float
    is_logged: bool = False

    @property
    def lasts(self) -> bool:
        return not isinstance(self.error, NotFoundError) or self.asked_s - self.since_s >= UNKNOWN_S


def is_refusal(error: OffloaderError) -> bool:
    """Whether a repeated request gets the same error from every process of the store."""
    return not error.retryable and error.kind is not ErrorKind.FENCED


class BrokerRefusals:
    """The refused streams of one process. Thread-safe."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        self._lock = threading.Lock()
        self._refused: dict[str, _Refusal] = {}

    def refused(self, stream: str, ledger_id: int, error: OffloaderError) -> None:
        """Records a refusal, and logs the first one of a stream and kind of error."""
        now_s = self._clock.monotonic_s()
        with self._lock:
            found = self._standing().pop(stream, None)
            if found is None or type(found.error) is not type(error):
                found = _Refusal(ledger_id, error, self._clock.now_ms(), now_s, now_s)
            elif ledger_id < found.ledger_id:  # report the first of several ledgers
                found.ledger_id, found.error = ledger_id, error
            found.asked_s = now_s
            self._refused[stream] = found
            while len(self._refused) > STREAMS_MAX:
                del self._refused[next(iter(self._refused))]
            is_new, found.is_logged = found.lasts and not found.is_logged, found.is_logged or found.lasts
            text, first, reason = _text(found), found.ledger_id, found.error.message
        if is_new:
            extra = {"event": "broker_offload_refused", "stream": stream, "ledger": first, "reason": reason}
            _log.error("stream %s: %s", stream, text, extra=extra)

    def accepted(self, stream: str, ledger_id: int) -> None:
        """Records that a ledger is in the cold tier, equal to the broker's."""
        with self._lock:
            if (found := self._refused.get(stream)) is not None and found.ledger_id == ledger_id:
                del self._refused[stream]

    def stands(self, stream: str) -> bool:
        """Whether a ledger of the stream is refused now."""
        with self._lock:
            return stream in self._standing()

    def problems(self) -> list[ProviderProblem]:
        """One problem per stream, up to ``PROBLEMS_NAMED_MAX``; they don't block readiness."""
        with self._lock:
            lasting = [(name, each) for name, each in sorted(self._standing().items()) if each.lasts]
        found = [
            ProviderProblem(where=f"stream {name}", what=_text(each), hint=each.error.hint, since_ms=each.since_ms)
            for name, each in lasting[:PROBLEMS_NAMED_MAX]
        ]
        if (more := len(lasting) - PROBLEMS_NAMED_MAX) > 0:
            found.append(ProviderProblem(where="brokers", what=f"offloads of {more} more streams are refused"))
        return found

    def readings(self) -> Iterator[Reading]:
        """One reading per stream."""
        with self._lock:
            lasting = [name for name, each in self._standing().items() if each.lasts]
        for name in lasting:
            yield Reading("streams_broker_offloads_failing", 1.0, name, "refused")

    def _standing(self) -> dict[str, _Refusal]:
        """Drops refusals that ended; the lock is held."""
        after_s = self._clock.monotonic_s() - REFUSED_S_MAX
        self._refused = {name: each for name, each in self._refused.items() if each.asked_s > after_s}
        return self._refused


def _text(refusal: _Refusal) -> str:
    return f"brokers are refused ledger {refusal.ledger_id}, and keep their copies: {refusal.error.message}"
