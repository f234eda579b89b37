"""Pulsar topics offloaded under faults of brokers, subscriptions, processes and the store.

What is readable in the end is what the broker stored without the gaps that were recorded, in order, once; and nothing
was acknowledged before it was there.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping
from itertools import count
from random import Random
from typing import Any

import pytest

from formats.entries import Position
from formats.pulsar.commands import CommandType, position_of
from offloader.coverage import GapReason
from offloader.errors import OffloaderError, StoreUnavailableError
from offloader.ledgers.pulsar import ledger_list, tail_reader, topic_facts
from offloader.ledgers.pulsar.source import PulsarSource
from offloader.ledgers.pulsar.topics import stream_of_topic
from offloader.manifest.log import load_manifest
from offloader.runtime.clock import SystemClock
from offloader.settings import Duration, OffloadSettings, Settings, Size
from offloader.store.memory import MemoryStore
from offloader.testing.faulty_store import Fault, FaultyStore
from offloader.write.machine import StreamOffload
from offloader.write.offloader import LedgerOffloader
from offloader.write.stream import Mode
from tests.formats.pulsar_entries import Sent, single_entry
from tests.ledgers.pulsar_bench import NAME, TOPIC, PulsarBench
from tests.support.readback import stored_entries
from tests.support.waiting import eventually

SEGMENT = "segment://public/default/orders/0000-ffff-0"
STEPS = 45
SETTINGS = Settings(
    offload=OffloadSettings(
        on_gap="record",
        block_size=Size(1024),
        segment_size_max=Size(4194),
        segment_age_max=Duration("0.001m"),
        offload_buffer_size_max=Size(64 * 1024),
        offload_memory_size_max=Size(2**20),
        retry_delay_max=Duration(0.02),
        deletion_lag=Duration("0m"),
        workers_max=4,
    )
)
LARGE = single_entry(Sent(value=bytes(3000)))
SMALL = [single_entry(Sent(value=b"message %d" % number)) for number in range(50)]
_names = count()


class Process:
    """One process that offloads the topic while the broker wants it to."""

    def __init__(self, bench: PulsarBench, store: FaultyStore) -> None:
        self.offloader = LedgerOffloader(store, SETTINGS)
        self.cluster = bench.cluster()
        self.source: PulsarSource = self.cluster.open_topic(bench.topic.name)
        self.stream: StreamOffload | None = None

    def follow(self) -> bool:
        """As the service does: starts when this process is the leader, stops when it isn't; whether it works."""
        active = self.source.active
        if active and self.stream is None:
            try:
                self.stream = self.offloader.offload_stream(self.source, self.source.stream)
            except OffloaderError:
                return False
        elif active and self.stream is not None and self.stream.status().mode is Mode.STOPPED:
            self.stream.reopen()  # one that didn't know yet that it isn't the active one any more fenced it
        elif active is False and self.stream is not None:
            self.stream.stop()
            self.stream = None
        return self.stream is not None

    def die(self) -> None:
        """Its connections go first; what it was about to send may still arrive."""
        self.cluster.close()
        if self.stream is not None:
            self.stream.stop()
        self.offloader.close()


