"""A bucket that tells at once when a manifest's record or the end of an object takes effect, and who did it.

Owns noticing. Must never change a request or its answer: what is seen is seen after it happened, also late.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Protocol, TypeVar

from formats.keys import record_number
from offloader.store.around import AroundStore, Request
from offloader.store.base import DeleteFailure, ObjectStore

__all__ = ["WatchedStore", "Watcher"]

_Answer = TypeVar("_Answer")


class Watcher(Protocol):
    """Who is told."""

    def saw_record(self, by: str) -> None:
        """A record of a manifest was created."""

    def saw_delete(self, by: str, keys: Sequence[str]) -> None:
        """Objects are gone now."""


class WatchedStore(AroundStore):
    """One actor's way to ``inner``.

    Args:
        by: the actor's name.
    """

    def __init__(self, inner: ObjectStore, watcher: Watcher, by: str) -> None:
        super().__init__(inner)
        self._watcher, self._by = watcher, by

    def around(self, request: Request, call: Callable[[], _Answer]) -> _Answer:
        answer = call()
        if request.verb == "put" and record_number(request.key) is not None:
            self._watcher.saw_record(self._by)
        return answer

    def delete(self, keys: Sequence[str]) -> Sequence[DeleteFailure]:
        failures = self.inner.delete(keys)
        self._watcher.saw_delete(self._by, keys)
        return failures
