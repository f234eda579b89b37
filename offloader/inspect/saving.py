"""Estimates the saving and the cost of compression for a segment, measured on a sample of its blocks."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass

from formats.block import BLOCK_HEADER_BYTES, END_MARKER_BYTES, BlockHeader, decode_block_header
from formats.entries import EntryBatch
from formats.errors import TruncatedError
from formats.extension import Codec, compress
from formats.segment import SegmentBuilder
from formats.summary import SegmentSummary
from offloader.runtime.clock import Clock
from offloader.store.base import ByteRange, ObjectStore

#: Maximum and minimum bytes of a sample of a data object.
SAMPLE_BYTES_MAX = 4 * 1024 * 1024
SAMPLE_BYTES_MIN = 64 * 1024
#: Length of the parts in which a sample is encoded.
PART_BYTES = SAMPLE_BYTES_MAX
#: Minimum saving, as a share of the stored bytes, to recommend compression.
SAVING_MIN = 0.1
#: Readers of compressed objects.
READERS = "offloader and a broker with its plugin read compressed objects; Pulsar's own offloader rejects them"


@dataclass(frozen=True, slots=True, kw_only=True)
class Saving:
    """Sizes of one sample.

    Attributes:
        sample_bytes: stored bytes of the sample's blocks.
        zstd_bytes: bytes of the same blocks with ``offload.codec = "zstd"``.
        now, then: stored bytes of the whole segment per byte of payload, now and with compression as estimated.
        bytes_per_s: speed of the compression on one core; ``None``: too fast to measure.
    """

    sample_bytes: int
    zstd_bytes: int
    now: float
    then: float
    bytes_per_s: float | None

    @property
    def is_worth_it(self) -> bool:
        """Whether compression saves at least ``SAVING_MIN`` of the stored bytes."""
        return self.zstd_bytes <= self.sample_bytes * (1 - SAVING_MIN)

    @property
    def advice(self) -> str:
        """The setting to change, and the readers of the result; empty: the saving is too small."""
        return f'offload.codec = "zstd" for new segments; {READERS}' if self.is_worth_it else ""

    def __str__(self) -> str:
        speed = "" if self.bytes_per_s is None else f", at {self.bytes_per_s / 1e6:,.0f} MB/s on one core"
        return (
            f"stored bytes are {self.now:.0%} of the payload, with zstd {self.then:.0%} "
            f"(a sample of {self.sample_bytes / 1024**2:.1f} MiB{speed})"
        )


def measure_saving(store: ObjectStore, key: str, summary: SegmentSummary, *, clock: Clock) -> Saving | None:
    """The saving for an uncompressed segment. Reads at most ``SAMPLE_BYTES_MAX`` of its data object.

    Args:
        key: of the data object.

    Returns:
        ``None``: the segment is compressed or small, or its first block is larger than a sample.

    Raises:
        OffloaderError: the object can't be read. FormatError: it is damaged.
    """
    if summary.compressed or summary.data_bytes < SAMPLE_BYTES_MIN or not summary.payload_bytes:
        return None
    return _measured(store.get(key, ByteRange(0, min(summary.data_bytes, SAMPLE_BYTES_MAX)))[0], summary, clock)


def saving_of(entries: Sequence[EntryBatch], *, block_bytes: int, clock: Clock) -> Saving | None:
    """The saving for entries that aren't offloaded yet, ascending, in blocks of ``block_bytes``.

    Returns:
        ``None``: too few entries for a sample.
    """
    if not any(each.payload_bytes for each in entries):
        return None
    builder = SegmentBuilder(block_bytes=block_bytes, part_bytes=PART_BYTES)
    parts = [part for each in entries for part in builder.append(each)]
    finished = builder.finish()
    return _measured(b"".join(bytes(part.body) for part in [*parts, *finished.parts]), finished.summary, clock)


def _measured(body: bytes, summary: SegmentSummary, clock: Clock) -> Saving | None:
    """The saving for a segment, from its first blocks."""
    stored = packed = 0
    started_s = clock.monotonic_s()
    for header, run in _blocks(body):
        table_bytes = 0 if header.extension is None else header.extension.table_bytes
        smaller = BLOCK_HEADER_BYTES + len(compress(Codec.ZSTD, run)) + END_MARKER_BYTES + table_bytes
        stored += header.block_bytes
        packed += min(smaller, header.block_bytes)
    if stored < SAMPLE_BYTES_MIN:
        return None
    seconds = clock.monotonic_s() - started_s
    now = (summary.data_bytes + summary.index_bytes) / summary.payload_bytes
    return Saving(
        sample_bytes=stored,
        zstd_bytes=packed,
        now=now,
        then=now * packed / stored,
        bytes_per_s=stored / seconds if seconds > 0 else None,
    )


def _blocks(body: bytes) -> Iterator[tuple[BlockHeader, bytes]]:
    """The whole blocks at the start of a data object, and their entries."""
    at = 0
    with suppress(TruncatedError):
        while at < len(body):
            header = decode_block_header(body[at : at + BLOCK_HEADER_BYTES])
            end = at + header.block_bytes
            if end > len(body):
                return
            entries = end if header.extension is None else at + header.header_bytes + header.extension.stored_bytes
            yield header, body[at + header.header_bytes : entries]
            at = end