class World:
    """A topic, a store, processes, and what must be so in the end."""

    def __init__(self, seed: int, topic: str = TOPIC) -> None:
        self.random = Random(seed)
        self.bench = PulsarBench(topic, receive_buffer_size_max=2**20)
        self.topic = self.bench.topic
        self.stream = stream_of_topic(topic)
        self.is_segment = topic == SEGMENT
        self.memory = MemoryStore(f"pulsar-simulation-{next(_names)}", "", SystemClock())
        self.store = FaultyStore(self.memory)
        self.ever: dict[Position, bytes] = {}
        self.markers: set[Position] = set()
        #: Ledgers that the admin interface listed with entries.
        self.listed: set[int] = set()
        self.internals, self.topic.internals = self.topic.internals, self.list_ledgers  # type: ignore[method-assign]
        self.processes = [Process(self.bench, self.store)]

    def step(self) -> None:
        for process in self.processes:
            process.follow()
        weights: dict[Callable[[], object], int] = {
            self.append: 12,
            self.mark: 2,
            self.topic.roll: 4,
            self.bench.broker.cut: 1,
            self.topic.unload: 2,
            self.switch: 1,
            self.acknowledge_behind_our_back: 1,
            self.expire: 1,
            self.restart_broker: 1,
            self.lose_admin: 1,
            self.lose_entries: 1,
            self.hide_fates: 1,
            self.fail_store: 2,
            self.crash: 1,
            self.stand_by: 1,
            self.release: 3,
            self.read_somewhere: 2,
            self.offload: 6,
        }
        if self.is_segment:  # what a broker of segments deletes unread leaves no trace, and fates aren't told
            weights |= dict.fromkeys([self.acknowledge_behind_our_back, self.expire, self.hide_fates, self.mark], 0)
        self.random.choices(list(weights), list(weights.values()))[0]()

    def append(self) -> None:
        for _ in range(self.random.randint(1, 20)):
            entry = LARGE if self.random.random() < 0.1 else self.random.choice(SMALL)
            self.ever[self.topic.append(entry)] = entry

    def mark(self) -> None:
        for _ in range(self.random.randint(1, 2)):
            self.markers.add(self.topic.append_marker())

    def switch(self) -> None:
        if self.topic.active(NAME) is not None:
            self.topic.switch(NAME)

    def acknowledge_behind_our_back(self) -> None:
        """Message TTL; the broker deletes what it takes for consumed."""
        stored = [position for position, _, _ in list(self.topic.entries)]
        if stored:
            self.topic.acknowledge(NAME, self.random.choice(stored))
            if self.random.random() < 0.5:
                self.topic.trim()

    def expire(self) -> None:
        ledgers = sorted({position.ledger_id for position, _, _ in list(self.topic.entries)})
        if len(ledgers) > 2:
            self.topic.expire(ledgers[1])

    def restart_broker(self) -> None:
        self.bench.broker.stop()
        self.bench.broker.start()

    def lose_admin(self) -> None:
        self.bench.admin.is_up = not self.bench.admin.is_up

    def lose_entries(self) -> None:
        """The bookies lose some; the broker passes over them, and over what it wanted to read with them."""
        entries = [position for position in self.ever if position not in self.topic.lost]
        self.topic.lost |= set(self.random.sample(entries, min(len(entries), self.random.randint(1, 3))))
        self.topic.read_batch = self.random.choice([1, 2, 5, 100])

    def hide_fates(self) -> None:
        """The admin interface lets nobody ask about entries, or it does again."""
        self.bench.admin.refuses_entries = self.random.choice([0, 401, 403, 404, 405, 412])

    def fail_store(self) -> None:
        faults = [Fault(call=1, calls=self.random.randint(1, 8), error=StoreUnavailableError)]
        self.store.set_faults(faults)

    def crash(self) -> None:
        self.processes.pop(0).die()
        self.processes.append(Process(self.bench, self.store))

    def stand_by(self) -> None:
        if len(self.processes) < 2:
            self.processes.append(Process(self.bench, self.store))

    def release(self) -> None:
        """Gives up what is safe."""
        for process in self.processes:
            if process.stream is not None:
                with contextlib.suppress(OffloaderError):
                    process.offloader.history.hot_release(process.source, self.stream).look()

    def offload(self) -> None:
        """Gives them a moment."""
        for process in self.processes:
            if process.stream is not None:
                with contextlib.suppress(OffloaderError):
                    process.stream.offload(timeout_s=0.3)

    def read_somewhere(self) -> None:
        """Reads of others disturb nobody, and are right."""
        source = self.processes[0].source
        if self.ever and source.active is not None:
            start = self.random.choice(list(self.ever))
            try:
                batch = source.read(start, 5000)
            except OffloaderError:
                return
            if batch is not None:
                assert batch.first >= start
                for entry in batch.entries():
                    assert entry.payload == self.ever[entry.position]

    def settle(self) -> None:
        """Everything works again; all that is there goes up."""
        self.store.set_faults([])
        self.bench.admin.is_up = True
        self.append()

        def is_done() -> bool:
            for process in self.processes:
                if process.follow() and process.stream is not None and process.source.active:
                    newest = max(set(self.ever) - self.markers - self.topic.lost)
                    try:
                        process.source.ledgers()  # as the service does at intervals
                        committed = process.stream.offload(timeout_s=2)
                    except OffloaderError as error:
                        self.last_error = error
                        return False
                    return committed is not None and committed >= newest
            return False

        try:
            eventually(is_done)
        except AssertionError:
            said = [(p.source.active, p.source.problem, p.stream and p.stream.status()) for p in self.processes]
            raise AssertionError(f"{getattr(self, 'last_error', '')}; {said}") from None
        self.release()

    def check(self) -> None:
        state = load_manifest(self.memory, self.stream)
        found = stored_entries(self.memory, self.stream)
        positions = [position for position, _ in found]
        assert positions == sorted(set(positions)), "once and in order"
        assert all(self.ever[position] == entry for position, entry in found), "byte for byte"
        harmless = [gap for gap in state.gaps if gap.reason == GapReason.UNDELIVERED]
        lost = [gap for gap in state.gaps if gap.reason != GapReason.UNDELIVERED]
        still_there = {position for position, _, messages in self.topic.entries if messages} - self.topic.lost
        readable = set(positions)
        for position in self.ever:
            in_gap = any(gap.first <= position <= gap.last for gap in lost)
            assert not any(gap.first <= position <= gap.last for gap in harmless), f"{position} was there for all"
            if position in still_there:
                assert position in readable, f"{position} is there and isn't offloaded"
                assert not in_gap
            elif position not in readable and not self.is_unseen(position, readable):
                is_told = in_gap or position < positions[0] or self.is_unlisted(position, readable)
                assert is_told, f"{position} is nowhere, and no gap says so"
        for ack in self.bench.broker.of(CommandType.ACK):
            [upto] = map(position_of, ack.message_id)
            for position in self.ever:
                in_gap = any(gap.first <= position <= gap.last for gap in lost)
                is_settled = position in readable or in_gap or self.is_unseen(position, readable)
                is_settled |= self.is_unlisted(position, readable)
                assert position > upto or is_settled or position < positions[0], "acknowledged"

    def is_unseen(self, position: Position, readable: set[Position]) -> bool:
        """Whether it is lost at the end of a segment's ledger: readers of the broker can't know of it."""
        return (
            self.is_segment
            and position in self.topic.lost
            and not any(each.ledger_id == position.ledger_id and each > position for each in readable)
        )

    def list_ledgers(self) -> Mapping[str, Any]:
        found = self.internals()
        self.listed |= {row["ledgerId"] for row in found["ledgers"] if row["entries"]}
        if found["currentLedgerEntries"]:
            self.listed.add(found["ledgers"][-1]["ledgerId"])
        return found

    def is_unlisted(self, position: Position, readable: set[Position]) -> bool:
        """Whether all of its ledger was deleted before it was listed: ids of ledgers have holes, so nobody can know."""
        there = {each.ledger_id for each in readable} | {each.ledger_id for each, _, _ in self.topic.entries}
        return not self.is_segment and position.ledger_id not in self.listed | there

    def close(self) -> None:
        for process in self.processes:
            process.die()
        self.bench.close()


