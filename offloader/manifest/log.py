"""One writer's commits to a stream's manifest: rules M11 to M16 of docs/explanation/manifest.md.

**The problem.** A store changes one object at a time and has no locks. A response may be lost although the request took
effect, and a process may stall for days between two requests. The log has to prove that its record is part of the
manifest before its caller acknowledges an entry or deletes anything (M16).

**State.** A log has no view at first, then a view (``state``), and an epoch after ``open_epoch``. The view is never
ahead of the manifest. It may be behind: other writers commit between two calls, and the log reads their records at a
load, or when the number that it wants is taken. A view never moves back: a manifest that ends before it has lost
records. At most one record is in doubt (``_in_doubt``): it was sent, and its outcome is unknown. No other record is
created before that is settled.

**Steps of a commit.** Commits of one log are sequential.

1. ``_settle`` resolves the record in doubt. If it is committed and has the same edits, the commit is complete.
2. ``_record`` applies the edits, with those that the guard adds, to the view. A refused edit writes nothing (M12).
3. ``_put`` creates the record under the next number if that is free (M13). A random nonce makes its bytes unique.
4. ``_confirm`` reads the boundary. The record is committed if the boundary keeps its number, and names neither another
   record of that number nor a later one (M15). Existence alone proves nothing: a deleted number is free again.
5. The view gets the record. A checkpoint is written if one is due; its failure fails no commit (M29).

In all other cases ``_look_for`` loads the manifest and decides whether the record is in it. A number that is kept must
have its bytes. If a checkpoint includes it, the view must contain all its edits, or the later records must lead from it
to the view. If the number was deleted, the view must contain all its edits. If another record came first, steps 2 to 4
are repeated with the next number.

**After a crash.** Before step 3 nothing is durable. After step 3 the record exists, and the next load applies it if the
boundary keeps its number; the caller has acknowledged nothing. A request that is still in flight competes with the next
writer's record for one number, and the store refuses one of the two. After step 4 only a checkpoint may be missing.

**A lost response (M14).** ``_put`` sends the same bytes again until the store creates the record, or reports that the
number exists; then the bytes are compared. A missing object proves nothing: the first request may still arrive. After
``UNKNOWN_REPEATS_MAX`` repeats the record remains in doubt, and the next commit or ``open_epoch`` begins with it. Other
errors aren't trusted either, except throttling: the record is read. If it was sent once, and can't be read, an error
other than a 404 ends the doubt.

**Fencing (M11).** ``open_epoch`` commits the next epoch. The former owner gets no message. Its next record finds the
number taken, the load shows the other epoch, and the commit raises ``FencedError``. Until then it may upload objects,
but it can't commit anything. Records of maintainers (retention, cleanup, commands) carry the current epoch, except the
record that deletes the stream. They fence no owner: it continues with the next number.
"""

from __future__ import annotations

import os
import socket
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from typing import Protocol
from uuid import UUID

from formats.entries import Position
from formats.errors import FormatError
from formats.keys import Testimony, record_key
from formats.manifest import (
    Assign,
    Boundary,
    CatalogEntry,
    Edit,
    Failed,
    Offloaded,
    OpenEpoch,
    Record,
    Recover,
    Replace,
    ReserveLedgers,
    Rewrite,
    StreamDeleted,
    Writer,
    encode_record,
)
from offloader.errors import (
    FencedError,
    InvalidCallError,
    LimitReachedError,
    NotFoundError,
    OffloaderError,
    OutcomeUnknownError,
    PreconditionFailedError,
    StoreMismatchError,
    StoreUnavailableError,
    ThrottledError,
)
from offloader.manifest.apply import apply_edits, are_applied, fold, is_applied
from offloader.manifest.boundary import create_boundary, name_record, read_boundary, read_record, require_never_begun
from offloader.manifest.catalog import create_entry, list_streams, read_entry, require_entry
from offloader.manifest.checkpoint import Shortening, checkpoint_now
from offloader.manifest.load import LoadedManifest, load_manifest, refreshed
from offloader.manifest.state import EditRefusedError, ManifestState, newest_of
from offloader.runtime.clock import Clock
from offloader.settings import ManifestSettings
from offloader.store.base import CREATE, ObjectStore
from offloader.stream_names import require_stream_name

