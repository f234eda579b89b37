"""Calls that stop before each storage request, so that others happen in between in any order."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from typing import TypeVar

from offloader.errors import OffloaderError
from offloader.store.base import DeleteFailure, ObjectStore
from offloader.store.wrappers import Request
from tests.simulation.simulated_store import FaultModel, FaultPlan, SimulatedStore

__all__ = ["InterleavedStore", "Strand"]

_Answer = TypeVar("_Answer")
#: A turn that takes longer is a deadlock.
TURN_S_MAX = 60.0


class _Ended(BaseException):
    """Ends a strand, past every handler of errors."""


class Strand:
    """One call on a thread of its own.

    Args:
        name: for the trace.
        run: gets the strand's way to the store.
        way_in, weather, plan: of that way.
        done: for whoever advances it: to be called when it is over.

    Attributes:
        store: that way.
        is_over: whether it returned, raised or was ended.
        result: what it returned.
        error: what it raised.
    """

    def __init__(
        self,
        name: str,
        run: Callable[[ObjectStore], object],
        way_in: ObjectStore,
        weather: FaultModel,
        plan: FaultPlan,
        done: Callable[[Strand], object] = lambda _: None,
    ) -> None:
        self.name = name
        self.done = done
        self.store = InterleavedStore(way_in, weather, plan, self)
        self.is_over = False
        self.result: object = None
        self.error: BaseException | None = None
        self._run = run
        self._go, self._back = threading.Semaphore(0), threading.Semaphore(0)
        self._is_ended = False
        self._thread: threading.Thread | None = None

    @property
    def is_here(self) -> bool:
        """Whether the caller runs on this strand's thread."""
        return threading.current_thread() is self._thread

    def advance(self) -> None:
        """Lets it go on to before its next request, or to its end.

        Raises:
            BaseException: what it raised, unless that is an error for people.
        """
        if self.is_over:
            return
        if self._thread is None:
            self._thread = threading.Thread(target=self._body, name=self.name, daemon=True)
            self._thread.start()
        else:
            self._go.release()
        if not self._back.acquire(timeout=TURN_S_MAX):
            raise AssertionError(f"{self.name} doesn't come to its next request")
        if self.error is not None and not isinstance(self.error, OffloaderError | _Ended):
            raise self.error

    def end(self) -> None:
        """Its process is gone: it does nothing more."""
        self.store.dead = self._is_ended = True
        if self._thread is None:
            self.is_over = True
        self.advance()

    def stop(self) -> None:
        """On its own thread: waits for its turn."""
        self._back.release()
        self._go.acquire()
        if self._is_ended:
            raise _Ended

    def _body(self) -> None:
        try:
            self.result = self._run(self.store)
        except BaseException as error:
            self.error = error
        self.is_over = True
        self._back.release()


class InterleavedStore(SimulatedStore):
    """A strand's way to the store; see ``SimulatedStore``."""

    def __init__(self, inner: ObjectStore, weather: FaultModel, plan: FaultPlan, strand: Strand) -> None:
        super().__init__(inner, weather, plan, strand.name)
        self._strand = strand

    def around(self, request: Request, call: Callable[[], _Answer]) -> _Answer:
        return self._turned(lambda: super(InterleavedStore, self).around(request, call), call)

    def delete(self, keys: Sequence[str]) -> Sequence[DeleteFailure]:
        return self._turned(lambda: super(InterleavedStore, self).delete(keys), lambda: self.inner.delete(keys))

    def _turned(self, weathered: Callable[[], _Answer], call: Callable[[], _Answer]) -> _Answer:
        if not self._strand.is_here:
            # A thread of the strand's own, which reads several records at once: they would come in any order.
            return call()
        self._strand.stop()
        return weathered()
