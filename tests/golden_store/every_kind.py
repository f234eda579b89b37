"""The streams ``b/...`` of the golden store: with those of ``make`` they have every kind of edit and object.

* ``b/reserved``: as many ledgers as make the writer reserve ledger ids a second time
* ``b/many-ledgers``: a checkpoint whose facts about ledgers are a run of their own
* ``b/many-segments``: a checkpoint whose segments are a run of their own; older records have expired
* ``b/lost``: its database (``lost.db``) lost acknowledged entries, which are a gap now
* ``b/filled``: gaps within a ledger, most of which are filled
* ``b/aside``: offloaded from two databases; ledgers of the second (``aside.db``) are set aside
* ``b/undone``: truncated and retired, and brought back
* ``b/purged``: truncated and purged; one batch of deletions is done, one is still under way
* ``b/awaited``: retired while a reader holds a lease
* ``b/released``: paused and resumed, and its closed hot ledgers are deleted
* ``b/failed``: a segment was given up because another writer took the stream over
* ``b/anew``: deleted, and created again under its name
* ``b/deleted``: deleted; its tombstone is still there
* ``b/half``: two partitions whose truncation was recorded and not carried out
* the group ``manual``: a kept checkpoint that one of two readers has reached
* Pulsar's objects are released and adopted again
* a hold on all deletion in the store, which is written last
"""

from __future__ import annotations

import shutil
from dataclasses import replace
from typing import TYPE_CHECKING
from uuid import UUID

import numpy as np

from formats.documents import DeletionRecord, PartitionHead, TruncationIntent, deletion_key, intent_key
from formats.entries import EntryBatch
from formats.manifest import Adopt, Edit, Gap, LedgerClosed, Retire, Truncate
from formats.summary import Layout, LedgerSpan, SegmentSummary
from offloader import Position
from offloader.coverage import GapReason
from offloader.groups.reader_groups import GroupConfig, RetentionType
from offloader.managed_ledger import open_managed_ledger
from offloader.manifest.log import ManifestLog, load_manifest
from offloader.manifest.segment_table import AT_ROOT
from offloader.read.partitions import open_reader
from offloader.retention.cuts import StreamCut
from offloader.runtime.clock import SystemClock
from offloader.store.open import open_store
from offloader.write.backfill_service import fill_gaps
from tests.golden_store.place import Place, entries, settings
from tests.groups.bookkept_groups import open_bookkept_groups
from tests.support.streams import StreamWriter, batch_of
from tests.support.waiting import eventually

if TYPE_CHECKING:
    from offloader.managed_ledger import ManagedLedger

__all__ = [
    "FILL",
    "LEDGER_ENTRIES",
    "MANY_LEDGERS",
    "MANY_SEGMENTS",
    "ORACLE",
    "RESERVED_LEDGERS",
    "TOMBSTONE",
    "write_every_kind",
]

#: Pulsar's stream whose objects are adopted.
ORACLE = "public/default/persistent/oracle"
#: A deleted stream that is still in the catalogue.
TOMBSTONE = "b/deleted"
#: Of a ledger of most streams.
LEDGER_ENTRIES = 25
#: Of one entry each: more than half of what one record reserves.
RESERVED_LEDGERS = 510
#: Known and empty: as many as make a run.
MANY_LEDGERS = 4_100
#: Adopted and retired: as many as make a run.
MANY_SEGMENTS = 4_100
#: What the broker had of gaps in ledger 7 of ``b/filled``: entry id -> payload.
FILL = {5: b"marker 5", 9: b"marker 9", 10: b""}


def write_every_kind(place: Place) -> None:
    """Writes the streams of this module; nothing of the store can be deleted afterwards."""
    _reserved(place)
    _many_ledgers(place)
    _many_segments(place)
    _lost(place)
    _filled(place)
    _aside(place)
    _undone(place)
    _purged(place)
    _awaited(place)
    _released(place)
    _failed(place)
    _deleted(place)
    _half(place)
    _group(place)
    place.run("import", ORACLE, "--undo")
    place.run("import")
    place.run("cleanup", "hold", "--all", "--reason", "case 8")


def _offloaded(topic: ManagedLedger, stream: str, first: int, count: int) -> None:
    topic.append_batch(entries(stream, first, count), 1_700_000_000_000 + first)
    topic.offload()


