"""Reconciling every stream of a store, and accounting for what lies below none of them.

Owns the way over the streams. Must never delete what lies outside of a stream, nor let one stream's trouble keep the
others from their turn.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator
from dataclasses import KW_ONLY, dataclass, field, replace
from uuid import UUID

from formats.errors import FormatError
from formats.global_hold import GLOBAL_HOLD_KEY
from formats.keys import catalog_prefix, encode_stream, manifest_prefix, stream_of_catalog_key
from formats.lease import lease_uuid
from formats.retention_state import group_of_key, group_prefix
from formats.stream_names import RESERVED_LEVELS, decode_stream
from offloader.cleanup.orphans import Leftover, Outcome, Place, Reason
from offloader.cleanup.reconciler import Reconciliation, Tally
from offloader.clock import Clock
from offloader.errors import OffloaderError
from offloader.manifest.catalog import list_streams
from offloader.manifest.global_hold import global_hold
from offloader.manifest.objects import is_manifest_object, listed
from offloader.manifest.store_time import TIME_KEY, time_for_deletion_ms
from offloader.manifest.stream_deletion import sweep_late_writes
from offloader.settings import ManifestSettings
from offloader.store.base import ObjectInfo, ObjectStore
from offloader.store.probe import PROBE_PREFIX, finds_uploads_by_prefix

__all__ = ["StoreReconciliation"]

_MS_PER_HOUR = 3_600_000


@dataclass(slots=True)
class StoreReconciliation:
    """The reconciliation of all streams, for one run.

    Attributes:
        store, clock, delete: as of ``Reconciliation``.
        settings_of: a stream's settings; of the name "": those that count for all.
        failed: is told of each stream that couldn't be finished, and why; the next run tries again.
        may_delete: whether anything of a stream may be deleted, of the name "": what lies below none; else it is only
            listed.
        needed: kind of thing -> how many there are that are needed.
    """

    store: ObjectStore
    _: KW_ONLY
    clock: Clock
    settings_of: Callable[[str], ManifestSettings]
    failed: Callable[[str, OffloaderError], None]
    delete: bool = False
    may_delete: Callable[[str], bool] = lambda _: True
    needed: dict[Place, Tally] = field(default_factory=dict)

    def leftovers(self) -> Iterator[Leftover]:
        """Each leftover: stream by stream, then those below none. Iterate over it once, and to the end.

        Raises:
            ClockSkew: the clocks differ too much to call anything old; nothing was deleted.
            OffloaderError: the store doesn't answer.
        """
        skew_ms_max = self.settings_of("").clock_skew_seconds_max * 1000
        streams = list_streams(self.store, released=True)
        deletes = any(map(self._deletes, ["", *streams]))
        now_ms = time_for_deletion_ms(self.store, self.clock, skew_ms_max=skew_ms_max, ask_store=deletes)
        by_prefix = finds_uploads_by_prefix(self.store) if deletes else None
        for stream in streams:
            yield from self._of(stream, now_ms, by_prefix)
        yield from self._outside(now_ms)

    def _deletes(self, name: str) -> bool:
        return self.delete and self.may_delete(name)

    def _of(
        self, name: str, now_ms: int, finds_by_prefix: bool | None = None, *, is_topic: bool = False
    ) -> Iterator[Leftover]:
        run = Reconciliation(
            self.store,
            name,
            clock=self.clock,
            settings=self.settings_of(name),
            delete=self._deletes(name),
            now_ms=now_ms,
            finds_by_prefix=finds_by_prefix,
            is_topic=is_topic,
        )
        try:
            yield from run.leftovers()
        except OffloaderError as error:
            self.failed(name, error)
        for place, tally in run.needed.items():
            self.needed.setdefault(place, Tally()).add(tally.objects, tally.size_bytes)

    def _outside(self, now_ms: int) -> Iterator[Leftover]:
        # Read again: streams that were created meanwhile aren't outside.
        below = _Below(list_streams(self.store, released=True))
        old_ms = now_ms - int(self.settings_of("").orphan_age_hours_min * _MS_PER_HOUR)
        for upload in self.store.list_uploads(""):
            info = ObjectInfo(upload.key, 0, "", upload.started_ms)
            if upload.key.startswith(PROBE_PREFIX):
                yield from self._scratch(info, old_ms, upload.upload_id)
            elif not below.holds(upload.key):
                yield _found(info, Place.UPLOAD, Reason.FOREIGN, upload.upload_id)
        names: set[str] = set()
        gone: set[str] = set()
        late: dict[tuple[str, UUID], bool] = {}
        for info in listed(self.store, ""):
            if below.holds(info.key):
                continue
            name, is_lease = _kept_for(info.key)
            if name is not None:
                # All of it at once: it is listed once more before a topic's entry is read.
                if name not in names:
                    names.add(name)
                    for each in self._of(name, now_ms, is_topic=True):
                        if each.place is Place.LEASE and each.outcome is not Outcome.KEPT:
                            gone.add(each.key)
                        yield each
                if is_lease and info.key not in gone:
                    self.needed.setdefault(Place.LEASE, Tally()).add(1, info.size_bytes)
                continue
            place = _place_outside(info)
            if info.key == TIME_KEY or info.key.startswith(PROBE_PREFIX):
                yield from self._scratch(info, old_ms)
            elif place is not None:
                self.needed.setdefault(place, Tally()).add(1, info.size_bytes)
            elif (manifest := _manifest_of(info.key)) is not None:
                if manifest not in late:
                    swept = self._late_writes(*manifest, info, old_ms)
                    late[manifest] = swept is not None
                    if swept is not None:
                        yield swept
                if not late[manifest]:
                    yield _found(info, Place.OTHER, Reason.UNLISTED)
            else:
                yield _found(info, Place.OTHER, Reason.FOREIGN)

    def _late_writes(self, stream: str, incarnation: UUID, first: ObjectInfo, old_ms: int) -> Leftover | None:
        """A manifest that holds only what was written after its stream was deleted; ``None``: it may be a lost one."""
        stopped = global_hold(self.store) is not None
        swept = sweep_late_writes(self.store, stream, incarnation, old_ms=old_ms, dry_run=stopped or not self.delete)
        if swept is None:
            return None
        found = _found(
            replace(first, key=manifest_prefix(stream, incarnation)), Place.OLD_MANIFEST, Reason.DEAD_MANIFEST
        )
        if stopped:
            return replace(found, objects=swept.objects, reason=Reason.HELD)
        outcome = Outcome.DELETED if self.delete else Outcome.DELETABLE
        return replace(found, objects=swept.objects, outcome=outcome)

    def _scratch(self, info: ObjectInfo, old_ms: int, upload_id: str = "") -> Iterator[Leftover]:
        """What somebody who tried the store out, or asked for its time, left when he was interrupted."""
        if info.modified_ms > old_ms:
            if not upload_id:
                self.needed.setdefault(Place.STORE, Tally()).add(1, info.size_bytes)
            return
        found = _found(info, Place.UPLOAD if upload_id else Place.STORE, Reason.SCRATCH, upload_id)
        if global_hold(self.store) is not None:
            yield replace(found, reason=Reason.HELD)
        elif not self._deletes(""):
            yield replace(found, outcome=Outcome.DELETABLE)
        elif upload_id:
            self.store.abort_upload(info.key, upload_id)
            yield replace(found, outcome=Outcome.DELETED)
        else:
            failures = self.store.delete([info.key])
            problem = failures[0].reason if failures else ""
            yield replace(found, outcome=Outcome.FAILED if problem else Outcome.DELETED, problem=problem)


class _Below:
    """Which keys lie below a stream's name; asked in any order, quick for neighbours."""

    def __init__(self, streams: Collection[str]) -> None:
        self._prefixes = {encode_stream(stream) for stream in streams}
        self._last: tuple[str, bool] = ("", False)

    def holds(self, key: str) -> bool:
        folder = key.rpartition("/")[0]
        if folder != self._last[0]:
            levels = folder.split("/")
            found = any("/".join(levels[:count]) in self._prefixes for count in range(1, len(levels) + 1))
            self._last = folder, found
        return self._last[1]


