"""Drives a stream into each of its phases and causes each event there.

``docs/explanation/stream-phases.md`` has the resulting table; ``test_machine_phases.py`` compares the two.
``python -m tests.write.stream_phases`` prints the table.
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import count
from random import Random
from typing import Any

from formats.keys import catalog_key
from formats.manifest import Edit, Pause, Resume
from offloader.errors import StoreUnavailableError
from offloader.manifest.log import ManifestLog, load_manifest
from offloader.runtime.clock import SystemClock
from offloader.settings import Settings
from offloader.store.memory import MemoryStore
from offloader.store.wrappers import Request, StoreWrapper
from offloader.testing.manual_clock import ManualClock
from offloader.testing.memory_ledgers import MemoryLedgers
from offloader.write.machine import StreamOffload
from offloader.write.offloader import LedgerOffloader
from offloader.write.stream import ENDED, TABLE, Event, Phase
from tests.proof.simulation.simulated_workers import SimulatedWorkers
from tests.write.streaming_bench import records_in

STREAM = "public/default/persistent/orders"
SEGMENT_AGE_S = 600.0
TAKEOVER_S = 60.0
_names = count()


class SwitchableStore(StoreWrapper):
    """A store that can be unavailable."""

    def __init__(self, inner: MemoryStore) -> None:
        super().__init__(inner)
        self.is_down = False

    def around(self, request: Request, call: Callable[[], Any]) -> Any:
        if self.is_down:
            raise StoreUnavailableError("no route to the store")
        return call()


class PhaseWorld:
    """One stream, its hot tier and its store, without threads.

    Args:
        offload: settings of that section.
    """

    def __init__(self, **offload: object) -> None:
        self.clock = ManualClock()
        self.memory = MemoryStore(f"phases-{next(_names)}", "", SystemClock())
        self.store = SwitchableStore(self.memory)
        self.workers = SimulatedWorkers(self.clock, Random(1))
        limits = {
            "block_size": 512,
            "segment_size_max": "16KiB",
            "segment_age_max": SEGMENT_AGE_S,
            "takeover_after": TAKEOVER_S,
            "offload_buffer_size_max": 64 * 1024,
            "backfill_segments_in_flight_max": 1,
            **offload,
        }
        settings = Settings.of({"offload": limits, "manifest": {"record_requests_max": 1}})
        self.offloader = LedgerOffloader(self.store, settings, clock=self.clock, workers=self.workers)
        self.source = MemoryLedgers(STREAM, self.clock)
        self.stream: StreamOffload
        #: Numbers of the records that other processes wrote, counted from 0.
        self._foreign: set[int] = set()

    def start(self) -> None:
        self.stream = self.offloader.offload_stream(self.source, STREAM)

    def run(self) -> None:
        while self.workers.run_one():
            pass

    def pass_time(self, seconds: float) -> None:
        for _ in range(20):
            self.clock.advance(seconds / 20)
            self.run()

    def append(self, entries: int = 1, size: int = 100) -> None:
        self.source.append([bytes([number % 256]) * size for number in range(entries)])

    def commit(self, edit: Edit) -> None:
        """As another process does."""
        log = ManifestLog(self.memory, STREAM, clock=self.clock)
        log.load(create=True)
        self._foreign.add(len(records_in(self.memory)))
        log.commit_as_maintainer([edit])

    def take_over(self) -> None:
        self._foreign.add(len(records_in(self.memory)))
        ManifestLog(self.memory, STREAM, clock=self.clock).open_epoch()

    @property
    def phase(self) -> str:
        """The stream's phase; while a failed step waits for its timer, ``retrying``."""
        phase = self.stream._shared.phase
        is_retrying = self.stream._backoff.waiting and phase not in ENDED
        return "retrying" if is_retrying else name_of(phase)

    @property
    def is_offloaded(self) -> bool:
        return bool(self.memory.list("").objects)

    def edits(self) -> list[str]:
        """The kinds of the edits that the stream recorded, in order."""
        records = enumerate(records_in(self.memory))
        return [type(edit).__name__ for number, edits in records if number not in self._foreign for edit in edits]


def _idle(world: PhaseWorld) -> None:
    world.start()
    world.run()


def _live(world: PhaseWorld) -> None:
    world.start()
    world.append()
    world.run()


def _catching_up(world: PhaseWorld) -> None:
    """Two segments are complete and wait for their uploads, and more entries came."""
    _live(world)
    for _ in range(4):
        world.append(20, 1000)


def _backfilling(world: PhaseWorld) -> None:
    for _ in range(20):
        world.append(20, 1000)
    world.start()
    while world.phase != "backfilling":
        assert world.workers.run_one()


