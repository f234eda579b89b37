"""A partitioned topic is truncated as one stream, whatever fails."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from itertools import count
from typing import Any
from uuid import UUID

import pytest

from formats.documents import PartitionHead, TruncationIntent, intent_key
from formats.entries import Position
from formats.manifest import Assign, Failed
from offloader.errors import FencedError, InvalidCallError, OutcomeUnknownError, StoreUnavailableError
from offloader.gc.delete_stream import remove_stream
from offloader.manifest.catalog import release_intent
from offloader.manifest.log import ManifestLog, load_manifest
from offloader.manifest.state import EditRefusedError
from offloader.retention.cycle import RetentionCycle
from offloader.retention.truncate import resume_topic_truncation, truncate_topic
from offloader.settings import Duration, OffloadSettings, Settings
from offloader.store.base import ObjectStore
from offloader.store.memory import MemoryStore
from offloader.testing.faulty_store import Fault, FaultyStore
from offloader.testing.manual_clock import ManualClock
from tests.support.schedule import Schedule
from tests.support.streams import StreamWriter, batch_of

TOPIC = "public/default/persistent/orders"
ZERO, ONE, TEN = (f"{TOPIC}-partition-{number}" for number in (0, 1, 10))
PATIENT = Settings(offload=OffloadSettings(takeover_after=Duration(600)))
_names = count()


class Bench:
    def __init__(self) -> None:
        self.clock = ManualClock()
        self.memory = MemoryStore(f"topic-{next(_names)}", "", self.clock)
        self.store = FaultyStore(self.memory)
        for stream in (ZERO, ONE, TEN):
            writer = StreamWriter(self.memory, stream, clock=self.clock)
            writer.add([batch_of(1, 0, 10)], closes=[1])
            writer.add([batch_of(2, 0, 10)])

    def truncate(self, heads: dict[str, Position], **how: Any) -> None:
        truncate_topic(self.store, TOPIC, heads, clock=self.clock, by="somebody", **how)

    def truncating(self, heads: dict[str, Position], by: str) -> Callable[[ObjectStore], object]:
        """The same on somebody's way to the store."""
        return lambda store: truncate_topic(store, TOPIC, heads, clock=self.clock, by=by)

    def wanted(self, heads: dict[str, Position]) -> tuple[PartitionHead, ...]:
        return tuple(
            PartitionHead(stream, load_manifest(self.memory, stream).incarnation, head)
            for stream, head in heads.items()
        )

    def owner(self, end: Position | None) -> ManifestLog:
        """Of the second partition; it has begun a segment up to ``end`` (``None``: still open)."""
        log = ManifestLog(self.memory, ONE, clock=self.clock)
        log.load()
        log.open_epoch()
        log.commit([Assign(UUID(int=7), 2, Position(2, 10), end, 0, {})])
        return log

    def leave_truncation(self, *, forced: bool) -> None:
        """Store only the intent of a truncation inside of that segment, as a process leaves it that dies then."""
        unfinished = TruncationIntent(TOPIC, self.wanted({ONE: Position(2, 12)}), forced, "somebody", 5)
        self.memory.put(intent_key(TOPIC), unfinished.encode())

    def heads(self) -> list[Position | None]:
        return [load_manifest(self.memory, stream).head for stream in (ZERO, ONE, TEN)]


def test_truncation_sets_the_given_head_of_each_partition() -> None:
    bench = Bench()
    bench.truncate({ZERO: Position(2, 0), TEN: Position(1, 4)})
    assert bench.heads() == [Position(2, 0), None, Position(1, 4)]
    assert resume_topic_truncation(bench.store, TOPIC, clock=bench.clock) == {}


def test_refusal_by_one_partition_changes_none() -> None:
    bench = Bench()
    with pytest.raises(EditRefusedError, match="past the committed end"):
        bench.truncate({ZERO: Position(2, 0), ONE: Position(9, 0)})
    with pytest.raises(InvalidCallError, match="isn't a partition of"):
        bench.truncate({ZERO: Position(2, 0), f"{TOPIC}-elsewhere": Position(1, 0)})
    assert bench.heads() == [None, None, None]
    assert not bench.memory.list(f"{TOPIC}/").objects


