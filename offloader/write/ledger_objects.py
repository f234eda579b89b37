"""Write a range of the hot tier, or a ledger of the cold tier, as one object pair."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import blake2b
from math import ceil
from typing import Protocol

import numpy as np

from formats.entries import EntryBatch, Position
from formats.errors import FormatError
from formats.extension import Codec
from formats.metadata.messages import PulsarLedger
from formats.segment import Layout, SegmentBuilder, SegmentSummary
from offloader.errors import Closed, Corrupt, InvalidCall, Unsupported
from offloader.ledgers.base import LedgerInfo, LedgerSource
from offloader.manifest.state import ManifestState, SegmentRecord
from offloader.read.cold import objects_of
from offloader.read.fetch import Fetcher
from offloader.read.reader import Reader
from offloader.settings import OffloadSettings
from offloader.write.hot_tier import facts_of
from offloader.write.quota import part_bytes_for
from offloader.write.upload import BoundedUploader, SegmentUpload

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
        InvalidCall: the ledger is open or empty; ``Unsupported``: it has a gap.
        Corrupt: the source returned fewer, more or other entries than the ledger has; the store keeps at most the
            remains of an aborted upload.
    """
    info = ledger.info
    if not info.closed or info.entries == 0:
        state = "open" if not info.closed else "empty"
        raise InvalidCall(f"ledger {info.ledger_id} is {state} and can't be offloaded", hint="close it first")
    return write_segment([LedgerPiece(ledger, 0, info.last_entry_id)], Layout.V1, upload, settings)


def write_segment(
    pieces: Sequence[LedgerPiece],
    layout: Layout,
    upload: SegmentUpload,
    settings: OffloadSettings,
    *,
    is_stopped: Callable[[], bool] = lambda: False,
    parts_max: int = 1,
    send_aside: Callable[[Callable[[], object]], object] | None = None,
) -> SegmentSummary:
    """Read the pieces and upload them as one segment; both objects are verified when this returns.

    Args:
        pieces: in order, not empty.
        is_stopped: called before each read; when True the upload is aborted.
        parts_max, send_aside: as for ``BoundedUploader``.

    Raises:
        Unsupported: a ledger has a gap.
        Corrupt: the source returned other entries than the pieces.
        Closed: ``is_stopped`` returned True.
    """
    builder = SegmentBuilder(
        layout=layout,
        block_bytes=settings.block_bytes,
        part_bytes=part_bytes_for(settings),
        codec=Codec[settings.codec.upper()],
    )
    ahead = BoundedUploader(upload, parts_max, send_aside)
    multipart = False
    try:
        for piece in pieces:
            for batch in _batches(piece):
                if is_stopped():
                    raise Closed(f"the upload of {upload.data_key} was stopped")
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
    except BaseException:
        ahead.wait()
        upload.abort()
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
            raise Corrupt(
                f"ledger {info.ledger_id} has {info.entries} entries, but at {expected} the source gives {found}"
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
        raise Unsupported(
            f"ledger {batch.ledger_id} has a gap at entry {missing} and can't be offloaded as a whole",
            hint="only the streaming method records gaps",
        )


def _require_whole(pieces: Sequence[LedgerPiece], summary: SegmentSummary) -> None:
    begin = Position(pieces[0].ledger.info.ledger_id, pieces[0].first_entry_id)
    end = Position(pieces[-1].ledger.info.ledger_id, pieces[-1].last_entry_id)
    entries = sum(piece.last_entry_id - piece.first_entry_id + 1 for piece in pieces)
    if (summary.begin, summary.end, summary.entries) != (begin, end, entries):
        raise Corrupt(
            f"{summary.begin}..{summary.end} ({summary.entries} entries) went up, {begin}..{end} ({entries}) was asked"
        )


class EntryDigest:
    """Digest of entries, independent of batch boundaries: ids, lengths, publish times and payloads."""

    def __init__(self) -> None:
        self._digests = [blake2b() for _ in range(4)]

    def add(self, batch: EntryBatch) -> None:
        columns = (batch.entry_ids, batch.lengths, batch.publish_times_ms)
        payloads = batch.data[int(batch.offsets[0]) : int(batch.offsets[-1])]
        pieces = (*(np.ascontiguousarray(column, dtype="<i8").data for column in columns), payloads)
        for digest, piece in zip(self._digests, pieces, strict=True):
            digest.update(piece)

    def value(self) -> bytes:
        return b"".join(each.digest() for each in self._digests)


class ColdLedger:
    """Entries of one ledger as readers get them (``LedgerHandle``), read once, from ``begin`` to ``end``.

    Attributes:
        info: the ledger.
        digest: of the entries read so far.
    """

    def __init__(self, reader: Reader, begin: Position, end: Position, info: LedgerInfo) -> None:
        self.info = info
        self.digest = EntryDigest()
        self._batches = reader.scan(begin, end, READ_BYTES)

    def read(self, first_entry_id: int, max_bytes: int) -> EntryBatch | None:  # noqa: ARG002 - the scan's own size
        batch = next(self._batches, None)
        if batch is not None:
            assert batch.first.entry_id >= first_entry_id, "a scan goes forward"
            self.digest.add(batch)
        return batch


def ledger_info(fetcher: Fetcher, state: ManifestState, segment: SegmentRecord, ledger_id: int) -> LedgerInfo:
    """Facts about a ledger from the manifest and the index of its last segment.

    Raises:
        Corrupt, ObjectMissing, ObjectChanged: the index is damaged.
    """
    objects = objects_of(state.stream, segment, fetcher.store, fetcher.settings.relocate)
    segment_map = fetcher.index(objects)
    known = PulsarLedger(ledger_id=ledger_id)
    if segment_map.layout is Layout.V2:
        [metadata] = [each.metadata for each in segment_map.ledgers if each.ledger_id == ledger_id]
        try:
            known = PulsarLedger.decode(metadata)
        except FormatError as error:
            raise Corrupt(f"{objects.index_key}: {error}") from error
    last = state.closed_ledgers.get(ledger_id)
    return LedgerInfo(
        ledger_id=ledger_id,
        closed=last is not None,
        entries=0 if last is None else last + 1,
        size_bytes=known.size_bytes or 0,
        created_ms=0,
        closed_ms=known.closed_ms,
    )
