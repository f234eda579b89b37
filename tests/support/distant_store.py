"""A store that is elsewhere: each request takes a while, and the longest chain of requests is known afterwards."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from offloader.store.base import ObjectStore
from offloader.store.wrappers import Request, StoreWrapper

_Answer = TypeVar("_Answer")


@dataclass(frozen=True, slots=True)
class Call:
    """One request: when it began and ended, on one clock, in seconds."""

    begun_s: float
    ended_s: float
    verb: str
    key: str


class DistantStore(StoreWrapper):
    """Passes requests on after ``away_s`` seconds, several at a time.

    It names another driver than the store below it, which is in this process: such stores are asked for one thing
    after the other.
    """

    def __init__(self, inner: ObjectStore, away_s: float = 0.02) -> None:
        super().__init__(inner)
        self._away_s = away_s
        self._lock = threading.Lock()
        self.calls: list[Call] = []

    @property
    def driver_metadata(self) -> Mapping[str, str]:
        return {"managedLedgerOffloadDriver": "S3", "bucket": "b", "region": "", "serviceEndpoint": "http://elsewhere"}

    def around(self, request: Request, call: Callable[[], _Answer]) -> _Answer:
        begun_s = time.monotonic()
        threading.Event().wait(self._away_s)
        try:
            return call()
        finally:
            with self._lock:
                self.calls.append(Call(begun_s, time.monotonic(), request.verb, request.key))

    def longest_chain(self, until: Callable[[Call], bool] = lambda _: False) -> int:
        """Requests of the longest chain in which each began after the one before had ended.

        Args:
            until: requests after the first one for which it holds don't count.
        """
        lengths: list[tuple[float, int]] = []
        for each in sorted(self.calls, key=lambda call: call.begun_s):
            before = max((length for ended_s, length in lengths if ended_s <= each.begun_s), default=0)
            lengths.append((each.ended_s, before + 1))
            if until(each):
                break
        return max((length for _, length in lengths), default=0)