def _in_ledgers(topic: ManagedLedger, stream: str, count: int) -> list[int]:
    """Offloads so many ledgers of ``LEDGER_ENTRIES``, each a segment of its own."""
    for number in range(count):
        _offloaded(topic, stream, number * LEDGER_ENTRIES, LEDGER_ENTRIES)
        topic.close_ledger()
    return [each.ledger_id for each in topic.ledgers()]


def _reserved(place: Place) -> None:
    with place.topic("b/reserved") as topic:
        for number in range(RESERVED_LEDGERS):
            topic.append(b"%d" % number, 1_700_000_000_000)
            topic.close_ledger()
        topic.offload()


def _many_ledgers(place: Place) -> None:
    """What a writer knows of closed ledgers in which there is nothing to offload."""
    log = ManifestLog(place.store, "b/many-ledgers", clock=SystemClock())
    log.open_epoch()
    log.commit([LedgerClosed(number, -1) for number in range(1, MANY_LEDGERS + 1)])
    place.run("manifest", "checkpoint", "b/many-ledgers")


def _many_segments(place: Place) -> None:
    """Retired segments, so that their objects needn't exist, and one with entries. The hold keeps them retired."""
    stream = "b/many-segments"
    log = ManifestLog(place.store, stream, clock=SystemClock())
    log.open_epoch()
    uuids = [UUID(int=number << 64) for number in range(1, MANY_SEGMENTS + 1)]
    edits: list[Edit] = []
    for ledger_id, uuid in enumerate(uuids, 1):
        summary = SegmentSummary.of_spans(
            [LedgerSpan(ledger_id, 0, 0, 1, 10)],
            layout=Layout.V1,
            data_bytes=4096,
            data_crc32c=0,
            blocks=1,
            compressed=False,
            index_bytes=300,
        )
        edits += [Adopt(uuid, summary, AT_ROOT, owned=True), LedgerClosed(ledger_id, 0)]
    for made in (edits, [Truncate(Position(MANY_SEGMENTS, 1)), Retire(tuple(uuids))]):
        log.commit(made)
        place.run("manifest", "checkpoint", stream)
    place.run("manifest", "expire", "--apply", stream, "--config", str(place.at_once))
    with place.topic(stream) as topic:
        _offloaded(topic, stream, 0, LEDGER_ENTRIES)
    place.run("cleanup", "hold", stream, "--reason", "case 9")


def _lost(place: Place) -> None:
    with place.topic("b/lost") as topic:
        _offloaded(topic, "b/lost", 0, LEDGER_ENTRIES)
        topic.pause()
    copy = place.folder / "copy"
    copy.mkdir()
    active = place.topic("b/lost")
    for file in place.folder.glob("lost.db*"):
        if not file.name.endswith(".acked"):
            shutil.copy(file, copy)
    active.append_batch([b"acknowledged and lost"] * 4)
    active.close(drain=False)
    for file in copy.iterdir():
        shutil.copy(file, place.folder)
    place.run("stream", "accept-loss", "b/lost", "--apply", "--ledgers", place.database("b/lost"))
    with place.topic("b/lost") as topic:
        topic.resume()
        _offloaded(topic, "b/lost", LEDGER_ENTRIES, LEDGER_ENTRIES)


def _filled(place: Place) -> None:
    """As of a Pulsar topic: the broker had entries that it didn't deliver."""
    stream, ledger_id = "b/filled", 7
    writer = StreamWriter(place.store, stream)
    for first, last, missing in ((0, 4, 5), (6, 8, 10), (11, 14, 15)):
        writer.add([batch_of(ledger_id, first, last - first + 1)])
        writer.log.commit([Gap(Position(ledger_id, last + 1), Position(ledger_id, missing), GapReason.UNDELIVERED)])
    writer.log.commit([LedgerClosed(ledger_id, 15)])
    writer.add([batch_of(8, 0, 5)], closes=[8])
    made = EntryBatch.build(ledger_id, 0, list(FILL.values()))
    ids = np.array(list(FILL), dtype=np.int64)
    fill_gaps(writer.log, EntryBatch(ledger_id, ids, made.payloads, made.publish_times_ms), 0, 10)