__all__ = ["EpochGuard", "ManifestLog", "list_streams", "load_manifest"]

#: Repeats of a record whose outcome is unknown, in one commit.
UNKNOWN_REPEATS_MAX = 5
#: Records after one in doubt that are read to prove that it is committed.
LATER_RECORDS_MAX = 1000
#: Records of other writers that one commit yields to before it fails.
CONFLICTS_MAX = 100

#: Edits that begin or end a segment: only the owner of its epoch knows which uploads are in flight. Only an owner's
#: ``failed`` lets garbage collection delete an assigned uuid's objects.
_OWNERS_EDITS = (Assign, Offloaded, Failed, Rewrite, Replace, Recover)
#: Of these a maintainer may make within a named epoch: they replace segments that are offloaded, which an owner never
#: changes. A promise may be failed by anyone: its replacement is refused from then on, and the next epoch fails it too.
_REPLACING_EDITS = (Failed, Rewrite, Replace)


class EpochGuard(Protocol):
    """What an owner compares and adds at the records of its epoch. Called with the log's lock held."""

    def opening(self, state: ManifestState) -> Sequence[Edit]:
        """The edits of the record that follows ``state`` and opens the next epoch; the last one is ``OpenEpoch``.

        Raises:
            StoreMismatchError: refused, unless a newer view than ``state`` exists.
        """

    def recorded(self, state: ManifestState, edits: Sequence[Edit]) -> tuple[Position | None, Sequence[Edit]]:
        """The end of the owner's source, and the edits of the record that follows ``state``."""

    def committed(self, state: ManifestState) -> None:
        """Called after each committed record, whose view is ``state``."""


