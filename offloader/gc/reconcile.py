"""Orphan search below a stream's prefix and over a whole store."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import KW_ONLY, dataclass, field, replace
from functools import lru_cache, partial
from itertools import chain, islice
from uuid import UUID

from formats.documents import (
    GROUP_PREFIX,
    ROOT_KEYS,
    group_of_key,
    intent_key,
    lease_key,
    lease_uuid,
    retention_prefix,
    topic_key,
)
from formats.errors import FormatError
from formats.keys import (
    CATALOG_PREFIX,
    RESERVED_LEVELS,
    data_key,
    decode_stream,
    encode_stream,
    is_segment_uuid_of,
    manifest_prefix,
    parse_object_key,
    stream_of_catalog_key,
    stream_prefix,
)
from formats.manifest import Assign, CatalogEntry, Record, Rewrite
from formats.topic_layout import is_layout_key
from offloader.errors import CorruptError, NotFoundError, OffloaderError, StoreUnavailableError, UnsupportedError
from offloader.gc.orphans import (
    Garbage,
    LiveSet,
    Outcome,
    Place,
    Reason,
    Witnesses,
    classified_again,
    classify_page,
    classify_upload,
)
from offloader.manifest.boundary import (
    DELETE_KEYS_MAX,
    incarnations_in,
    is_manifest_object,
    list_manifest,
    listed,
    read_record,
)
from offloader.manifest.catalog import (
    forget_name,
    forget_topic,
    is_released,
    is_topic_unused,
    list_streams,
    partition_streams,
    read_entry,
    release_intent,
    release_topic,
    topic_state,
    unused_void,
)
from offloader.manifest.load import kept_records, load_manifest_view, refreshed
from offloader.manifest.maintenance import sweep_dead_incarnations, sweep_late_writes
from offloader.manifest.protection import TIME_KEY, age_limit_ms, global_hold, leases_of, time_for_deletion_ms
from offloader.manifest.state import ManifestState
from offloader.manifest.topic_layouts import read_layout
from offloader.manifest.unlisted import unlisted_streams
from offloader.parallel_map import at_once
from offloader.runtime.clock import Clock
from offloader.settings import ManifestSettings
from offloader.store.base import PROBE_PREFIX, DeleteFailure, ListPage, ObjectInfo, ObjectStore, UploadInfo, is_local
from offloader.store.probe import finds_uploads_by_prefix
from offloader.stream_names import is_place, require_stream_name


def uploads_by_key(store: ObjectStore, names: ManifestState) -> Iterator[UploadInfo]:
    """Uploads of every segment that a kept record assigned, except those still promised.

    Records are kept for ``orphan_age_min`` and longer, so a failed attempt's upload is searched once it is old
    enough to be aborted. An upload begun under a key long after the attempt failed isn't found.
    """
    with suppress(NotFoundError):  # another process deletes records: their uploads are searched in the next run
        assigned = (each for record in kept_records(store, names) for each in _assigned_by(record, names.stream))
        keys = (key for uuid, key in assigned if not names.is_promised(uuid))
        sequential_max = _KEYS_AT_ONCE if is_local(store) else 1
        while some := list(islice(keys, _KEYS_AT_ONCE)):
            yield from chain.from_iterable(at_once(partial(_uploads_of, store), some, sequential_max=sequential_max))


def uploads_of_deleted(store: ObjectStore, stream: str, incarnation: UUID) -> Iterator[UploadInfo]:
    """Uploads of every segment assigned by a remaining record, below the boundary too.

    Raises:
        CorruptError: a record is damaged.
    """
    for number, info in sorted(list_manifest(store, stream, incarnation).records.items()):
        try:
            record, _ = read_record(store, stream, info.key, number)
        except NotFoundError:
            continue  # another process deletes the stream, and is ahead
        for _, key in _assigned_by(record, stream):
            yield from _uploads_of(store, key)


def _assigned_by(record: Record, stream: str) -> Iterator[tuple[UUID, str]]:
    """Uuid and data object key of each segment that a record promises."""
    for edit in record.edits:
        if isinstance(edit, Assign | Rewrite):
            yield edit.uuid, data_key(stream, edit.uuid, edit.begin.ledger_id if edit.layout == 1 else None)


def _uploads_of(store: ObjectStore, key: str) -> list[UploadInfo]:
    return [upload for upload in store.list_uploads(key) if upload.key == key]


#: Keys whose uploads are listed before the first of them is judged.
_KEYS_AT_ONCE = 64
#: Attempts to delete a key that the store kept for a transient reason, and the wait before the first retry.
DELETE_ATTEMPTS_MAX = 4
RETRY_SECONDS_FIRST = 0.5


def known_entry(store: ObjectStore, stream: str) -> CatalogEntry | None:
    """The catalogue entry of a stream whose orphans can be searched; ``None``: its name was released.

    Raises:
        NotFoundError: no such stream. CorruptError, UnsupportedError: as ``read_entry``.
    """
    if (entry := read_entry(store, stream)) is None and not is_released(store, stream):
        raise NotFoundError(
            f"stream {stream} has no catalogue entry in {store.url}: the needed objects are unknown",
            hint="run `offloader ls` to list the streams; `offloader manifest rebuild` if an entry was lost",
        )
    return entry


@dataclass(slots=True)
class Tally:
    """A number of objects and their bytes."""

    objects: int = 0
    size_bytes: int = 0

    def add(self, objects: int, size_bytes: int) -> None:
        """Add to the count."""
        self.objects += objects
        self.size_bytes += size_bytes


@dataclass(slots=True)
class Reconciliation:
    """One run of the orphan search below a stream's prefix.

    Attributes:
        store: must be open for writing when ``delete``.
        is_topic: it is the name of a partitioned topic, which only has retention documents.
        settings: ``orphan_age_min`` and ``clock_skew_max``.
        delete: False: a dry run, which finds the same and writes nothing.
        now_ms: the time, when the caller has read both clocks already.
        finds_by_prefix: whether the store finds uploads by prefix, when the caller has probed it already.
    """

    store: ObjectStore
    stream: str
    _: KW_ONLY
    clock: Clock
    settings: ManifestSettings = field(default_factory=ManifestSettings)
    delete: bool = False
    now_ms: int | None = None
    finds_by_prefix: bool | None = None
    is_topic: bool = False
    needed: dict[Place, Tally] = field(default_factory=dict)
    _known: LiveSet = field(init=False)
    _witnesses: Witnesses = field(init=False)
    _entry: UUID | None = field(init=False, default=None)
    _unfinished: set[UUID] = field(init=False, default_factory=set)
    _old_manifests: dict[str, Garbage] = field(init=False, default_factory=dict)

    def leftovers(self) -> Iterator[Garbage]:
        """Each garbage object after its handling. Iterate once, to the end.

        Raises:
            InvalidCallError: not a stream's name.
            NotFoundError: no such stream, or its live manifest is unknown.
            ClockSkewError: the clocks differ too much to judge ages; nothing was deleted.
            CorruptError, UnsupportedError: the manifest can't be read; nothing of the stream was deleted.
            LostRecordsError: an object refers to a missing record. Raised at the end; no object found after it was
                deleted.
            StoreUnavailableError: the store is unreachable, or the stream was deleted or recreated during the run: run
                again.
        """
        require_stream_name(self.stream)
        prefix = retention_prefix(self.stream) if self.is_topic else stream_prefix(self.stream)
        if self.now_ms is None:
            self.now_ms = time_for_deletion_ms(
                self.store, self.clock, skew_ms_max=self.settings.clock_skew_max * 1000, ask_store=self.delete
            )
        # List first, load after: every listed object that is needed was named before the load.
        uploads = [] if self.is_topic else list(self.store.list_uploads(stream_prefix(self.stream)))
        incarnations = incarnations_in(self.store, self.stream)
        page = self.store.list(prefix)
        self._witnesses = Witnesses(self.store, self.stream)
        self._known = self._knowledge(incarnations, age_limit_ms(self.now_ms, self.settings.orphan_age_min))
        voids = self._voids()
        waiting: list[Garbage] = []
        for leftover in chain(self._judged_uploads(uploads), self._ended_leases(), self._judged_pages(page, prefix)):
            if leftover.reason.is_deletable:
                waiting.append(leftover)
            else:
                yield self._done(leftover)
            if len(waiting) == DELETE_KEYS_MAX:
                yield from self._taken(waiting)
                waiting = []
        yield from self._taken(waiting)
        self._witnesses.require_none_lost()
        yield from self._swept_manifests()
        yield from self._forgotten(voids, self.now_ms)

    def _knowledge(self, incarnations: Iterable[UUID], old_ms: int) -> LiveSet:
        entry = read_entry(self.store, self.stream) if self.is_topic else known_entry(self.store, self.stream)
        self._entry = None if entry is None else entry.incarnation
        names: ManifestState | None = None
        dead, doubtful = set(), set()
        for incarnation in {*incarnations, *([] if entry is None else [entry.incarnation])}:
            found: ManifestState | None = None
            try:
                state, boundary = load_manifest_view(self.store, self.stream, incarnation)
                found = None if boundary is None else state  # only begun, or nearly deleted
            except (CorruptError, UnsupportedError):
                if incarnation == self._entry:
                    raise
            if incarnation == self._entry and found is not None:
                names = found
            elif found is not None and found.stream_deleted:
                dead.add(incarnation)
            else:
                doubtful.add(incarnation)
        topic = topic_state(self.store, self.stream)
        return LiveSet(
            stream=self.stream,
            names=names,
            dead=frozenset(dead),
            doubtful=frozenset(doubtful),
            old_ms=old_ms,
            stopped=global_hold(self.store) is not None,
            topic=topic,
            is_stream=not self.is_topic,
            is_forgotten=entry is None and not topic.is_there and self._is_forgotten(),
        )

    def _is_forgotten(self) -> bool:
        """Whether no manifest, of the stream or a partition, could restore a missing catalogue entry."""
        if is_place(self.stream) and read_layout(self.store, self.stream) is not None:
            return False
        name = encode_stream(self.stream)
        below = chain(listed(self.store, f"{name}/manifest/"), listed(self.store, f"{name}-partition-"))
        return not (partition_streams(self.store, self.stream) or any(_manifest_of(info.key) for info in below))

    def _poll(self) -> None:
        """Reload the global stop, the entries of stream and topic, the manifest's tail and boundary."""
        stopped = global_hold(self.store) is not None
        entry, names = read_entry(self.store, self.stream), self._known.names
        try:
            if (None if entry is None else entry.incarnation) != self._entry:
                raise NotFoundError(f"stream {self.stream} was deleted or created again")
            if names is not None:
                names, boundary = refreshed(self.store, names)
                if boundary is None:
                    raise NotFoundError(f"stream {self.stream} was deleted from {self.store.url}")
        except NotFoundError as error:
            raise StoreUnavailableError(
                f"{error.message} during the search: nothing more of it is deleted", hint="run the search again"
            ) from error
        self._known = replace(self._known, names=names, stopped=stopped, topic=topic_state(self.store, self.stream))

    def _judged_uploads(self, listed: Sequence[UploadInfo]) -> Iterator[Garbage]:
        seen = {upload.upload_id for upload in listed}
        yield from self._judged(listed)
        if self.finds_by_prefix is None:
            # Without write permission it can't probe, and lists both ways.
            self.finds_by_prefix = self.delete and finds_uploads_by_prefix(self.store)
        if self.finds_by_prefix or self._known.names is None:
            return
        for upload in uploads_by_key(self.store, self._known.names):
            if upload.upload_id not in seen:
                seen.add(upload.upload_id)
                yield from self._judged([upload])

    def _judged(self, uploads: Iterable[UploadInfo]) -> Iterator[Garbage]:
        return (found for upload in uploads if (found := classify_upload(upload, self._known)) is not None)

    def _ended_leases(self) -> Iterator[Garbage]:
        for lease in leases_of(self.store, self.stream):
            if lease.ends_ms is not None and lease.ends_ms <= self._known.old_ms:
                info = ObjectInfo(lease_key(self.stream, lease.uuid), 0, "", lease.ends_ms)
                yield Garbage.of(info, self.stream, Place.LEASE, self._known.kept_or(Reason.ENDED, lease.ends_ms))

    def _judged_pages(self, page: ListPage, prefix: str) -> Iterator[Garbage]:
        while True:
            # Classify the whole page first: the facts are reloaded while it is yielded.
            for found in list(classify_page(page.objects, self._known)):
                if not isinstance(found, Garbage):
                    place, objects, size_bytes = found
                    self.needed.setdefault(place, Tally()).add(objects, size_bytes)
                elif found.place is Place.OLD_MANIFEST:
                    self._note_old_manifest(found)
                else:
                    yield found
            if page.next_after is None:
                return
            page = self.store.list(prefix, after=page.next_after)

    def _note_old_manifest(self, found: Garbage) -> None:
        """One garbage item for a whole old manifest, aged as its youngest object."""
        key = found.key.rpartition("/")[0] + "/"
        before = self._old_manifests.get(key, replace(found, size_bytes=0, objects=0))
        youngest = found if found.modified_ms > before.modified_ms else before
        self._old_manifests[key] = replace(
            youngest, key=key, size_bytes=before.size_bytes + found.size_bytes, objects=before.objects + 1
        )

    def _voids(self) -> list[Garbage]:
        """Placeholder entries of names without other remains: classified now, so that a dry run reports the same."""
        void = None if self.is_topic or self._entry is not None else unused_void(self.store, self.stream)
        found = [] if void is None else [(Place.CATALOGUE, void)]
        voids = self._known.topic.voids
        if voids and is_topic_unused(self.store, self.stream):
            found += [(Place.RETENTION, each) for each in voids]
        return [
            Garbage.of(info, self.stream, place, self._known.kept_or(Reason.LET_GO, info.modified_ms))
            for place, info in found
        ]

    def _taken(self, some: Sequence[Garbage]) -> Iterator[Garbage]:
        """Delete, and report the outcome of each."""
        if not self.delete:
            told = (self._witnesses.judged(each, self._known.names) for each in some)
            yield from (self._done(each.if_deletable(Outcome.DELETABLE)) for each in told)
            return
        waiting, wait_s = list(some), RETRY_SECONDS_FIRST
        for attempt in range(1, DELETE_ATTEMPTS_MAX + 1):
            if not waiting:
                return
            self._poll()
            # Check each object before any of them is deleted.
            again = [self._witnesses.judged(classified_again(each, self._known), self._known.names) for each in waiting]
            if self._witnesses.lost:
                again = [replace(each, reason=Reason.RECORDS_LOST) for each in again]
            yield from (self._done(each) for each in again if not each.reason.is_deletable)
            doomed = [each for each in again if each.reason.is_deletable]
            failures = self._delete(doomed)
            waiting = []
            for leftover in doomed:
                failure = failures.get(leftover.key) if leftover.place is not Place.UPLOAD else None
                if failure is None:
                    yield self._done(replace(leftover, outcome=Outcome.DELETED))
                elif failure.retryable and attempt < DELETE_ATTEMPTS_MAX:
                    waiting.append(leftover)
                else:
                    # The next run finds it again.
                    yield self._done(replace(leftover, outcome=Outcome.FAILED, problem=failure.reason))
            if waiting:
                self.clock.wait(threading.Event(), wait_s)
                wait_s *= 2

    def _delete(self, doomed: Sequence[Garbage]) -> dict[str, DeleteFailure]:
        for leftover in doomed:
            if leftover.place is Place.UPLOAD:
                self.store.abort_upload(leftover.key, leftover.upload_id)
        # A listing may show a key twice.
        keys = list(dict.fromkeys(each.key for each in doomed if each.place is not Place.UPLOAD))
        # These have one key for all incarnations: delete only the version that was classified.
        shared = {topic_key(self.stream): release_topic, intent_key(self.stream): release_intent}
        changed = [key for key in keys if key in shared and not shared[key](self.store, self.stream)]
        failures = [DeleteFailure(key, "it was changed since the listing", retryable=True) for key in changed]
        keys = [key for key in keys if key not in shared]
        return {failure.key: failure for failure in [*failures, *(self.store.delete(keys) if keys else ())]}

    def _done(self, leftover: Garbage) -> Garbage:
        """Record the dead incarnations with remains: only their manifests show the owner."""
        gone = leftover.outcome in (Outcome.DELETED, Outcome.DELETABLE)
        if not gone and leftover.reason.is_ours and leftover.place in (Place.SEGMENT, Place.UPLOAD):
            parsed = parse_object_key(leftover.key, self.stream)
            self._unfinished |= {
                each
                for each in self._known.dead | self._known.doubtful
                if parsed and is_segment_uuid_of(parsed.uuid, each)
            }
        return leftover

    def _forgotten(self, voids: Sequence[Garbage], now_ms: int) -> Iterator[Garbage]:
        for void in voids:
            if not (self.delete and void.reason.is_deletable):
                yield void.if_deletable(Outcome.DELETABLE)
                continue
            self._poll()
            forget = forget_name if void.place is Place.CATALOGUE else forget_topic
            if self._known.stopped:
                yield replace(void, reason=Reason.HELD)
            elif forget(self.store, self.stream, clock=self.clock, now_ms=now_ms):
                yield replace(void, outcome=Outcome.DELETED)
            else:
                yield replace(void, reason=Reason.NAMED_SINCE)

    def _has_old_manifests(self) -> bool:
        return any(each.reason.is_deletable for each in self._old_manifests.values())

    def _swept_manifests(self) -> Iterator[Garbage]:
        swept: Iterable[UUID] = ()
        if self.delete and self._has_old_manifests():
            # They were classified with their page: a hold on the stream, or on everything, may have been set since.
            self._poll()
            self._old_manifests = {
                key: classified_again(each, self._known) for key, each in self._old_manifests.items()
            }
        if self._has_old_manifests():
            swept = sweep_dead_incarnations(
                self.store,
                self.stream,
                clock=self.clock,
                settings=self.settings,
                dry_run=not self.delete,
                but=self._unfinished,
            )
        outcome = Outcome.DELETED if self.delete else Outcome.DELETABLE
        prefixes = {manifest_prefix(self.stream, incarnation) for incarnation in swept}
        for key, leftover in self._old_manifests.items():
            if key in prefixes:
                yield replace(leftover, outcome=outcome)
            else:
                yield replace(leftover, reason=Reason.DOUBTFUL) if leftover.reason.is_deletable else leftover


