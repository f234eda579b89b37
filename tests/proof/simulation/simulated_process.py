"""A writer over one stream in a simulated world, by whatever method it offloads just now.

It doesn't touch the world's clock, or another process.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random

from offloader.errors import OffloaderError
from offloader.settings import Settings
from offloader.testing.manual_clock import ManualClock
from offloader.testing.memory_ledgers import MemoryLedgers
from offloader.write.machine import StreamOffload
from offloader.write.offloader import LedgerOffloader
from offloader.write.stream import Mode
from tests.proof.simulation.simulated_store import SimulatedStore
from tests.proof.simulation.simulated_workers import SimulatedWorkers

__all__ = ["SimulatedProcess"]

#: Turns that a switch of the method waits for the current segment.
SWITCH_TURNS_MAX = 200


class SimulatedProcess:
    """One process, streaming from its start on.

    Args:
        name: for the trace.
        store: its way to the store.
        ledgers: the hot tier.
        random: draws the order of its tasks, and its entropy.
        turn: lets the world go on while it waits for something.
        trace: takes a line for what it does apart from requests.
    """

    def __init__(
        self,
        name: str,
        store: SimulatedStore,
        ledgers: MemoryLedgers,
        settings: Settings,
        *,
        clock: ManualClock,
        random: Random,
        turn: Callable[[], object],
        trace: Callable[[str], object],
    ) -> None:
        self.name, self.store, self._ledgers, self._turn, self._trace = name, store, ledgers, turn, trace
        self.workers = SimulatedWorkers(clock, random)
        self.workers.turn = turn
        self.offloader = LedgerOffloader(store, settings, clock=clock, entropy=random.randbytes, workers=self.workers)
        self.method = "streaming"
        self.stream: StreamOffload | None = None
        self._hot_release = self.offloader.history.hot_release(ledgers, ledgers.stream)
        self._stream()

    @property
    def committed_all(self) -> bool:
        """Whether it knows that everything appended so far is committed."""
        return self.stream is not None and self.stream.status().committed == self._ledgers.tail

    @property
    def epoch(self) -> int | None:
        """The newest epoch that it opened."""
        return None if self.stream is None else self.stream._log.epoch

    def die(self) -> None:
        """Nothing of it runs any more, and nothing was told to anybody."""
        self.store.dead = True
        self.workers.close()
        if self.stream is not None:
            self.stream.forget()

    def release_hot(self) -> None:
        """Deletes the hot copies that the deletion lag lets go."""
        self._attempt("hot release", self._hot_release.look)

    def offload_ledgers(self) -> None:
        """The ledger method, once."""
        self._attempt("ledgers", lambda: self.offloader.offload_ledgers(self._ledgers, self._ledgers.stream))

    def switch(self, method: str) -> None:
        """As ``ManagedLedger.set_method`` does: the current segment first; the old method goes on when that fails."""
        if method == self.method:
            return
        if self.stream is not None:
            self._ledgers.close_ledger()
            if not self._completed():
                return
            self.stream.stop()
            self.stream = None
        if self._attempt(f"switch to {method}", lambda: self.offloader.history.switch(self._ledgers.stream, method)):
            self.method = method
        if self.method == "streaming":
            self._stream()

    def _stream(self) -> None:
        self.stream = self.offloader.offload_stream(self._ledgers, self._ledgers.stream)

    def _completed(self) -> bool:
        assert self.stream is not None
        target = self.stream.request_offload()
        for _ in range(SWITCH_TURNS_MAX):
            status = self.stream.status()
            if target is None or (status.committed is not None and status.committed >= target):
                return True
            if status.mode is Mode.STOPPED or self.store.dead:
                return False
            self._turn()
        return False

    def _attempt(self, what: str, call: Callable[[], object]) -> bool:
        try:
            call()
        except OffloaderError as error:
            self._trace(f"{self.name} {what}: {type(error).__name__}")
            return False
        self._trace(f"{self.name} {what}")
        return True
