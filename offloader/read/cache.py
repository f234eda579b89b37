"""LRU cache of single reads, bounded in bytes.

Concurrent misses of one key share one load. Loaders run outside the lock.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable, Iterable, Mapping
from concurrent.futures import Future
from typing import Any, TypeVar

_K = TypeVar("_K", bound=Hashable)


class Cache:
    """Byte-bounded LRU cache. Thread-safe; readers may share it.

    Args:
        bytes_max: most bytes held; a larger value is returned but not kept.
    """

    def __init__(self, bytes_max: int) -> None:
        self._bytes_max = bytes_max
        self._lock = threading.Lock()
        self._values: OrderedDict[Hashable, tuple[Any, int]] = OrderedDict()
        self._loading: dict[Hashable, Future[Any]] = {}
        self._held_bytes = 0

    @property
    def bytes_max(self) -> int:
        """Most bytes held."""
        return self._bytes_max

    def grow(self, bytes_max: int) -> None:
        """Raise the bound to ``bytes_max`` if that is more."""
        with self._lock:
            self._bytes_max = max(self._bytes_max, bytes_max)

    def peek(self, key: Hashable) -> Any | None:
        """The value if cached; doesn't count as use."""
        with self._lock:
            held = self._values.get(key)
        return None if held is None else held[0]

    def hit(self, key: Hashable) -> Any | None:
        """The value if cached, which counts as use; ``None``: call ``get``."""
        with self._lock:
            held = self._values.get(key)
            if held is None:
                return None
            self._values.move_to_end(key)
        return held[0]

    def get_many(
        self, keys: Iterable[_K], load: Callable[[list[_K]], Mapping[_K, Any]], size_bytes: Callable[[Any], int]
    ) -> dict[_K, Any]:
        """The values of ``keys``.

        Args:
            keys: distinct keys.
            load: receives the keys that are neither cached nor being loaded, in order, and returns all of their values.
                Called at most once, outside the lock, in this thread. Doesn't use this cache.
            size_bytes: accounted size of a value.

        Raises:
            any error of ``load``, here or in another thread that was loading a key.
        """
        found: dict[_K, Any] = {}
        mine: dict[_K, Future[Any]] = {}
        others: dict[_K, Future[Any]] = {}
        with self._lock:
            for key in keys:
                held = self._values.get(key)
                if held is not None:
                    self._values.move_to_end(key)
                    found[key] = held[0]
                elif key in self._loading:
                    others[key] = self._loading[key]
                else:
                    mine[key] = self._loading[key] = Future()
        if mine:
            found.update(self._load(mine, load, size_bytes))
        # Settle own keys before waiting for others', so two calls can't deadlock.
        for key, future in others.items():
            found[key] = future.result()
        return found

    def get(self, key: Hashable, load: Callable[[], Any], size_bytes: Callable[[Any], int]) -> Any:
        """The value of one key; see ``get_many``."""
        return self.get_many([key], lambda _: {key: load()}, size_bytes)[key]

    def _load(
        self,
        mine: Mapping[_K, Future[Any]],
        load: Callable[[list[_K]], Mapping[_K, Any]],
        size_bytes: Callable[[Any], int],
    ) -> Mapping[_K, Any]:
        try:
            loaded = load(list(mine))
            sizes = {key: size_bytes(loaded[key]) for key in mine}
        except BaseException as error:
            with self._lock:
                for key in mine:
                    del self._loading[key]
            for future in mine.values():
                future.set_exception(error)
            raise
        with self._lock:
            for key in mine:
                del self._loading[key]
                if sizes[key] <= self._bytes_max:
                    self._values[key] = (loaded[key], sizes[key])
                    self._held_bytes += sizes[key]
            while self._held_bytes > self._bytes_max:
                _, (_, gone) = self._values.popitem(last=False)
                self._held_bytes -= gone
        for key, future in mine.items():
            future.set_result(loaded[key])
        return loaded


_PROCESS_CACHE = Cache(0)


def process_cache(bytes_max: int) -> Cache:
    """Shared default cache of this process's readers.

    Blocks and indexes are immutable under their keys, so readers of any stream and any manifest version may share them.

    Args:
        bytes_max: the caller's limit; the bound is the largest one requested so far. 0: a private cache that keeps
            nothing.
    """
    if bytes_max == 0:
        return Cache(0)
    _PROCESS_CACHE.grow(bytes_max)
    return _PROCESS_CACHE
