"""A scalable topic is truncated at one cut: all of a segment goes before anything of those that continue it."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from typing import cast

import pytest

import offloader
from formats.entries import Position
from formats.topic_layout import HASHES, RangeSegment, TopicLayout, layout_key
from offloader.cli.main import main
from offloader.errors import CorruptError, InvalidCallError, NotFoundError, OffloaderError, StoreUnavailableError
from offloader.gc.delete_stream import remove_stream
from offloader.ledgers.base import BrokerLedgers
from offloader.manifest.catalog import read_topic_entry, release_topics_of
from offloader.manifest.log import load_manifest
from offloader.manifest.topic_layouts import read_layout
from offloader.read.partitions import open_reader
from offloader.retention.broker import first_listed
from offloader.retention.cycle import RetentionCycle, retained_streams
from offloader.retention.state import Rule
from offloader.retention.subscribers import open_retention
from offloader.retention.truncate import truncate_stream
from offloader.settings import PulsarSettings
from offloader.store.memory import MemoryStore
from offloader.store.open import open_store
from offloader.testing.faulty_store import Fault
from tests.retention.retained_streams import ENTRIES, KIB
from tests.retention.scalable_topic import NAME, PLACE, ScalableBench

_names = itertools.count()


def split_once(bench: ScalableBench, *ledgers: int) -> tuple[int, int]:
    """A segment with the first number of ledgers, and its two children with the others."""
    bench.fill(0, ledgers[0])
    one, other = bench.split(0)
    for number, count in zip((one, other), ledgers[1:], strict=True):
        bench.fill(number, count)
    return one, other


def delete(bench: ScalableBench, stream: str) -> None:
    """Delete a stream, and its tombstone a day later."""
    for _ in range(2):
        remove_stream(bench.memory, stream, clock=bench.clock)
        bench.clock.advance(25 * 3600)


def test_size_counts_over_all_segments_and_the_oldest_go_first() -> None:
    bench = ScalableBench(policy="size", min_size="30KiB")
    one, other = split_once(bench, 3, 2, 2)
    bench.record()
    outcome = bench.run(PLACE)
    assert outcome.bytes_truncated == 40 * KIB
    # 70 KiB were written: all of the parent, and of the children up to one publish time.
    assert bench.heads() == {0: Position(3, ENTRIES), one: Position(5, 0), other: None}
    bench.require_in_order()
    with open_reader(bench.memory, NAME) as reader:
        assert reader.count() == 3 * ENTRIES


def test_children_wait_while_min_keeps_a_part_of_their_parent() -> None:
    bench = ScalableBench(policy="size", min_size="50KiB")
    one, other = split_once(bench, 3, 2, 2)
    bench.record()
    bench.run(PLACE)
    assert bench.heads() == {0: Position(3, 0), one: None, other: None}


def test_age_counts_over_all_segments() -> None:
    bench = ScalableBench(policy="time", min_age="3.5m")
    bench.record()
    bench.fill(0, 2)
    bench.run(PLACE)
    one, other = bench.split(0)
    for _ in range(3):
        bench.fill(one)
        bench.fill(other)
        bench.record()
        bench.run(PLACE)
        bench.require_in_order()
    assert bench.is_at_end(0)
    assert bench.heads()[one] is not None


@pytest.mark.parametrize("what", ["end", "stream"])
def test_children_are_kept_while_the_end_of_a_parent_is_not_in_the_store(what: str) -> None:
    bench = ScalableBench(policy="size", min_size="1KiB")
    one, other = split_once(bench, 3, 2, 2)
    if what == "stream":
        bench.newest[0] = Position(99, 0)  # the newest entries of the parent aren't offloaded
    bench.record(ends=what == "stream")
    for _ in range(2):
        bench.run(PLACE)
        assert bench.heads() == {0: Position(3, 0), one: None, other: None}
    bench.newest[0] = Position(3, ENTRIES - 1)
    if what == "end":
        bench.record()
        bench.run(PLACE)
        assert bench.heads()[one] == Position(5, ENTRIES)


def test_children_are_kept_while_nothing_of_a_parent_is_offloaded() -> None:
    bench = ScalableBench(policy="size", min_size="1KiB")
    bench.newest[0] = Position(1, 5)
    one, other = bench.split(0)
    bench.fill(one, 3)
    bench.record()
    bench.run(PLACE)
    assert bench.heads() == {one: None}
    assert other not in bench.heads()


def test_segment_without_entries_holds_no_child_back() -> None:
    bench = ScalableBench(policy="size", min_size="1KiB")
    one, _ = bench.split(0)
    bench.fill(one, 3)
    bench.record()
    bench.run(PLACE)
    assert bench.heads() == {one: Position(3, 0)}


def test_topic_grows_after_a_recorded_cut() -> None:
    bench = ScalableBench(policy="size", min_size="20KiB")
    bench.record()
    bench.fill(0, 2)
    bench.run(PLACE)
    one, other = bench.split(0)
    bench.fill(one)
    bench.record()
    bench.run(PLACE)
    merged = bench.merge(one, other)
    bench.fill(merged, 3)
    bench.record()
    bench.run(PLACE)
    bench.require_in_order()
    assert bench.is_at_end(0)
    assert bench.is_at_end(one)
    assert bench.heads()[merged] == Position(5, 0)


@pytest.mark.slow
def test_deleted_stream_of_a_segment_holds_its_descendants_back() -> None:
    bench = ScalableBench(policy="size", min_size="1KiB")
    one, other = split_once(bench, 3, 2, 2)
    bench.record()
    delete(bench, bench.stream(0))
    del bench.writers[bench.stream(0)]
    bench.run(PLACE)
    assert bench.heads() == {one: None, other: None}
    # As readers leave them out.
    with open_reader(bench.memory, NAME) as reader:
        assert reader.count() == 0


def test_children_truncated_before_stay_where_they_are() -> None:
    bench = ScalableBench(policy="size", min_size="50KiB")
    one, other = split_once(bench, 3, 2, 2)
    bench.record()
    truncate_stream(bench.writers[bench.stream(one)].log, Position(5, 0), clock=bench.clock)
    bench.run(PLACE)
    heads = bench.heads()
    assert heads[one] == Position(5, 0)
    assert heads[other] is None


def test_layout_that_cannot_be_read_deletes_nothing() -> None:
    bench = ScalableBench(policy="size", min_size="1KiB")
    split_once(bench, 3, 2, 2)
    bench.record()
    bench.memory.put(layout_key(PLACE), b"damaged")
    for name in (PLACE, bench.stream(0)):
        with pytest.raises(CorruptError, match=r"layout\.json"):
            bench.run(name)
    assert bench.heads() == dict.fromkeys(bench.heads())
    assert retained_streams(bench.memory) == [PLACE]


def test_segment_alone_is_refused_with_the_name_of_the_topic() -> None:
    bench = ScalableBench(policy="size", min_size="1KiB")
    split_once(bench, 1, 1, 1)
    bench.record()
    with pytest.raises(InvalidCallError, match="is segment 0 of a scalable topic") as refused:
        bench.run(bench.stream(0))
    assert refused.value.hint == f"use the topic's name: {NAME}"
    assert retained_streams(bench.memory) == [PLACE]


def test_plan_equals_the_following_run() -> None:
    bench = ScalableBench(policy="size", min_size="30KiB")
    split_once(bench, 3, 2, 2)
    bench.record()
    before = bench.objects()
    plan = bench.cycle().plan(PLACE)
    assert bench.objects() == before
    assert bench.run(PLACE).decision == plan.decision


def test_unread_entries_are_kept_for_subscribers_of_the_topic() -> None:
    bench = ScalableBench(policy="consumption")
    one, other = split_once(bench, 3, 2, 2)
    bench.record()
    bench.subscribe("billing", NAME)
    outcome = bench.run(PLACE)
    assert outcome.decision is not None
    assert outcome.decision.rule is Rule.NOBODY_PUBLISHED
    bench.publish("billing", {0: Position(2, 5)}, NAME)
    bench.run(PLACE)
    assert bench.heads() == {0: Position(2, 5), one: None, other: None}
    # A child is read, and its parent isn't: nothing of the child goes.
    bench.publish("billing", {0: Position(3, 0), one: Position(5, 5)}, NAME)
    bench.run(PLACE)
    assert bench.heads() == {0: Position(3, 0), one: None, other: None}
    bench.publish("billing", {0: Position(3, ENTRIES), one: Position(5, 5)}, NAME)
    bench.run(PLACE)
    assert bench.heads() == {0: Position(3, ENTRIES), one: Position(5, 5), other: None}
    bench.require_in_order()


def test_subscriber_that_began_after_a_deleted_parent_does_not_name_it() -> None:
    bench = ScalableBench(policy="consumption")
    one, _ = split_once(bench, 1, 2, 2)
    bench.record()
    bench.subscribe("first", NAME)
    bench.publish("first", {0: Position(1, ENTRIES)}, NAME)
    bench.run(PLACE)
    open_retention(bench.memory, NAME, clock=bench.clock).remove("first")
    bench.subscribe("second", NAME)
    bench.publish("second", {one: Position(3, 0)}, NAME)
    bench.run(PLACE)
    assert bench.heads()[one] == Position(3, 0)


def test_position_in_a_segment_that_the_topic_lacks_is_refused() -> None:
    bench = ScalableBench(policy="consumption")
    split_once(bench, 1, 1, 1)
    bench.record()
    bench.subscribe("billing", NAME)
    with pytest.raises(InvalidCallError, match="7"):
        bench.publish("billing", {7: Position(1, 0)}, NAME)


@pytest.mark.parametrize("partitions", [0, 2])
def test_migrated_topic_keeps_its_subscribers_and_is_a_segment(partitions: int) -> None:
    former = "public/default/persistent/orders"
    bench = ScalableBench(policy="consumption")
    bench.rows.clear()
    streams = [f"{former}-partition-{each}" for each in range(partitions)] or [former]
    roots = [bench.create(0, HASHES, legacy=stream) for stream in streams]
    for number in roots:
        bench.fill(number, 2)
    bench.subscribe("billing", former)
    bench.publish("billing", {0: Position(1, 5)}, former)
    bench.run(former)
    child = bench.create(0, HASHES, roots)
    bench.fill(child, 2)
    bench.record()
    assert retained_streams(bench.memory) == [PLACE]
    for name in {former, *streams}:
        with pytest.raises(InvalidCallError, match="of a scalable topic"):
            open_retention(bench.memory, name)
    retention = open_retention(bench.memory, NAME, clock=bench.clock)
    assert retention.registry().subscribers["billing"].cut is not None
    bench.run(PLACE)
    assert bench.heads() == {0: Position(1, 5), child: None} | dict.fromkeys(roots[1:], Position(3, 0))
    retention.publish(
        "billing", {number: bench.newest[number].next() for number in roots} | {child: bench.newest[child]}
    )
    assert retention.registry().names() == ["billing"]
    bench.run(PLACE)
    bench.require_in_order()
    assert bench.heads()[child] == bench.newest[child]


def test_lost_registry_of_a_migrated_topic_deletes_nothing() -> None:
    former = "public/default/persistent/orders"
    bench = ScalableBench(policy="consumption")
    bench.rows.clear()
    root = bench.create(0, HASHES, legacy=former)
    bench.fill(root, 2)
    bench.subscribe("billing", former)
    bench.create(0, HASHES, [root])
    bench.record()
    for key in [key for key in bench.objects() if key.endswith("/subscribers")]:
        bench.memory.delete([key])
    with pytest.raises(CorruptError, match="is missing"):
        bench.run(PLACE)


@pytest.mark.slow
def test_crash_between_two_segments_is_completed_by_the_next_run() -> None:
    found = set()
    for call in range(1, 100):
        bench = ScalableBench(policy="size", min_size="10KiB")
        split_once(bench, 2, 2, 2)
        bench.record()
        bench.store.set_faults([Fault(call=call, calls=10**6, verb="put")])
        with suppress(OffloaderError):
            bench.run(PLACE)
            break
        found.add(tuple(bench.heads().values()))
        bench.require_in_order()
        bench.cycle(bench.memory).run(PLACE)
        assert bench.heads() == {0: Position(2, ENTRIES), 1: Position(4, ENTRIES), 2: Position(6, 0)}
    # Before the first, and between each two of them.
    assert found >= {(None, None, None), (Position(2, ENTRIES), None, None)}
    assert {head[1:] for head in found} > {(None, None)}


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(8))
def test_random_topics_are_truncated_in_order(seed: int) -> None:
    rng = random.Random(seed)
    min_kib = rng.choice([10, 40, 100])
    bench = ScalableBench(**rng.choice([{"policy": "size", "min_size": f"{min_kib}KiB"}, {"policy": "consumption"}]))
    bench.record()
    has_subscriber = False
    read: dict[int, Position] = {}
    for _ in range(18):
        act: Callable[[], object] = rng.choice(
            [
                lambda: bench.fill(rng.choice(bench.active())),
                lambda: bench.fill(rng.choice(bench.active())),
                lambda: bench.split(rng.choice(bench.active())),
                lambda: merge_neighbours(bench, rng),
                lambda: bench.record(ends=rng.random() < 0.7),
            ]
        )
        act()
        if not bench.newest:
            continue
        with suppress(NotFoundError):  # nothing of the recorded segments is offloaded yet
            if not has_subscriber and rng.random() < 0.3:
                bench.subscribe("reader", NAME)
                has_subscriber = True
            if has_subscriber and rng.random() < 0.5:
                known = {row.id for row in recorded(bench)} & bench.newest.keys()
                read |= {
                    number: max(Position(bench.newest[number].ledger_id, rng.randrange(ENTRIES + 1)), read[number])
                    if number in read
                    else Position(bench.newest[number].ledger_id, rng.randrange(ENTRIES + 1))
                    for number in known
                    if rng.random() < 0.7
                }
                if read:
                    bench.publish("reader", read, NAME)
            if rng.random() < 0.3:
                bench.store.set_faults([Fault(call=rng.randrange(1, 8), calls=10**6, verb="put")])
            before = bench.heads()
            with suppress(StoreUnavailableError):
                outcome = bench.run(PLACE)
                if outcome.truncations and bench.settings.retention.policy == "size":
                    assert kept(bench) >= min_kib * KIB
            bench.store.set_faults([])
            heads = bench.heads()
            assert all(at is None or (heads[number] or at) >= at for number, at in before.items())
            bench.require_in_order()
            assert bench.lineage().problem(bench.cut()) in ("", "it lists no stream segment with an offset")
            if bench.settings.retention.policy == "consumption":
                assert all(at is None or (n in read and at <= read[n]) for n, at in heads.items())


def recorded(bench: ScalableBench) -> Sequence[RangeSegment]:
    layout = read_layout(bench.memory, PLACE)
    return () if layout is None else layout.segments


def merge_neighbours(bench: ScalableBench, rng: random.Random) -> None:
    rows = sorted((bench.rows[number] for number in bench.active()), key=lambda row: row.hash_start)
    if len(rows) > 1:
        at = rng.randrange(len(rows) - 1)
        bench.merge(rows[at].id, rows[at + 1].id)


def kept(bench: ScalableBench) -> int:
    """Bytes that are left of all segments, those included that aren't in the recorded layout yet."""
    entries = 0
    for stream in bench.writers:
        state = load_manifest(bench.memory, stream)
        entries += state.offloaded(state.head, None).sums().entries
    return entries * KIB


