"""Upload one data object and its index: parts, completion, verification; and write ranges of ledgers as such a pair."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial
from math import ceil
from typing import Protocol
from uuid import UUID

import numpy as np

from formats.block_memory import BlockMemory
from formats.checksum import crc32c
from formats.entries import EntryBatch, Position
from formats.extension import Codec
from formats.keys import Testimony, data_key, index_key, object_metadata
from formats.segment import Part, SegmentBuilder
from formats.summary import Layout, SegmentSummary
from offloader.errors import (
    ClosedError,
    CorruptError,
    InvalidCallError,
    NotFoundError,
    ObjectChangedError,
    ObjectMissingError,
    OffloaderError,
    OutcomeUnknownError,
    PreconditionFailedError,
    UnsupportedError,
)
from offloader.ledgers.base import LedgerInfo, LedgerSource
from offloader.parallel_map import both
from offloader.settings import OffloadSettings
from offloader.store.base import CREATE, OVERWRITE, ObjectInfo, ObjectStore, PartInfo, is_local
from offloader.write.hot_tier import facts_of
from offloader.write.quota import part_bytes_for

#: Completion requests of one upload, each after a check that found neither the object nor a reason to stop.
COMPLETE_ATTEMPTS_MAX = 4
#: Checks of a completely sent object, each with the store's own retries, before the segment fails and is sent again
#: under another name.
LOOKS_MAX = 4


@dataclass(slots=True, eq=False)
class SegmentUpload:
    """Uploads one segment. Every method is one or a few store requests and may run on any thread.

    Args:
        data_key, index_key: keys of the two objects, written by this upload only.
        data_metadata, index_metadata: their user metadata.
        testimony: further metadata of the data object about the record that assigned it; called when it is sent, which
            is after that record.
        before_index: called with the index when the data object is complete and before the index is sent; an error
            from it leaves the data object without an index.
    """

    store: ObjectStore
    data_key: str
    index_key: str
    data_metadata: Mapping[str, str]
    index_metadata: Mapping[str, str]
    testimony: Callable[[], Testimony | None] = lambda: None
    before_index: Callable[[bytes], None] = lambda _: None
    _lock: threading.Lock = field(default_factory=threading.Lock, init=False)
    _upload_id: str | None = field(default=None, init=False)
    _began: bool = field(default=False, init=False)
    _aborted: bool = field(default=False, init=False)
    _parts: dict[int, PartInfo] = field(default_factory=dict, init=False)
    #: The object's description after the completion.
    _completed: ObjectInfo | None = field(default=None, init=False)

    def send_part(self, part: Part) -> None:
        """Send one part; the first call begins the upload. Parts may be sent in parallel and in any order.

        A part in flight during the abort may leave the upload unfinished in the store (documented for S3's
        AbortMultipartUpload): it is aborted again after the part.
        """
        upload_id = self._begin()
        try:
            info = self.store.upload_part(self.data_key, upload_id, part.number, part.body, crc32c=part.crc32c)
        finally:
            if self._aborted:
                with suppress(OffloaderError):  # the remains are an orphan, which the orphan search deletes
                    abort_uploads(self.store, self.data_key)
        with self._lock:
            self._parts[part.number] = info

    def send_whole(self, part: Part) -> None:
        """Send a data object that is one part as a single PUT.

        Raises:
            OutcomeUnknownError: the store neither confirms nor shows the object.
        """
        try:
            self.store.put(self.data_key, part.body, mode=OVERWRITE, metadata=self._told(), crc32c=part.crc32c)
        except OutcomeUnknownError:
            info = self._look()
            if info is None or info.size_bytes != part.size_bytes:
                raise

    def complete(self) -> None:
        """Complete the upload of the parts sent.

        Raises:
            OutcomeUnknownError: the store neither confirms nor shows the object.
        """
        with self._lock:
            upload_id, parts = self._upload_id, [self._parts[number] for number in sorted(self._parts)]
        assert upload_id is not None, "complete without a part"
        for attempt in range(COMPLETE_ATTEMPTS_MAX):
            try:
                self._completed = self.store.complete_upload(self.data_key, upload_id, parts)
            except OutcomeUnknownError:
                # Without this check, a repeated completion would find no upload and look like a failure.
                self._completed = self._look()
                if self._completed is None and attempt == COMPLETE_ATTEMPTS_MAX - 1:
                    raise
            if self._completed is not None:
                return

    def verify_length(self, data_bytes: int) -> ObjectInfo:
        """Verify the length of the data object from its completion, or from a HEAD after a single PUT, whose response
        lacks it.

        Raises:
            CorruptError: its length differs from the bytes sent, or it doesn't exist.
            OutcomeUnknownError: the store is unreachable.
        """
        info = self._completed or self._look()
        if info is None or info.size_bytes != data_bytes:
            found = "nothing" if info is None else f"{info.size_bytes} bytes"
            raise CorruptError(
                f"{self.data_key} in {self.store.url}: {data_bytes} bytes were sent, but the store has {found}"
            )
        return info

    def send_index(self, index: bytes) -> None:
        """Create the index object.

        Raises:
            CorruptError: another index exists.
        """
        self.before_index(index)
        try:
            self.store.put(self.index_key, index, mode=CREATE, metadata=self.index_metadata, crc32c=crc32c(index))
        except PreconditionFailedError as error:
            existing, _ = self.store.get(self.index_key)
            if existing != index:
                raise CorruptError(
                    f"{self.index_key} in {self.store.url} exists, but isn't the index of this data"
                ) from error

    def abort(self) -> None:
        """Abort the upload and its parts; it can't be completed afterwards. No effect after a single PUT."""
        with self._lock:
            self._aborted = True
            began = self._began
        if began:
            abort_uploads(self.store, self.data_key)

    def _begin(self) -> str:
        with self._lock:
            if self._aborted:
                raise ClosedError(f"the upload of {self.data_key} was aborted")
            if self._upload_id is None:
                self._began = True
                self._upload_id = self.store.begin_upload(self.data_key, metadata=self._told())
            return self._upload_id

    def _told(self) -> Mapping[str, str]:
        testimony = self.testimony()
        return {**self.data_metadata, **({} if testimony is None else testimony.as_metadata())}

    def _look(self) -> ObjectInfo | None:
        """The data object, after all of it was sent; ``OutcomeUnknownError``: it is unknown whether it exists."""
        for left in reversed(range(LOOKS_MAX)):
            try:
                return self.store.head(self.data_key)
            except NotFoundError:
                return None
            except OffloaderError as error:
                if not left or not error.retryable:
                    raise OutcomeUnknownError(
                        f"{self.data_key} was sent to {self.store.url}, but its state is unknown: {error.message}",
                        hint="check whether the object exists before repeating the upload",
                    ) from error
        raise AssertionError("the last look returns or raises")


