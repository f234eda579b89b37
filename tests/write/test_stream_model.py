"""One stream under every interleaving: whatever happens, what is readable is the appended prefix, once and in order.

The world is ``offloader.testing.simulated_world``: no threads, no machine clock. Hypothesis says what happens next, and
makes a failure as short as it can.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from itertools import count
from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from formats.entries import Position
from formats.keys import data_key, index_key
from offloader.errors import OutcomeUnknown, StoreUnavailable, Throttled
from offloader.read.reader import open_reader
from offloader.settings import Settings
from offloader.store.base import ObjectStore
from offloader.testing.faulty_store import Fault, FaultyStore
from offloader.testing.simulated_process import SimulatedProcess
from offloader.testing.simulated_store import FaultPlan
from offloader.testing.simulated_world import STREAM, World
from offloader.testing.simulation_checks import loaded
from tests.independent_reader import read_segment

KIB = 1024
#: Age at which a segment closes, by default.
SEGMENT_AGE_S = 600
PROCESSES_MAX = 6
_names = count()

READS = ["head", "get", "list", "list_uploads", "list_parts"]
WRITES = ["put", "begin_upload", "upload_part", "complete_upload", "abort_upload", "delete"]
faults = st.one_of(
    st.builds(
        Fault,
        verb=st.sampled_from([*READS, *WRITES, "*"]),
        key_part=st.sampled_from(["", "", "/manifest/", "-index"]),
        call=st.integers(1, 3),
        calls=st.integers(1, 4),
        error=st.sampled_from([StoreUnavailable, Throttled]),
    ),
    # Without an answer: had no effect, or part of it, or all.
    st.builds(
        Fault,
        verb=st.sampled_from(WRITES),
        key_part=st.sampled_from(["", "", "/manifest/", "-index"]),
        call=st.integers(1, 2),
        calls=st.integers(1, 3),
        after=st.booleans(),
        torn=st.booleans(),
        error=st.just(OutcomeUnknown),
    ),
)


class StreamMachine(RuleBasedStateMachine):
    """Appends, and everything that may happen to those who bring them into the cold tier."""

    @initialize(
        seed=st.integers(0, 2**32),
        segment_mbytes=st.sampled_from([1 / 128, 1 / 32, 100]),
        memory_kib=st.sampled_from([64, 1024]),
    )
    def begin(self, seed: int, segment_mbytes: float, memory_kib: int) -> None:
        limits = {
            "block_bytes": 512,
            "max_size_per_offload_segment_mbytes": segment_mbytes,
            "offload_buffer_bytes_max": 64 * KIB,
            "offload_memory_bytes_max": memory_kib * KIB,
            "retry_seconds_max": 1.0,
            "deletion_lag_minutes": 0,
            "on_gap": "record",
            "codec": "none",  # so that the other reader understands it
        }
        drawn = Settings.of({"offload": limits, "manifest": {"checkpoint_records": 4, "record_requests_max": 1}})
        self.world = World(f"model-{next(_names)}", Random(seed), lambda _: drawn, way_in=self._way_in)
        self.sizes = Random(seed)
        self.records_checked = 0
        self.world.start()

    def _way_in(self, bucket: ObjectStore) -> ObjectStore:
        self.faulty = FaultyStore(bucket)
        return self.faulty

    @property
    def newest(self) -> SimulatedProcess:
        return self.world.processes[-1]

    # -- entries

    @rule(sizes=st.lists(st.sampled_from([0, 1, 50, 300]), min_size=1, max_size=8))
    def append(self, sizes: list[int]) -> None:
        self.world.ledgers.append([self.sizes.randbytes(size) for size in sizes])

    @rule()
    def append_one_larger_than_a_segment(self) -> None:
        self.world.ledgers.append([self.sizes.randbytes(9_000)])

    @rule()
    def append_more_than_there_is_room_for(self) -> None:
        self.world.ledgers.append([self.sizes.randbytes(8_000) for _ in range(12)])

    @rule()
    def close_ledger(self) -> None:
        self.world.ledgers.close_ledger()

    # -- time and work

    @rule(turns=st.sampled_from([1, 2, 5, 20, 60]))
    def work(self, turns: int) -> None:
        for _ in range(turns):
            self.world.work()
            self.world.bury()

    @rule()
    def segments_grow_old(self) -> None:
        self.world.clock.advance(SEGMENT_AGE_S)

    @rule()
    def request(self) -> None:
        self.world.request()

    # -- trouble

    @rule(drawn=st.lists(faults, min_size=1, max_size=2))
    def requests_fail(self, drawn: list[Fault]) -> None:
        self.faulty.set_faults(drawn)

    @precondition(lambda self: self.world.started < PROCESSES_MAX)
    @rule(gracefully=st.booleans())
    def restart(self, gracefully: bool) -> None:
        if gracefully and self.newest.stream is not None:
            self.newest.stream.stop()
        self.newest.store.dead = True
        self.world.bury()

    @precondition(lambda self: self.world.started < PROCESSES_MAX)
    @rule()
    def another_takes_over(self) -> None:
        self.world.start()

    @rule(chance=st.sampled_from([0.0, 0.2]))
    def owners_requests_mix(self, chance: float) -> None:
        """From here on others do something between two requests of the newest process, or no more."""
        self.newest.store.plan = FaultPlan(meanwhile=chance)

    # -- methods

    @rule(method=st.sampled_from(["streaming", "ledger", "none"]))
    def switch(self, method: str) -> None:
        self.newest.switch(method)
        self.world.bury()

    @precondition(lambda self: self.newest.method == "ledger")
    @rule()
    def offload_ledgers(self) -> None:
        self.newest.offload_ledgers()
        self.world.bury()

    # -- the hot tier

    @rule()
    def release_hot(self) -> None:
        self.newest.release_hot()

    @rule()
    def trim(self) -> None:
        self.world.trim()

    @rule()
    def lose_ledger(self) -> None:
        self.world.lose_ledger()

    # -- what must hold

    @invariant()
    def no_more_is_held_than_may_be(self) -> None:
        if hasattr(self, "world"):
            self.world.check_memory()

    @invariant()
    def what_is_readable_is_the_appended_prefix(self) -> None:
        if not hasattr(self, "world"):
            return
        written = sum(1 for verb, key in self.faulty.calls if verb == "put" and key.endswith(".json"))
        if written != self.records_checked:
            self.records_checked = written
            self.world.check_so_far()

    def teardown(self) -> None:
        """With a store that answers again, everything is committed, and two readers that share no code agree."""
        if not hasattr(self, "world"):
            return
        self.faulty.set_faults([])
        self.world.come_to_rest()
        self.world.check()
        state = loaded(self.world.store, STREAM)
        if state is not None and self.world.ledgers.appended:
            expected = dict(self.world.ledgers.appended)
            raw: list[tuple[Position, bytes]] = []
            for segment in state.offloaded():
                ledger = segment.v1_ledger_id
                data = self.world.store.get(data_key(STREAM, segment.uuid, ledger))[0]
                index = self.world.store.get(index_key(STREAM, segment.uuid, ledger))[0]
                found = read_segment(data, index, -1 if ledger is None else ledger)
                raw += [(Position(ledger_id, entry_id), payload) for ledger_id, entry_id, payload in found]
            assert [position for position, _ in raw] == sorted(expected.keys() & dict(raw).keys())
            assert all(expected[position] == payload for position, payload in raw)
            with open_reader(self.world.store, STREAM) as reader:
                scanned = [(entry.position, entry.payload) for batch in reader.scan() for entry in batch.entries()]
            assert scanned == [entry for entry in raw if state.head is None or entry[0] >= state.head]
        self.world.erase()


TestStream = StreamMachine.TestCase
TestStream.settings = settings(max_examples=60, stateful_step_count=30, deadline=None, derandomize=True)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Thousands of expected warnings."""
    log = logging.getLogger("offloader")
    before = log.level
    log.setLevel(logging.CRITICAL)
    yield
    log.setLevel(before)