def _place_outside(info: ObjectInfo) -> Place | None:
    """What a key below no stream is, where this project gives such keys."""
    if info.key.startswith(catalog_prefix()):
        try:
            stream_of_catalog_key(info.key)
        except FormatError:
            return None
        return Place.CATALOGUE
    # A reader group; one that was deleted keeps its generation, so nothing of them is ever left over.
    if info.key.startswith(group_prefix()) and group_of_key(info.key) is not None:
        return Place.RETENTION
    return Place.STORE if info.key == GLOBAL_HOLD_KEY else None


def _kept_for(key: str) -> tuple[str | None, bool]:
    """Below no stream: the partitioned topic that retention keeps what has that key for, whose partitions are the
    streams; or the name that a reader took a lease on, of a stream that was never there or isn't any more. And which of
    both."""
    name, separator, _ = key.partition("/retention/")
    if separator and _is_stream(name):
        return decode_stream(name), False
    name, separator, _ = key.rpartition("/leases/")
    if separator and _is_stream(name) and lease_uuid(key, decode_stream(name)) is not None:
        return decode_stream(name), True
    return None, False


def _manifest_of(key: str) -> tuple[str, UUID] | None:
    """Stream and incarnation of an object that a manifest may have."""
    name, separator, rest = key.partition("/manifest/")
    incarnation, _, object_name = rest.partition("/")
    if not separator or not _is_stream(name) or not is_manifest_object(object_name):
        return None
    try:
        found = UUID(incarnation)
    except ValueError:
        return None
    return (decode_stream(name), found) if str(found) == incarnation else None


def _is_stream(encoded: str) -> bool:
    try:
        return RESERVED_LEVELS.isdisjoint(decode_stream(encoded).split("/"))
    except FormatError:
        return False


def _found(info: ObjectInfo, place: Place, reason: Reason, upload_id: str = "") -> Leftover:
    return Leftover(
        stream="",
        place=place,
        key=info.key,
        size_bytes=info.size_bytes,
        modified_ms=info.modified_ms,
        reason=reason,
        upload_id=upload_id,
    )
