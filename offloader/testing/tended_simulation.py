"""A stream that is written, read, truncated, swept, undone, held, deleted and made again, as one seed says.

Owns what happens when. Must never depend on anything but the seed: the same seed gives the same trace.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from dataclasses import replace
from random import Random

from formats.entries import Position
from formats.manifest import Hold
from offloader.cleanup.cycle import cleanup_stream
from offloader.cleanup.reconciler import Reconciliation
from offloader.cleanup.removal import remove_stream
from offloader.cleanup.undo import undo_retirements
from offloader.errors import NotFound, OffloaderError
from offloader.manifest.catalog import read_entry
from offloader.retention.cycle import RetentionCycle
from offloader.retention.documents import DocumentStore
from offloader.retention.policies import policy_of
from offloader.retention.policy import Policy
from offloader.retention.recorded_state import read_decisions
from offloader.retention.stream_retention import StreamRetention
from offloader.retention.truncation import truncate_stream
from offloader.settings import Settings
from offloader.store.base import ObjectStore
from offloader.testing.quiet_log import quiet_log
from offloader.testing.simulated_store import FaultPlan
from offloader.testing.simulated_subscribers import AppendedAt, SimulatedSubscribers
from offloader.testing.simulated_world import STREAM, InvariantBroken
from offloader.testing.tended_checks import what_is_left
from offloader.testing.tended_world import FOREIGN, TendedWorld

__all__ = ["TendedSimulation", "simulate_tended"]

STEPS = 220
#: Steps between two looks at all that is readable.
LOOK_STEPS = 55
WARM_TURNS = 12
PROCESSES_MAX = 4
#: Rounds in quiet time within which everything that nobody needs has to be gone.
QUIET_ROUNDS = 4
QUIET_S = 40 * 3600.0
LAPS_S = (30.0, 600.0, 2 * 3600.0, 9 * 3600.0, 30 * 3600.0)
NAMES = ("ann", "ben", "cem")


class TendedSimulation:
    """One run.

    Args:
        seed: decides everything.
        crash_call, crash_after: each first act of a kind dies at that storage call; ``None``: as the seed says.
    """

    def __init__(self, seed: int, *, crash_call: int | None = None, crash_after: bool = False) -> None:
        self.seed = seed
        self._random = Random(seed)  # noqa: S311 - chance that can be repeated
        self._crash = (crash_call, crash_after)
        self._crashed: set[str] = set()
        self.world = TendedWorld(f"tended-{seed}-{id(self)}", self._random, _drawn_settings, lambda _: self._plan())
        self.policy: Policy | None = policy_of(STREAM, self.world.settings.retention)
        self.subscribers = SimulatedSubscribers(self.world.clock.now_ms, lambda: len(self.world.trace))
        self.appended: list[AppendedAt] = []
        self.world.on_head = self._head_moved
        self._deletes = self._random.random() < 0.3

    def run(self) -> str:
        """Everything for a while, then rest, and checks.

        Returns:
            The digest of the trace.

        Raises:
            InvariantBroken: says what, and how to see it again.
        """
        try:
            self.world.start()
            self._warm_up()
            for number in range(STEPS):
                self._one_step()
                self._must_not(self.world.broken or self.subscribers.wrong)
                if number % LOOK_STEPS == 0:
                    self.world.check_now()
            self._come_to_rest()
        except OffloaderError as error:
            raise self._with_command(f"{type(error).__name__}: {error}") from error
        except InvariantBroken as broken:
            raise self._with_command(str(broken)) from None
        return hashlib.sha256("\n".join(self.world.trace).encode()).hexdigest()

    def _with_command(self, what: str) -> InvariantBroken:
        crash = "" if self._crash[0] is None else f" --crash-call {self._crash[0]}"
        crash += " --crash-after" if self._crash[1] else ""
        return InvariantBroken(f"{what}; again: ./dev soak --tended --seed {self.seed}{crash}")

    @staticmethod
    def _must_not(what: str) -> None:
        if what:
            raise InvariantBroken(what)

    # -- what happens

    def _plan(self, what: str = "") -> FaultPlan:
        random = self._random
        crash_call, crash_after = self._crash
        if crash_call is None:
            crash_call, crash_after = random.choice([0, 0, random.randint(1, 40)]), random.random() < 0.5
        elif not what or what in self._crashed:
            crash_call = 0
        self._crashed.add(what)
        return FaultPlan(
            refused=random.choice([0, 0, 0, 0.05]),
            lost=random.choice([0, 0, 0.05, 0.2]),
            slow=random.choice([0, 0, 0.02]),
            meanwhile=0.0 if what else random.choice([0, 0.05, 0.3]),
            crash_call=crash_call,
            crash_after=crash_after,
        )

    def _warm_up(self) -> None:
        """In most worlds there is something to tend from the beginning on."""
        for _ in range(self._random.choice([0, 3, 6])):
            self._append()
            self.world.ledgers.close_ledger()
            self.world.request()
            for _ in range(WARM_TURNS):
                self.world.work()
                self.world.bury()

    def _one_step(self) -> None:
        world, random = self.world, self._random
        happenings: list[tuple[float, Callable[[], object]]] = [
            (0.06, self._append),
            (0.03, world.ledgers.close_ledger),
            (0.05, world.request),
            (0.02, world.land),
            (0.01, self._start_another),
            (0.005, self._kill),
            (0.01 if world.processes else 0, lambda: world.processes[-1].release_hot()),
            (0.03, self._lap),
            (0.02, self._open),
            (0.05, lambda: world.read(gives_up=random.random() < 0.1)),
            (0.05, self._truncate if self.policy is None else self._retain),
            (0.08, self._cleanup),
            (0.015, self._reconcile),
            (0.05 if world.view and world.view.segments.retired() else 0, self._undo),
            (0.006, self._hold),
            (0.05 if self.policy else 0, self._subscribe),
            (0.006 if self._deletes else 0, self._delete),
            (0.05 if world.is_deleted else 0, self._make_again),
            (0.33, lambda: world.act(random.choice([1, 1, 2, 5, 20]))),
        ]
        drawn = random.random()
        for chance, happen in happenings:
            drawn -= chance
            if drawn < 0:
                happen()
                break
        else:
            world.work()
        world.bury()

    def _append(self) -> None:
        if self.world.is_deleted:
            return
        sizes = [self._random.choice([1, 50, 300, 2000]) for _ in range(self._random.randint(1, 12))]
        batch = self.world.ledgers.append([self._random.randbytes(size) for size in sizes])
        now_ms = self.world.clock.now_ms()
        self.appended += [(entry.position, len(entry.payload), now_ms) for entry in batch.entries()]

    def _start_another(self) -> None:
        if self.world.started < PROCESSES_MAX and not self.world.is_deleted:
            self.world.start()

    def _kill(self) -> None:
        for process in self.world.processes[-1:]:
            process.store.dead = True

    def _lap(self) -> None:
        """Time passes. What is on its way arrives before it is taken for lost."""
        lap_s = self._random.choice(LAPS_S)
        if lap_s > 3600:
            while self.world.weather.late:
                self.world.land()
        self.world.clock.advance(lap_s)

    def _begin(self, what: str, act: Callable[[ObjectStore], object]) -> None:
        self.world.begin(what, act, self._plan(what))

    def _open(self) -> None:
        seconds = self._random.choice([60, 3 * 3600, 48 * 3600])
        self._begin("open", lambda store: self.world.open_reader(store, seconds))

    def _truncate(self) -> None:
        world, view = self.world, self.world.view
        position, end = self._somewhere(), view.committed_end() if view else None
        if end is not None and self._random.random() < 0.8:
            position = min(position, end)
        source = world.ledgers
        self._begin(
            "truncate", lambda store: truncate_stream(world.log(store), position, clock=world.clock, source=source)
        )

    def _somewhere(self) -> Position:
        if not self.appended:
            return Position(1, 0)
        position = self._random.choice(self.appended)[0]
        return Position(position.ledger_id, position.entry_id + self._random.choice([0, 0, 0, 1, 7]))

    def _retain(self) -> None:
        self._begin("retain", lambda store: self._cycle(store).run(STREAM))

    def _cycle(self, store: ObjectStore) -> RetentionCycle:
        world = self.world
        return RetentionCycle(
            store,
            clock=world.clock,
            settings_of=lambda _: world.settings,
            source_of=lambda _: world.ledgers,
            by="simulated",
            entropy=self._random.randbytes,
        )

    def _cleanup(self) -> None:
        allow_large, dry_run = self._random.random() < 0.5, self._random.random() < 0.1
        self._begin("cleanup", lambda store: self._clean(store, allow_large=allow_large, dry_run=dry_run))

    def _clean(self, store: ObjectStore, *, allow_large: bool, dry_run: bool = False) -> None:
        cleanup_stream(
            *(store, STREAM),
            clock=self.world.clock,
            settings=self.world.settings,
            by="simulated",
            allow_large=allow_large,
            dry_run=dry_run,
            entropy=self._random.randbytes,
        )

    def _reconcile(self) -> None:
        self._begin("reconcile", self._reconciled)

    def _reconciled(self, store: ObjectStore) -> None:
        settings = self.world.settings.manifest
        finds = self._random.random() < 0.5
        run = Reconciliation(
            store, STREAM, clock=self.world.clock, settings=settings, delete=True, finds_by_prefix=finds
        )
        for _ in run.leftovers():
            pass

    def _undo(self) -> None:
        view = self.world.view
        retired = [segment.uuid for segment in view.segments.retired()] if view else []
        if not retired:
            return
        chosen = self._random.sample(retired, self._random.randint(0, len(retired)))
        self._begin("undo", lambda store: undo_retirements(self.world.log(store), segments=chosen))

    def _hold(self) -> None:
        on = self._random.random() < 0.4
        self._begin("hold", lambda store: self._held(store, on=on))

    def _held(self, store: ObjectStore, *, on: bool) -> None:
        log = self.world.log(store)
        if log.load().held != on:
            log.amend([Hold(on, "")])

    def _subscribe(self) -> None:
        name, drawn, position = self._random.choice(NAMES), self._random.random(), self._somewhere()
        if drawn < 0.2:
            self._begin("add", lambda store: self.subscribers.add(self._retention(store), name))
        elif drawn < 0.25:
            self._begin("remove", lambda store: self.subscribers.remove(self._retention(store), name))
        else:
            self._begin("publish", lambda store: self.subscribers.publish(self._retention(store), name, position))

    def _retention(self, store: ObjectStore) -> StreamRetention:
        documents = DocumentStore(store, self.world.clock, self._random.randbytes)
        return StreamRetention(documents, STREAM, lambda _: self.world.ledgers, self._random.randbytes)

    def _delete(self) -> None:
        despite = self._random.random() < 0.3
        self._begin("delete", lambda store: self._deleted(store, despite_readers=despite))

    def _deleted(self, store: ObjectStore, *, despite_readers: bool) -> None:
        remove_stream(
            *(store, STREAM),
            clock=self.world.clock,
            settings=self.world.settings.manifest,
            despite_readers=despite_readers,
            entropy=self._random.randbytes,
        )

    def _make_again(self) -> None:
        if self.world.make_again():
            self.appended.clear()
            self.subscribers.forget()

    def _head_moved(self, by: str, head: Position) -> None:
        if self.policy is not None and by.startswith("retain"):
            since = self.world.began(by)
            self.world.must_not(self.subscribers.what_a_head_breaks(self.policy, head, since, self.appended))

    # -- rest

    def _come_to_rest(self) -> None:
        world = self.world
        world.finish_acts()
        while world.weather.late:
            world.land()
        for reader in world.readers:
            reader.close()
        world.readers.clear()
        if not world.is_deleted and read_entry(world.store, STREAM) is not None:
            self._held(world.quiet("hold"), on=False)
        if not world.is_deleted:
            world.come_to_rest()
            self._must_not(world.broken)
            world.check()
            self._check_reported()
        for process in world.processes:
            process.die()
        for _ in range(QUIET_ROUNDS):
            world.clock.advance(QUIET_S)
            self._tidy_up()
        self._must_not(world.broken)
        if world.is_deleted:
            self._must_not("its entry is still there" if read_entry(world.store, STREAM) else "")
            self._must_not(what_is_left(world.store, STREAM, None, FOREIGN))
        else:
            world.check()
            self._must_not(what_is_left(world.store, STREAM, world.view, FOREIGN))

    def _tidy_up(self) -> None:
        for name, act in (("cleanup", lambda s: self._clean(s, allow_large=True)), ("reconcile", self._reconciled)):
            try:
                act(self.world.quiet(name))
            except NotFound:
                self._must_not("" if self.world.is_deleted or self.world.view is None else f"{name} finds no stream")

    def _check_reported(self) -> None:
        if self.subscribers.forced:
            retention = self._retention(self.world.quiet("look"))
            decisions = read_decisions(retention, retention.place())
            self._must_not(self.subscribers.what_is_unreported(decisions))


def simulate_tended(seed: int, *, crash_call: int | None = None, crash_after: bool = False) -> str:
    """Runs one seed; the digest of its trace.

    Raises:
        InvariantBroken: with the command that shows it again.
    """
    with quiet_log():
        run = TendedSimulation(seed, crash_call=crash_call, crash_after=crash_after)
        try:
            return run.run()
        finally:
            run.world.erase()


def _drawn_settings(random: Random) -> Settings:
    drawn = Settings.of(
        {
            "offload": {
                "block_bytes": random.choice([512, 4096]),
                "max_size_per_offload_segment_mbytes": random.choice([1 / 512, 1 / 128]),
                "offload_buffer_bytes_max": 64 * 1024,
                "offload_memory_bytes_max": 1024 * 1024,
                "retry_seconds_max": 1.0,
                "deletion_lag_minutes": random.choice([0, 240]),
            },
            "manifest": {"checkpoint_records": random.choice([3, 10, 100]), "record_requests_max": 1},
            "cleanup": {"grace_hours": random.choice([0, 0.1, 5])},
            "retention": _drawn_policy(random),
        }
    )
    return replace(drawn, offload=replace(drawn.offload, part_bytes=random.choice([4096, 2**24])))


def _drawn_policy(random: Random) -> dict[str, object]:
    """None in a third of the worlds: those are truncated by hand."""
    kind = random.choice(["none", "size", "time", "consumption", "consumption", "consumption"])
    if kind == "none":
        return {}
    drawn: dict[str, object] = {"policy": kind, "record_minutes": random.choice([0.01, 1.0, 30.0])}
    unit = {"size": "mbytes", "time": "minutes"}.get(kind) or random.choice(["mbytes", "minutes", ""])
    if unit:
        least = random.choice([0.001, 0.01]) if unit == "mbytes" else random.choice([0.5, 60.0])
        drawn[f"min_{unit}"] = least
        if random.random() < 0.5:
            drawn[f"max_{unit}"] = least * random.choice([1, 2, 10])
    if random.random() < 0.3:
        drawn["subscriber_timeout_minutes"] = random.choice([1.0, 240.0])
    return drawn