@pytest.mark.slow
def test_documents_are_kept_until_the_last_segment_is_deleted() -> None:
    bench = ScalableBench(policy="consumption")
    split_once(bench, 1, 1, 1)
    bench.record()
    bench.subscribe("billing", NAME)
    streams = [bench.stream(number) for number in bench.rows]
    for count, stream in enumerate(streams, 1):
        delete(bench, stream)
        release_topics_of(bench.memory, [stream], clock=bench.clock, now_ms=bench.clock.now_ms())
        assert (read_topic_entry(bench.memory, PLACE)[0] is None) == (count == len(streams))
    assert read_layout(bench.memory, PLACE) is not None


def test_subscribers_of_single_segments_remain_those_of_the_topic() -> None:
    bench = ScalableBench(policy="consumption")
    one, other = split_once(bench, 1, 2, 2)
    for number in (one, other):
        # As with a release that had a registry for each segment: the layout isn't known to retention.
        bench.subscribe("billing", bench.stream(number))
    bench.publish("billing", Position(3, 0), bench.stream(one))
    bench.record()
    for _ in range(2):
        bench.run(PLACE)
        assert bench.heads() == {0: None, one: None, other: None}
    bench.publish("billing", {0: Position(1, ENTRIES), one: Position(3, 0)}, NAME)
    bench.run(PLACE)
    assert bench.heads() == {0: Position(1, ENTRIES), one: Position(3, 0), other: None}


