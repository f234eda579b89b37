"""Calls that stop before each storage request, so that others happen in between in any order."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

import greenlet  # type: ignore[import-untyped]

from offloader.errors import OffloaderError
from offloader.store.base import DeleteFailure, ObjectStore
from offloader.store.wrappers import Request
from tests.proof.simulation.simulated_store import FaultModel, FaultPlan, SimulatedStore

__all__ = ["InterleavedStore", "Strand"]

_Answer = TypeVar("_Answer")


class _Ended(BaseException):
    """Ends a strand, past every handler of errors."""


class Strand:
    """One call on a stack of its own: a greenlet, since threads that take turns spend most of their time waking up.

    Strands share a thread, so one that waits for another's lock waits for ever.

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
        self._is_ended = False
        self._is_left = False
        self._greenlet: greenlet.greenlet = None

    @property
    def is_here(self) -> bool:
        """Whether the caller runs on this strand's stack."""
        return bool(greenlet.getcurrent() is self._greenlet)

    def advance(self) -> None:
        """Lets it go on to before its next request, or to its end.

        Raises:
            BaseException: what it raised, unless that is an error for people.
        """
        if self.is_over:
            return
        if self._greenlet is None:
            self._greenlet = greenlet.greenlet(self._body)
        self._greenlet.parent = greenlet.getcurrent()
        self._greenlet.switch()
        if self.error is not None and not isinstance(self.error, OffloaderError | _Ended):
            raise self.error

    def end(self) -> None:
        """Its process is gone: it does nothing more."""
        self.store.dead = self._is_ended = True
        if self._greenlet is None:
            self.is_over = True
        self.advance()

    def stop(self) -> None:
        """On its own stack: waits for its turn."""
        if self._is_left:
            raise _Ended
        try:
            self._greenlet.parent.switch()
        except greenlet.GreenletExit:  # nobody refers to it any more
            self._is_left = True
            raise
        if self._is_ended:
            raise _Ended

    def _body(self) -> None:
        try:
            self.result = self._run(self.store)
        except BaseException as error:
            self.error = error
        self.is_over = True


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
