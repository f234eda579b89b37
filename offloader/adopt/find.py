"""Find objects in Pulsar's layout by listing: pairs of data and index, and their content."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from typing import NamedTuple
from uuid import UUID

from formats.block import padding
from formats.checksum import crc32c
from formats.entries import ENTRY_HEADER_BYTES
from formats.errors import Inconsistent, LimitExceeded
from formats.keys import check_object_version, index_key, parse_object_key
from formats.metadata.messages import BookKeeperLedger
from formats.segment import Layout, LedgerSpan, SegmentSummary
from formats.segment_map import SegmentMap
from offloader.errors import LimitReached
from offloader.manifest.rebuild import FoundSegment, read_segment
from offloader.settings import OffloadSettings
from offloader.store.base import ByteRange, ObjectInfo, ObjectStore

#: Index objects are read whole.
INDEX_BYTES_MAX = 512 * 1024 * 1024
#: The last entry is searched in this many bytes at the end, then in 16 times as many, and so on.
TAIL_BYTES_FIRST = 64 * 1024
TAIL_BYTES_FACTOR = 16
TAIL_BYTES_MAX = 256 * 1024 * 1024
#: Data objects whose index hasn't been listed yet; a store that lists in order needs one.
PENDING_MAX = 1_000_000
#: Keys of each kind kept as examples.
EXAMPLES_MAX = 20


@dataclass(frozen=True, slots=True)
class ObjectPair:
    """A data object and its index, as listed."""

    uuid: UUID
    ledger_id: int | None
    data: ObjectInfo
    index: ObjectInfo


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One complete offload attempt.

    Attributes:
        managed_ledger: its managed ledger from the metadata; empty when absent.
        cluster: the Pulsar cluster that wrote it, empty when unknown.
        closed: whether its index marks every ledger in it as closed (not recorded in V2).
        modified_ms: when its index was written, by the store's clock.
    """

    segment: FoundSegment
    managed_ledger: str
    cluster: str
    closed: bool
    modified_ms: int


@dataclass(slots=True)
class Found:
    """A count, with the first few keys."""

    count: int = 0
    examples: list[str] = field(default_factory=list)

    def add(self, key: str) -> None:
        self.count += 1
        if len(self.examples) < EXAMPLES_MAX:
            self.examples.append(key)


class Listing:
    """One listing of a store's root.

    Attributes:
        foreign: objects at the root that are neither data nor index.
        unfinished: data objects without an index, or the reverse: a failed or running offload.
    """

    def __init__(self, store: ObjectStore) -> None:
        self._store = store
        self.objects = 0
        self.foreign = Found()
        self.unfinished = Found()

    def pairs(self) -> Iterator[ObjectPair]:
        """Pairs, as soon as both halves are listed. Keys in folders aren't Pulsar's.

        Raises:
            LimitReached: more than ``PENDING_MAX`` halves wait for the other one.
        """
        waiting: dict[tuple[UUID, int | None], ObjectInfo] = {}
        after: str | None = ""
        while after is not None:
            page = self._store.list("", after=after)
            for info in page.objects:
                self.objects += 1
                parsed = parse_object_key(info.key, "")
                if parsed is None or parsed.is_fill:
                    if "/" not in info.key:
                        self.foreign.add(info.key)
                    continue
                name = parsed.uuid, parsed.ledger_id
                other = waiting.pop(name, None)
                if other is not None:
                    data, index = (other, info) if parsed.is_index else (info, other)
                    yield ObjectPair(parsed.uuid, parsed.ledger_id, data, index)
                    continue
                waiting[name] = info
                if len(waiting) > PENDING_MAX:
                    raise LimitReached(
                        f"{self._store.url}: {len(waiting)} objects whose data or index isn't there",
                        hint="is this really where Pulsar's offloader writes?",
                    )
            after = page.next_after
        for info in waiting.values():
            self.unfinished.add(info.key)