@pytest.mark.slow
def test_library_and_commands_take_the_name_of_the_topic(capsys: pytest.CaptureFixture[str]) -> None:
    bench = ScalableBench()
    bench.memory = cast("MemoryStore", open_store(f"memory://scalable-{next(_names)}"))
    one, other = split_once(bench, 3, 2, 2)
    bench.record()
    retention = offloader.open_store(bench.memory.url).stream(NAME).retention()
    retention.add("billing")
    retention.publish("billing", {0: Position(1, 5)})
    assert [each.lag_entries for each in retention.subscribers()] == [65]
    where = ["--store", bench.memory.url]
    assert main(["subscriber", "ack", NAME, "billing", "--at", "0=2:0", "--at", f"{one}=4:5", *where]) == 0
    assert main(["retention", "plan", NAME, "--keep-size", "30KiB", *where]) == 0
    assert "5:0 in partition 1" in capsys.readouterr().out
    assert bench.heads() == {0: None, one: None, other: None}
    assert main(["retention", "run", NAME, "--keep-size", "30KiB", "--apply", *where]) == 0
    assert bench.heads() == {0: Position(3, ENTRIES), one: Position(5, 0), other: None}
    assert main(["retention", "explain", NAME, "--decisions", *where]) == 0
    assert "billing" in capsys.readouterr().out
    assert main(["retention", "plan", "segment://public/default/orders/0000-ffff-0", *where]) != 0
    assert f"use the topic's name: {NAME}" in capsys.readouterr().err
    assert main(["stream", "truncate", NAME, "--before", "0=1:5", *where]) != 0
    assert "only a retention policy moves its start" in capsys.readouterr().err