def _aside(place: Place) -> None:
    first = f"sqlite:///{place.folder}/first.db"
    with open_managed_ledger("b/aside", ledgers=first, store=place.store, settings=settings()) as topic:
        _offloaded(topic, "b/aside", 0, LEDGER_ENTRIES)
    # A process that knows another store.
    elsewhere = open_store("memory://elsewhere")
    with open_managed_ledger(
        "b/aside", ledgers=place.database("b/aside"), store=elsewhere, settings=settings(method="none")
    ) as topic:
        topic.append_batch([b"never offloaded"] * LEDGER_ENTRIES)
    with place.topic("b/aside", new_source=True) as topic:
        _offloaded(topic, "b/aside", LEDGER_ENTRIES, LEDGER_ENTRIES)


def _undone(place: Place) -> None:
    with place.topic("b/undone") as topic:
        topic.truncate(Position(_in_ledgers(topic, "b/undone", 4)[2], 3))
    place.run("cleanup", "run", "--apply", "b/undone", "--allow-large")
    place.run("cleanup", "undo", "b/undone")


def _purged(place: Place) -> None:
    with place.topic("b/purged") as topic:
        for ledger_id in _in_ledgers(topic, "b/purged", 5)[2:4]:
            topic.truncate(Position(ledger_id, 5))
            for _ in range(2):
                place.run("cleanup", "run", "--apply", "b/purged", "--allow-large", "--config", str(place.at_once))
    # The objects of the second batch are gone, and the process ended before it could say so.
    key = place.store.list("b/purged/retention/deleted/").objects[-1].key
    batch = DeletionRecord.decode(place.store.get(key)[0])
    begun = deletion_key("b/purged", batch.name, done=False)
    place.store.put(begun, replace(batch, done_ms=None).encode())
    place.store.delete([key])


def _awaited(place: Place) -> None:
    with place.topic("b/awaited") as topic:
        ledgers = _in_ledgers(topic, "b/awaited", 4)
        open_reader(place.store, "b/awaited", lease_seconds=3600)  # its lease stays, as after a crash
        topic.truncate(Position(ledgers[2], 3))
    place.run("cleanup", "run", "--apply", "b/awaited", "--allow-large")


def _released(place: Place) -> None:
    with place.topic("b/released", deletion_lag="0.0m") as topic:
        _in_ledgers(topic, "b/released", 2)
        topic.pause("maintenance")
        topic.resume()
        _offloaded(topic, "b/released", 2 * LEDGER_ENTRIES, LEDGER_ENTRIES)
        topic.release_hot()


def _failed(place: Place) -> None:
    fenced = place.topic("b/failed")
    _offloaded(fenced, "b/failed", 0, LEDGER_ENTRIES)
    fenced.append_batch([b"on its way"], 1_700_000_000_000)
    eventually(lambda: load_manifest(place.store, "b/failed").assigned())
    with place.topic("b/failed") as topic:
        _offloaded(topic, "b/failed", LEDGER_ENTRIES, LEDGER_ENTRIES)
    fenced.close(drain=False)


def _deleted(place: Place) -> None:
    for stream in ("b/anew", "b/deleted"):
        with place.topic(stream) as topic:
            _offloaded(topic, stream, 0, LEDGER_ENTRIES)
        place.run("stream", "delete", "--apply", stream)
    place.run("stream", "delete", "--apply", "b/anew", "--config", str(place.at_once))  # its tombstone too
    with place.topic("b/anew", new_source=True) as topic:
        _offloaded(topic, "b/anew", 0, LEDGER_ENTRIES)


def _half(place: Place) -> None:
    heads = []
    for number in range(2):
        stream = f"b/half-partition-{number}"
        with place.topic(stream) as topic:
            head = Position(_in_ledgers(topic, stream, 3)[1], 2)
        heads.append(PartitionHead(stream, load_manifest(place.store, stream).incarnation, head))
    intent = TruncationIntent("b/half", tuple(heads), False, "retention", 1_700_000_000_000)
    place.store.put(intent_key("b/half"), intent.encode())


def _group(place: Place) -> None:
    groups = open_bookkept_groups(place.store)
    groups.create("manual", GroupConfig(["b/released"], RetentionType.MANUAL))
    for reader in ("one", "two"):
        groups.add_reader("manual", reader)
    groups.initiate_checkpoint("manual", "kept")
    groups.reach_checkpoint("manual", "kept", "one", {"b/released": StreamCut()})