def read_attempt(store: ObjectStore, pair: ObjectPair, *, deep: bool) -> Attempt:
    """Verified content of a pair: index, length of the data object, last entry; with ``deep`` every entry.

    An object whose index doesn't give its size is always read whole: a V2 object of Pulsar's own, and a ledger whose
    recorded length is 0.

    Raises:
        FormatError: it isn't complete, with the reason.
        NotFound: it was removed since the listing.
        LimitReached: the index or the last block is too large to read.
    """
    uuid, ledger_id = pair.uuid, pair.ledger_id
    key = index_key("", uuid, ledger_id)
    if pair.index.size_bytes > INDEX_BYTES_MAX:
        raise LimitReached(f"{key} has {pair.index.size_bytes} bytes, at most {INDEX_BYTES_MAX} are read")
    index, info = store.get(key)
    if info.metadata:  # not every store keeps user metadata
        check_object_version(info.metadata, key)
    segment_map = SegmentMap.parse(index, object_name=key, ledger_id=ledger_id)
    if segment_map.data_bytes != pair.data.size_bytes:
        raise Inconsistent(
            "data object",
            object_name=pair.data.key,
            expected=f"{segment_map.data_bytes} bytes, as its index says",
            found=pair.data.size_bytes,
        )
    if deep or not _says_enough(segment_map):
        part_bytes = OffloadSettings().part_bytes
        segment = read_segment(store, "", uuid, ledger_id, has_index=True, part_bytes=part_bytes)
    else:
        summary = _summary(store, pair, segment_map)
        summary = replace(summary, index_bytes=len(index), index_crc32c=crc32c(index))
        segment = FoundSegment(uuid=uuid, ledger_id=ledger_id, epoch=0, owned=False, summary=summary, closed_bytes={})
    named: Mapping[str, str] = {name.lower(): value for name, value in info.metadata.items()}
    return Attempt(
        segment=segment,
        managed_ledger=named.get("managedledgername", ""),
        cluster=named.get("pulsarclustername", ""),
        closed=segment_map.layout is not Layout.V1 or all(group.closed for group in segment_map.ledgers),
        modified_ms=pair.index.modified_ms,
    )


def _says_enough(segment_map: SegmentMap) -> bool:
    if segment_map.has_extension or segment_map.layout is not Layout.V1:
        return segment_map.has_extension
    [group] = segment_map.ledgers
    return BookKeeperLedger.decode(group.metadata).length_bytes > 0


def _summary(store: ObjectStore, pair: ObjectPair, segment_map: SegmentMap) -> SegmentSummary:
    """Summary of an object whose index is sufficient and matches the object's end."""
    if segment_map.has_extension:
        return segment_map.summary(store.head(pair.data.key).crc32c or 0)
    [group] = segment_map.ledgers
    ledger = BookKeeperLedger.decode(group.metadata)
    blocks = segment_map.blocks
    last = group.last_entry_id
    entries = last + 1
    if last < 0 or len(blocks) == 0 or int(blocks.first_entry_id[0]) != 0 or int(blocks.offset[0]) != 0:
        raise Inconsistent(
            "index",
            object_name=segment_map.object_name,
            expected="a ledger from entry 0 on",
            found=f"last entry {last}",
        )
    needed = ledger.length_bytes + entries * ENTRY_HEADER_BYTES + len(blocks) * segment_map.header_bytes
    if needed > segment_map.data_bytes:
        raise Inconsistent(
            "data object",
            object_name=pair.data.key,
            expected=f"{entries} entries of {ledger.length_bytes} bytes together, as its index says",
            found=f"{segment_map.data_bytes} bytes",
        )
    _require_last_entry(store, pair, segment_map, last)
    return _ledger_summary(group.ledger_id, entries, ledger.length_bytes, segment_map.data_bytes, len(blocks))


def _ledger_summary(
    ledger_id: int,
    entries: int,
    payload_bytes: int,
    data_bytes: int,
    blocks: int,
    data_crc32c: int = 0,
    index_bytes: int = 0,
    index_crc32c: int = 0,
) -> SegmentSummary:
    """The summary of a plain V1 object, which holds a whole ledger."""
    return SegmentSummary.of_spans(
        [LedgerSpan(ledger_id, 0, entries - 1, entries, payload_bytes)],
        layout=Layout.V1,
        data_bytes=data_bytes,
        data_crc32c=data_crc32c,
        index_bytes=index_bytes,
        index_crc32c=index_crc32c,
        blocks=blocks,
        compressed=False,
    )


