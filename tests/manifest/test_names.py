"""Names that people and programs give: streams, topics, and topics with partitions."""

from __future__ import annotations

import itertools
from pathlib import Path

import pytest

from offloader.errors import InvalidCallError
from offloader.managed_ledger import open_managed_ledger
from offloader.manifest.names import NamedStreams, matching_streams, named_streams, resolve_name, stream_name
from offloader.read.reader import load_stream
from offloader.retention.subscribers import open_retention
from offloader.store.open import open_store
from tests.support.streams import StreamWriter, batch_of

TOPIC = "persistent://shop/eu/orders"
STREAM = "shop/eu/persistent/orders"
numbers = itertools.count()


def test_topic_name_is_its_streams_name_and_others_stay() -> None:
    assert stream_name(TOPIC) == STREAM
    assert stream_name(STREAM) == STREAM
    assert stream_name("persistent://shop/eu/my topic#1") == "shop/eu/persistent/my topic#1"
    assert stream_name("persistent://shop/eu/orders-*") == "shop/eu/persistent/orders-*"
    assert stream_name(f"{TOPIC}-partition-3") == f"{STREAM}-partition-3"


@pytest.mark.parametrize("name", ["non-persistent://shop/eu/orders", "persistent://orders", "s3://bucket/orders"])
def test_url_that_is_no_persistent_topic_is_refused(name: str) -> None:
    with pytest.raises(InvalidCallError, match="is no persistent topic") as caught:
        resolve_name(name, [])
    assert "persistent://tenant/namespace/topic" in caught.value.hint


@pytest.mark.parametrize("given", [TOPIC, STREAM])
def test_name_means_the_stream_else_all_partitions_in_the_order_of_their_numbers(given: str) -> None:
    parts = {number: f"{STREAM}-partition-{number}" for number in (0, 2, 10)}
    others = [f"{STREAM}2", f"{STREAM}-partition-x", "shop/eu/persistent/other-partition-1"]
    assert resolve_name(given, [STREAM, *parts.values(), *others]) == NamedStreams(STREAM)
    found = resolve_name(given, [*others, *sorted(parts.values())])
    assert (found.name, found.partitions) == (STREAM, parts)
    assert found.streams == tuple(parts.values())
    assert list(found.partitions) == [0, 2, 10]
    assert resolve_name(f"{given}-partition-2", parts.values()).streams == (parts[2],)
    assert resolve_name(given, others) == NamedStreams(STREAM)


def test_partitions_are_found_in_a_store() -> None:
    store = open_store(f"memory://named-{next(numbers)}")
    for number in (1, 0):
        StreamWriter(store, f"{STREAM}-partition-{number}").add([batch_of(3 + number, 0, 2)])
    assert list(named_streams(store, TOPIC).partitions) == [0, 1]
    StreamWriter(store, STREAM).add([batch_of(9, 0, 2)])
    assert named_streams(store, TOPIC).streams == (STREAM,)


def test_python_calls_take_a_topics_name(tmp_path: Path) -> None:
    store = open_store(f"file://{tmp_path}/store", create=True)
    with open_managed_ledger(TOPIC, ledgers=f"sqlite:///{tmp_path}/ledgers.db", store=store) as topic:
        topic.append(b"one")
        topic.offload()
    assert load_stream(store, TOPIC).stream == STREAM
    assert open_retention(store, TOPIC).name == STREAM


@pytest.mark.parametrize(
    ("wanted", "found"),
    [
        ("a/topic", ["a/topic-partition-0", "a/topic-partition-10", "a/topic-partition-2"]),
        ("persistent://a/b/plain", ["a/b/persistent/plain"]),
        ("a/topic-partition-2", ["a/topic-partition-2"]),
        ("a/topic*", ["a/topic-partition-0", "a/topic-partition-10", "a/topic-partition-2"]),
        ("a/b/*/plain", ["a/b/persistent/plain"]),
        ("a/top", []),
    ],
)
def test_names_of_topics_and_patterns_stand_for_existing_streams(wanted: str, found: list[str]) -> None:
    existing = [*(f"a/topic-partition-{number}" for number in (0, 2, 10)), "a/b/persistent/plain"]
    assert matching_streams(wanted, existing) == found