def test_living_owner_of_one_partition_blocks_forced_truncation_of_all() -> None:
    bench = Bench()
    log = ManifestLog(bench.memory, ONE, clock=bench.clock)
    log.load()
    log.open_epoch()
    log.commit([Assign(UUID(int=7), 2, Position(2, 10), Position(2, 14), 0, {})])
    heads = {ZERO: Position(2, 0), ONE: Position(2, 12)}
    bench.truncate(heads, force=True, dry_run=True)
    with pytest.raises(FencedError, match="is owned by"):
        bench.truncate(heads, force=True)
    assert bench.heads() == [None, None, None]
    assert not bench.memory.list(f"{TOPIC}/").objects
    bench.truncate(heads, force=True, take_over=True)
    assert bench.heads() == [*heads.values(), None]


def test_a_dry_run_changes_nothing() -> None:
    bench = Bench()
    bench.truncate({ZERO: Position(2, 0)}, dry_run=True)
    assert bench.heads() == [None, None, None]
    assert not bench.memory.list(f"{TOPIC}/").objects


def test_unfinished_truncation_by_another_process_is_finished_first() -> None:
    bench = Bench()
    unfinished = TruncationIntent(
        TOPIC, bench.wanted({ZERO: Position(1, 7), ONE: Position(2, 2)}), False, "somebody else", 5
    )
    bench.memory.put(intent_key(TOPIC), unfinished.encode())
    bench.truncate({ZERO: Position(1, 3), TEN: Position(1, 1)})
    assert bench.heads() == [Position(1, 7), Position(2, 2), Position(1, 1)]


def test_truncation_intent_does_not_apply_to_recreated_partitions() -> None:
    bench = Bench()
    old = TruncationIntent(TOPIC, bench.wanted({ZERO: Position(2, 2), ONE: Position(2, 2)}), False, "somebody", 5)
    bench.memory.put(intent_key(TOPIC), old.encode())
    assert not release_intent(bench.memory, TOPIC)
    for _ in range(2):
        remove_stream(bench.memory, ZERO, clock=bench.clock)
        bench.clock.advance(25 * 3600)
    writer = StreamWriter(bench.memory, ZERO, clock=bench.clock)
    writer.add([batch_of(1, 0, 10)], closes=[1])
    writer.add([batch_of(2, 0, 10)])
    done = resume_topic_truncation(bench.store, TOPIC, clock=bench.clock)
    assert sorted(done) == [ONE]
    assert bench.heads() == [None, Position(2, 2), None]


@pytest.mark.slow
@pytest.mark.parametrize("is_created_again", [False, True])
def test_intent_of_a_deleted_topic_is_released(is_created_again: bool) -> None:
    bench = Bench()
    bench.truncate({ZERO: Position(2, 0)})
    for _ in range(2):
        remove_stream(bench.memory, ZERO, clock=bench.clock)
        bench.clock.advance(25 * 3600)
    if is_created_again:
        StreamWriter(bench.memory, ZERO, clock=bench.clock)
    assert release_intent(bench.memory, TOPIC)
    assert bench.memory.get(intent_key(TOPIC))[0] == b""
    assert release_intent(bench.memory, TOPIC)
    bench.truncate({ONE: Position(2, 0)})
    assert load_manifest(bench.memory, ONE).head == Position(2, 0)


def test_forced_truncation_of_a_dead_process_is_finished_with_its_intended_loss() -> None:
    bench = Bench()
    log = bench.owner(None)
    bench.store.set_faults([Fault(call=1, verb="put", key_part=f"{ONE}/manifest/", calls=1000)])
    with pytest.raises((StoreUnavailableError, OutcomeUnknownError)):
        bench.truncate({ZERO: Position(2, 0), ONE: Position(2, 10)}, force=True, take_over=True)
    bench.store.set_faults([])
    log.commit([Failed(UUID(int=7), "a test"), Assign(UUID(int=8), 2, Position(2, 10), Position(2, 14), 0, {})])
    resume_topic_truncation(bench.store, TOPIC, clock=bench.clock, take_over=True)
    assert bench.heads() == [Position(2, 0), Position(2, 10), None]


