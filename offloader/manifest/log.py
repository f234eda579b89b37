"""A stream's manifest in the bucket: load it, commit to it.

Owns all I/O on manifest records, the boundary and the catalogue entry. Must never act on a commit whose outcome it
doesn't know, and never build a second record while one is in doubt.

The protocol (docs/MANIFEST.md): record N + 1 is created with If-None-Match; who creates it, has committed. A PUT
without an answer is repeated with identical bytes until the id exists, then whose bytes are there decides. After
creating, the boundary is read: an id below it was deleted meanwhile and "winning" it again means nothing.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Sequence
from uuid import UUID

from formats.errors import FormatError
from formats.keys import boundary_key, catalog_key, catalog_prefix, record_key, stream_of_catalog_key
from formats.manifest import (
    Boundary,
    CatalogEntry,
    Edit,
    OpenEpoch,
    Record,
    Writer,
    decode_boundary,
    decode_catalog_entry,
    decode_record,
    encode_boundary,
    encode_catalog_entry,
    encode_record,
)
from offloader.clock import Clock
from offloader.errors import (
    Corrupt,
    Fenced,
    InvalidCall,
    NotFound,
    OffloaderError,
    OutcomeUnknown,
    PreconditionFailed,
    StoreUnavailable,
)
from offloader.manifest.apply import apply_edits, fold
from offloader.manifest.state import EditRefused, ManifestState, Requirement
from offloader.store.base import CREATE, ObjectStore

__all__ = ["ManifestLog", "list_streams", "load_manifest"]

#: Records that somebody else may create ahead of us during one commit before it gives up.
CONFLICTS_MAX = 100
#: Times one commit repeats a record whose outcome is unknown before it reports that.
UNKNOWN_REPEATS_MAX = 5

_FIRST_BOUNDARY = Boundary(first_kept_id=1, checkpoint_id=0)


def load_manifest(store: ObjectStore, stream: str) -> ManifestState:
    """The newest view of a stream's manifest, for readers.

    Raises:
        NotFound: no such stream.
        Corrupt: a record, the boundary or the catalogue entry is damaged.
        StoreUnavailable: the store doesn't answer.
    """
    entry = _read_catalog_entry(store, stream)
    if entry is None:
        raise NotFound(f"stream {stream} isn't in {store.url}", hint="`offloader ls` lists the streams")
    return _load_tail(store, ManifestState(stream=stream, incarnation=entry.incarnation))


def list_streams(store: ObjectStore, *, prefix: str = "") -> list[str]:
    """Names of the streams in a store that begin with ``prefix``, sorted. One listing of the catalogue."""
    found: list[str] = []
    after: str | None = ""
    while after is not None:
        page = store.list(catalog_prefix(), after=after)
        names = [_stream_named_by(info.key) for info in page.objects]
        found += [name for name in names if name is not None and name.startswith(prefix)]
        after = page.next_after
    return sorted(found)


class ManifestLog:
    """One writer's hold on a stream's manifest. Thread-safe: commits of one log happen one after another.

    Args:
        store: where the manifest is.
        stream: the stream's name.
        clock: for the records' times.
        writer_name: for people, who is asked about a record; default host and process.
        writer_url: where that writer can be reached, empty when it can't.
        entropy: source of random bytes for nonces and incarnations.
    """

    def __init__(
        self,
        store: ObjectStore,
        stream: str,
        *,
        clock: Clock,
        writer_name: str = "",
        writer_url: str = "",
        entropy: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self.store = store
        self.stream = stream
        self._clock = clock
        self._writer_name = writer_name or f"{socket.gethostname()}/{os.getpid()}"
        self._writer_url = writer_url
        self._entropy = entropy
        self._lock = threading.Lock()
        self._state: ManifestState | None = None
        self._epoch: int | None = None
        self._in_doubt: tuple[Record, bytes] | None = None

    @property
    def state(self) -> ManifestState:
        """The view after the last load or commit."""
        if self._state is None:
            raise InvalidCall(f"the manifest of {self.stream} isn't loaded", hint="call load() or open_epoch() first")
        return self._state

    @property
    def epoch(self) -> int | None:
        """The epoch this log opened, ``None`` before that."""
        return self._epoch

    def load(self, *, create: bool = False) -> ManifestState:
        """Reads what is new since the last load.

        Args:
            create: make the stream when it doesn't exist (a catalogue entry and a boundary, no record).

        Raises:
            NotFound: no such stream, and ``create`` is off.
            Corrupt: damaged records.
        """
        with self._lock:
            if self._state is None:
                entry = _read_catalog_entry(self.store, self.stream)
                if entry is None and create:
                    entry = self._create_stream()
                if entry is None:
                    raise NotFound(f"stream {self.stream} isn't in {self.store.url}")
                if create:
                    self._create_boundary(entry.incarnation)
                self._state = ManifestState(stream=self.stream, incarnation=entry.incarnation)
            self._state = _load_tail(self.store, self._state)
            return self._state

    def open_epoch(self) -> int:
        """Takes the stream: commits the next epoch, which fences whoever had the one before.

        Raises:
            OutcomeUnknown, StoreUnavailable: the store doesn't tell; call again.
        """
        for _ in range(CONFLICTS_MAX):
            state = self.load(create=True)
            if state.stream_deleted:
                raise NotFound(f"stream {self.stream} was deleted", hint="wait until its deletion is complete")
            wanted = state.epoch + 1
            try:
                self._commit(Requirement(incarnation=state.incarnation, epoch=state.epoch), [OpenEpoch(wanted)])
            except EditRefused:
                continue  # another writer opened an epoch in between: ours is the one after it
            self._epoch = wanted
            return wanted
        raise StoreUnavailable(f"stream {self.stream}: {CONFLICTS_MAX} other writers opened epochs meanwhile")

    def commit(self, edits: Sequence[Edit]) -> ManifestState:
        """Commits edits as the owner of the epoch this log opened.

        Raises:
            Fenced: another epoch was opened since, or the stream was deleted. Nothing was committed.
            EditRefused: the edits don't fit the manifest. Nothing was committed.
            OutcomeUnknown: the store doesn't tell; commit the same edits again, or nothing.
        """
        if self._epoch is None:
            raise InvalidCall(f"stream {self.stream}: no epoch is open", hint="call open_epoch() first")
        requirement = Requirement(incarnation=self.state.incarnation, epoch=self._epoch)
        try:
            return self._commit(requirement, edits)
        except EditRefused as error:
            try:
                self.state.check(requirement)
            except EditRefused as fenced:
                raise Fenced(fenced.message, hint="this writer stops and deletes nothing") from error
            raise

    def _commit(self, requirement: Requirement, edits: Sequence[Edit]) -> ManifestState:
        with self._lock:
            settled = self._settle()
            if settled is not None and settled.edits == tuple(edits):
                return self.state  # the caller repeats what turned out to be committed already
            for _ in range(CONFLICTS_MAX):
                self.state.check(requirement)
                record = self._record(edits)
                if self._create(record, encode_record(record)):
                    return self.state
            raise StoreUnavailable(f"stream {self.stream}: {CONFLICTS_MAX} records of other writers came first")

    def _record(self, edits: Sequence[Edit]) -> Record:
        state = self.state
        record_id = state.record_id + 1
        after = apply_edits(state, edits, record_id=record_id)
        return Record(
            record_id=record_id,
            incarnation=state.incarnation,
            epoch=after.epoch,
            writer=Writer(self._writer_name, self._writer_url, self._entropy(16).hex()),
            # Times never go back, whatever the clock does: readers compare them.
            time_ms=max(self._clock.now_ms(), state.time_ms),
            edits=tuple(edits),
            totals=after.totals(),
        )

    def _settle(self) -> Record | None:
        """Finds out what became of a record that was in doubt; the record if it is committed."""
        if self._in_doubt is None:
            return None
        record, body = self._in_doubt
        return record if self._create(record, body, repeated=True) else None

    def _create(self, record: Record, body: bytes, *, repeated: bool = False) -> bool:
        """Whether ``record`` is the one under its id. On False the view is loaded up to date.

        ``repeated``: an earlier call sent the same bytes and may have written them.
        """
        self._in_doubt = (record, body)
        try:
            if self._put(record, body, repeated=repeated):
                return self._confirm(record)
        except OutcomeUnknown:
            raise
        except OffloaderError as error:
            if self._in_doubt is None:
                raise
            # The record may be there: to the caller this is not "nothing happened", whatever the call that failed.
            raise OutcomeUnknown(
                f"stream {self.stream}: record {record.record_id} may be committed: {error.message}", hint=error.hint
            ) from error
        self._in_doubt = None
        self._state = _load_tail(self.store, self.state)
        return False

    def _put(self, record: Record, body: bytes, *, repeated: bool) -> bool:
        """Creates the record, with as many repeats as its outcome needs; False when another record has its id."""
        key = record_key(self.stream, record.incarnation, record.record_id)
        for attempt in range(UNKNOWN_REPEATS_MAX + 1):
            try:
                self.store.put(key, body, mode=CREATE)
            except PreconditionFailed:
                return self.store.get(key)[0] == body
            except OutcomeUnknown:
                # Neither building another record nor believing a 404 is safe: the PUT may still land.
                if attempt == UNKNOWN_REPEATS_MAX:
                    raise
                repeated = True
            except OffloaderError:
                if not repeated:
                    self._in_doubt = None  # refused before anything was written
                raise
            else:
                return True
        raise AssertionError("the last repeat raises")

    def _confirm(self, record: Record) -> bool:
        """Reads the boundary after creating a record: a number below it was deleted, so creating it is nothing."""
        try:
            boundary = _read_boundary(self.store, self.stream, record.incarnation)
        except NotFound as error:
            self._in_doubt = None
            raise Fenced(f"stream {self.stream} was deleted", hint="this writer stops and deletes nothing") from error
        self._in_doubt = None
        if record.record_id < boundary.first_kept_id:
            # What this log knows may be deleted by now, record by record: only a load from the beginning tells.
            self._state = _load_tail(self.store, ManifestState(stream=self.stream, incarnation=record.incarnation))
            return False
        if record.record_id > self.state.record_id:  # else a load has met it already
            self._state = fold(self.state, record)
        return True

    def _require_own_level(self) -> None:
        """No stream's name may be the beginning of another's levels: their keys would lie in each other's place."""
        levels = self.stream.split("/")
        above = ["/".join(levels[:count]) for count in range(1, len(levels))]
        clash = next((name for name in above if _read_catalog_entry(self.store, name) is not None), None)
        if clash is None:
            below = self.store.list(catalog_key(self.stream) + "/", limit=1).objects
            clash = _stream_named_by(below[0].key) if below else None
        if clash is not None:
            raise InvalidCall(
                f"stream {self.stream} can't be created: stream {clash} exists, and one name begins with the other",
                hint="choose a name beside it",
            )

    def _create_stream(self) -> CatalogEntry:
        self._require_own_level()
        incarnation = UUID(bytes=self._entropy(16), version=4)
        entry = CatalogEntry(self.stream, incarnation, self._clock.now_ms())
        try:
            self.store.put(catalog_key(self.stream), encode_catalog_entry(entry), mode=CREATE)
        except PreconditionFailed:
            existing = _read_catalog_entry(self.store, self.stream)
            if existing is None:
                raise StoreUnavailable(f"stream {self.stream} appears and vanishes in {self.store.url}") from None
            return existing
        return entry

    def _create_boundary(self, incarnation: UUID) -> None:
        key = boundary_key(self.stream, incarnation)
        try:
            self.store.head(key)
        except NotFound:
            try:
                self.store.put(key, encode_boundary(_FIRST_BOUNDARY), mode=CREATE)
            except PreconditionFailed:
                return


