"""Store wrapper with injected faults.

Faults are data: which verb, which call, before or after the effect or midway, how late, as which error. Deterministic.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from offloader.errors import OffloaderError, StoreUnavailableError
from offloader.runtime.clock import Clock
from offloader.store.base import DeleteFailure, ObjectStore
from offloader.store.rate_limit import Traffic
from offloader.store.wrappers import Request, StoreWrapper

_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One failure, or one delay.

    Attributes:
        call: number of the call that fails, from 1, counted among the calls that ``verb`` and ``key_part`` match.
        verb: name of the verb; ``*`` for any.
        key_part: only calls whose key (or prefix, or first key) contains this text.
        but: only calls whose key doesn't contain this text; empty: any.
        after: whether the call takes effect before it fails: a lost response.
        torn: the connection breaks midway: a delete removes half of the keys, an upload doesn't count, a read is done
            without a response.
        error: the ``offloader.errors`` class raised; ``None``: the call is only late.
        latency_s: delay on the store's clock before the call.
        calls: consecutive calls that fail, beginning with ``call``.
    """

    call: int
    verb: str = "*"
    key_part: str = ""
    but: str = ""
    after: bool = False
    torn: bool = False
    error: type[OffloaderError] | None = StoreUnavailableError
    latency_s: float = 0.0
    calls: int = 1

    def matches(self, verb: str, key: str) -> bool:
        return self.verb in ("*", verb) and self.key_part in key and not (self.but and self.but in key)


class FaultyStore(StoreWrapper):
    """``inner`` with ``faults``. ``calls`` lists verb and key of every call, in order.

    Args:
        clock: waits when a call is late.
    """

    def __init__(self, inner: ObjectStore, faults: Iterable[Fault] = (), *, clock: Clock | None = None) -> None:
        super().__init__(inner)
        self._lock = threading.Lock()
        self._clock = clock
        self._calls: list[tuple[str, str]] = []
        self.set_faults(faults)

    @property
    def calls(self) -> Sequence[tuple[str, str]]:
        with self._lock:
            return list(self._calls)

    def set_faults(self, faults: Iterable[Fault]) -> None:
        """Replaces the faults and restarts the counts."""
        with self._lock:
            self._faults = list(faults)
            self._seen = [0] * len(self._faults)

    def around(self, request: Request, call: Callable[[], _Answer]) -> _Answer:
        # A broken upload never counts; a broken read has happened.
        return self._failing(request, call, torn=call if request.traffic is Traffic.READ else None)

    def delete(self, keys: Sequence[str]) -> Sequence[DeleteFailure]:
        request = Request("delete", Traffic.DELETE, keys[0] if keys else "", keys=len(keys))
        return self._failing(
            request, lambda: self.inner.delete(keys), torn=lambda: self.inner.delete(keys[: len(keys) // 2])
        )

    def _failing(self, request: Request, call: Callable[[], _Answer], torn: Callable[[], object] | None) -> _Answer:
        verb, key = request.verb, request.key
        fault = self._next(verb, key)
        if fault is not None and fault.latency_s:
            assert self._clock is not None, "a late call needs the store's clock"
            self._clock.wait(threading.Event(), fault.latency_s)
        if fault is None or fault.error is None:
            return call()
        if fault.torn:
            if torn is not None:
                torn()
            raise fault.error(f"{verb} of {key} broke off")
        if fault.after:
            call()
        raise fault.error(f"fault {'after' if fault.after else 'before'} {verb} of {key}")

    def _next(self, verb: str, key: str) -> Fault | None:
        """Counts the call; returns the first due fault."""
        due = None
        with self._lock:
            self._calls.append((verb, key))
            for number, fault in enumerate(self._faults):
                if fault.matches(verb, key):
                    self._seen[number] += 1
                    if due is None and fault.call <= self._seen[number] < fault.call + fault.calls:
                        due = fault
        return due