def abort_uploads(store: ObjectStore, key: str) -> None:
    """Abort every unfinished upload of exactly ``key``, including those whose id was lost with a response."""
    for upload in [upload for upload in store.list_uploads(key) if upload.key == key]:
        store.abort_upload(upload.key, upload.upload_id)


def upload_of(
    store: ObjectStore,
    stream: str,
    uuid: UUID,
    ledger_id: int | None,
    *,
    incarnation: UUID,
    epoch: int,
    codec: str,
    extra_metadata: Mapping[str, str] | None = None,
    testimony: Callable[[], Testimony | None] = lambda: None,
    at_root: bool = False,
) -> SegmentUpload:
    """Create the upload of one segment; sends nothing.

    Args:
        stream, ledger_id: decide the keys with ``uuid``; a ledger for V1 only.
        incarnation, epoch: written to the objects, so that a bucket is self-describing.
        codec: the setting.
        extra_metadata: further metadata for both objects.
        testimony: as for ``SegmentUpload``.
        at_root: they go where Pulsar puts them, see ``SegmentRecord.object_keys``.
    """
    from offloader import __version__

    # Declared before the first block is compressed or not: metadata is sent with the upload's first request.
    version = 1 if codec == "none" else 2
    data, index = (
        {
            **(extra_metadata or {}),
            **object_metadata(
                role=role,
                stream=stream,
                format_version=version,
                software_version=__version__,
                incarnation=incarnation,
                epoch=epoch,
            ),
        }
        for role in ("data", "index")
    )
    folder = "" if at_root else stream
    keys = data_key(folder, uuid, ledger_id), index_key(folder, uuid, ledger_id)
    return SegmentUpload(store, *keys, data, index, testimony)


