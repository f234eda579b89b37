"""Caches of store responses: for overviews, which wait only briefly for the store, and of manifests."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from typing import Generic, NamedTuple, TypeVar

from offloader.errors import NotFoundError, OffloaderError, StoreUnavailableError
from offloader.manifest.load import load_manifest, refreshed
from offloader.manifest.state import ManifestState
from offloader.runtime.clock import Clock
from offloader.store.base import ObjectStore

_log = logging.getLogger("offloader.service.broker")
_Answer = TypeVar("_Answer")

#: Maximum time an overview waits for the store; after it the overview shows the data of this process.
STORE_WAIT_S_MAX = 2.0
#: Threads that query the store for overviews.
ASKERS_MAX = 8


class KeptAnswers(Generic[_Answer]):
    """Cached answers by name, requested on other threads, so that callers don't wait for a hanging store. Thread-safe;
    at most one request per name is in progress.

    Args:
        threads: run the requests.
        kept_max: maximum number of answers; above it the oldest is evicted.
        is_away: returns the reason why the store is unreachable; empty: reachable or not known yet.
    """

    def __init__(
        self, threads: ThreadPoolExecutor, clock: Clock, *, is_away: Callable[[], str], kept_max: int = 1
    ) -> None:
        self._threads, self._clock, self._is_away, self._kept_max = threads, clock, is_away, kept_max
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, tuple[float, _Answer]] = OrderedDict()
        self._asked: dict[str, Future[_Answer]] = {}

    def get(self, name: str, ask: Callable[[], _Answer], *, age_s_max: float, deadline_s: float | None) -> _Answer:
        """The answer to ``name``, cached or requested; an older one if the store is unreachable or misses the deadline.

        Args:
            age_s_max: maximum age of a cached answer.
            deadline_s: by the monotonic clock, shared by all answers of one request; ``None``: no deadline.

        Raises:
            StoreUnavailableError: no answer, and no older one is cached. Otherwise the errors of ``ask``.
        """
        now_s = self._clock.monotonic_s()
        with self._lock:
            kept = self._kept.get(name)
        if kept is not None and kept[0] > now_s - age_s_max:
            return kept[1]
        if not (away := self._is_away()):
            left_s = None if deadline_s is None else max(deadline_s - now_s, 0.0)
            try:
                return self._begun(name, ask).result(left_s)
            except TimeoutError:
                away = f"the store didn't respond within {STORE_WAIT_S_MAX:g} s"
        if (found := self.kept(name)) is None:
            raise StoreUnavailableError(
                away, hint="only data of this process is available; see the problems in /readyz"
            )
        return found

    def kept(self, name: str) -> _Answer | None:
        """The newest cached answer of any age; ``None``: none is cached."""
        with self._lock:
            found = self._kept.get(name)
        return None if found is None else found[1]

    def _begun(self, name: str, ask: Callable[[], _Answer]) -> Future[_Answer]:
        with self._lock:
            found = self._asked.get(name)
            if found is None or found.done():
                self._asked = {key: each for key, each in self._asked.items() if not each.done()}
                found = self._asked[name] = self._threads.submit(self._ask, name, ask)
        return found

    def _ask(self, name: str, ask: Callable[[], _Answer]) -> _Answer:
        # The age counts from the request: the answer may lack later changes.
        asked_s = self._clock.monotonic_s()
        answer = ask()
        with self._lock:
            self._kept.pop(name, None)
            self._kept[name] = asked_s, answer
            while len(self._kept) > self._kept_max:
                self._kept.popitem(last=False)
        return answer


#: Maximum accounted bytes of all cached views.
VIEWS_BYTES_MAX = 256 * 1024 * 1024
#: Accounted bytes of a row in a sealed table part, and of a row in a table's tail, a gap or a fill.
_ROW_BYTES, _ITEM_BYTES = 200, 2000
#: Number of load locks; streams that share a lock are loaded one after the other.
_LOCKS = 256
#: Maximum concurrent background refreshes of views; further ones are queued, at most one per cached view.
RENEWALS_MAX = 4


class View(NamedTuple):
    """A view, and the monotonic time at which its load started."""

    state: ManifestState
    at_s: float


class ManifestViews:
    """Loads manifests and caches the views, bounded in bytes. Thread-safe: concurrent requests for a stream share a
    load.

    Args:
        store: only read.
        bytes_max: maximum size of the cache; the least recently used views are evicted.
    """

    def __init__(self, store: ObjectStore, clock: Clock, *, bytes_max: int = VIEWS_BYTES_MAX) -> None:
        self._store, self._clock, self._bytes_max = store, clock, bytes_max
        self._loading = [threading.Lock() for _ in range(_LOCKS)]
        self._lock = threading.Lock()
        self._kept: OrderedDict[str, tuple[View, int]] = OrderedDict()
        self._held_bytes = 0
        self._renewed: set[str] = set()
        self._renewals = ThreadPoolExecutor(RENEWALS_MAX, thread_name_prefix="offloader-views")

    def close(self) -> None:
        """Stops background refreshes. Idempotent."""
        self._renewals.shutdown(wait=False, cancel_futures=True)

    def get(self, stream: str, *, age_s_max: float = 0.0, stale_s_max: float = 0.0) -> View:
        """A view of a stream, at most ``age_s_max`` old; with 0 it is not older than this call.

        Args:
            stale_s_max: maximum age of an older view that is returned while it is refreshed in the background.

        Raises: like ``load_manifest``.
        """
        now_s = self._clock.monotonic_s()
        oldest_s = now_s - age_s_max
        kept = self._recent(stream)
        if kept is not None and kept.at_s > min(oldest_s, now_s - stale_s_max):
            if kept.at_s <= oldest_s:
                self._renew(stream, age_s_max)
            return kept
        with self._loading[hash(stream) % _LOCKS]:
            kept = self._recent(stream)
            if kept is not None and kept.at_s > oldest_s:
                return kept
            now_s = self._clock.monotonic_s()
            view = View(self._loaded(stream, None if kept is None else kept.state), now_s)
            self._keep(stream, view)
            return view

    def _renew(self, stream: str, age_s_max: float) -> None:
        with self._lock:
            if stream in self._renewed:
                return
            self._renewed.add(stream)
        with suppress(RuntimeError):  # closed
            self._renewals.submit(self._read_anew, stream, age_s_max)

    def _read_anew(self, stream: str, age_s_max: float) -> None:
        try:
            self.get(stream, age_s_max=age_s_max)
        except OffloaderError as error:
            _log.info("the manifest of stream %s can't be refreshed: %s", stream, error.message)
            self._forget(stream)  # the next request loads it and raises the error
        finally:
            with self._lock:
                self._renewed.discard(stream)

    def _loaded(self, stream: str, known: ManifestState | None) -> ManifestState:
        if known is None or not known.record_id:
            return load_manifest(self._store, stream)
        state, boundary = refreshed(self._store, known)
        if boundary is not None and not state.stream_deleted:
            return state
        # Deleted; a new stream of the same name may exist.
        with suppress(NotFoundError):
            return load_manifest(self._store, stream)
        return state

    def _recent(self, stream: str) -> View | None:
        with self._lock:
            if stream not in self._kept:
                return None
            self._kept.move_to_end(stream)
            return self._kept[stream][0]

    def _keep(self, stream: str, view: View) -> None:
        size_bytes = _held_bytes(view.state)
        self._forget(stream)
        with self._lock:
            if size_bytes > self._bytes_max:
                return
            self._kept[stream] = view, size_bytes
            self._held_bytes += size_bytes
            while self._held_bytes > self._bytes_max:
                _, (_, gone) = self._kept.popitem(last=False)
                self._held_bytes -= gone

    def _forget(self, stream: str) -> None:
        with self._lock:
            _, before = self._kept.pop(stream, (None, 0))
            self._held_bytes -= before


def _held_bytes(state: ManifestState) -> int:
    tables = (state.segments, state.ledgers)
    rows = sum(len(part.columns) for table in tables for part in table.sealed)
    items = sum(len(table.tail) for table in tables) + len(state.gaps) + len(state.fills)
    return _ROW_BYTES * rows + _ITEM_BYTES * (items + 1)
