"""A bucket that tells at once when a manifest's record, a stop, or the end of an object takes effect, and who did it.

It doesn't change a request or its answer: what is seen is seen after it happened, also late.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol, TypeVar

from formats.documents import GLOBAL_HOLD_KEY
from formats.keys import record_number
from offloader.errors import NotFoundError
from offloader.store.base import DeleteFailure, ObjectInfo, ObjectStore, UploadInfo
from offloader.store.wrappers import Request, StoreWrapper

__all__ = ["WatchedStore", "Watcher"]

_Answer = TypeVar("_Answer")


class Watcher(Protocol):
    """Who is told."""

    def saw_record(self, by: str, key: str) -> None:
        """A record of a manifest was created."""

    def saw_delete(self, by: str, objects: Sequence[ObjectInfo]) -> None:
        """Objects are gone now, which were like this."""

    def saw_abort(self, by: str, uploads: Sequence[UploadInfo]) -> None:
        """Unfinished uploads are gone now."""

    def saw_stop(self, *, on: bool) -> None:
        """All deletion is stopped from now on, or isn't any more."""


class WatchedStore(StoreWrapper):
    """One actor's way to ``inner``.

    Args:
        by: the actor's name.
    """

    def __init__(self, inner: ObjectStore, watcher: Watcher, by: str) -> None:
        super().__init__(inner)
        self._watcher, self._by = watcher, by

    def around(self, request: Request, call: Callable[[], _Answer]) -> _Answer:
        aborts = request.verb == "abort_upload"
        before = self.inner.list_uploads(request.key) if aborts else ()
        answer = call()
        if request.verb == "put" and record_number(request.key) is not None:
            self._watcher.saw_record(self._by, request.key)
        if request.verb == "put" and request.key == GLOBAL_HOLD_KEY:
            self._watcher.saw_stop(on=True)
        if aborts:
            left = {each.upload_id for each in self.inner.list_uploads(request.key)}
            self._watcher.saw_abort(self._by, [each for each in before if each.upload_id not in left])
        return answer

    def delete(self, keys: Sequence[str]) -> Sequence[DeleteFailure]:
        there = []
        for key in keys:
            with suppress(NotFoundError):
                there.append(self.inner.head(key))
        failures = self.inner.delete(keys)
        self._watcher.saw_delete(self._by, there)
        if GLOBAL_HOLD_KEY in keys:
            self._watcher.saw_stop(on=False)
        return failures