@dataclass(slots=True, eq=False)
class BoundedUploader:
    """Sends parts for the one thread that makes them.

    Args:
        parts_max: parts sent in parallel; above one, the caller has memory for them and for the part being made.
        send_aside: runs a call on another thread, eventually; ``None``: the caller sends parts one by one.
    """

    _upload: SegmentUpload
    _parts_max: int
    _send_aside: Callable[[Callable[[], object]], object] | None
    _changed: threading.Condition = field(default_factory=threading.Condition, init=False)
    _under_way: int = field(default=0, init=False)
    _failure: BaseException | None = field(default=None, init=False)

    def send(self, part: Part) -> None:
        """Send a part, possibly later; waits while ``parts_max`` are in flight.

        Raises: the error of this part or an earlier one.
        """
        if self._send_aside is None or self._parts_max == 1:
            self._upload.send_part(part)
            return
        with self._changed:
            self._changed.wait_for(lambda: self._under_way < self._parts_max)
            if self._failure is not None:
                raise self._failure
            self._under_way += 1
        # This thread's context (the priority of its requests) applies to them.
        context = copy_context()
        self._send_aside(lambda: context.run(self._send, part))

    def finish(self) -> None:
        """Wait until all parts are sent; raises the error of a failed one."""
        self.wait()
        if self._failure is not None:
            raise self._failure

    def wait(self) -> None:
        """Wait until no part is in flight, sent or failed; each request has a deadline."""
        with self._changed:
            self._changed.wait_for(lambda: self._under_way == 0)

    def _send(self, part: Part) -> None:
        failure: BaseException | None = None
        try:
            if self._failure is None:
                self._upload.send_part(part)
        except BaseException as error:
            failure = error
        with self._changed:
            self._failure = self._failure or failure
            self._under_way -= 1
            self._changed.notify_all()


def verify_objects(
    store: ObjectStore, stream: str, uuid: UUID, summary: SegmentSummary, *, at_root: bool = False
) -> tuple[str, str]:
    """Compare the stored lengths of both objects with the recorded ones; returns their keys.

    Args:
        at_root: whether they are where Pulsar puts them, see ``SegmentRecord.object_keys``.

    Raises:
        ObjectMissingError: one of them doesn't exist.
        ObjectChangedError: one of them has another length.
    """
    ledger_id = summary.begin.ledger_id if summary.layout is Layout.V1 else None
    folder = "" if at_root else stream
    keys = data_key(folder, uuid, ledger_id), index_key(folder, uuid, ledger_id)

    def check(key: str, size_bytes: int) -> None:
        try:
            found = store.head(key).size_bytes
        except NotFoundError as cause:
            raise ObjectMissingError(f"{key} of segment {uuid} of {stream} isn't in {store.url}") from cause
        if found != size_bytes:
            raise ObjectChangedError(f"{key} in {store.url} has {found} bytes, but {size_bytes} were recorded")

    both(
        partial(check, keys[0], summary.data_bytes),
        partial(check, keys[1], summary.index_bytes),
        sequential=is_local(store),
    )
    return keys


#: Payload bytes of one read from the hot tier.
READ_BYTES = 4 * 1024 * 1024
#: Minimum of a read: the rest of a piece may have entries larger than the ledger's mean.
READ_BYTES_MIN = 64 * 1024


class LedgerHandle(Protocol):
    """A ledger of the hot tier, opened for reading."""

    @property
    def info(self) -> LedgerInfo:
        """The source's facts about it."""

    def read(self, first_entry_id: int, max_bytes: int) -> EntryBatch | None:
        """Entries from ``first_entry_id`` on, at least one, about ``max_bytes`` of payload; ``None`` at the end."""


@dataclass(frozen=True, slots=True)
class SourceLedger:
    """A ledger of a ``LedgerSource``."""

    source: LedgerSource
    info: LedgerInfo

    def read(self, first_entry_id: int, max_bytes: int) -> EntryBatch | None:
        batch = self.source.read(Position(self.info.ledger_id, first_entry_id), max_bytes)
        return batch if batch is not None and batch.ledger_id == self.info.ledger_id else None


@dataclass(frozen=True, slots=True)
class LedgerPiece:
    """Entries ``first_entry_id`` .. ``last_entry_id`` of one ledger."""

    ledger: LedgerHandle
    first_entry_id: int
    last_entry_id: int


def offload_ledger(ledger: LedgerHandle, upload: SegmentUpload, settings: OffloadSettings) -> SegmentSummary:
    """Read the whole ledger and upload it; both objects are in the store and verified when this returns.

    The ledger's recorded size isn't trusted (Pulsar has closed ledgers with a recorded length of 0): entries are
    counted.

    Raises:
        InvalidCallError: the ledger is open or empty; ``UnsupportedError``: it has a gap.
        CorruptError: the source returned fewer, more or other entries than the ledger has; the store keeps at most the
            remains of an aborted upload.
    """
    info = ledger.info
    if not info.closed or info.entries == 0:
        state = "open" if not info.closed else "empty"
        raise InvalidCallError(f"ledger {info.ledger_id} is {state} and can't be offloaded", hint="close it first")
    return write_segment([LedgerPiece(ledger, 0, info.last_entry_id)], Layout.V1, upload, settings)