class ManifestLog:
    """One writer's access to a stream's manifest. Thread-safe: commits of one log are sequential.

    Args:
        writer_name: identifies the writer to operators; default host and process.
        writer_url: where that writer can be reached, empty when it can't.
        incarnation: use this one, whatever the catalogue's; for deletion and rebuild. It has its boundary.
        checkpoint_aside: runs a call on another thread soon, so that no commit waits for a checkpoint; ``None``: the
            commit at which it is due writes the checkpoint.
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
        settings: ManifestSettings | None = None,
        incarnation: UUID | None = None,
        checkpoint_aside: Callable[[Callable[[], object]], object] | None = None,
    ) -> None:
        require_stream_name(stream)
        self.store = store
        self.stream = stream
        self._clock = clock
        self._writer_name = writer_name or f"{socket.gethostname()}/{os.getpid()}"
        self._writer_url = writer_url
        self._entropy = entropy
        self._settings = settings or ManifestSettings()
        self._lock = threading.Lock()
        self._state = None if incarnation is None else ManifestState(stream=stream, incarnation=incarnation)
        self._loaded = False
        self._epoch: int | None = None
        self._guard: EpochGuard | None = None
        self._epoch_nonce = ""
        self._in_doubt: tuple[Record, bytes] | None = None
        self._was_absent = False
        self._shortening = Shortening(store, entropy, self._settings, checkpoint_aside)

    @property
    def state(self) -> ManifestState:
        """The view after the last load or commit."""
        if self._state is None:
            raise InvalidCallError(
                f"the manifest of {self.stream} is not loaded", hint="call load() or open_epoch() first"
            )
        return self._state

    @property
    def is_loaded(self) -> bool:
        """Whether there is a view."""
        return self._state is not None

    @property
    def epoch(self) -> int | None:
        """The epoch this log opened, ``None`` before that."""
        return self._epoch

    def testimony(self) -> Testimony | None:
        """The assignment evidence for data objects written now under a uuid that this log's epoch assigned before."""
        return newest_of(self.state.assigning, self._epoch_nonce)

    def new_token(self) -> str:
        """A random token: 32 hexadecimal digits."""
        return self._entropy(16).hex()

    def load(self, *, create: bool = False) -> ManifestState:
        """Reads the records added since the last load.

        Args:
            create: create a missing stream (a catalogue entry and a boundary, no record).

        Raises:
            NotFoundError: no such stream, and ``create`` is off.
            CorruptError: damaged records.
        """
        with self._lock:
            is_empty = False
            if self._state is None:
                incarnation, is_empty = self._found(create=create)
                self._state = ManifestState(stream=self.stream, incarnation=incarnation)
            if not is_empty:
                loaded = self._refreshed()
                if loaded.boundary is None and self._state.record_id:
                    raise self._deleted()
                self._state = loaded.state
            self._loaded = True
            return self._state

    def _found(self, *, create: bool) -> tuple[UUID, bool]:
        """The stream's incarnation, created if missing; whether it certainly had no record just now."""
        if not create:
            return require_entry(self.store, self.stream).incarnation, False
        entry, is_new = create_entry(
            *(self.store, self.stream, lambda: UUID(bytes=self._entropy(16), version=4), self._clock.now_ms()),
            over_segments=self._settings.create_over_segments,
        )
        if not create_boundary(self.store, self.stream, entry.incarnation, is_new=is_new):
            return entry.incarnation, False
        self._require_alive(entry)
        # There never was a boundary, and no record is created before it.
        return entry.incarnation, is_new or require_never_begun(self.store, self.stream, entry.incarnation)

    def _require_alive(self, entry: CatalogEntry) -> None:
        """After creating a boundary: checks that the stream wasn't deleted since its entry was read.

        A deletion removes the entry before the boundary. If the entry still exists, there never was a boundary.
        Otherwise the new boundary would make a deleted incarnation look alive.
        """
        if read_entry(self.store, self.stream) != entry:
            raise NotFoundError(
                f"stream {self.stream} was deleted while it was opened", hint="open it again to create it"
            )

    def open_epoch(
        self,
        guard: EpochGuard | None = None,
        *,
        check: Callable[[ManifestState], object] = lambda _: None,
    ) -> int:
        """Takes over the stream: commits the next epoch, which fences the previous owner.

        Args:
            guard: asked for the edits of each record of this epoch; an exception from it ends the attempt.
            check: called with each view that the epoch is to follow, as another writer may commit in between; an
                exception from it ends the attempt.

        Raises:
            OutcomeUnknownError, StoreUnavailableError: outcome unknown; call again.
        """
        with self._lock:
            settled = self._settle()
        if settled is not None and settled.epoch == self.state.epoch and isinstance(settled.edits[-1], OpenEpoch):
            # An earlier call opened it without receiving the response.
            self._epoch, self._epoch_nonce = settled.epoch, settled.writer.nonce
            return settled.epoch
        for attempt in range(CONFLICTS_MAX):
            state = self.load(create=True) if attempt or not self._loaded else self.state
            if state.stream_deleted:
                raise NotFoundError(f"stream {self.stream} was deleted", hint="wait until its deletion is complete")
            check(state)
            wanted = state.epoch + 1
            try:
                edits = [OpenEpoch(wanted)] if guard is None else guard.opening(state)
            except StoreMismatchError:
                # This view may only be older than the note: a hot release or another start made it meanwhile.
                if self.load().record_id == state.record_id:
                    raise
                continue
            self._guard = guard
            with suppress(EditRefusedError):  # another writer opened an epoch meanwhile: ours is the next one
                self._commit(state.incarnation, state.epoch, edits)
                self._epoch, self._epoch_nonce = wanted, self.state.owner.nonce
                return wanted
        raise StoreUnavailableError(f"stream {self.stream}: other writers opened epochs first, {CONFLICTS_MAX} times")

    def commit(self, edits: Sequence[Edit]) -> ManifestState:
        """Commits edits as the owner of the epoch this log opened.

        Raises:
            FencedError: another epoch was opened since, or the stream was deleted. Nothing was committed.
            EditRefusedError: the edits don't fit the manifest. Nothing was committed.
            OutcomeUnknownError: the outcome is unknown; commit the same edits again, or nothing.
        """
        if self._epoch is None:
            raise InvalidCallError(f"stream {self.stream}: no epoch is open", hint="call open_epoch() first")
        return self._commit_within(self._epoch, edits)

    def _commit_within(self, epoch: int, edits: Sequence[Edit]) -> ManifestState:
        """Commits edits unless another epoch was opened; raises as ``commit``."""
        requirement = self.state.incarnation, epoch
        try:
            return self._commit(*requirement, edits)
        except EditRefusedError as error:
            # Read back first: the view may be old, or a refused record may have landed.
            known = self.state.record_id
            self.load()
            try:
                self.state.check(*requirement)
            except EditRefusedError as fenced:
                raise FencedError(fenced.message, hint="this writer stops and deletes nothing") from error
            if are_applied(self.state, edits):
                return self.state
            if self.state.record_id == known:
                raise
            return self._commit(*requirement, edits)

    def commit_as_maintainer(self, edits: Sequence[Edit], *, epoch: int | None = None) -> ManifestState:
        """Commits edits without owning the stream: retention, cleanup, commands.

        The record carries the current epoch; its owner continues with the next number.

        Args:
            epoch: the one that the edits belong to; they are refused once another one is open. Only then may they
                replace segments: promise new ones, give up such promises, and replace old ones.

        Raises:
            InvalidCallError: edits reserved to the owner, such as failing a segment that it may be completing.
            EditRefusedError: the edits don't fit the current manifest. Nothing was committed: reload and plan again.
            FencedError: the stream was deleted, or another epoch than the named one is open.
            OutcomeUnknownError: the outcome is unknown; commit the same edits again, or nothing.
        """
        deletes = any(isinstance(edit, StreamDeleted) for edit in edits)
        owners = _OWNERS_EDITS if deletes else (*_OWNERS_EDITS, OpenEpoch)
        promised = {each.uuid for each in self.state.rewrites}
        for edit in edits:
            replaces = epoch is not None and isinstance(edit, _REPLACING_EDITS)
            if isinstance(edit, owners) and not (replaces and (not isinstance(edit, Failed) or edit.uuid in promised)):
                raise InvalidCallError(
                    f"stream {self.stream}: {edit.kind} is reserved for the owner of an epoch",
                    hint="call open_epoch() first",
                )
        if epoch is not None:
            return self._commit_within(epoch, edits)
        if not self.state.record_id:
            # The stream's creator may have crashed before it wrote the boundary.
            entry = read_entry(self.store, self.stream)
            if entry is None or entry.incarnation != self.state.incarnation:
                raise NotFoundError(f"stream {self.stream} was deleted in the meantime")
            if create_boundary(self.store, self.stream, entry.incarnation):
                self._require_alive(entry)
        return self._commit(self.state.incarnation, None, edits)

    def checkpoint(self) -> ManifestState:
        """Writes a checkpoint of the newest view, unless there is one."""
        self.load()
        with self._lock:
            self._shortening.lose_track()
            self._state = checkpoint_now(
                self.store, self.state, self._entropy, requests_max=self._settings.record_requests_max
            ).state
            return self._state

    def _commit(self, incarnation: UUID, epoch: int | None, edits: Sequence[Edit]) -> ManifestState:
        with self._lock:
            settled = self._settle()
            guard = self._guard if epoch is not None else None
            if settled is not None and _edits_of_caller(settled) == tuple(edits):
                return self.state  # the caller repeats edits that were committed already
            for _ in range(CONFLICTS_MAX):
                self.state.check(incarnation, epoch)
                record = self._record(edits, guard)
                try:
                    body = encode_record(record)
                except FormatError as error:
                    raise LimitReachedError(
                        f"stream {self.stream}: {len(record.edits)} edits don't fit into one record: {error}",
                        hint="commit fewer edits together; nothing was changed",
                    ) from error
                if self._create(record, body):
                    return self.state
            raise StoreUnavailableError(f"stream {self.stream}: other writers committed first, {CONFLICTS_MAX} times")

    def _record(self, edits: Sequence[Edit], guard: EpochGuard | None) -> Record:
        state = self.state
        source_end, edits = (None, edits) if guard is None else guard.recorded(state, edits)
        after = apply_edits(state, edits, record_id=state.record_id + 1)
        return Record(
            record_id=after.record_id,
            incarnation=state.incarnation,
            epoch=after.epoch,
            writer=Writer(self._writer_name, self._writer_url, self._entropy(16).hex()),
            # Times never go back, whatever the clock does: readers compare them.
            time_ms=max(self._clock.now_ms(), state.time_ms),
            edits=tuple(edits),
            totals=after.totals(),
            source_end=source_end,
            previous_nonce=state.nonce,
        )

    def _settle(self) -> Record | None:
        """Resolves a record with an unknown outcome; returns it if it is committed."""
        if self._in_doubt is None:
            return None
        record, body = self._in_doubt
        return record if self._create(record, body, repeated=True) else None

    def _create(self, record: Record, body: bytes, *, repeated: bool = False) -> bool:
        """Creates ``record``; returns whether it is the one under its id. On False the view is loaded up to date.

        ``repeated``: an earlier call sent the same bytes and may have written them.
        """
        self._in_doubt = (record, body)
        key = record_key(self.stream, record.incarnation, record.record_id)
        try:
            is_written = self._put(key, body, repeated=repeated)
            is_ours = self._confirm(record) if is_written else self._look_for(record)
            if is_ours and self._guard is not None:
                self._guard.committed(self.state)
            return is_ours
        except OutcomeUnknownError:
            raise
        except OffloaderError as error:
            if self._in_doubt is None:
                raise
            # The record may exist: the caller can't treat this as a failure without effect, whatever the failed call
            # was.
            raise OutcomeUnknownError(
                f"stream {self.stream}: record {record.record_id} may be committed: {error.message}", hint=error.hint
            ) from error

    def _put(self, key: str, body: bytes, *, repeated: bool) -> bool:
        """Creates the record ``body`` under ``key``; False if another one is there. A refused one isn't in doubt."""
        for attempt in range(UNKNOWN_REPEATS_MAX + 1):
            try:
                self.store.put(key, body, mode=CREATE)
                return True
            except PreconditionFailedError:
                return self._stands(key, body)
            except OutcomeUnknownError:
                # Neither building another record nor trusting a 404 is safe: the PUT may still land.
                if attempt == UNKNOWN_REPEATS_MAX:
                    raise
                repeated = True
            except OffloaderError as error:
                # A refusal may be wrong: from a store with conflicting requests, or a gateway that sent it twice.
                if not isinstance(error, ThrottledError):
                    with suppress(OffloaderError):
                        return self.store.get(key)[0] == body
                if not repeated and not isinstance(error, NotFoundError):  # which is no refusal of a PUT
                    self._in_doubt = None
                raise
        raise AssertionError("the last repeat raises")

    def _stands(self, key: str, body: bytes) -> bool:
        """Whether the record under ``key`` is this one."""
        with suppress(NotFoundError):
            return self.store.get(key)[0] == body
        return False  # it was there and is deleted: the boundary has passed it

    def _confirm(self, record: Record) -> bool:
        """Reads the boundary after creating a record: one below it isn't committed, because its number was deleted."""
        try:
            stored = read_boundary(self.store, self.stream, record.incarnation)
        except NotFoundError as error:
            self._in_doubt = None
            raise self._deleted() from error
        if record.record_id < stored.boundary.first_kept_id or stored.contradicts(
            record.record_id, record.writer.nonce
        ):
            return self._look_for(record)
        self._in_doubt = None
        if record.record_id > self.state.record_id:  # else a load has folded it already
            self._state = fold(self.state, record)
        self._state = self._shortening.after_commit(self.state, record, stored)
        return True

    def _deleted(self) -> FencedError:
        """The error for a manifest that is missing after it existed: it was deleted, or the store is absent for a
        while."""
        self._was_absent = True
        return FencedError(f"stream {self.stream} was deleted", hint="this writer stops and deletes nothing")

    def _refreshed(self) -> LoadedManifest:
        # Requests sent to an absent store won't be in it when it returns.
        requests_max = self._settings.record_requests_max
        loaded = refreshed(self.store, self.state, requests_max=requests_max, anew=self._was_absent)
        self._was_absent = False
        if loaded.state.record_id != self.state.record_id:
            self._shortening.lose_track()
        return loaded

    def _look_for(self, record: Record) -> bool:
        """Loads, and returns whether the manifest contains ``record`` after all.

        Its number has another record or was deleted, perhaps after a checkpoint folded the record. Or the boundary
        names a later record, which follows this one or a lost one of that number.
        """
        state, boundary = self._refreshed()
        if boundary is None:
            self._in_doubt = None
            raise self._deleted()
        self._state = state
        is_ours = self._contains(record, boundary.boundary)
        # Not before: if one of these requests fails, the record may still be committed.
        self._in_doubt = None
        return is_ours

    def _contains(self, record: Record, kept: Boundary) -> bool:
        if record.record_id >= kept.first_kept_id:
            key = record_key(self.stream, record.incarnation, record.record_id)
            stands = self.state.record_id >= record.record_id and self._stands(key, encode_record(record))
            # A checkpoint may hold another record of that number, which was lost.
            is_newer = record.record_id > kept.checkpoint_id
            return stands and (is_newer or is_applied(self.state, record) or self._leads_to_view(record))
        return is_applied(self.state, record)

    def _leads_to_view(self, record: Record) -> bool:
        """Whether the records after this one, each of which names the one before it, end with the view's newest.

        Then the record is committed, also if later records have removed everything in it: a segment can be offloaded,
        truncated, retired and purged before its owner hears of its commit.
        """
        nonce = record.writer.nonce
        later = range(record.record_id + 1, self.state.record_id + 1)
        if len(later) > LATER_RECORDS_MAX:
            return False
        for number in later:
            key = record_key(self.stream, record.incarnation, number)
            try:
                found, _ = read_record(self.store, self.stream, key, number)
            except NotFoundError:
                return False
            if found.previous_nonce != nonce:
                return False
            nonce = found.writer.nonce
        return nonce == self.state.nonce

    def name_newest(self) -> ManifestState:
        """Makes the boundary name the newest record of this log's view, or one that follows it.

        Call this before deleting data because of a record, or promising that data is kept, and check the returned view:
        if that record is lost later, every reader detects it. Requests: GET and PUT of the boundary.

        Raises:
            NotFoundError: the stream was deleted.
            CorruptError: the boundary names another record under the number of ours, or later ones that don't exist.
                OutcomeUnknownError, StoreUnavailableError: outcome unknown; delete nothing and call again.
        """
        with self._lock:
            for _ in range(CONFLICTS_MAX):
                stored = read_boundary(self.store, self.stream, self.state.incarnation)
                if stored.contradicts(self.state.record_id, self.state.nonce):
                    self._state = self._refreshed().state
                    if self.state.record_id >= stored.boundary.newest_id:
                        return self.state
                elif name_record(self.store, self.state, stored):
                    return self.state
            raise StoreUnavailableError(
                f"stream {self.stream}: other processes changed its boundary {CONFLICTS_MAX} times"
            )


def _edits_of_caller(record: Record) -> tuple[Edit, ...]:
    """A record's edits without those that a guard added."""
    return tuple(edit for edit in record.edits if not isinstance(edit, ReserveLedgers))
