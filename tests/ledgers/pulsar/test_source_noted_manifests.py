"""A topic's subscription keeps which manifests the topic was committed to, so that another store is recognised."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from uuid import UUID

import pytest

from offloader.errors import StoreMismatchError
from offloader.ledgers.pulsar.source import NOTED_MAX, NOTED_PROPERTY, PulsarSource
from offloader.ledgers.pulsar.topic_facts import SINCE_PROPERTY
from offloader.manifest.log import ManifestLog
from offloader.manifest.noted import load_noted
from offloader.runtime.clock import SystemClock
from offloader.store.memory import MemoryStore
from offloader.testing.manual_clock import ManualClock
from tests.ledgers.pulsar_bench import NAME, PulsarBench

_names = count()


@pytest.fixture
def bench() -> Iterator[PulsarBench]:
    made = PulsarBench()
    yield made
    made.close()


@pytest.fixture
def source(bench: PulsarBench) -> PulsarSource:
    return bench.open()


def log_of(source: PulsarSource) -> ManifestLog:
    """Of a store of its own."""
    return ManifestLog(
        MemoryStore(f"pulsar-noted-{next(_names)}", "", SystemClock()), source.stream, clock=ManualClock()
    )


def test_notes_outlive_the_process_and_leave_other_properties(bench: PulsarBench, source: PulsarSource) -> None:
    bench.topic.note(NAME, {SINCE_PROPERTY: "7"})
    assert source.noted_manifests() == []
    source.note_manifest(UUID(int=1), 3)
    source.note_manifest(UUID(int=1), 9)
    source.note_manifest(UUID(int=2), 4)
    source.close()
    assert bench.open().noted_manifests() == [(UUID(int=1), 3), (UUID(int=2), 4)]
    properties = bench.topic.subscription_properties(NAME)
    assert properties is not None
    assert properties[SINCE_PROPERTY] == "7"


def test_number_of_notes_is_limited_to_the_newest(source: PulsarSource) -> None:
    for number in range(NOTED_MAX + 3):
        source.note_manifest(UUID(int=number), 1)
    assert [uuid.int for uuid, _ in source.noted_manifests()] == list(range(3, NOTED_MAX + 3))


def test_store_without_the_topics_manifest_is_refused_before_anything_is_written(source: PulsarSource) -> None:
    log = log_of(source)
    load_noted(log, source, create=True)
    log.open_epoch()
    source.note_manifest(log.state.incarnation, log.state.record_id)
    load_noted(ManifestLog(log.store, source.stream, clock=ManualClock()), source, create=True)
    other = log_of(source)
    with pytest.raises(StoreMismatchError, match="has no manifest of the stream") as caught:
        load_noted(other, source, create=True)
    assert NOTED_PROPERTY in caught.value.hint
    assert other.store.list("").objects == ()


def test_subscription_that_was_made_again_has_no_notes(bench: PulsarBench, source: PulsarSource) -> None:
    source.note_manifest(UUID(int=1), 3)
    bench.topic.note(NAME, {})
    assert source.noted_manifests() == []
    load_noted(log_of(source), source, create=True)


def test_store_is_noted_beside_the_manifests(bench: PulsarBench, source: PulsarSource) -> None:
    assert source.noted_store() is None
    source.note_manifest(UUID(int=1), 3)
    source.note_store(UUID(int=7))
    assert source.noted_store() == UUID(int=7)
    source.close()
    again = bench.open()
    assert again.noted_manifests() == [(UUID(int=1), 3)]
    assert again.noted_store() == UUID(int=7)
