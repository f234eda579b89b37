"""A store in whose place another one is for some requests, as behind a changed mount or a redirected endpoint."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

from offloader.runtime.clock import Clock
from offloader.store.base import DeleteFailure, ObjectStore
from offloader.store.memory import MemoryStore
from offloader.store.rate_limit import Traffic
from offloader.store.wrappers import Request, StoreWrapper

_Answer = TypeVar("_Answer")


def memory_store(clock: Clock, copied: ObjectStore | None = None) -> MemoryStore:
    """A new store: empty, or with the objects of another one."""
    store = MemoryStore("swapped", "", clock, is_shared=False)
    if copied is not None:
        for listed in copied.list("").objects:
            body, info = copied.get(listed.key)
            store.put(info.key, body, metadata=info.metadata)
    return store


class SwappedStore(StoreWrapper):
    """The requests ``first`` to ``first + number_of - 1`` go to ``other``."""

    def __init__(self, inner: ObjectStore, other: ObjectStore, *, first: int, number_of: int) -> None:
        super().__init__(inner)
        self._other, self._first, self._end = other, first, first + number_of
        self._lock, self._chosen = threading.Lock(), threading.local()
        self.requests = 0

    def around(self, request: Request, call: Callable[[], _Answer]) -> _Answer:
        with self._lock:
            self.requests += 1
            is_swapped = self._first <= self.requests < self._end
        self._chosen.store = self._other if is_swapped else self.inner
        return call()

    def _of(self, key: str) -> ObjectStore:
        store: ObjectStore = self._chosen.store
        return store

    def delete(self, keys: Sequence[str]) -> Sequence[DeleteFailure]:
        request = Request("delete", Traffic.DELETE, keys[0], keys=len(keys))
        return self.around(request, lambda: self._of(keys[0]).delete(keys))