@pytest.mark.parametrize("forced", [True, False])
def test_unfinished_truncation_is_finished_with_its_original_force(forced: bool) -> None:
    bench = Bench()
    bench.owner(Position(2, 14))
    bench.leave_truncation(forced=forced)
    with nullcontext() if forced else pytest.raises(EditRefusedError, match="past the committed end"):
        resume_topic_truncation(bench.store, TOPIC, clock=bench.clock, take_over=True)
    assert bench.heads() == [None, Position(2, 12) if forced else None, None]


def test_unfinished_truncation_leaves_an_owner_the_time_that_its_settings_say() -> None:
    bench = Bench()
    bench.owner(Position(2, 14))
    bench.leave_truncation(forced=True)
    bench.clock.advance(100)
    for ask in (
        lambda: RetentionCycle(bench.store, clock=bench.clock, settings_of=lambda _: PATIENT).run(TOPIC),
        lambda: resume_topic_truncation(bench.store, TOPIC, clock=bench.clock, takeover_after_s=600),
        lambda: bench.truncate({ZERO: Position(2, 0)}, takeover_after_s=600),
    ):
        with pytest.raises(FencedError, match="600 s"):
            ask()
    assert bench.heads() == [None, None, None]
    resume_topic_truncation(bench.store, TOPIC, clock=bench.clock)
    assert bench.heads() == [None, Position(2, 12), None]


def test_cancelled_truncation_writes_nothing() -> None:
    bench = Bench()
    heads = {ZERO: Position(2, 0)}
    found = truncate_topic(bench.store, TOPIC, heads, clock=bench.clock, by="somebody", still=lambda: False)
    assert found == {}
    assert bench.heads() == [None, None, None]
    assert not bench.memory.list(f"{TOPIC}/").objects


@pytest.mark.slow
def test_delayed_truncation_checks_again_whether_it_is_wanted() -> None:
    bench, asked = Bench(), list[list[Position | None]]()

    def still() -> bool:
        asked.append(bench.heads())
        return True

    def second(store: ObjectStore) -> object:
        heads = {ONE: Position(2, 0)}
        return truncate_topic(store, TOPIC, heads, clock=bench.clock, by="second", still=still)

    schedule = Schedule(bench.memory)
    schedule.start("second", second)
    schedule.until("second", "put", intent_key(TOPIC))
    bench.truncate({ZERO: Position(2, 0)})
    schedule.finish("second")
    assert asked == [[None, None, None], [Position(2, 0), None, None]]
    assert bench.heads() == [Position(2, 0), Position(2, 0), None]


def test_unfinished_topic_truncation_is_never_overtaken() -> None:
    bench = Bench()
    schedule = Schedule(bench.memory)
    schedule.start("one", bench.truncating({ZERO: Position(2, 0), ONE: Position(2, 0)}, "one"))
    schedule.start("other", bench.truncating({ZERO: Position(1, 3)}, "other"))
    schedule.until("other", "put", intent_key(TOPIC))
    schedule.until("one", "put", f"{ONE}/manifest/")
    # The first one's intent stands by now, and half of it is done.
    schedule.step("other")
    schedule.until("other", "put", f"{ONE}/manifest/")
    assert bench.heads() == [Position(2, 0), None, None]
    schedule.finish("other")
    assert bench.heads() == [Position(2, 0), Position(2, 0), None]
    schedule.finish("one")
    assert bench.heads() == [Position(2, 0), Position(2, 0), None]


def test_truncation_begun_during_another_ones_check_is_not_overtaken() -> None:
    bench = Bench()
    schedule = Schedule(bench.memory)
    schedule.start("one", bench.truncating({ZERO: Position(2, 0), ONE: Position(2, 0)}, "one"))
    schedule.start("other", bench.truncating({ZERO: Position(1, 3)}, "other"))
    schedule.until("other", "get", intent_key(TOPIC))
    schedule.step("other")
    schedule.until("one", "put", f"{ONE}/manifest/")
    with pytest.raises(StoreUnavailableError, match=r"another process is truncating .*: one"):
        schedule.finish("other")
    schedule.finish("one")
    assert bench.heads() == [Position(2, 0), Position(2, 0), None]
