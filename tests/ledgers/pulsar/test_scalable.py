"""Layouts of scalable topics as a real broker of Pulsar 5.0.0-M1 sent them, and damaged ones."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from formats.pulsar.commands import CommandType, decode_command
from formats.topic_layout import RangeSegment
from offloader.errors import CorruptError, InvalidCallError, LimitReachedError, OffloaderError, UnsupportedError
from offloader.ledgers.pulsar import scalable
from offloader.ledgers.pulsar.scalable import layout_of_json, place_of_topic, segment_topic
from offloader.ledgers.pulsar.topics import topic_of_stream

RECORDED = Path(__file__).parent / "scalable_layouts"
FRAMES: dict[str, list[str]] = json.loads((RECORDED / "frames.json").read_text())
TOPIC = "topic://public/recorded/orders"


def recorded(name: str) -> Any:
    return json.loads((RECORDED / f"layout-{name}.json").read_text())


def shown(row: RangeSegment) -> str:
    return f"{row.id} {row.hash_start:x}-{row.hash_stop:x} {row.parents} {'sealed' if row.is_sealed else 'active'}"


def test_splits_and_merges() -> None:
    found = layout_of_json(recorded("merge"), TOPIC)
    assert (found.topic, found.epoch) == (TOPIC, 2)
    assert [shown(row) for row in found.segments] == [
        "0 0-8000 () sealed",
        "1 8000-10000 () active",
        "2 0-4000 (0,) sealed",
        "3 4000-8000 (0,) sealed",
        "4 0-8000 (2, 3) active",
    ]
    assert found.segments[2].stream == "public/recorded/segment/orders/0000-3fff-2"
    assert topic_of_stream(found.segments[2].stream) == "segment://public/recorded/orders/0000-3fff-2"
    assert (found.segments[2].created_epoch, found.segments[2].sealed_epoch) == (1, 2)
    assert found.segments[2].created_ms == recorded("merge")["segments"]["2"]["createdAtMs"]


@pytest.mark.parametrize("name", ["fresh", "split", "merge", "chain"])
def test_watch_and_admin_interface_tell_the_same_epoch(name: str) -> None:
    command = decode_command(bytes.fromhex(FRAMES[f"update-{name}"][-1])[4:])
    assert command.type is CommandType.SCALABLE_TOPIC_UPDATE
    assert command.body.dag.epoch == layout_of_json(recorded(name), TOPIC).epoch


def test_segments_of_a_migrated_topic_are_its_former_partitions() -> None:
    topic = "topic://public/recorded/parts"
    found = layout_of_json(recorded("migrated-parts-split"), topic)
    assert [shown(row) for row in found.segments] == [
        "0 0-10000 () sealed",
        "1 0-10000 () sealed",
        "2 0-8000 (0, 1) sealed",
        "3 8000-10000 (0, 1) active",
        "4 0-4000 (2,) active",
        "5 4000-8000 (2,) active",
    ]
    assert [row.stream for row in found.segments[:3]] == [
        "public/recorded/persistent/parts-partition-0",
        "public/recorded/persistent/parts-partition-1",
        "public/recorded/segment/parts/0000-7fff-2",
    ]
    assert [row.is_legacy for row in found.segments[:3]] == [True, True, False]


def test_deleted_segment_is_no_parent_any_more() -> None:
    assert {row.parents for row in layout_of_json(recorded("pruned"), TOPIC).segments} == {()}


def test_broker_announces_the_feature() -> None:
    assert decode_command(bytes.fromhex(FRAMES["connected"][0])[4:]).body.feature_flags.supports_scalable_topics


def test_unknown_fields_are_ignored() -> None:
    document = recorded("split") | {"newField": {"x": 1}}
    document["segments"]["0"]["entryBuckets"] = [1, 2]
    assert layout_of_json(document, TOPIC) == layout_of_json(recorded("split"), TOPIC)


def in_segment(number: str, **fields: Any) -> Callable[[Any], object]:
    return lambda document: document["segments"][number].update(fields)


@pytest.mark.parametrize(
    ("damage", "kind", "text"),
    [
        (in_segment("0", parentIds=[0]), CorruptError, "their own ancestors: 0, 0"),
        (in_segment("3", parentIds=[7]), CorruptError, "segment 3 has the parent 7, which is missing"),
        (in_segment("3", hashRange={"start": 100, "end": 40000}), CorruptError, "active segments 2 and 3 overlap"),
        (in_segment("0", state="ACTIVE"), CorruptError, "segment 0 is active and has the child 2"),
        (in_segment("1", state="FROZEN"), UnsupportedError, "has the state 'FROZEN'"),
        (in_segment("1", hashRange={"start": 9, "end": 8}), CorruptError, "has the hash range 9 to 8"),
        (in_segment("1", hashRange={"start": 0, "end": 65536}), CorruptError, "has the hash range 0 to 65536"),
        (in_segment("1", segmentId=-1), CorruptError, "no layout"),
        (in_segment("1", segmentId=2), CorruptError, "occurs twice"),
        (in_segment("1", createdAtEpoch="x"), CorruptError, "no layout"),
        (in_segment("1", parentIds=None), CorruptError, "no layout"),
        (in_segment("1", createdAtMs=2**63), CorruptError, "no layout"),
        (in_segment("1", createdAtMs=float("inf")), CorruptError, "no layout"),
        (in_segment("1", segmentId=1.5), CorruptError, "no layout"),
        (lambda document: document.pop("epoch"), CorruptError, "no layout"),
        (lambda document: document.update(segments=[1]), CorruptError, "no layout"),
    ],
)
def test_damaged_answer_is_refused(damage: Callable[[Any], object], kind: type[OffloaderError], text: str) -> None:
    document = copy.deepcopy(recorded("split"))
    damage(document)
    with pytest.raises(kind, match=text) as caught:
        layout_of_json(document, TOPIC)
    assert TOPIC in str(caught.value)


@pytest.mark.parametrize("answer", [None, [], "x", 3, {"epoch": 1, "segments": None}])
def test_answer_of_another_service_is_refused(answer: object) -> None:
    with pytest.raises(CorruptError, match="no layout of a scalable topic"):
        layout_of_json(answer, TOPIC)


def test_too_many_segments_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(scalable, "SEGMENTS_MAX", 3)
    with pytest.raises(LimitReachedError, match="has 4 segments, above 3"):
        layout_of_json(recorded("split"), TOPIC)


def test_names() -> None:
    assert segment_topic(TOPIC, 3, 0, 32768) == "segment://public/recorded/orders/0000-7fff-3"
    assert place_of_topic(TOPIC) == "public/recorded/topic/orders"


@pytest.mark.parametrize("name", ["topic://orders", "topic://a//b", "persistent://a/b/c", "topic://a/b/c/d"])
def test_other_names_are_refused(name: str) -> None:
    with pytest.raises(InvalidCallError, match="is no scalable topic"):
        place_of_topic(name)