@pytest.fixture(autouse=True)
def short_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reader that gets nothing, because the broker skipped all that is left, waits for as long."""
    for module in (ledger_list, tail_reader, topic_facts):
        monkeypatch.setattr(module, "READ_S_MAX", 1.0)


@pytest.mark.slow
@pytest.mark.parametrize("topic", [TOPIC, SEGMENT], ids=["topic", "segment"])
@pytest.mark.parametrize("seed", range(8))
def test_cold_tier_equals_the_brokers_entries_after_any_faults(seed: int, topic: str) -> None:
    world = World(seed, topic)
    try:
        eventually(lambda: world.processes[0].follow())
        for _ in range(STEPS):
            world.step()
        world.settle()
        world.check()
    finally:
        world.close()


def test_checks_cover_gaps_acknowledgements_and_owners() -> None:
    world = World(0)
    try:
        eventually(lambda: world.processes[0].follow())
        for step in (world.append, world.mark, world.append, world.topic.roll):
            step()
        world.settle()
        world.check()
        world.crash()
        world.settle()
        world.check()
        state = load_manifest(world.memory, world.stream)
        assert {gap.reason for gap in state.gaps} == {GapReason.UNDELIVERED}
        assert world.bench.broker.of(CommandType.ACK)
        assert state.epoch == 2
        assert {position.ledger_id for position in world.ever} == {1, 2}
    finally:
        world.close()