@dataclass(slots=True)
class StoreReconciliation:
    """One run of the orphan search over all streams.

    Attributes:
        settings_of: a stream's settings; of the name "": the common ones.
        failed: called with each unfinished stream and its error; the next run retries it.
        may_delete: whether garbage of a stream may be deleted, of the name "": objects below no stream; else it is only
            listed.
    """

    store: ObjectStore
    _: KW_ONLY
    clock: Clock
    settings_of: Callable[[str], ManifestSettings]
    failed: Callable[[str, OffloaderError], None]
    delete: bool = False
    may_delete: Callable[[str], bool] = lambda _: True
    needed: dict[Place, Tally] = field(default_factory=dict)

    def leftovers(self) -> Iterator[Garbage]:
        """Each garbage object: stream by stream, then those below none. Iterate once, to the end.

        Raises:
            ClockSkewError: the clocks differ too much to judge ages; nothing was deleted.
            OffloaderError: the store is unreachable.
        """
        skew_ms_max = self.settings_of("").clock_skew_max * 1000
        streams = list_streams(self.store, released=True)
        deletes = any(map(self._deletes, ["", *streams]))
        now_ms = time_for_deletion_ms(self.store, self.clock, skew_ms_max=skew_ms_max, ask_store=deletes)
        by_prefix = finds_uploads_by_prefix(self.store) if deletes else None
        for stream in streams:
            yield from self._of(stream, now_ms, by_prefix)
        yield from self._outside(now_ms)
        for stream, lost in unlisted_streams(self.store, list_streams(self.store, released=True)):
            self.failed(stream, lost)

    def _deletes(self, name: str) -> bool:
        return self.delete and self.may_delete(name)

    def _of(
        self, name: str, now_ms: int, finds_by_prefix: bool | None = None, *, is_topic: bool = False
    ) -> Iterator[Garbage]:
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

    def _outside(self, now_ms: int) -> Iterator[Garbage]:
        # Reload: streams created since the listing have their own prefix now.
        is_below = _folders_below(list_streams(self.store, released=True))
        old_ms = age_limit_ms(now_ms, self.settings_of("").orphan_age_min)
        for upload in self.store.list_uploads(""):
            info = ObjectInfo(upload.key, 0, "", upload.started_ms)
            if upload.key.startswith(PROBE_PREFIX):
                yield from self._scratch(info, old_ms, upload.upload_id)
            elif not is_below(upload.key.rpartition("/")[0]):
                yield Garbage.of(info, "", Place.UPLOAD, Reason.FOREIGN, upload.upload_id)
        names: set[str] = set()
        gone: set[str] = set()
        late: dict[tuple[str, UUID], bool] = {}
        for info in listed(self.store, ""):
            if is_below(info.key.rpartition("/")[0]):
                continue
            name, is_lease = _kept_for(info.key)
            if name is not None:
                # Collect all of it: it is listed again before a topic's entry is read.
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
                    yield Garbage.of(info, "", Place.OTHER, Reason.UNLISTED)
            else:
                yield Garbage.of(info, "", Place.OTHER, Reason.FOREIGN)

    def _late_writes(self, stream: str, incarnation: UUID, first: ObjectInfo, old_ms: int) -> Garbage | None:
        """A manifest with only late writes after its stream's deletion; ``None``: it may be a lost one."""
        stopped = global_hold(self.store) is not None
        swept = sweep_late_writes(self.store, stream, incarnation, old_ms=old_ms, dry_run=stopped or not self.delete)
        if swept is None:
            return None
        info = replace(first, key=manifest_prefix(stream, incarnation))
        found = replace(Garbage.of(info, "", Place.OLD_MANIFEST, Reason.DEAD_MANIFEST), objects=swept.objects)
        if stopped:
            return replace(found, reason=Reason.HELD)
        return replace(found, outcome=Outcome.DELETED if self.delete else Outcome.DELETABLE)

    def _scratch(self, info: ObjectInfo, old_ms: int, upload_id: str = "") -> Iterator[Garbage]:
        """Remains of interrupted probes and clock readings."""
        if info.modified_ms > old_ms:
            if not upload_id:
                self.needed.setdefault(Place.STORE, Tally()).add(1, info.size_bytes)
            return
        found = Garbage.of(info, "", Place.UPLOAD if upload_id else Place.STORE, Reason.SCRATCH, upload_id)
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


