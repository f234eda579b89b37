"""The record of a scalable topic's layout: the union of all answers, in any order, and by several processes."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

import pytest

from formats.entries import Position
from formats.topic_layout import (
    HASHES,
    SCHEMAS_CHARS_MAX,
    RangeSegment,
    TopicLayout,
    TopicSchema,
    layout_key,
    layout_problem,
)
from offloader.errors import LimitReachedError, OffloaderError, SourceMismatchError, StoreUnavailableError
from offloader.ledgers.pulsar.scalable import layout_of_json
from offloader.manifest.topic_layouts import (
    in_order,
    merged,
    read_layout,
    record_end,
    record_layout,
    record_schemas,
)
from offloader.store.base import ObjectStore
from offloader.store.open import open_store

TOPIC, PLACE = "topic://public/recorded/orders", "public/recorded/topic/orders"
RECORDED = Path(__file__).parents[1] / "ledgers" / "pulsar" / "scalable_layouts"
numbers = itertools.count()


def answer(name: str, topic: str = TOPIC) -> TopicLayout:
    return layout_of_json(json.loads((RECORDED / f"layout-{name}.json").read_text()), topic)


@pytest.fixture
def store() -> ObjectStore:
    return open_store(f"memory://layouts-{next(numbers)}")


def parents(layout: TopicLayout) -> dict[int, tuple[int, ...]]:
    return {row.id: row.parents for row in layout.segments}


def test_record_grows_with_the_topic(store: ObjectStore) -> None:
    assert read_layout(store, PLACE) is None
    for name in ("fresh", "split", "merge", "chain"):
        record_layout(store, PLACE, answer(name))
    assert read_layout(store, PLACE) == answer("chain")


def test_known_answer_writes_nothing(store: ObjectStore) -> None:
    record_layout(store, PLACE, answer("split"))
    before = store.head(layout_key(PLACE)).etag
    record_layout(store, PLACE, answer("split"))
    assert store.head(layout_key(PLACE)).etag == before


def schema(version: int, data: str = "{}") -> TopicSchema:
    return TopicSchema(version=version, type="AVRO", data=data)


def recorded_schemas(store: ObjectStore) -> tuple[TopicSchema, ...]:
    recorded = read_layout(store, PLACE)
    assert recorded is not None
    return recorded.schemas


def test_schemas_remain_when_the_broker_has_deleted_them(store: ObjectStore) -> None:
    record_layout(store, PLACE, answer("split"))
    record_schemas(store, PLACE, [schema(0), schema(1)])
    record_schemas(store, PLACE, [])
    record_schemas(store, PLACE, [schema(2)])
    record_layout(store, PLACE, answer("merge"))
    record_end(store, PLACE, 0, Position(3, 30))
    assert recorded_schemas(store) == (schema(0), schema(1), schema(2))
    before = store.head(layout_key(PLACE)).etag
    record_schemas(store, PLACE, [schema(1)])
    assert store.head(layout_key(PLACE)).etag == before


def test_another_definition_of_a_version_is_recorded_too(store: ObjectStore) -> None:
    record_layout(store, PLACE, answer("split"))
    for told in ([schema(0), schema(1)], [schema(0, "[]")], [schema(0, "[]"), schema(1)]):
        record_schemas(store, PLACE, told)
    assert recorded_schemas(store) == (schema(0), schema(0, "[]"), schema(1))


def test_schemas_that_are_too_large_together_are_named(store: ObjectStore) -> None:
    record_layout(store, PLACE, answer("split"))
    with pytest.raises(LimitReachedError, match="version 1 of its schema isn't recorded"):
        record_schemas(store, PLACE, [schema(0), schema(1, "x" * SCHEMAS_CHARS_MAX)])
    assert recorded_schemas(store) == (schema(0),)


def test_schemas_of_a_topic_without_a_record_are_refused(store: ObjectStore) -> None:
    with pytest.raises(StoreUnavailableError, match="isn't recorded yet"):
        record_schemas(store, PLACE, [schema(0)])


def without(layout: TopicLayout, number: int, *, epoch: int) -> TopicLayout:
    """As the broker does it when it deletes a segment."""
    rows = (
        replace(row, parents=tuple(each for each in row.parents if each != number))
        for row in layout.segments
        if row.id != number
    )
    return TopicLayout(topic=layout.topic, epoch=epoch, segments=tuple(rows))


def test_deleted_segment_and_its_place_remain_recorded() -> None:
    split = answer("split")
    kept = merged(split, without(split, 0, epoch=2))
    assert parents(kept) == parents(split)
    assert kept.by_id[0].end == Position(-1, -1)
    assert kept.by_id[0].sealed_epoch == 1


def test_segment_that_was_sealed_and_deleted_unseen_precedes_all_later_ones_of_its_hashes() -> None:
    fresh, later = answer("fresh"), without(answer("merge"), 0, epoch=3)
    kept = merged(fresh, later)
    assert kept.by_id[0].is_sealed
    assert kept.by_id[0].end == Position(-1, -1)
    assert parents(kept) == {0: (), 1: (), 2: (0,), 3: (0,), 4: (2, 3)}
    assert layout_problem(kept) == ""


def changed(layout: TopicLayout, number: int, *, epoch: int | None = None, **fields: object) -> TopicLayout:
    rows = tuple(replace(row, **fields) if row.id == number else row for row in layout.segments)  # type: ignore[arg-type]
    return replace(layout, segments=rows, epoch=layout.epoch if epoch is None else epoch)


def test_epochs_that_contradict_the_parents_change_no_order() -> None:
    odd = changed(answer("merge"), 2, created_epoch=9)
    assert parents(merged(replace(odd, epoch=0, segments=()), odd)) == parents(answer("merge"))


@pytest.mark.parametrize(
    ("seen", "text"),
    [
        (changed(answer("split"), 2, created_ms=1, epoch=9), "created_ms is 1, and was 17"),
        (changed(answer("split"), 2, hash_stop=9000, epoch=9), "hash_stop is 9000, and was 16384"),
        (changed(answer("split"), 1, parents=(0,), epoch=9), "it has a further parent, 0"),
        (changed(answer("split"), 0, sealed_epoch=None, epoch=9), "it is active, and was sealed"),
        (replace(answer("chain"), epoch=0), "an older layout has it"),
    ],
)
def test_another_topic_of_the_same_name_is_refused(seen: TopicLayout, text: str) -> None:
    with pytest.raises(SourceMismatchError, match=text) as caught:
        merged(answer("split"), seen)
    assert TOPIC in str(caught.value)


def test_older_answer_changes_nothing_and_is_asked_for_again(store: ObjectStore) -> None:
    record_layout(store, PLACE, answer("merge"))
    with pytest.raises(StoreUnavailableError, match="has epoch 1, and epoch 2 is recorded"):
        record_layout(store, PLACE, answer("split"))
    assert read_layout(store, PLACE) == answer("merge")


def test_ends_of_sealed_segments_are_recorded_once(store: ObjectStore) -> None:
    with pytest.raises(StoreUnavailableError, match="isn't recorded as sealed"):
        record_end(store, PLACE, 0, Position(3, 30))
    record_layout(store, PLACE, answer("split"))
    with pytest.raises(StoreUnavailableError, match="isn't recorded as sealed"):
        record_end(store, PLACE, 1, Position(4, 0))
    record_end(store, PLACE, 0, Position(3, 30))
    record_end(store, PLACE, 0, Position(3, 30))
    with pytest.raises(SourceMismatchError, match="ends at 3:31, and ended at 3:30"):
        record_end(store, PLACE, 0, Position(3, 31))
    recorded = record_layout(store, PLACE, answer("merge"))
    assert recorded.by_id[0].end == Position(3, 30)
    assert record_layout(store, PLACE, without(answer("merge"), 0, epoch=3)).by_id[0].end == Position(3, 30)


class Interrupted:
    """A store in which another process writes before each conditional write of this one."""

    def __init__(self, store: ObjectStore, others: Sequence[TopicLayout]) -> None:
        self._store, self._others = store, list(others)

    def __getattr__(self, name: str) -> object:
        return getattr(self._store, name)

    def put(self, *arguments: object, **named: object) -> object:
        if self._others:
            record_layout(self._store, PLACE, self._others.pop(0))
        return self._store.put(*arguments, **named)  # type: ignore[arg-type]


def test_processes_that_record_at_the_same_time_add_to_each_other(store: ObjectStore) -> None:
    interrupted = Interrupted(store, [answer("split"), answer("merge")])
    record_layout(interrupted, PLACE, answer("chain"))  # type: ignore[arg-type]
    assert read_layout(store, PLACE) == answer("chain")


def test_parents_come_before_their_children() -> None:
    groups = [[row.id for row in group] for group in in_order(answer("merge"))]
    assert groups == [[0, 1], [2, 3], [4]]
    topic = "topic://public/recorded/parts"
    assert [[row.id for row in group] for group in in_order(answer("migrated-parts-split", topic))] == [
        [0, 1],
        [2, 3],
        [4, 5],
    ]


class Broker(NamedTuple):
    """A model of a scalable topic: what the broker tells, and which segment precedes which in truth."""

    told: list[TopicLayout]
    ancestors: dict[int, set[int]]


def lived(rng: random.Random, steps: int) -> Broker:
    """A topic that splits, merges and forgets at random."""
    rows = {0: RangeSegment(id=0, stream="s0", hash_start=0, hash_stop=HASHES, parents=(), created_epoch=0)}
    ancestors: dict[int, set[int]] = {0: set()}
    told = [TopicLayout(topic=TOPIC, epoch=0, segments=(rows[0],))]

    def add(epoch: int, start: int, stop: int, *before: int) -> None:
        number = max(ancestors) + 1
        rows[number] = RangeSegment(
            id=number,
            stream=f"s{number}",
            hash_start=start,
            hash_stop=stop,
            parents=tuple(sorted(before)),
            created_epoch=epoch,
        )
        ancestors[number] = set(before).union(*(ancestors[each] for each in before))

    for epoch in range(1, steps):
        active = sorted((row for row in rows.values() if not row.is_sealed), key=lambda row: row.hash_start)
        sealed = [row for row in rows.values() if row.is_sealed]
        act = rng.choice(("split", "merge", "forget"))
        if act == "forget" and sealed:
            gone = rng.choice(sealed).id
            del rows[gone]
            for row in list(rows.values()):
                rows[row.id] = replace(row, parents=tuple(each for each in row.parents if each != gone))
        elif act == "merge" and len(active) > 1:
            place = rng.randrange(len(active) - 1)
            pair = active[place : place + 2]
            for row in pair:
                rows[row.id] = replace(row, sealed_epoch=epoch)
            add(epoch, pair[0].hash_start, pair[1].hash_stop, *(row.id for row in pair))
        elif (row := rng.choice(active)).hash_stop - row.hash_start > 1:
            rows[row.id] = replace(row, sealed_epoch=epoch)
            middle = rng.randrange(row.hash_start + 1, row.hash_stop)
            add(epoch, row.hash_start, middle, row.id)
            add(epoch, middle, row.hash_stop, row.id)
        told.append(TopicLayout(topic=TOPIC, epoch=epoch, segments=tuple(sorted(rows.values(), key=lambda r: r.id))))
    return Broker(told, ancestors)


def closure(layout: TopicLayout) -> dict[int, set[int]]:
    found: dict[int, set[int]] = {}
    for row in (row for group in in_order(layout) for row in group):
        found[row.id] = set(row.parents).union(*(found[each] for each in row.parents))
    return found


def share_hashes(one: RangeSegment, other: RangeSegment) -> bool:
    """Whether keys can be in both. An ancestor without common keys may be forgotten with the segment in between."""
    return max(one.hash_start, other.hash_start) < min(one.hash_stop, other.hash_stop)


@pytest.mark.parametrize("seed", range(60))
def test_union_of_some_answers_has_the_true_order(seed: int) -> None:
    rng = random.Random(seed)
    broker = lived(rng, rng.randint(2, 30))
    seen = [each for each in broker.told if rng.random() < 0.5] or broker.told[-1:]
    record = TopicLayout(topic=TOPIC, epoch=0, segments=())
    for each in seen:
        record = merged(record, each)
        assert layout_problem(record) == ""
        with pytest.raises(OffloaderError):
            merged(record, replace(each, epoch=each.epoch - 1))
    found = closure(record)
    assert found.keys() >= {row.id for each in seen for row in each.segments}
    by_id = record.by_id
    for number, before in found.items():
        truth = {each for each in broker.ancestors[number] & found.keys() if share_hashes(by_id[each], by_id[number])}
        assert truth <= before <= broker.ancestors[number]
