"""One stream under every interleaving: whatever happens, what is readable is the appended prefix, once and in order.

The world is ``tests.proof.simulation.simulated_world``: no threads, no machine clock. Hypothesis draws the steps and
shrinks a failure.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from itertools import count
from random import Random

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from formats.entries import Position
from formats.keys import data_key, index_key
from offloader.errors import OffloaderError, OutcomeUnknownError, StoreUnavailableError, ThrottledError
from offloader.read.reader import open_stream_reader
from offloader.runtime.clock import Clock
from offloader.settings import Settings, Size
from offloader.store.base import ObjectStore
from offloader.testing.faulty_store import Fault, FaultyStore
from tests.independent_reader import read_segment
from tests.proof.simulation.simulated_process import SimulatedProcess
from tests.proof.simulation.simulated_store import FaultPlan
from tests.proof.simulation.simulated_world import STREAM, World
from tests.proof.simulation.simulation_checks import loaded

KIB = 1024
#: Age at which a segment closes, by default.
SEGMENT_AGE_S = 600
PROCESSES_MAX = 6
_names = count()

READS = ["head", "get", "list", "list_uploads", "list_parts"]
WRITES = ["put", "begin_upload", "upload_part", "complete_upload", "abort_upload", "delete"]
#: What is of use in the middle of a segment: its data object, its index, the record.
UPLOADS = ["put", "put", "upload_part", "complete_upload"]

refusals = st.builds(
    Fault,
    verb=st.sampled_from([*READS, *WRITES, "*"]),
    call=st.integers(1, 3),
    calls=st.integers(1, 4),
    error=st.sampled_from([StoreUnavailableError, ThrottledError]),
)
#: Without an answer: the call had no effect, or part of it, or all.
lost_answers = st.builds(
    Fault,
    verb=st.sampled_from(WRITES),
    call=st.integers(1, 2),
    calls=st.integers(1, 3),
    after=st.booleans(),
    torn=st.booleans(),
    error=st.just(OutcomeUnknownError),
)


class StreamModel(RuleBasedStateMachine):
    """Appends, and everything that may happen to those who bring them into the cold tier."""

    @initialize(
        seed=st.integers(0, 2**32),
        segment_mbytes=st.sampled_from([1 / 128, 1 / 32, 100]),
        memory_kib=st.sampled_from([64, 1024]),
        part_bytes=st.sampled_from([2 * KIB, 16 * KIB * KIB]),
        mixing=st.sampled_from([0.0, 0.0, 0.2]),
    )
    def begin(self, seed: int, segment_mbytes: float, memory_kib: int, part_bytes: int, mixing: float) -> None:
        limits = {
            "block_size": 512,
            "segment_size_max": round(segment_mbytes * 2**20),
            "offload_buffer_size_max": 64 * KIB,
            "offload_memory_size_max": memory_kib * KIB,
            "retry_delay_max": 1.0,
            "deletion_lag": "0m",
            "on_gap": "record",
            "codec": "none",  # so that the other reader understands it
        }
        drawn = Settings.of({"offload": limits, "manifest": {"checkpoint_records": 4, "record_requests_max": 1}})
        drawn = replace(drawn, offload=replace(drawn.offload, part_size=Size(part_bytes)))
        # Others do something between two requests of a process.
        plan = FaultPlan(meanwhile=mixing)
        self.world = World(
            f"model-{next(_names)}", Random(seed), lambda _: drawn, plan_of=lambda _: plan, way_in=self._way_in
        )
        self.sizes = Random(seed)
        self.records_checked = 0
        self.world.start()

    def _way_in(self, bucket: ObjectStore, clock: Clock) -> ObjectStore:
        self.faulty = FaultyStore(bucket, clock=clock)
        return self.faulty

    @property
    def newest(self) -> SimulatedProcess:
        return self.world.processes[-1]

    def _work(self, turns: int) -> None:
        for _ in range(turns):
            self.world.work()
            self.world.bury()

    # -- entries

    @rule(sizes=st.lists(st.sampled_from([0, 1, 50, 300, 40_000]), min_size=1, max_size=8))
    def append(self, sizes: list[int]) -> None:
        """One or a batch, empty ones, ones larger than a segment."""
        self.world.ledgers.append([self.sizes.randbytes(size) for size in sizes])

    @rule()
    def append_more_than_there_is_room_for(self) -> None:
        self.world.ledgers.append([self.sizes.randbytes(8_000) for _ in range(12)])

    @rule()
    def close_ledger(self) -> None:
        self.world.ledgers.close_ledger()

    # -- time and work

    @rule(turns=st.sampled_from([1, 2, 5, 20, 60]))
    def work(self, turns: int) -> None:
        self._work(turns)

    @rule(asked=st.booleans())
    def segments_close(self, asked: bool) -> None:
        """Because somebody asks for it, or because they are old."""
        if asked:
            self.world.request()
        else:
            self.world.clock.advance(SEGMENT_AGE_S)

    # -- trouble

    @rule(drawn=st.lists(st.one_of(refusals, lost_answers), min_size=1, max_size=2), turns=st.integers(0, 10))
    def requests_fail(self, drawn: list[Fault], turns: int) -> None:
        self.faulty.set_faults(drawn)
        self._work(turns)

    @rule(
        verb=st.sampled_from(UPLOADS),
        error=st.sampled_from([StoreUnavailableError, OutcomeUnknownError]),
        after=st.booleans(),
        turns=st.sampled_from([2, 12]),
    )
    def an_upload_fails(self, verb: str, error: type[OffloaderError], after: bool, turns: int) -> None:
        """In the middle of a stream that has something to do: a data object, or its index."""
        self.append([300] * 5)
        self._work(turns)
        self.faulty.set_faults([Fault(call=1, calls=2, verb=verb, but="/manifest/", error=error, after=after)])
        self.append([300] * 5)
        self.world.request()
        self._work(turns)

    @rule(calls=st.sampled_from([1, 3, 8]), after=st.booleans())
    def a_commit_is_unknown(self, calls: int, after: bool) -> None:
        unknown = Fault(call=1, calls=calls, verb="put", key_part=".json", after=after, error=OutcomeUnknownError)
        self.append([300] * 5)
        self._work(8)
        self.faulty.set_faults([unknown])
        self.world.request()
        self._work(12)

    @precondition(lambda self: self.world.started < PROCESSES_MAX)
    @rule(how=st.sampled_from(["crash", "restart", "take over"]))
    def owner_changes(self, how: str) -> None:
        if how == "take over":
            self.world.start()
            return
        if how == "restart" and self.newest.stream is not None:
            self.newest.stream.stop()
        self.newest.store.dead = True
        self.world.bury()

    # -- methods, the hot tier

    @rule(method=st.sampled_from(["streaming", "ledger", "none"]))
    def switch(self, method: str) -> None:
        self.world.switch(self.newest, method)
        if method == "ledger":
            self.newest.offload_ledgers()
        self.world.bury()

    @rule(on=st.booleans())
    def pause_or_resume(self, on: bool) -> None:
        """Somebody in another process: the writers notice when they commit, or look."""
        self.world.pause(on)

    @rule(what=st.sampled_from(["release", "trim", "lose"]))
    def ledgers_go(self, what: str) -> None:
        """Released after their lag, trimmed by retention, or deleted by somebody who asks nobody."""
        self.append([50, 50])
        self.close_ledger()
        self.append([50])
        happen = {"release": self.newest.release_hot, "trim": self.world.trim, "lose": self.world.lose_ledger}
        happen[what]()

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
            with open_stream_reader(self.world.store, STREAM) as reader:
                scanned = [(entry.position, entry.payload) for batch in reader.scan() for entry in batch.entries()]
            assert scanned == [entry for entry in raw if state.head is None or entry[0] >= state.head]
        self.world.erase()


TestStream = pytest.mark.slow(StreamModel.TestCase)
TestStream.settings = settings(max_examples=60, stateful_step_count=25, deadline=None, derandomize=True)


@pytest.fixture(autouse=True)
def _quiet() -> Iterator[None]:
    """Thousands of expected warnings."""
    log = logging.getLogger("offloader")
    before = log.level
    log.setLevel(logging.CRITICAL)
    yield
    log.setLevel(before)
