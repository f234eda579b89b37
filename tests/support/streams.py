"""Streams for tests of the read side: segments built with the real builder, put and committed by hand."""

from __future__ import annotations

import random
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from uuid import UUID

from formats.entries import TIME_UNKNOWN_MS, Entry, EntryBatch, Position
from formats.keys import data_key, index_key, new_segment_uuid, object_metadata
from formats.manifest import Assign, Edit, LedgerClosed, Offloaded
from formats.segment import Codec, FinishedSegment, LedgerFacts, Part, SegmentBuilder
from formats.summary import Layout
from offloader.manifest.log import ManifestLog
from offloader.runtime.clock import Clock, SystemClock
from offloader.store.base import ObjectStore

BASE_MS = 1_700_000_000_000


def batch_of(
    ledger_id: int, first: int, count: int, *, size: int = 20, times: Sequence[int] | int | None = None
) -> EntryBatch:
    """``count`` entries whose payloads say where they are and are padded to ``size``; a second apart by default."""
    payloads = [f"{ledger_id}:{entry_id} ".encode().ljust(size, b".") for entry_id in range(first, first + count)]
    if times is None:
        times = [BASE_MS + 1000 * (1000 * ledger_id + entry_id) for entry_id in range(first, first + count)]
    return EntryBatch.build(ledger_id, first, payloads, list(times) if not isinstance(times, int) else times)


def random_batch(generator: random.Random, ledger_id: int, first: int, count: int, size_max: int) -> EntryBatch:
    """Entries of random sizes and times, some times unknown."""
    payloads = [generator.randbytes(generator.randint(0, size_max)) for _ in range(count)]
    times = [
        TIME_UNKNOWN_MS if generator.random() < 0.1 else BASE_MS + generator.randint(0, 1_000_000) for _ in range(count)
    ]
    return EntryBatch.build(ledger_id, first, payloads, times)


@dataclass
class StreamWriter:
    """Puts segments of one stream and keeps what a reader must answer."""

    store: ObjectStore
    stream: str = "public/default/persistent/orders"
    block_bytes: int = 1024
    clock: Clock = field(default_factory=SystemClock)
    log: ManifestLog = field(init=False)
    entries: list[Entry] = field(default_factory=list)
    uuids: list[UUID] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.log = ManifestLog(self.store, self.stream, clock=self.clock)
        self.log.open_epoch()

    def add(
        self,
        batches: Iterable[EntryBatch],
        *,
        layout: Layout = Layout.V2,
        extension: bool = True,
        codec: Codec = Codec.NONE,
        closes: Iterable[int] = (),
        driver: dict[str, str] | None = None,
    ) -> UUID:
        """One offloaded segment. ``closes``: ledgers that end with it."""
        batches = list(batches)
        finished, parts = build(batches, self.block_bytes, layout, extension, codec, set(closes))
        uuid = new_segment_uuid(self.log.state.incarnation, random.getrandbits(64))
        ledger_id = batches[0].ledger_id if layout is Layout.V1 else None
        put_objects(self.store, self.log, uuid, ledger_id, finished, parts)
        begin, end = finished.summary.begin, finished.summary.end
        place = dict(self.store.driver_metadata) if driver is None else driver
        edits: list[Edit] = [
            Assign(uuid, int(layout), begin, end, BASE_MS, place),
            Offloaded(uuid, finished.summary, BASE_MS),
        ]
        last = {batch.ledger_id: int(batch.entry_ids[-1]) for batch in batches}
        edits += [LedgerClosed(ledger, last[ledger]) for ledger in closes]
        self.log.commit(edits)
        known = [entry for batch in batches for entry in batch.entries()]
        # Pulsar's own layout has no place for publish times.
        self.entries += known if extension else [entry._replace(publish_time_ms=TIME_UNKNOWN_MS) for entry in known]
        self.uuids.append(uuid)
        return uuid

    def keys(self, uuid: UUID, ledger_id: int | None = None) -> tuple[str, str]:
        return data_key(self.stream, uuid, ledger_id), index_key(self.stream, uuid, ledger_id)

    def between(self, first: Position, last: Position) -> list[Entry]:
        return [entry for entry in self.entries if first <= entry.position <= last]


def build(
    batches: Sequence[EntryBatch],
    block_bytes: int,
    layout: Layout = Layout.V2,
    extension: bool = True,
    codec: Codec = Codec.NONE,
    closed: set[int] | None = None,
) -> tuple[FinishedSegment, bytes]:
    """A finished segment and its whole data object."""
    builder = SegmentBuilder(
        layout=layout, block_bytes=block_bytes, part_bytes=1 << 20, codec=codec, extension=extension
    )
    parts: list[Part] = []
    for batch in batches:
        parts += builder.append(batch)
    ledgers = {batch.ledger_id for batch in batches}
    facts = {each: LedgerFacts(ledger_id=each, closed=each in (closed or ())) for each in ledgers}
    finished = builder.finish(facts)
    return finished, b"".join(bytes(part.body) for part in [*parts, *finished.parts])


def put_objects(
    store: ObjectStore, log: ManifestLog, uuid: UUID, ledger_id: int | None, finished: FinishedSegment, data: bytes
) -> None:
    version = 2 if finished.summary.compressed else 1
    metadata = {
        role: object_metadata(
            role=role,
            stream=log.stream,
            format_version=version,
            software_version="0",
            incarnation=log.state.incarnation,
            epoch=log.epoch or 0,
            testimony=log.testimony() if role == "data" else None,
        )
        for role in ("data", "index")
    }
    store.put(data_key(log.stream, uuid, ledger_id), data, metadata=metadata["data"])
    store.put(index_key(log.stream, uuid, ledger_id), finished.index, metadata=metadata["index"])
