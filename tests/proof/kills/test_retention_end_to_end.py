"""From an append to a deleted object, on real servers: subscribers, cycles, cleanup, readers before the head."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from formats.entries import Position
from formats.keys import parse_object_key
from offloader.errors import OffloaderError, StoreUnavailableError, TrimmedError
from offloader.gc.reconcile import StoreReconciliation
from offloader.gc.sweep import cleanup_all
from offloader.managed_ledger import open_managed_ledger
from offloader.manifest.boundary import listed
from offloader.manifest.log import load_manifest
from offloader.manifest.protection import TIME_KEY
from offloader.read.reader import open_stream_reader
from offloader.retention.cycle import RetentionCycle
from offloader.retention.subscribers import open_retention
from offloader.runtime.clock import SystemClock
from offloader.settings import Settings
from offloader.store.base import ObjectStore
from offloader.testing.faulty_store import Fault, FaultyStore
from tests.support.streams import StreamWriter, batch_of
from tests.support.waiting import eventually

pytestmark = pytest.mark.process

STREAM = "public/default/persistent/orders"
TOPIC = "public/default/persistent/payments"
PARTITIONS = [f"{TOPIC}-partition-{number}" for number in range(3)]
#: What subscribers have read goes, at once: nothing here leans on the server's clock.
SETTINGS = Settings.of(
    {
        "ledgers": {"ledger_entries_max": 10},
        "retention": {"policy": "consumption"},
        "cleanup": {"grace_period": "0h", "allow_large_delete": True},
        "manifest": {"orphan_age_min": "0h"},
    }
)


@pytest.fixture
def store(s3_place: Any) -> ObjectStore:
    """An empty root in each server there is."""
    opened: ObjectStore = s3_place.open()
    return opened


def cycle(store: ObjectStore) -> RetentionCycle:
    return RetentionCycle(store, clock=SystemClock(), settings_of=lambda _: SETTINGS)


def cleaned(store: ObjectStore) -> bool:
    """A round over all streams; whether nothing was left to do."""
    reports = list(cleanup_all(store, clock=SystemClock(), settings_of=lambda _: SETTINGS))
    assert [report.error for report in reports if report.error] == []
    return not any(report.pending or (report.plan and list(report.plan.lines())) for report in reports)


def objects_of(store: ObjectStore, stream: str) -> set[str]:
    """Keys of the objects of segments below a stream's name."""
    return {info.key for info in listed(store, f"{stream}/") if parse_object_key(info.key, stream)}


def named_by_manifest(store: ObjectStore, stream: str) -> set[str]:
    return {key for segment in load_manifest(store, stream).segments.values() for key in segment.object_keys(stream)}


def require_exactly_what_is_named(store: ObjectStore, streams: list[str]) -> None:
    """No object more than the manifests name, of whatever kind, and none less."""
    for stream in streams:
        assert objects_of(store, stream) == named_by_manifest(store, stream)
    failures: dict[str, OffloaderError] = {}
    search = StoreReconciliation(
        store, clock=SystemClock(), settings_of=lambda _: SETTINGS.manifest, failed=failures.__setitem__
    )
    assert list(search.leftovers()) == []
    assert failures == {}
    there = [info.key for info in listed(store, "") if info.key != TIME_KEY]
    assert sum(tally.objects for tally in search.needed.values()) == len(there)


def read_all(store: ObjectStore, stream: str) -> list[tuple[Position, bytes]]:
    with open_stream_reader(store, stream) as reader:
        return [(entry.position, bytes(entry.payload)) for batch in reader.scan() for entry in batch.entries()]


def require_trimmed(store: ObjectStore, stream: str, position: Position, head: Position) -> None:
    with open_stream_reader(store, stream) as reader, pytest.raises(TrimmedError) as caught:
        reader.read(position, position)
    assert caught.value.first_available == head