def _get_if_there(store: ObjectStore, key: str) -> bytes | None:
    try:
        return store.get(key)[0]
    except NotFound:
        return None


def _stream_named_by(key: str) -> str | None:
    try:
        return stream_of_catalog_key(key)
    except FormatError:
        return None  # something else that lies in the catalogue's place: not ours to judge


def _read_catalog_entry(store: ObjectStore, stream: str) -> CatalogEntry | None:
    try:
        key = catalog_key(stream)
    except FormatError as error:
        raise InvalidCall(str(error)) from error
    data = _get_if_there(store, key)
    if data is None:
        return None
    try:
        entry = decode_catalog_entry(data, object_name=key)
    except FormatError as error:
        raise Corrupt(f"the catalogue entry of stream {stream} is damaged: {error}") from error
    if entry.stream != stream:
        raise Corrupt(f"{key} in {store.url} names stream {entry.stream}, not {stream}")
    return entry


def _read_boundary(store: ObjectStore, stream: str, incarnation: UUID) -> Boundary:
    key = boundary_key(stream, incarnation)
    data, _ = store.get(key)
    try:
        return decode_boundary(data, object_name=key)
    except FormatError as error:
        raise Corrupt(f"the boundary of stream {stream} is damaged: {error}") from error


def _load_tail(store: ObjectStore, state: ManifestState) -> ManifestState:
    """``state`` and every record after it, found by number: no listing is trusted for order or completeness."""
    if state.record_id == 0:
        _require_no_checkpoint(store, state)
    while True:
        key = record_key(state.stream, state.incarnation, state.record_id + 1)
        data = _get_if_there(store, key)
        if data is None:
            return state
        try:
            state = fold(state, decode_record(data, object_name=key))
        except (FormatError, EditRefused) as error:
            raise Corrupt(f"manifest of stream {state.stream}, record {state.record_id + 1}: {error}") from error


def _require_no_checkpoint(store: ObjectStore, state: ManifestState) -> None:
    # Old records may be gone once a checkpoint exists; reading on from record 1 would then show an empty stream.
    try:
        boundary = _read_boundary(store, state.stream, state.incarnation)
    except NotFound:
        return  # the stream is just being created: its first record isn't there either
    if boundary != _FIRST_BOUNDARY:
        raise Corrupt(
            f"the manifest of stream {state.stream} has a checkpoint, which this release can't read",
            hint="use a later release",
        )
