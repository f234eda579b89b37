"""One stream offloaded in a simulated world: one seed drives the clock, the scheduler, the store's faults and crashes.

Owns the schedule and the invariants. Must never depend on anything but the seed: the same seed gives the same trace.
"""

from __future__ import annotations

import hashlib
import logging
from dataclasses import dataclass
from random import Random
from typing import NoReturn

from formats.block import decode_block
from formats.entries import Position
from formats.keys import data_key, index_key, parse_object_key, record_number
from formats.manifest import Assign, decode_record
from formats.segment_map import SegmentMap
from offloader.errors import NotFound
from offloader.manifest.log import load_manifest
from offloader.settings import Settings
from offloader.store.memory import MemoryStore
from offloader.testing.manual_clock import ManualClock
from offloader.testing.memory_ledgers import MemoryLedgers
from offloader.testing.simulated_store import FaultPlan, SimulatedStore, Weather
from offloader.testing.simulated_workers import SimulatedWorkers
from offloader.write.offloader import LedgerOffloader
from offloader.write.streaming import StreamOffload

__all__ = ["InvariantBroken", "Simulation", "simulate"]

STREAM = "simulated/stream"
#: Steps of one simulation before it has to come to rest, and until it has.
STEPS = 150
STEPS_TO_REST_MAX = 20_000
#: Processes of one simulation: each restart and each second owner is one.
PROCESSES_MAX = 5
#: What encoding may hold above the budget: headers and tables of the blocks under way.
OVERHEAD_BYTES = 256 * 1024
_BLOCK_BYTES_MAX = 2**30


class InvariantBroken(AssertionError):
    """What must never be, was; the message says what, and how to see it again."""


@dataclass(slots=True)
class _Process:
    """A writer over the stream, and everything of it that a crash takes away."""

    store: SimulatedStore
    workers: SimulatedWorkers
    offloader: LedgerOffloader
    name: str


