"""A stream with everything that can be left below its name, and what must be true of it. Not a test."""

from __future__ import annotations

import random
from itertools import count
from typing import Any
from uuid import UUID

from formats.entries import Position
from formats.keys import data_key, index_key, new_segment_uuid, parse_object_key
from formats.manifest import Assign, Edit, Failed, Offloaded
from offloader.gc.orphans import Garbage
from offloader.gc.reconcile import Reconciliation
from offloader.manifest.boundary import listed
from offloader.manifest.log import load_manifest
from offloader.settings import Duration, ManifestSettings
from offloader.store.base import ObjectStore, UploadInfo
from offloader.store.memory import MemoryStore
from offloader.testing.faulty_store import FaultyStore
from offloader.testing.manual_clock import ManualClock
from tests.support.readback import stored_entries
from tests.support.streams import StreamWriter, batch_of, build

STREAM = "public/default/persistent/orders"
HOUR_S = 3600
DAY_S = 24 * HOUR_S
_names = count()


class Bucket:
    """A memory store behind a faulty one, a clock for both, and one stream with a writer."""

    def __init__(self, store: ObjectStore | None = None, clock: Any = None) -> None:
        self.clock = clock or ManualClock()
        self.inner = store or MemoryStore(f"orphans-{next(_names)}", "", self.clock)
        self.store = FaultyStore(self.inner)
        self.writer = StreamWriter(self.inner, STREAM)
        self.next_entry = 0

    # -- what is needed

    def offload(self, segments: int = 1) -> list[UUID]:
        """Segments of ten entries each."""
        made = []
        for _ in range(segments):
            made.append(self.writer.add([batch_of(1, self.next_entry, 10)]))
            self.next_entry += 10
        return made

    def assign(self) -> UUID:
        """A promised segment after everything else."""
        uuid = self.uuid()
        self.commit(Assign(uuid, 2, Position(1, self.next_entry), None, 5, dict(self.inner.driver_metadata)))
        return uuid

    def complete(self, uuid: UUID) -> Offloaded:
        """Puts whole objects of ten entries under a promised uuid; what its owner has to say then."""
        batch = batch_of(1, self.next_entry, 10)
        finished, data = build([batch], 1024)
        self.inner.put(data_key(STREAM, uuid), data, metadata=self.told())
        self.inner.put(index_key(STREAM, uuid), finished.index)
        return Offloaded(uuid, finished.summary, 6)

    def commit(self, *edits: Edit) -> None:
        self.writer.log.commit(list(edits))

    def uuid(self, incarnation: UUID | None = None) -> UUID:
        return new_segment_uuid(incarnation or self.writer.log.state.incarnation, random.getrandbits(64))

    # -- what isn't

    def put(self, *keys: str) -> None:
        for key in keys:
            self.inner.put(key, b"some bytes")

    def put_segment(self, uuid: UUID, ledger_id: int | None = None) -> list[str]:
        keys = [data_key(STREAM, uuid, ledger_id), index_key(STREAM, uuid, ledger_id)]
        self.inner.put(keys[0], b"some bytes", metadata=self.told())
        self.put(keys[1])
        return keys

    def told(self) -> dict[str, str]:
        """What a data object says of the record that assigned it."""
        testimony = self.writer.log.testimony()
        return {} if testimony is None else testimony.as_metadata()

    def failed(self) -> list[str]:
        """Objects of an attempt that failed."""
        uuid = self.assign()
        keys = self.put_segment(uuid)
        self.commit(Failed(uuid, "for a test"))
        return keys

    def begin_upload(self, uuid: UUID, ledger_id: int | None = None) -> str:
        key = data_key(STREAM, uuid, ledger_id)
        upload_id = self.inner.begin_upload(key)
        self.inner.upload_part(key, upload_id, 1, b"part")
        return upload_id

    # -- reconciling

    def reconcile(
        self, *, delete: bool = True, age_hours: float = 24.0, store: ObjectStore | None = None, **more: Any
    ) -> list[Garbage]:
        settings = ManifestSettings(orphan_age_min=Duration(3600 * age_hours))
        run = Reconciliation(store or self.store, STREAM, clock=self.clock, settings=settings, delete=delete, **more)
        return list(run.leftovers())

    # -- what must be true

    def keys(self) -> set[str]:
        """Keys of segments' objects."""
        return {info.key for info in listed(self.inner, f"{STREAM}/") if parse_object_key(info.key, STREAM)}

    def named_keys(self) -> set[str]:
        """Keys of the objects that the manifest names."""
        state = load_manifest(self.inner, STREAM)
        return {key for segment in state.segments.values() if segment.summary for key in segment.object_keys(STREAM)}

    def uploads(self) -> list[UploadInfo]:
        return sorted(self.inner.list_uploads(f"{STREAM}/"), key=lambda upload: upload.key)

    def check_readable(self) -> None:
        """Every committed entry is in the store."""
        assert stored_entries(self.inner, STREAM) == [(e.position, e.payload) for e in self.writer.entries]


def outcomes(leftovers: list[Garbage]) -> dict[str, tuple[str, str]]:
    """Key -> reason and outcome."""
    return {each.key: (each.reason.name, each.outcome.name) for each in leftovers}