class Listing(ScalableBench):
    """With brokers that read the cold tier, and answer ``answer`` when they are asked about a segment."""

    answer: TopicLayout | OffloaderError | None = None

    def __init__(self, **retention: object) -> None:
        super().__init__(**retention)
        self.settings = replace(self.settings, pulsar=PulsarSettings(broker_plugin=True, follow_broker_trim=True))

    def cycle(self, store: object = None) -> RetentionCycle:
        def listed_of(stream: str) -> BrokerLedgers | None:
            assert stream in {row.stream for row in self.rows.values() if not row.is_legacy}
            if isinstance(self.answer, OffloaderError):
                raise self.answer
            return None if self.answer is None else BrokerLedgers(layout=self.answer)

        return RetentionCycle(self.store, clock=self.clock, settings_of=lambda _: self.settings, listed_of=listed_of)


def test_segment_goes_after_the_broker_has_deleted_it() -> None:
    bench = Listing(policy="size", min_size="1KiB")
    one, other = split_once(bench, 3, 2, 2)
    bench.record()
    bench.answer = bench.layout()
    outcome = bench.run(PLACE)
    assert outcome.truncations == {}
    assert outcome.decision is not None
    assert outcome.decision.why.endswith("the broker still lists segment 0, segment 1, segment 2")
    bench.answer = bench.layout(0)
    assert bench.run(PLACE).bytes_truncated == 30 * KIB
    assert bench.heads() == {0: Position(3, ENTRIES), one: None, other: None}
    assert bench.run(PLACE).truncations == {}
    bench.answer = bench.layout()  # as of a broker that hasn't heard of it yet
    assert bench.run(PLACE).truncations == {}
    bench.require_in_order()


