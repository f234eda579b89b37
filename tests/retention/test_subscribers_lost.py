"""A registry of subscribers that is lost, or older than one that certainly existed: nothing goes as consumed."""

from __future__ import annotations

from itertools import count

import pytest

from formats.documents import Subscribers, document_key
from formats.entries import Position
from formats.keys import catalog_key
from offloader.errors import CorruptError, InvalidCallError
from offloader.manifest.rebuild import rebuild_manifest
from offloader.retention.cycle import RetentionCycle
from offloader.retention.subscribers import StreamRetention, open_retention
from offloader.runtime.clock import SystemClock
from offloader.settings import Settings
from offloader.store.base import ObjectStore
from offloader.store.memory import MemoryStore
from tests.support.streams import StreamWriter, batch_of

STREAM = "public/default/persistent/orders"
_names = count()


class Place:
    def __init__(self) -> None:
        self.store: ObjectStore = MemoryStore(f"lost-registry-{next(_names)}", "", SystemClock())
        self.writer = StreamWriter(self.store, STREAM)
        for ledger in (1, 2, 3):
            self.writer.add([batch_of(ledger, 0, 10)], closes=[ledger])
        self.retention.add("billing")
        self.retention.publish("billing", Position(2, 0))
        self.early = self.document

    @property
    def retention(self) -> StreamRetention:
        return open_retention(self.store, STREAM)

    @property
    def key(self) -> str:
        return document_key(Subscribers, STREAM, self.writer.log.state.incarnation)

    @property
    def document(self) -> bytes:
        return bytes(self.store.get(self.key)[0])


@pytest.fixture
def place() -> Place:
    return Place()


def test_manifest_names_the_registry_at_each_registration_and_removal(place: Place) -> None:
    before = place.retention.accept_registry()[1]
    assert before == 1
    place.retention.publish("billing", Position(2, 5))
    assert place.retention.accept_registry()[1] == before, "an acknowledgement that is lost holds back more"
    place.retention.add("audit")
    assert place.retention.accept_registry()[1] > before
    before = place.retention.accept_registry()[1]
    place.retention.remove("audit")
    assert place.retention.accept_registry()[1] > before


@pytest.mark.parametrize("how", ["deleted", "older"])
def test_lost_registry_is_named_and_takes_nobody_until_it_is_accepted(place: Place, how: str) -> None:
    place.retention.add("audit")
    newest = place.document
    if how == "deleted":
        place.store.delete([place.key])
    else:
        place.store.put(place.key, place.early)
    for use in (place.retention.registry, place.retention.subscribers, lambda: place.retention.add("audit")):
        with pytest.raises(CorruptError, match="its registry of subscribers is") as caught:
            use()
        assert "accept-loss" in caught.value.hint
    revision, named = place.retention.accept_registry(dry_run=True)
    assert revision < named
    with pytest.raises(CorruptError):
        place.retention.registry()
    place.store.put(place.key, newest)
    assert set(place.retention.registry().subscribers) == {"audit", "billing"}


def test_accepted_loss_goes_on_with_what_is_there(place: Place) -> None:
    place.retention.add("audit")
    place.store.put(place.key, place.early)
    place.retention.accept_registry()
    assert set(place.retention.registry().subscribers) == {"billing"}
    place.retention.add("audit")
    place.store.delete([place.key])
    with pytest.raises(CorruptError, match="is missing"):
        place.retention.registry()


def test_retention_deletes_nothing_while_the_registry_is_lost(place: Place) -> None:
    settings = Settings.of({"retention": {"policy": "size", "min_size": 1049, "max_size": "1.0MiB"}})
    cycle = RetentionCycle(place.store, clock=SystemClock(), settings_of=lambda _: settings)
    place.store.delete([place.key])
    with pytest.raises(CorruptError, match="Nothing is deleted"):
        cycle.run(STREAM)
    assert place.writer.log.load().head is None


def test_registration_that_ended_before_the_manifest_named_it_is_named_by_the_next(place: Place) -> None:
    place.retention._name_revision(place.retention.scope(), lambda _: 0)
    place.retention.add("billing")
    assert place.retention.accept_registry()[1] > 0


def test_rebuilt_stream_has_to_register_again(place: Place) -> None:
    place.store.delete([info.key for info in place.store.list(f"{STREAM}/manifest/").objects])
    rebuild_manifest(place.store, STREAM, head=None, clock=SystemClock())
    with pytest.raises(CorruptError, match="its registry of subscribers is missing"):
        place.retention.registry()
    place.retention.accept_registry()
    assert place.retention.registry().subscribers == {}


TOPIC = "public/default/persistent/clicks"


def partition(store: ObjectStore, number: int) -> StreamWriter:
    writer = StreamWriter(store, f"{TOPIC}-partition-{number}")
    for ledger in (1, 2, 3):
        writer.add([batch_of(ledger, 0, 10)], closes=[ledger])
    return writer


def lose_registry(store: ObjectStore) -> None:
    """Loses everything that retention keeps of the topic."""
    assert store.list(f"{TOPIC}/retention/").objects
    store.delete([info.key for info in store.list(f"{TOPIC}/retention/").objects])


@pytest.mark.parametrize("first", ["there", "added later", "created again"])
def test_each_partition_knows_of_a_topics_registry(first: str) -> None:
    store = MemoryStore(f"lost-registry-{next(_names)}", "", SystemClock())
    writers = [partition(store, number) for number in ((1, 2) if first == "added later" else (0, 1, 2))]
    open_retention(store, TOPIC).add("billing")
    if first == "added later":
        writers.append(partition(store, 0))
    elif first == "created again":
        name = f"{TOPIC}-partition-0"  # deleted for good, its tombstone too
        store.delete([catalog_key(name), *(info.key for info in store.list(f"{name}/").objects)])
        writers[0] = partition(store, 0)
    retention = open_retention(store, TOPIC)
    assert set(retention.registry().subscribers) == {"billing"}
    lose_registry(store)
    settings = Settings.of({"retention": {"policy": "size", "min_size": 1049, "max_size": "1.0MiB"}})
    cycle = RetentionCycle(store, clock=SystemClock(), settings_of=lambda _: settings)
    with pytest.raises(CorruptError, match="Nothing is deleted"):
        cycle.run(TOPIC)
    with pytest.raises(CorruptError, match="its registry of subscribers is missing"):
        retention.add("billing")
    assert {writer.log.load().head for writer in writers} == {None}
    open_retention(store, TOPIC).accept_registry()
    assert open_retention(store, TOPIC).registry().subscribers == {}


def test_partition_alone_is_not_truncated_by_consumption() -> None:
    """All truncations by retention go through the topic, and so through its registry."""
    store = MemoryStore(f"lost-registry-{next(_names)}", "", SystemClock())
    partition(store, 1)
    with pytest.raises(InvalidCallError, match="retention decides for all partitions together"):
        RetentionCycle(store, clock=SystemClock()).run(f"{TOPIC}-partition-1")