def test_only_entries_read_by_all_subscribers_are_deleted_in_the_end(store: ObjectStore, tmp_path: Path) -> None:
    written: list[tuple[Position, bytes]] = []
    with open_managed_ledger(STREAM, ledgers=f"{tmp_path}/ledgers.db", store=store, settings=SETTINGS) as topic:

        def append(count: int) -> None:
            """Entries in segments of ten."""
            for number in range(len(written), len(written) + count):
                written.append((topic.append(f"order {number}".encode()), f"order {number}".encode()))
                if number % 10 == 9:
                    topic.offload()
            topic.offload()

        append(55)
        retention = open_retention(store, STREAM)
        for name in ("billing", "search"):
            retention.add(name)
        assert not cycle(store).run(STREAM).truncations, "nobody has published"
        retention.publish("billing", written[40][0])
        retention.publish("search", written[25][0])
        planned = cycle(store).plan(STREAM)
        assert load_manifest(store, STREAM).head is None
        done = cycle(store).run(STREAM)
        head = written[25][0]
        assert done.decision is not None
        assert planned.decision is not None
        assert (done.decision.cut, list(done.truncations)) == (planned.decision.cut, [STREAM])
        assert load_manifest(store, STREAM).head == head
        before = objects_of(store, STREAM)
        require_trimmed(store, STREAM, written[24][0], head)
        assert objects_of(store, STREAM) == before, "objects go later, by cleanup"

        eventually(lambda: cleaned(store))
        assert len(before) - len(objects_of(store, STREAM)) == 4, "two segments lie wholly before the head"
        require_exactly_what_is_named(store, [STREAM])
        require_trimmed(store, STREAM, written[0][0], head)
        assert read_all(store, STREAM) == written[25:]

        append(20)
        retention.publish("search", written[-1][0])
        retention.publish("billing", written[60][0])
        assert cycle(store).run(STREAM).truncations
        assert not cycle(store).run(STREAM).truncations, "once is enough"
        eventually(lambda: cleaned(store))
        assert read_all(store, STREAM) == written[60:]
    require_exactly_what_is_named(store, [STREAM])


def heads(store: ObjectStore) -> list[Position | None]:
    return [load_manifest(store, stream).head for stream in PARTITIONS]


def test_topic_is_truncated_as_one_although_the_cycle_dies_between_partitions(store: ObjectStore) -> None:
    for stream in PARTITIONS:
        writer = StreamWriter(store, stream)
        for ledger in range(1, 5):
            writer.add([batch_of(ledger, 0, 10)], closes=[ledger])
    before = {stream: read_all(store, stream) for stream in PARTITIONS}
    retention = open_retention(store, TOPIC)
    read: Mapping[str, list[Position]] = {
        "billing": [Position(3, 0), Position(2, 5), Position(4, 0)],
        "search": [Position(4, 3), Position(3, 0), Position(2, 0)],
    }
    for name, positions in read.items():
        retention.add(name)
        retention.publish(name, dict(enumerate(positions)))
    wanted = [min(each) for each in zip(*read.values(), strict=True)]

    dying = FaultyStore(store)
    dying.set_faults([Fault(call=1, calls=10**6, key_part=f"{PARTITIONS[1]}/manifest/", verb="put")])
    with pytest.raises(OffloaderError) as caught:
        cycle(dying).run(TOPIC)
    assert isinstance(caught.value, StoreUnavailableError)
    assert heads(store) == [wanted[0], None, None]
    # Readers of one partition aren't kept from reading meanwhile, and nothing that somebody needs is retired.
    cleaned(store)
    for stream in PARTITIONS[1:]:
        assert read_all(store, stream) == before[stream]

    cycle(store).run(TOPIC)
    assert heads(store) == wanted
    eventually(lambda: cleaned(store))
    for stream, head in zip(PARTITIONS, wanted, strict=True):
        require_trimmed(store, stream, Position(1, 9), head)
        assert read_all(store, stream) == [(at, payload) for at, payload in before[stream] if at >= head]
    require_exactly_what_is_named(store, PARTITIONS)