def _retrying(world: PhaseWorld) -> None:
    _live(world)
    world.store.is_down = True
    world.stream.request_offload()
    world.run()


def _paused(world: PhaseWorld) -> None:
    _live(world)
    world.commit(Pause("maintenance"))
    world.stream.wake()
    world.run()


def _fenced(world: PhaseWorld) -> None:
    _live(world)
    world.take_over()
    world.stream.request_offload()
    world.run()


def _halted(world: PhaseWorld) -> None:
    """The catalogue entry is damaged when the stream starts, and restored later."""
    _stopped(world)
    key = catalog_key(STREAM)
    entry = world.memory.get(key)[0]
    world.memory.put(key, b"damaged")
    world.append()
    _idle(world)
    world.memory.put(key, entry)


def _stopped(world: PhaseWorld) -> None:
    _live(world)
    world.stream.stop()


PHASES: dict[str, Callable[[PhaseWorld], None]] = {
    "idle": _idle,
    "live": _live,
    "catching up": _catching_up,
    "backfilling": _backfilling,
    "retrying": _retrying,
    "paused": _paused,
    "fenced": _fenced,
    "halted": _halted,
    "stopped": _stopped,
}


def _pause(world: PhaseWorld) -> None:
    if world.is_offloaded and not load_manifest(world.memory, STREAM).paused:
        world.commit(Pause(""))
    world.stream.wake()


def _resume(world: PhaseWorld) -> None:
    if world.is_offloaded and load_manifest(world.memory, STREAM).paused:
        world.commit(Resume())
    world.stream.wake()


def _outage(world: PhaseWorld) -> None:
    world.store.is_down = True
    world.stream.request_offload()


def _fence(world: PhaseWorld) -> None:
    world.take_over()
    world.stream.request_offload()


def _recover(world: PhaseWorld) -> None:
    world.store.is_down = False
    world.pass_time(10)


EVENTS: dict[str, Callable[[PhaseWorld], object]] = {
    "entries appended": lambda world: world.append(),
    "ledger closed": lambda world: world.source.close_ledger(),
    "offload requested": lambda world: world.stream.request_offload(),
    "memory needed": lambda world: world.stream._request_flush(),
    "segment age reached": lambda world: world.pass_time(SEGMENT_AGE_S),
    "store unavailable": _outage,
    "store available": _recover,
    "pause recorded": _pause,
    "resume recorded": _resume,
    "another epoch opened": _fence,
    "owner inactive": lambda world: world.pass_time(20 * TAKEOVER_S + SEGMENT_AGE_S),
    "reopen": lambda world: world.stream.reopen(),
    "stop": lambda world: world.stream.stop(),
}


#: Name of an edit -> its name in the table.
_RECORDS = {
    "OpenEpoch": "epoch",
    "Assign": "assigned",
    "Offloaded": "offloaded",
    "Failed": "failed",
    "LedgerClosed": "ledger end",
}


def reached(phase: str, event: str) -> str:
    """The phase after an event, and in parentheses the facts recorded by the stream on the way, in order."""
    world = PhaseWorld()
    PHASES[phase](world)
    assert world.phase == phase
    before = len(world.edits())
    EVENTS[event](world)
    world.run()
    told = [_RECORDS[each] for each in dict.fromkeys(world.edits()[before:])]
    after = world.phase
    world.offloader.close()
    return after + (f" ({', '.join(told)})" if told else "")


def row(event: str) -> str:
    """One line of the table."""
    cells = ["" if (cell := reached(phase, event)) == phase else cell for phase in PHASES]
    return f"| {event} | {' | '.join(cells)} |"


def head() -> str:
    return f"| event | {' | '.join(PHASES)} |\n|{' --- |' * (len(PHASES) + 1)}"


def phase_rows() -> list[str]:
    """The table of phases."""
    return ["| phase | mode | meaning |", "| --- | --- | --- |"] + [
        f"| {name_of(each)} | {each.mode.value} | {each.value} |" for each in Phase
    ]


def transition_rows() -> list[str]:
    """The table of transitions: an event, the phases it changes, and the phases it leads to."""
    rows = ["| event | from | to |", "| --- | --- | --- |"]
    for event in Event:
        for target in Phase:
            sources = [name_of(phase) for phase in Phase if TABLE[phase].get(event) is target]
            rows += [f"| {event.value} | {', '.join(sources)} | {name_of(target)} |"] if sources else []
    return rows


def name_of(phase: Phase) -> str:
    return phase.name.lower().replace("_", " ")


if __name__ == "__main__":
    print(*phase_rows(), "", *transition_rows(), "", head(), *map(row, EVENTS), sep="\n")
