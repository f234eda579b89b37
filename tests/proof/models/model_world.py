"""The actors of the protocol's model, made of the product's own code, and what must always hold. Not a test.

One actor is one process: a writer, a checkpointer, a reconciler, retention, an undo, a reader, a deleter, a creator.
Each of their requests waits for its turn in a ``Schedule``.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from functools import partial
from itertools import count
from typing import Literal, TypeVar
from uuid import UUID

from formats.checksum import crc32c
from formats.entries import Pieces, Position
from formats.keys import (
    data_key,
    index_key,
    is_segment_uuid_of,
    new_segment_uuid,
    object_metadata,
    parse_object_key,
    stream_prefix,
)
from formats.manifest import Assign, Edit, Failed, Offloaded, Purged, Retire, Truncate, UndoRetire
from formats.segment import LedgerFacts, Part
from offloader.errors import CorruptError, FencedError, NotFoundError, OutcomeUnknownError
from offloader.gc.orphans import Outcome
from offloader.gc.reconcile import Reconciliation
from offloader.manifest.catalog import read_entry
from offloader.manifest.checkpoint import checkpoint_now
from offloader.manifest.log import ManifestLog, load_manifest
from offloader.manifest.maintenance import delete_stream, expire_records
from offloader.manifest.state import EditRefusedError, ManifestState, SegmentRecord, SegmentStatus
from offloader.settings import Duration, ManifestSettings
from offloader.store.base import ObjectStore
from offloader.store.memory import MemoryStore
from offloader.testing.manual_clock import ManualClock
from offloader.write.epoch import settle_leftover
from offloader.write.upload import SegmentUpload
from tests.support.schedule import Schedule
from tests.support.streams import batch_of, build

STREAM = "public/default/persistent/orders"
LEDGER = 1
#: In the model everything is old enough at any time: nothing that holds here leans on a clock.
SETTINGS = ManifestSettings(checkpoint_records=10**5, record_requests_max=1, orphan_age_min=Duration("0h"))
_names = count()
_Answer = TypeVar("_Answer")


class World:
    """A bucket, a hot tier of one ledger, and the processes.

    Args:
        tail: entries in the hot tier.
        multipart: data objects are uploaded in parts.
        backfill: the first owner assigns everything at once, one segment an entry.
    """

    def __init__(self, *, tail: int = 1, multipart: bool = False, backfill: bool = False) -> None:
        self.clock = ManualClock()
        self.store = MemoryStore(f"model-{next(_names)}", "", self.clock)
        self.schedule = Schedule(self.store)
        self.tail, self.multipart, self.backfill = tail, multipart, backfill
        self.epochs: dict[tuple[UUID, int], str] = {}
        self.committed: tuple[UUID, Position] | None = None
        self._uuids = count(1)
        self.log(self.store).load(create=True)

    def log(self, store: ObjectStore) -> ManifestLog:
        return ManifestLog(store, STREAM, clock=self.clock, settings=SETTINGS)

    def start(self, name: str) -> None:
        """Starts the actor of that name; it comes as far as its first request."""
        roles: dict[str, Callable[[str, ObjectStore], object]] = {
            "K": self.checkpointer, "S": self.reconciler, "T": self.retention, "N": self.undo, "E": self.reader,
            "D": self.deleter, "C": self.creator,
        }  # fmt: skip
        role = roles.get(name[0], self.writer)
        self.schedule.start(name, lambda store: role(name, store))

    # -- what must hold, whatever happened

    def acted(self, name: str, log: ManifestLog) -> None:
        """I4: whoever acts, acts on a record that is part of the manifest."""
        entry = read_entry(self.store, STREAM)
        assert entry is not None, f"{name} acts on a stream that is gone"
        assert entry.incarnation == log.state.incarnation, f"{name} acts on a dead incarnation"
        assert load_manifest(self.store, STREAM).record_id >= log.state.record_id, f"{name} acts on no record"

    def check(self) -> ManifestState | None:
        """I2, I3 and I9, at any time; the view, ``None`` where there is no stream."""
        try:
            state = load_manifest(self.store, STREAM)
        except NotFoundError:
            return None
        for segment in [] if state.stream_deleted else state.offloaded():
            assert segment.summary is not None
            for key, size, checksum in (
                (data_key(STREAM, segment.uuid), segment.summary.data_bytes, segment.summary.data_crc32c),
                (index_key(STREAM, segment.uuid), segment.summary.index_bytes, segment.summary.index_crc32c),
            ):
                body = self.store.get(key)[0]
                assert (len(body), crc32c(body)) == (size, checksum), f"{key} isn't what was recorded"
        end = state.committed_end()
        if self.committed is not None and self.committed[0] == state.incarnation:
            assert end is not None, "the committed end is gone"
            assert end >= self.committed[1], "the committed end goes back"
        if end is not None:
            self.committed = state.incarnation, end
        return state

    def quiet(self) -> None:
        """I1, I6 and I7: a lone owner finishes; after cleanup nothing is left that nothing names."""
        if self.check() is None:
            self.creator("C", self.store)
        self.tail += 1
        self.backfill = False
        self.writer("Q", self.store)
        self.reconciler("S", self.store)
        self.checkpointer("K", self.store)
        state = self.check()
        assert state is not None
        assert state.committed_end() == Position(LEDGER, self.tail - 1), "a lone owner stops"
        head = state.head or Position(LEDGER, 0)
        held = [
            entry
            for segment in state.segments.values()
            for entry in range(segment.begin.entry_id, (segment.end or segment.begin).entry_id + 1)
            if segment.status is SegmentStatus.OFFLOADED or Position(LEDGER, entry) < head
        ]
        assert sorted(held)[-(self.tail - head.entry_id) :] == list(range(head.entry_id, self.tail))
        named = {segment.uuid for segment in state.segments.values()}
        left = [key for key, uuid in _objects(self.store) if uuid not in named]
        assert left == [], "left over when all is quiet"

    # -- a writer

    def writer(self, name: str, store: ObjectStore) -> None:
        log = self.log(store)
        _until_known(log.open_epoch)
        key = log.state.incarnation, log.epoch or 0
        assert key not in self.epochs, f"{name} and {self.epochs[key]} both own epoch {key[1]}"
        self.epochs[key] = name
        self.acted(name, log)
        while (work := self._work(log)) is not None:
            edits = work()
            if edits:
                _until_known(lambda edits=edits: log.commit(edits))  # type: ignore[misc]
                self.acted(name, log)

    def _work(self, log: ManifestLog) -> Callable[[], Sequence[Edit]] | None:
        """What an owner does next; it answers what is to be committed."""
        state = log.state
        for segment in state.assigned():
            if segment.epoch == log.epoch:
                return partial(self._upload, log, segment)
            return partial(self._settle, log, segment)
        if self.backfill and not len(state.segments):
            return lambda: [self._assign(log, entry, entry) for entry in range(self.tail)]
        begin = 0 if state.newest_end is None else state.newest_end.entry_id + 1
        return (lambda: [self._assign(log, begin, None)]) if begin < self.tail else None

    def _assign(self, log: ManifestLog, begin: int, end: int | None) -> Assign:
        uuid = new_segment_uuid(log.state.incarnation, next(self._uuids))
        last = None if end is None else Position(LEDGER, end)
        return Assign(uuid, 2, Position(LEDGER, begin), last, self.clock.now_ms(), {})

    def _settle(self, log: ManifestLog, segment: SegmentRecord) -> Sequence[Edit]:
        # Another builder of the index knows other things of the ledger: the bytes differ.
        facts = {LEDGER: LedgerFacts(ledger_id=LEDGER, closed=True)}
        edit = _until_known(
            lambda: settle_leftover(log, segment, facts, part_bytes=1 << 20, now_ms=self.clock.now_ms())
        )
        return [edit] if isinstance(edit, Offloaded) else self._again(log, segment, edit)

    def _again(self, log: ManifestLog, segment: SegmentRecord, failed: Failed) -> Sequence[Edit]:
        end = None if segment.end is None else segment.end.entry_id
        return [failed, self._assign(log, segment.begin.entry_id, end)]

    def _upload(self, log: ManifestLog, segment: SegmentRecord) -> Sequence[Edit]:
        first = segment.begin.entry_id
        last = self.tail - 1 if segment.end is None else segment.end.entry_id
        # What two epochs write differs in its bytes, also of the same entries.
        finished, data = build([batch_of(LEDGER, first, last - first + 1)], 1024 * (log.epoch or 1))
        keys = data_key(STREAM, segment.uuid), index_key(STREAM, segment.uuid)
        upload = SegmentUpload(log.store, *keys, _metadata(log, "data"), _metadata(log, "index"))
        part = Part(1, 0, Pieces([data]), crc32c(data))
        try:
            if self.multipart:
                _until_known(lambda: upload.send_part(part))
                upload.complete()
            else:
                upload.send_whole(part)
            _until_known(lambda: upload.send_index(finished.index))
        except (OutcomeUnknownError, CorruptError):
            _until_known(upload.abort)
            return self._again(log, segment, Failed(segment.uuid, "no answer"))
        return [Offloaded(segment.uuid, finished.summary, self.clock.now_ms())]

    # -- everybody else

    def checkpointer(self, _name: str, store: ObjectStore) -> None:
        state = self.log(store).load()
        state, _ = checkpoint_now(store, state, os.urandom)
        expire_records(store, state, clock=self.clock, settings=SETTINGS)

    def reconciler(self, _name: str, store: ObjectStore) -> None:
        reconciliation = Reconciliation(
            store, STREAM, clock=self.clock, settings=SETTINGS, delete=True, finds_by_prefix=True
        )
        assert [each.key for each in reconciliation.leftovers() if each.outcome is Outcome.FAILED] == []

    def retention(self, name: str, store: ObjectStore) -> None:
        log = self.log(store)
        state, end = log.load(), log.state.committed_end()
        assert end is not None
        head = Position(LEDGER, end.entry_id + 1)
        if state.head is None or state.head < head:
            _until_known(lambda: log.commit_as_maintainer([Truncate(head)]))
            self.acted(name, log)
        for segment in [each for each in log.state.offloaded() if each.end and each.end < head]:
            state = _until_known(lambda segment=segment: log.commit_as_maintainer([Retire((segment.uuid,))]))  # type: ignore[misc]
            self.acted(name, log)
            record_id = state.segments[segment.uuid].retire_record
            assert record_id is not None
            leases = {info.key for info in store.list(f"{stream_prefix(STREAM)}leases/").objects}
            if leases & {info.key for info in self.store.list(f"{stream_prefix(STREAM)}leases/").objects}:
                return  # waits for those readers
            log.load()
            _until_known(lambda uuid=segment.uuid, at=record_id: log.commit_as_maintainer([Purged((uuid,), at)]))  # type: ignore[misc]
            self.acted(name, log)
            store.delete([data_key(STREAM, segment.uuid)])
            store.delete([index_key(STREAM, segment.uuid)])

    def undo(self, name: str, store: ObjectStore) -> None:
        log = self.log(store)
        for segment in [s for s in log.load().segments.values() if s.status is SegmentStatus.RETIRED]:
            assert segment.retire_record is not None
            edit = UndoRetire((segment.uuid,), segment.retire_record)
            _until_known(lambda edit=edit: log.commit_as_maintainer([edit]))  # type: ignore[misc]
            self.acted(name, log)

    def reader(self, name: str, store: ObjectStore) -> None:
        """I8: who wrote its lease before it loaded, finds what it planned to read."""
        lease = f"{stream_prefix(STREAM)}leases/{name}"
        store.put(lease, b"")
        for segment in self.log(store).load().offloaded():
            try:
                store.get(data_key(STREAM, segment.uuid))
                store.get(index_key(STREAM, segment.uuid))
            except NotFoundError as error:
                raise AssertionError(f"a reader with a lease doesn't find {segment.uuid}") from error
        store.delete([lease])

    def deleter(self, _name: str, store: ObjectStore) -> None:
        def delete_objects(state: ManifestState) -> None:
            keys = [key for key, uuid in _objects(self.store) if is_segment_uuid_of(uuid, state.incarnation)]
            if keys:
                store.delete(keys)

        delete_stream(store, STREAM, clock=self.clock, delete_objects=delete_objects, settings=SETTINGS)

    def creator(self, name: str, store: ObjectStore) -> None:
        log = self.log(store)
        log.open_epoch()
        self.epochs[log.state.incarnation, log.epoch or 0] = name
        self.acted(name, log)


#: How a process may end that was overtaken: it was told, and did nothing more.
OVERTAKEN = (FencedError, EditRefusedError, NotFoundError)


def _until_known(call: Callable[[], _Answer]) -> _Answer:
    """Asks again until the store tells; whatever was in flight may land meanwhile."""
    while True:
        try:
            return call()
        except OutcomeUnknownError:
            continue


def _metadata(log: ManifestLog, role: Literal["data", "index"]) -> dict[str, str]:
    return dict(
        object_metadata(
            role=role,
            stream=STREAM,
            format_version=1,
            software_version="0",
            incarnation=log.state.incarnation,
            epoch=log.epoch or 0,
        )
    )


def _objects(store: ObjectStore) -> list[tuple[str, UUID]]:
    """Keys and uuids of the objects of segments."""
    parsed = [(info.key, parse_object_key(info.key, STREAM)) for info in store.list(stream_prefix(STREAM)).objects]
    return [(key, each.uuid) for key, each in parsed if each is not None]