def write_segment(
    pieces: Sequence[LedgerPiece],
    layout: Layout,
    upload: SegmentUpload,
    settings: OffloadSettings,
    *,
    is_stopped: Callable[[], bool] = lambda: False,
    part_bytes: int = 0,
    parts_max: int = 1,
    send_aside: Callable[[Callable[[], object]], object] | None = None,
    memory: BlockMemory | None = None,
) -> SegmentSummary:
    """Read the pieces and upload them as one segment; both objects are verified when this returns.

    Args:
        pieces: in order, not empty.
        is_stopped: called before each read; when True the upload is aborted.
        part_bytes: length of the parts; 0: by the settings.
        parts_max, send_aside: as for ``BoundedUploader``.
        memory: as for ``SegmentBuilder``.

    Raises:
        UnsupportedError: a ledger has a gap.
        CorruptError: the source returned other entries than the pieces.
        ClosedError: ``is_stopped`` returned True.
    """
    builder = SegmentBuilder(
        layout=layout,
        block_bytes=settings.block_size,
        part_bytes=part_bytes or part_bytes_for(settings),
        codec=Codec[settings.codec.upper()],
        memory=memory,
    )
    ahead = BoundedUploader(upload, parts_max, send_aside)
    multipart = False
    try:
        for piece in pieces:
            for batch in _batches(piece):
                if is_stopped():
                    raise ClosedError(f"the upload of {upload.data_key} was stopped")
                for part in builder.append(batch):
                    multipart = True
                    ahead.send(part)
        finished = builder.finish({piece.ledger.info.ledger_id: facts_of(piece.ledger.info) for piece in pieces})
        _require_whole(pieces, finished.summary)
        multipart = multipart or len(finished.parts) > 1
        for part in finished.parts:
            (ahead.send if multipart else upload.send_whole)(part)
        if multipart:
            ahead.finish()
            upload.complete()
        upload.verify_length(finished.summary.data_bytes)
        upload.send_index(finished.index)
    except BaseException as error:
        ahead.wait()
        try:
            upload.abort()
        except OffloaderError as left:
            # The cause matters more than the remaining parts, which are swept later.
            error.add_note(f"its unfinished upload couldn't be aborted: {left}")
        raise
    return finished.summary


def _batches(piece: LedgerPiece) -> Iterator[EntryBatch]:
    """Exactly the entries of a piece, without a gap, or an error."""
    info, expected = piece.ledger.info, piece.first_entry_id
    # At most a full read, and little more than the known size of the rest.
    mean_bytes = 1.02 * info.size_bytes / info.entries if info.size_bytes and info.entries else READ_BYTES
    while expected <= piece.last_entry_id:
        left = piece.last_entry_id - expected + 1
        batch = piece.ledger.read(expected, min(READ_BYTES, max(READ_BYTES_MIN, ceil(mean_bytes * left))))
        # An open ledger may have grown since it was listed; a closed one never does.
        beyond = batch is not None and info.closed and batch.last.entry_id >= info.entries
        if batch is None or beyond or batch.first.entry_id < expected:
            found = "nothing" if batch is None else f"{batch.first}..{batch.last}"
            raise CorruptError(
                f"ledger {info.ledger_id} has {info.entries} entries, but at {expected} the source returns {found}"
            )
        _require_no_gap(batch, expected)
        batch = batch.slice(0, min(len(batch), left))
        yield batch
        expected += len(batch)


def _require_no_gap(batch: EntryBatch, expected: int) -> None:
    missing = expected if batch.first.entry_id > expected else None
    if missing is None and batch.last.entry_id - batch.first.entry_id != len(batch) - 1:
        missing = int(batch.entry_ids[np.flatnonzero(np.diff(batch.entry_ids) != 1)[0]]) + 1
    if missing is not None:
        raise UnsupportedError(
            f"ledger {batch.ledger_id} has a gap at entry {missing} and can't be offloaded as a whole",
            hint="only the streaming method records gaps",
        )


def _require_whole(pieces: Sequence[LedgerPiece], summary: SegmentSummary) -> None:
    begin = Position(pieces[0].ledger.info.ledger_id, pieces[0].first_entry_id)
    end = Position(pieces[-1].ledger.info.ledger_id, pieces[-1].last_entry_id)
    entries = sum(piece.last_entry_id - piece.first_entry_id + 1 for piece in pieces)
    if (summary.begin, summary.end, summary.entries) != (begin, end, entries):
        raise CorruptError(
            f"{summary.begin}..{summary.end} ({summary.entries} entries) was uploaded, {begin}..{end} "
            f"({entries}) was requested"
        )