class Simulation:
    """One run. ``run`` raises ``InvariantBroken``, or answers the digest of its trace."""

    def __init__(self, seed: int, *, crash_call: int | None = None, crash_after: bool = False) -> None:
        self.seed = seed
        self._random = Random(seed)  # noqa: S311 - chance that can be repeated
        self._clock = ManualClock()
        self._memory = MemoryStore(f"simulation-{seed}-{id(self)}", "", self._clock)
        self._weather = Weather(self._another_random())
        self.ledgers = MemoryLedgers(STREAM, self._clock)
        self._settings = _drawn_settings(self._random)
        self._crash = (crash_call, crash_after)
        self._count = 0
        self._processes: list[tuple[_Process, StreamOffload]] = []

    def run(self) -> str:
        """Appends, crashes and restarts for a while, then lets everything come to rest, and checks."""
        self._start()
        for _ in range(STEPS):
            self._one_step()
            self._check_memory()
        self._come_to_rest()
        self._check_all()
        self._memory.delete([info.key for info in self._memory.list("").objects])
        return hashlib.sha256("\n".join(self._weather.trace).encode()).hexdigest()

    # -- the world

    def _another_random(self) -> Random:
        """So that what one part draws doesn't change what another does."""
        return Random(self._random.getrandbits(64))  # noqa: S311 - chance that can be repeated

    def _start(self) -> None:
        self._count += 1
        random = self._random
        crash_call, crash_after = self._crash
        if crash_call is None:
            crash_call, crash_after = random.choice([0, random.randint(1, 60)]), random.random() < 0.5
        elif self._count > 1:
            crash_call = 0
        plan = FaultPlan(
            refused=random.choice([0, 0, 0.02, 0.2]),
            lost=random.choice([0, 0, 0.02, 0.2]),
            crash_call=crash_call,
            crash_after=crash_after,
        )
        name = f"p{self._count}"
        store = SimulatedStore(self._memory, self._weather, plan, name)
        workers = SimulatedWorkers(self._clock, self._another_random())
        entropy = self._another_random()
        offloader = LedgerOffloader(
            store, self._settings, clock=self._clock, entropy=entropy.randbytes, workers=workers
        )
        stream = offloader.offload_stream(self.ledgers, STREAM)
        self._processes.append((_Process(store, workers, offloader, name), stream))
        self._weather.trace.append(f"start {name}")

    def _one_step(self) -> None:
        random = self._random
        drawn = random.random()
        if drawn < 0.12:
            sizes = [random.choice([0, 1, 50, 300, 2000]) for _ in range(random.randint(1, 12))]
            self.ledgers.append([random.randbytes(size) for size in sizes])
        elif drawn < 0.14:
            self.ledgers.close_ledger()
        elif drawn < 0.16:
            self._live().request_offload()
        elif drawn < 0.19 and self._weather.late:
            self._weather.land_one()
        elif drawn < 0.20 and self._count < PROCESSES_MAX:
            self._start()  # a second owner, while the first one lives
        elif drawn < 0.21 and self._count < PROCESSES_MAX:
            self._processes[-1][0].store.dead = True
        else:
            self._work()
        self._bury()

    def _work(self) -> None:
        """One task of one process, or the next timer of any of them when there is none."""
        busy = [process for process, _ in self._processes if process.workers.ready]
        if busy:
            self._random.choice(busy).workers.run_one()
            return
        due = [process.workers.next_timer_s for process, _ in self._processes]
        next_s = min((at_s for at_s in due if at_s is not None), default=None)
        if next_s is not None:
            self._clock.advance(max(0.0, next_s - self._clock.monotonic_s()))

    def _bury(self) -> None:
        """Takes dead processes away, and starts another when none is left."""
        for process, stream in [pair for pair in self._processes if pair[0].store.dead]:
            self._weather.trace.append(f"crash {process.name}")
            process.workers.close()
            stream.forget()
            self._processes.remove((process, stream))
        if not self._processes:
            self._start()

    def _live(self) -> StreamOffload:
        return self._processes[-1][1]

    def _come_to_rest(self) -> None:
        """The weather is fine again, and somebody wants everything offloaded."""
        while self._weather.late:
            self._weather.land_one()
        for process, _ in self._processes:
            process.store.plan = FaultPlan()
        for number in range(STEPS_TO_REST_MAX):
            if number % 100 == 0:  # also those that start meanwhile; a request makes work, so not each time
                for _, stream in self._processes:
                    stream.request_offload()
            if any(stream.status().committed == self.ledgers.tail for _, stream in self._processes):
                break
            self._work()
            self._bury()
        else:
            self._broken(f"no rest: {[stream.status() for _, stream in self._processes]}")
        while any(process.workers.ready for process, _ in self._processes):
            self._work()

    # -- the invariants

    def _check_memory(self) -> None:
        for process, _ in self._processes:
            held = process.offloader.memory_bytes
            if held > self._settings.offload.offload_memory_bytes_max + OVERHEAD_BYTES:
                self._broken(f"{process.name} holds {held} bytes")

    def _check_all(self) -> None:
        appended = self.ledgers.appended
        stored = self._stored()
        if stored != appended[: len(stored)]:
            self._broken("what is readable isn't what was appended, once and in order")
        if len(stored) != len(appended):
            self._broken(f"{len(stored)} of {len(appended)} entries are readable at rest")
        released = self.ledgers.released
        if released is not None and (not stored or released > stored[-1][0]):
            self._broken(f"{released} was released, {stored[-1][0] if stored else 'nothing'} is readable")
        for process, stream in self._processes:
            # One that was fenced and doesn't know it yet may hold bytes; one that is done holds none.
            if stream.status().committed == self.ledgers.tail and stream.status().buffer_bytes:
                self._broken(f"{process.name} still counts {stream.status().buffer_bytes} bytes")
        self._check_accounted()

    def _stored(self) -> list[tuple[Position, bytes]]:
        if not self.ledgers.appended:
            return []
        found: list[tuple[Position, bytes]] = []
        for segment in load_manifest(self._memory, STREAM).offloaded():
            try:
                data = self._memory.get(data_key(STREAM, segment.uuid))[0]
                index = self._memory.get(index_key(STREAM, segment.uuid))[0]
            except NotFound as error:
                self._broken(f"the manifest names what isn't there: {error}")
            for offset in SegmentMap.parse(index).blocks.offset.tolist():
                batch = decode_block(
                    memoryview(data)[offset:],
                    block_bytes_max=_BLOCK_BYTES_MAX,
                    decompressed_bytes_max=_BLOCK_BYTES_MAX,
                )
                found += [(entry.position, entry.payload) for entry in batch.entries()]
        return found

    def _check_accounted(self) -> None:
        """Every object and upload is named by a record that assigned it, before its first byte was sent."""
        keys = [info.key for info in self._memory.list("").objects]
        records = [decode_record(self._memory.get(key)[0]) for key in keys if record_number(key) is not None]
        assigned = {edit.uuid for record in records for edit in record.edits if isinstance(edit, Assign)}
        for key in [*keys, *(upload.key for upload in self._memory.list_uploads(""))]:
            named = parse_object_key(key, STREAM)
            if named is not None and named.uuid not in assigned:
                self._broken(f"{key} is unaccounted for")
        state = load_manifest(self._memory, STREAM) if self.ledgers.appended else None
        offloaded = {segment.uuid for segment in state.offloaded()} if state else set()
        for upload in self._memory.list_uploads(""):
            named = parse_object_key(upload.key, STREAM)
            if named is not None and named.uuid in offloaded:
                self._broken(f"an upload of {upload.key} is left over, which is complete")

    def _broken(self, what: str) -> NoReturn:
        crash = "" if self._crash[0] is None else f" --crash-call {self._crash[0]}"
        after = " --crash-after" if self._crash[1] else ""
        raise InvariantBroken(f"{what}; again: ./dev soak --seed {self.seed}{crash}{after}")


def simulate(seed: int, *, crash_call: int | None = None, crash_after: bool = False) -> str:
    """Runs one seed; the digest of its trace.

    Args:
        crash_call: let the first process die at that storage call, and no other; ``None``: as the seed says.
        crash_after: whether that call takes effect.

    Raises:
        InvariantBroken: with the command that shows it again.
    """
    logging.getLogger("offloader").setLevel(logging.CRITICAL)
    return Simulation(seed, crash_call=crash_call, crash_after=crash_after).run()


def _drawn_settings(random: Random) -> Settings:
    memory_bytes = random.choice([64, 128, 1024]) * 1024
    return Settings.of(
        {
            "offload": {
                "block_bytes": random.choice([512, 4096]),
                "max_size_per_offload_segment_mbytes": random.choice([1 / 512, 1 / 128, 1]),
                "offload_buffer_bytes_max": random.choice([64, 256]) * 1024,
                "offload_memory_bytes_max": memory_bytes,
                "retry_seconds_max": 1.0,
                "codec": random.choice(["none", "zstd"]),
            },
            # Checkpoints as often as there can be any; and no request on a thread of its own: those come in any order.
            "manifest": {"checkpoint_records": random.choice([1, 3, 10, 100]), "record_requests_max": 1},
        }
    )