def _folders_below(streams: Iterable[str]) -> Callable[[str], bool]:
    """Tests whether folders are a stream's or below one; fast for adjacent keys."""
    prefixes = {encode_stream(stream) for stream in streams}

    @lru_cache(1)
    def is_below(folder: str) -> bool:
        levels = folder.split("/")
        return any("/".join(levels[:count]) in prefixes for count in range(1, len(levels) + 1))

    return is_below


def _place_outside(info: ObjectInfo) -> Place | None:
    """Kind of a key below no stream, where this project writes such keys."""
    if info.key.startswith(CATALOG_PREFIX):
        with suppress(FormatError):
            stream_of_catalog_key(info.key)
            return Place.CATALOGUE
        return None
    # A reader group. A deleted one keeps its generation, so groups leave no garbage.
    if info.key.startswith(GROUP_PREFIX) and group_of_key(info.key) is not None:
        return Place.RETENTION
    if is_layout_key(info.key):
        return Place.CATALOGUE
    return Place.STORE if info.key in ROOT_KEYS else None


def _kept_for(key: str) -> tuple[str | None, bool]:
    """Owner of a key below no stream, and its kind: the partitioned topic with retention documents at that key, whose
    partitions are the streams; or a missing or deleted stream with a reader's lease."""
    name, separator, _ = key.partition("/retention/")
    if separator and _is_stream(name):
        return decode_stream(name), False
    name, separator, _ = key.rpartition("/leases/")
    if separator and _is_stream(name) and lease_uuid(key, decode_stream(name)) is not None:
        return decode_stream(name), True
    return None, False


def _manifest_of(key: str) -> tuple[str, UUID] | None:
    """Stream and incarnation of an object that a manifest may name."""
    name, separator, rest = key.partition("/manifest/")
    incarnation, _, object_name = rest.partition("/")
    if not separator or not _is_stream(name) or not is_manifest_object(object_name):
        return None
    with suppress(ValueError):
        found = UUID(incarnation)
        return (decode_stream(name), found) if str(found) == incarnation else None
    return None


def _is_stream(encoded: str) -> bool:
    with suppress(FormatError):
        return RESERVED_LEVELS.isdisjoint(decode_stream(encoded).split("/"))
    return False
