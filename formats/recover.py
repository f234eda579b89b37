"""Recovers a segment's index and summary from its data object alone.

Checks every block of a data object with our extension. Holds at most one block and the last input in memory.
"""

from __future__ import annotations

from collections.abc import Mapping

from formats.block import BLOCK_HEADER_BYTES, BlockHeader, Layout, decode_block, decode_block_header
from formats.block_builder import EncodedBlock
from formats.checksum import crc32c
from formats.compression import Codec
from formats.entries import Buffer, EntryBatch, byte_array
from formats.errors import Inconsistent, LimitExceeded, Truncated
from formats.extension import BlockExtension
from formats.segment_map import LedgerFacts, LedgerSpan, SegmentSummary, describe_segment

__all__ = ["SegmentRecovery"]


class SegmentRecovery:
    """Reads a data object from its first byte to its last and rebuilds its index.

    With the same part size and the same facts the index is the writer's own, byte for byte. Not thread-safe.

    Args:
        layout: V1 or V2.
        part_bytes: length of the uploaded parts, whose numbers are in an index.
        object_name: for error messages.
        block_bytes_max: limit of a block's size.
        decompressed_bytes_max: limit of a run of entries.
        ledger_id: the ledger of a V1 object, whose blocks don't contain it.
    """

    def __init__(
        self,
        *,
        layout: Layout = Layout.V2,
        part_bytes: int,
        object_name: str = "",
        block_bytes_max: int,
        decompressed_bytes_max: int,
        ledger_id: int | None = None,
    ) -> None:
        self._layout = layout
        self._part_bytes = part_bytes
        self._object_name = object_name
        self._block_bytes_max = block_bytes_max
        self._decompressed_bytes_max = decompressed_bytes_max
        self._ledger_id = ledger_id
        self._pending = bytearray()
        self._offset = 0
        self._crc32c = 0
        self._spans: dict[int, LedgerSpan] = {}
        self._blocks: list[tuple[int, EncodedBlock]] = []

    @property
    def entries(self) -> int:
        """Entries found so far."""
        return sum(span.entries for span in self._spans.values())

    def feed(self, data: Buffer) -> None:
        """Reads the object's next bytes and checks the blocks that they complete.

        Raises:
            FormatError: of every kind; nothing else, whatever the bytes are. The object isn't a whole segment of ours.
        """
        self._crc32c = crc32c(data, self._crc32c)
        self._pending += byte_array(data).data
        start = 0
        while len(self._pending) - start >= BLOCK_HEADER_BYTES:
            # A copy of the header, so that the bytearray can shrink below.
            header = self._header(bytes(self._pending[start : start + BLOCK_HEADER_BYTES]))
            if len(self._pending) - start < header.block_bytes:
                break
            self._take(header, bytes(self._pending[start : start + header.block_bytes]))
            start += header.block_bytes
        del self._pending[:start]

    def finish(self, facts: Mapping[int, LedgerFacts] | None = None) -> tuple[bytes, SegmentSummary]:
        """The index object and the summary.

        Args:
            facts: the source's facts of the ledgers; missing ledgers count as open.

        Raises:
            Truncated: the object ends within a block, or has none.
        """
        if self._pending or not self._blocks:
            raise Truncated(
                "data object",
                object_name=self._object_name,
                offset=self._offset,
                expected="whole blocks, at least one",
                found=f"{len(self._blocks)} blocks and {len(self._pending)} bytes",
            )
        return describe_segment(
            layout=self._layout,
            part_bytes=self._part_bytes,
            data_bytes=self._offset,
            data_crc32c=self._crc32c,
            spans=tuple(self._spans.values()),
            blocks=self._blocks,
            facts=facts or {},
            extension=True,
        )

    def _header(self, data: bytes) -> BlockHeader:
        header = decode_block_header(data, object_name=self._object_name, offset=self._offset)
        if header.layout is not self._layout or header.extension is None:
            raise Inconsistent(
                "block of a segment",
                object_name=self._object_name,
                offset=self._offset,
                expected=f"{self._layout.name} with our extension",
                found=f"{header.layout.name}{'' if header.extension else ' without it'}",
            )
        if header.block_bytes > self._block_bytes_max:
            raise LimitExceeded(
                "block is too large",
                object_name=self._object_name,
                offset=self._offset,
                expected=f"at most {self._block_bytes_max}",
                found=header.block_bytes,
            )
        return header

    def _take(self, header: BlockHeader, data: bytes) -> None:
        assert header.extension is not None
        batch = decode_block(
            data,
            object_name=self._object_name,
            offset=self._offset,
            block_bytes_max=self._block_bytes_max,
            decompressed_bytes_max=self._decompressed_bytes_max,
            ledger_id=self._ledger_id if self._layout is Layout.V1 else None,
        )
        self._count(batch)
        self._blocks.append((self._offset, _described(batch, header.extension)))
        self._offset += header.block_bytes

    def _count(self, batch: EntryBatch) -> None:
        newest = next(reversed(self._spans.values())) if self._spans else None
        span = self._spans.get(batch.ledger_id)
        ascends = newest is None or (batch.first > (newest.ledger_id, newest.last_entry_id))
        if not ascends:
            raise Inconsistent(
                "entries out of order",
                object_name=self._object_name,
                offset=self._offset,
                expected=f"after {newest.ledger_id}:{newest.last_entry_id}" if newest else None,
                found=batch.first,
            )
        self._spans[batch.ledger_id] = LedgerSpan(
            batch.ledger_id,
            batch.first.entry_id if span is None else span.first_entry_id,
            batch.last.entry_id,
            len(batch) + (0 if span is None else span.entries),
            batch.payload_bytes + (0 if span is None else span.payload_bytes),
        )


def _described(batch: EntryBatch, extension: BlockExtension) -> EncodedBlock:
    return EncodedBlock(
        ledger_id=batch.ledger_id,
        first_entry_id=batch.first.entry_id,
        publish_time_min_ms=extension.publish_time_min_ms,
        publish_time_max_ms=extension.publish_time_max_ms,
        compressed=extension.codec is not Codec.NONE,
        row=extension.row(),
        stretches=[],
    )