def test_policy_keeps_what_the_broker_has_deleted() -> None:
    bench = Listing(policy="size", min_size="60KiB")
    one, other = split_once(bench, 3, 2, 2)
    bench.record()
    bench.answer = bench.layout(0)
    bench.run(PLACE)
    assert bench.heads() == {0: Position(2, 0), one: None, other: None}


def test_order_holds_where_the_broker_has_deleted_a_child_only() -> None:
    bench = Listing(policy="size", min_size="1KiB")
    one, other = split_once(bench, 3, 2, 2)
    merged = bench.merge(one, other)
    bench.fill(merged, 2)
    bench.record()
    bench.answer = bench.layout(one)
    bench.run(PLACE)
    assert bench.heads() == {0: None, one: None, other: None, merged: None}
    bench.answer = bench.layout(0, one)
    bench.run(PLACE)
    assert bench.heads() == {0: Position(3, ENTRIES), one: Position(5, ENTRIES), other: None, merged: None}
    bench.require_in_order()


@pytest.mark.parametrize("kind", ["older", "other", "unknown"])
def test_answer_about_segments_that_is_not_believed_moves_nothing(kind: str) -> None:
    bench = Listing(policy="size", min_size="1KiB")
    split_once(bench, 3, 2, 2)
    bench.record()
    layout = bench.layout(0)
    says: dict[str, tuple[TopicLayout | OffloaderError, str]] = {
        "older": (replace(layout, epoch=0), "epoch 0, and epoch 1 is recorded"),
        "other": (replace(layout, segments=(replace(bench.rows[0], created_ms=7),)), "created_ms is 7, and was 0"),
        "unknown": (StoreUnavailableError("it doesn't answer"), "it doesn't answer"),
    }
    bench.answer, said = says[kind]
    outcome = bench.run(PLACE)
    assert outcome.truncations == {}
    assert outcome.decision is not None
    assert said in outcome.decision.why
    assert outcome.decision.why.endswith("so nothing is deleted")


def test_topic_of_another_hot_tier_has_no_broker() -> None:
    bench = Listing(policy="size", min_size="1KiB")
    split_once(bench, 3, 2, 2)
    bench.record()
    assert bench.run(PLACE).truncations != {}


def test_truncation_of_a_segment_alone_is_refused_whatever_the_broker_tells_of_it() -> None:
    """The answer may be older than the segment."""
    bench = Listing()
    bench.split(0)
    for number in (0, 1):
        with pytest.raises(StoreUnavailableError, match="its broker lists no ledger"):
            first_listed(lambda _: BrokerLedgers(layout=bench.layout(0)), [bench.stream(number)])