def _require_last_entry(store: ObjectStore, pair: ObjectPair, segment_map: SegmentMap, last: int) -> None:
    size = segment_map.data_bytes
    start = int(segment_map.blocks.offset[-1]) + segment_map.header_bytes
    if not 0 <= start <= size:
        raise Inconsistent(
            "index", object_name=segment_map.object_name, expected=f"blocks within {size} bytes", found=start
        )
    wanted = TAIL_BYTES_FIRST
    while True:
        at = max(start, size - wanted)
        tail, _ = store.get(pair.data.key, ByteRange(at, size))
        if ends_with_entry(tail, last):
            return
        if at == start:
            raise Inconsistent(
                "data object",
                object_name=pair.data.key,
                offset=start,
                expected=f"entry {last} at its end",
                found="none",
            )
        wanted *= TAIL_BYTES_FACTOR
        if min(wanted, size - start) > TAIL_BYTES_MAX:
            raise LimitExceeded(
                "last block",
                object_name=pair.data.key,
                offset=start,
                expected=f"entry {last} in its last {TAIL_BYTES_MAX} bytes",
                found="none",
            )


def ends_with_entry(tail: bytes, entry_id: int) -> bool:
    """Whether the end of a data object, from anywhere in it, ends with an entry, followed only by a block's padding."""
    needle = entry_id.to_bytes(8, "big")
    at = tail.rfind(needle)
    while at >= 0:
        length = int.from_bytes(tail[at - 4 : at], "big", signed=True) if at >= 4 else -1
        end = at + len(needle) + length
        if length >= 0 and end <= len(tail):
            rest = len(tail) - end
            if tail[end:] == padding(rest):
                return True
        at = tail.rfind(needle, 0, at + len(needle) - 1)
    return False


#: Packed V1 attempt: uuid; ledger, lengths of data and index, entries, payload bytes, blocks, time; checksums of data
#: and index; closed flag. With Python's own 33 bytes 130 MB for a million.
_ROW = struct.Struct("<16s7qII?")


class AttemptOwner(NamedTuple):
    """Origin of an attempt in its metadata; either may be empty."""

    managed_ledger: str
    cluster: str


class AttemptTable:
    """Attempts by owner."""

    def __init__(self) -> None:
        self.count = 0
        self._rows: dict[AttemptOwner, list[bytes | Attempt]] = {}

    def add(self, attempt: Attempt) -> None:
        owner = AttemptOwner(attempt.managed_ledger, attempt.cluster)
        packed = _packed(attempt)
        is_plain = packed is not None and _attempt(packed, owner) == attempt
        self._rows.setdefault(owner, []).append(packed if packed and is_plain else attempt)
        self.count += 1

    def owners(self) -> list[AttemptOwner]:
        """Owners of attempts."""
        return list(self._rows)

    def of(self, owner: AttemptOwner) -> Iterator[Attempt]:
        """Attempts of one owner."""
        for row in self._rows.get(owner, ()):
            yield _attempt(row, owner) if isinstance(row, bytes) else row


def _packed(attempt: Attempt) -> bytes | None:
    """The packed row of an attempt, ``None`` if it doesn't fit."""
    segment, summary = attempt.segment, attempt.segment.summary
    if segment.ledger_id is None or summary.layout is not Layout.V1:
        return None
    return _ROW.pack(
        segment.uuid.bytes,
        segment.ledger_id,
        summary.data_bytes,
        summary.index_bytes,
        summary.entries,
        summary.payload_bytes,
        summary.blocks,
        attempt.modified_ms,
        summary.data_crc32c,
        summary.index_crc32c,
        attempt.closed,
    )


def _attempt(row: bytes, owner: AttemptOwner) -> Attempt:
    uuid, ledger_id, data, index, entries, payload, blocks, modified_ms, data_crc, index_crc, closed = _ROW.unpack(row)
    return Attempt(
        segment=FoundSegment(
            uuid=UUID(bytes=uuid),
            ledger_id=ledger_id,
            epoch=0,
            owned=False,
            closed_bytes={},
            summary=_ledger_summary(ledger_id, entries, payload, data, blocks, data_crc, index, index_crc),
        ),
        managed_ledger=owner.managed_ledger,
        cluster=owner.cluster,
        closed=closed,
        modified_ms=modified_ms,
    )
