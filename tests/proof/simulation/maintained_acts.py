"""What is done to a stream that is tended: each act a call on a way to the store of its own.

It doesn't decide which one comes next.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from random import Random

from formats.entries import Position
from formats.manifest import Hold
from offloader.errors import OffloaderError
from offloader.gc.delete_stream import remove_stream
from offloader.gc.reconcile import Reconciliation, StoreReconciliation
from offloader.gc.sweep import cleanup_all, cleanup_stream, undo_retirements
from offloader.manifest.maintenance import expire_records
from offloader.manifest.protection import lift_global_hold, set_global_hold
from offloader.retention.cycle import RetentionCycle
from offloader.retention.scope import DocumentStore
from offloader.retention.subscribers import CutLike, StreamRetention
from offloader.retention.truncate import truncate_stream
from offloader.runtime.clock import Clock
from offloader.store.base import ObjectStore
from tests.proof.simulation.maintained_world import MaintainedWorld
from tests.proof.simulation.simulated_store import FaultPlan
from tests.proof.simulation.simulated_subscribers import AppendedAt, SimulatedSubscribers
from tests.proof.simulation.simulated_world import STREAM

__all__ = ["MaintainedActs"]

NAMES = ("ann", "ben", "cem")
#: How wrong a clock is that is wrong: far more than ``clock_skew_max``.
SKEWS_S = (-72 * 3600.0, -600.0, 600.0, 72 * 3600.0)
#: How often whoever deletes has such a clock.
SKEWED = 0.07


class _SkewedClock:
    """A clock that is off; see ``Clock``."""

    def __init__(self, clock: Clock, off_ms: int) -> None:
        self._clock, self._off_ms = clock, off_ms

    def now_ms(self) -> int:
        return self._clock.now_ms() + self._off_ms

    def monotonic_s(self) -> float:
        return self._clock.monotonic_s()

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        return self._clock.wait(event, timeout_s)


class MaintainedActs:
    """The acts of one world.

    Args:
        world: it begins them.
        random: draws what they are about.
        plan_of: the faults that an act of some name meets.
        subscribers: who publishes.
        appended: everything that is in the stream.
    """

    def __init__(
        self,
        world: MaintainedWorld,
        random: Random,
        plan_of: Callable[[str], FaultPlan],
        subscribers: SimulatedSubscribers,
        appended: list[AppendedAt],
    ) -> None:
        self.world, self._random, self._plan_of = world, random, plan_of
        self._subscribers, self._appended = subscribers, appended

    def _begin(self, what: str, act: Callable[[ObjectStore], object], *, off_ms: int = 0) -> None:
        self.world.begin(what, act, self._plan_of(what), off_ms=off_ms)

    def _begin_by_clock(self, what: str, act: Callable[[ObjectStore, Clock], object]) -> None:
        """What tells old from young, now and then by a clock that is wrong."""
        off_ms = int(self._random.choice(SKEWS_S) * 1000) if self._random.random() < SKEWED else 0
        clock = _SkewedClock(self.world.clock, off_ms)
        self._begin(what, lambda store: act(store, clock), off_ms=off_ms)

    def open(self) -> None:
        """A reader comes."""
        seconds = self._random.choice([60, 3 * 3600, 48 * 3600])
        self._begin("open", lambda store: self.world.open_reader(store, seconds))

    def truncate(self) -> None:
        """Somebody truncates."""
        world, view = self.world, self.world.view
        position, end = self._somewhere(), view.committed_end() if view else None
        if end is not None and self._random.random() < 0.8:
            position = min(position, end)
        source = world.ledgers
        self._begin(
            "truncate", lambda store: truncate_stream(world.log(store), position, clock=world.clock, source=source)
        )

    def _somewhere(self) -> Position:
        if not self._appended:
            return Position(1, 0)
        position = self._random.choice(self._appended)[0]
        return Position(position.ledger_id, position.entry_id + self._random.choice([0, 0, 0, 1, 7]))

    def retain(self) -> None:
        """A cycle of retention."""
        self._begin_by_clock("retain", lambda store, clock: self.cycle(store, clock).run(self.world.home))

    def cycle(self, store: ObjectStore, clock: Clock) -> RetentionCycle:
        """What runs cycles."""
        world = self.world
        return RetentionCycle(
            store,
            clock=clock,
            settings_of=lambda _: world.settings,
            source_of=lambda _: world.ledgers,
            by="simulated",
            entropy=self._random.randbytes,
        )

    def clean_up(self) -> None:
        """A round of cleanup."""
        allow_large, dry_run = self._random.random() < 0.5, self._random.random() < 0.1
        self._begin_by_clock(
            "cleanup", lambda store, clock: self.clean(store, clock, allow_large=allow_large, dry_run=dry_run)
        )

    def clean(self, store: ObjectStore, clock: Clock, *, allow_large: bool, dry_run: bool = False) -> None:
        """One round."""
        cleanup_stream(
            *(store, STREAM),
            clock=clock,
            settings=self.world.settings,
            by="simulated",
            allow_large=allow_large,
            dry_run=dry_run,
            entropy=self._random.randbytes,
        )

    def clean_everything(self, store: ObjectStore) -> None:
        """A round of cleanup of the whole store: also of names whose removal was interrupted.

        Raises:
            OffloaderError: a stream's couldn't be finished.
        """
        world = self.world
        for report in cleanup_all(store, clock=world.clock, settings_of=lambda _: world.settings, allow_large=True):
            if report.error is not None:
                raise report.error

    def reconcile(self) -> None:
        """A search for orphans."""
        self._begin_by_clock("reconcile", self._reconciled)

    def _reconciled(self, store: ObjectStore, clock: Clock) -> None:
        settings = self.world.settings.manifest
        finds = self._random.random() < 0.5
        run = Reconciliation(store, STREAM, clock=clock, settings=settings, delete=True, finds_by_prefix=finds)
        for _ in run.leftovers():
            pass

    def expire(self) -> None:
        """Old records go."""
        self._begin_by_clock("expire", self._expired)

    def _expired(self, store: ObjectStore, clock: Clock) -> None:
        settings = self.world.settings.manifest
        expire_records(store, self.world.log(store).load(), clock=clock, settings=settings)

    def reconcile_everything(self, store: ObjectStore) -> None:
        """A search for orphans in the whole store.

        Raises:
            OffloaderError: a stream's couldn't be finished.
        """
        failures: list[OffloaderError] = []
        run = StoreReconciliation(
            store,
            clock=self.world.clock,
            settings_of=lambda _: self.world.settings.manifest,
            failed=lambda _, error: failures.append(error),
            delete=True,
        )
        for _ in run.leftovers():
            pass
        if failures:
            raise failures[0]

    def stop(self) -> None:
        """All deletion is stopped, or goes on."""
        if self._random.random() < 0.4:
            now_ms = self.world.clock.now_ms()
            self._begin("stop", lambda store: set_global_hold(store, by="somebody", reason="", now_ms=now_ms))
        else:
            self._begin("go on", lift_global_hold)

    def undo(self) -> None:
        """Some of what is retired comes back, or all."""
        view = self.world.view
        retired = [segment.uuid for segment in view.segments.retired()] if view else []
        if not retired:
            return
        chosen = self._random.sample(retired, self._random.randint(0, len(retired)))
        self._begin("undo", lambda store: undo_retirements(self.world.log(store), segments=chosen))

    def hold(self) -> None:
        """A hold is set, or lifted."""
        on = self._random.random() < 0.4
        self._begin("hold", lambda store: self.held(store, on=on))

    def held(self, store: ObjectStore, *, on: bool) -> None:
        """Sets or lifts it."""
        log = self.world.log(store)
        if log.load().held != on:
            log.commit_as_maintainer([Hold(on, "")])

    def subscribe(self) -> None:
        """A subscriber comes, goes or publishes."""
        name, drawn, position = self._random.choice(NAMES), self._random.random(), self._somewhere()
        if drawn < 0.2:
            self._begin("add", lambda store: self._subscribers.add(self.retention(store), name))
        elif drawn < 0.25:
            self._begin("remove", lambda store: self._subscribers.remove(self.retention(store), name))
        else:
            self._begin("publish", lambda store: self._publish(store, name, position))

    def _publish(self, store: ObjectStore, name: str, position: Position) -> None:
        cut: CutLike = position if self.world.home == STREAM else {0: position}
        self._subscribers.publish(self.retention(store), name, {0: position}, cut)

    def retention(self, store: ObjectStore) -> StreamRetention:
        """The registry."""
        documents = DocumentStore(store, self.world.clock, self._random.randbytes)
        return StreamRetention(documents, self.world.home, lambda _: self.world.ledgers)

    def delete(self) -> None:
        """The stream is deleted."""
        despite = self._random.random() < 0.3
        self._begin("delete", lambda store: self.deleted(store, ignore_leases=despite))

    def deleted(self, store: ObjectStore, *, ignore_leases: bool) -> None:
        """As far as that goes now."""
        remove_stream(
            *(store, STREAM),
            clock=self.world.clock,
            settings=self.world.settings.manifest,
            ignore_leases=ignore_leases,
            entropy=self._random.randbytes,
        )
