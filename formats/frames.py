"""Frames of entries with an end mark, and the object of a fill, which keeps entries that readers aren't given.

A frame is ``[length int32][entry id int64][bytes]``; the end mark ``[-1 int32][CRC-32C of all frames int64]``, big
endian. A body without a right end mark is incomplete.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np

from formats.block import decode_run, interleave
from formats.checksum import check_crc32c, crc32c
from formats.entries import ENTRY_HEADER_BYTES, Buffer, Bytes, EntryBatch, Pieces, byte_array
from formats.errors import (
    BadMagicError,
    InconsistentError,
    TruncatedError,
    UnsupportedVersionError,
    located,
    require_at_most,
    require_bytes,
    require_equal,
)

#: Maximum bytes of frames, end mark included, that are decoded together.
FRAMES_BYTES_MAX = 8 * 1024 * 1024
#: Bytes of one encoded piece, unless a single entry is larger.
PIECE_BYTES = 1024 * 1024
#: Stands in the end mark where a frame has its length.
END_LENGTH = -1
#: Of the end mark, and of a frame's header.
_MARK = struct.Struct(">iq")
END_MARK_BYTES = _MARK.size


def encode_frames(batches: Iterable[EntryBatch], *, piece_bytes: int = PIECE_BYTES) -> Iterator[Buffer]:
    """The frames of some batches of one ledger, in pieces, and the end mark.

    Raises:
        InconsistentError: the batches don't ascend, or are of several ledgers.
    """
    checksum, last = 0, None
    for batch in batches:
        if not len(batch):
            continue
        if last is not None and (batch.ledger_id != last.ledger_id or batch.first <= last):
            raise InconsistentError("frames out of order", expected=f"entries after {last}", found=batch.first)
        last = batch.last
        ends = batch.offsets[1:].astype(np.int64) - int(batch.offsets[0])
        ends += ENTRY_HEADER_BYTES * np.arange(1, len(batch) + 1)
        start, done = 0, 0
        while start < len(batch):
            stop = max(start + 1, int(ends.searchsorted(done + piece_bytes, "right")))
            piece = interleave(batch.slice(start, stop))
            checksum = crc32c(piece, checksum)
            yield piece
            start, done = stop, int(ends[stop - 1])
    yield _MARK.pack(END_LENGTH, checksum)


def decode_frames(data: Buffer, *, ledger_id: int) -> EntryBatch:
    """The entries in a whole body of frames; their publish times are unknown.

    Raises:
        LimitExceededError: more than ``FRAMES_BYTES_MAX``.
        TruncatedError: no end mark at the end, or a frame that exceeds the body.
        ChecksumMismatchError: the frames aren't those of the end mark.
        InconsistentError: entry ids that don't ascend from 0 or more, or a length that is none.
    """
    view = byte_array(data)
    require_at_most("frames", len(view), FRAMES_BYTES_MAX, unit="bytes")
    require_bytes("end mark of the frames", len(view), END_MARK_BYTES)
    stop = len(view) - END_MARK_BYTES
    length, checksum = _MARK.unpack_from(view.data, stop)
    if length != END_LENGTH:
        raise TruncatedError("no end mark after the frames", offset=stop, expected=END_LENGTH, found=length)
    run = view[:stop]
    check_crc32c("CRC-32C of the frames", run, checksum, offset=stop)
    return _entries(run, ledger_id)


def _entries(run: Bytes, ledger_id: int) -> EntryBatch:
    if not len(run):
        return EntryBatch.build(ledger_id, 0, [])
    require_bytes("frame", len(run), ENTRY_HEADER_BYTES)
    _, first = _MARK.unpack_from(run.data)
    if first < 0:
        raise InconsistentError("entry id", offset=4, expected="0 or more", found=first)
    batch = decode_run(
        run, header_bytes=0, length=len(run), first_entry_id=first, ledger_id=ledger_id, run_bytes_max=len(run)
    )
    # A run may end with padding, frames end with their body.
    if batch.wire_bytes != len(run):
        raise InconsistentError("frame", offset=batch.wire_bytes, expected="a length", found="padding")
    return batch


_FILL_MAGIC = b"OFIL"
#: Version of a fill's object; a reader refuses any other.
FILL_VERSION = 1
#: Magic, version, ledger, first and last entry, payload bytes, entries; a CRC-32C of these follows.
_FILL = struct.Struct(">4sIqqqqI")
_CHECKSUM = struct.Struct(">I")
FILL_HEADER_BYTES = _FILL.size + _CHECKSUM.size
#: Most bytes of a fill's object.
FILL_BYTES_MAX = FILL_HEADER_BYTES + FRAMES_BYTES_MAX


@dataclass(frozen=True, slots=True)
class FillHeader:
    """The beginning of a fill's object: which entries of which ledger it has."""

    ledger_id: int
    first_entry_id: int
    last_entry_id: int
    entries: int
    payload_bytes: int


def encode_fill(batch: EntryBatch) -> Pieces:
    """The object of a fill with these entries, at least one.

    Raises:
        LimitExceededError: more than ``FILL_BYTES_MAX``, which ``decode_fill`` would refuse.
    """
    require_at_most("a fill", FILL_HEADER_BYTES + batch.wire_bytes + END_MARK_BYTES, FILL_BYTES_MAX, unit="bytes")
    first, last = batch.first.entry_id, batch.last.entry_id
    fixed = _FILL.pack(_FILL_MAGIC, FILL_VERSION, batch.ledger_id, first, last, batch.payload_bytes, len(batch))
    return Pieces([fixed + _CHECKSUM.pack(crc32c(fixed)), *encode_frames([batch])])


def decode_fill_header(data: Buffer) -> FillHeader:
    """The header at the start of ``data``; what follows it is ignored.

    Raises:
        TruncatedError, BadMagicError, ChecksumMismatchError, UnsupportedVersionError: of these kinds.
    """
    view = byte_array(data)
    require_bytes("header of a fill", len(view), FILL_HEADER_BYTES)
    magic, version, ledger_id, first, last, payload_bytes, entries = _FILL.unpack_from(view.data)
    if magic != _FILL_MAGIC:
        raise BadMagicError("not a fill", offset=0, expected=_FILL_MAGIC.hex(), found=magic.hex())
    (stored,) = _CHECKSUM.unpack_from(view.data, _FILL.size)
    check_crc32c("CRC-32C of a fill's header", view[: _FILL.size], stored, offset=_FILL.size)
    if version != FILL_VERSION:
        raise UnsupportedVersionError("version of a fill", expected=FILL_VERSION, found=version)
    return FillHeader(ledger_id, first, last, entries, payload_bytes)


def decode_fill(data: Buffer, *, object_name: str = "") -> EntryBatch:
    """The entries of a whole fill object; raises ``FormatError``."""
    with located(object_name):
        header = decode_fill_header(data)
        with located("", FILL_HEADER_BYTES):
            batch = decode_frames(byte_array(data)[FILL_HEADER_BYTES:], ledger_id=header.ledger_id)
        if not len(batch):
            raise InconsistentError("a fill", expected="entries", found="none")
        first, last = batch.first.entry_id, batch.last.entry_id
        found = FillHeader(batch.ledger_id, first, last, len(batch), batch.payload_bytes)
        require_equal("header of a fill", header, found)
        return batch
