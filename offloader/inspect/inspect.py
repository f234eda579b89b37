"""Describe one object byte by byte, and segments as rows."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial

from formats.block import BLOCK_HEADER_BYTES, decode_block_header
from formats.describe import (
    DescribedBytes,
    describe_block,
    describe_boundary,
    describe_catalog_entry,
    describe_checkpoint,
    describe_fill,
    describe_index,
    describe_ledger_run,
    describe_record,
    describe_segment_run,
)
from formats.entries import TIME_UNKNOWN_MS
from formats.errors import FormatError
from formats.index import is_index
from formats.keys import checkpoint_number, parse_object_key, record_number
from offloader.errors import LimitReachedError, NotFoundError
from offloader.manifest.segment_table import SegmentRecord
from offloader.manifest.state import ManifestState
from offloader.plot import Span, StreamTimeline
from offloader.read.ranges import readable_segments
from offloader.settings import ReadSettings
from offloader.store.base import ByteRange, ObjectStore

#: Size limit of objects described as a whole: indexes, records, checkpoints, runs.
WHOLE_BYTES_MAX = 256 * 1024 * 1024
#: Bytes of one GET of a data object.
WINDOW_BYTES = 8 * 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class Inspection:
    """Description of an object; ``pieces`` are read lazily, ``bytes_of`` gives its bytes ``start`` .. ``stop``."""

    key: str
    kind: str
    size_bytes: int
    metadata: Mapping[str, str]
    pieces: Iterator[DescribedBytes]
    bytes_of: Callable[[int, int], bytes]


def inspect_object(store: ObjectStore, key: str, *, settings: ReadSettings | None = None) -> Inspection:
    """Describe the object at ``key``, relative to the store's root, by its name or else by its first bytes.

    Raises:
        NotFoundError: no such object.
        LimitReachedError: an index, record or checkpoint of more than ``WHOLE_BYTES_MAX``.
    """
    try:
        info = store.head(key)
    except NotFoundError as error:
        raise NotFoundError(
            f"object {key} isn't in {store.url}",
            hint="`offloader ls STREAM --json` prints the keys of a stream's objects",
        ) from error
    window = _Window(store, key, info.size_bytes)
    kind, describe = _kind_of(key, window.bytes_of(0, 4))
    if describe is not None and info.size_bytes > WHOLE_BYTES_MAX:
        raise LimitReachedError(f"{key} in {store.url}: {info.size_bytes} bytes, above the limit for a {kind}")
    pieces = (
        _data_pieces(window, _ledger_id_of(key), settings or ReadSettings())
        if describe is None
        else describe(store.get(key)[0])
    )
    return Inspection(
        key=key, kind=kind, size_bytes=info.size_bytes, metadata=info.metadata, pieces=pieces, bytes_of=window.bytes_of
    )


#: Predicate on keys, the kind of the object, and its describer.
_KINDS: tuple[tuple[Callable[[str], bool], tuple[str, Callable[[bytes], Iterator[DescribedBytes]]]], ...] = (
    (lambda key: key.startswith("_catalog/"), ("catalogue entry", describe_catalog_entry)),
    (lambda key: record_number(key) is not None, ("manifest record", describe_record)),
    (lambda key: checkpoint_number(key) is not None, ("manifest checkpoint", describe_checkpoint)),
    (lambda key: key.endswith(".segments.parquet"), ("manifest run", describe_segment_run)),
    (lambda key: key.endswith(".ledgers.parquet"), ("manifest run", describe_ledger_run)),
    (lambda key: key.endswith("-fill"), ("fill", describe_fill)),
    (lambda key: key.rpartition("/")[2] == "boundary", ("manifest boundary", describe_boundary)),
)


def _kind_of(key: str, begin: bytes) -> tuple[str, Callable[[bytes], Iterator[DescribedBytes]] | None]:
    """The kind of an object, and its describer; ``None`` for data objects, which are read piece by piece."""
    if is_index(begin) or key.endswith("-index"):
        return "index", partial(describe_index, ledger_id=_ledger_id_of(key))
    return next((known for is_kind, known in _KINDS if is_kind(key)), ("data object", None))


def _ledger_id_of(key: str) -> int | None:
    found = parse_object_key(key.rpartition("/")[2], "")
    return None if found is None else found.ledger_id


def _data_pieces(window: _Window, ledger_id: int | None, settings: ReadSettings) -> Iterator[DescribedBytes]:
    at = 0
    while at < window.size_bytes:
        head = window.bytes_of(at, at + BLOCK_HEADER_BYTES)
        try:
            block_bytes = decode_block_header(head).block_bytes
        except FormatError:
            block_bytes = len(head)
        # Include the bytes after the block's length, which Pulsar's reader checks.
        fetched = min(block_bytes, settings.block_size_max) + BLOCK_HEADER_BYTES
        pieces = describe_block(
            window.bytes_of(at, at + fetched),
            offset=at,
            ledger_id=ledger_id,
            block_bytes_max=settings.block_size_max,
            decompressed_bytes_max=settings.decompressed_size_max,
        )
        for piece in pieces:
            yield piece
            if piece.problem and piece.what == "not a block header":
                return
        at += block_bytes


class _Window:
    """An object's bytes by ranged GETs of ``WINDOW_BYTES``; caches the last one."""

    def __init__(self, store: ObjectStore, key: str, size_bytes: int) -> None:
        self.size_bytes = size_bytes
        self._store, self._key = store, key
        self._start, self._data = 0, b""

    def bytes_of(self, start: int, stop: int) -> bytes:
        """The bytes ``start`` .. ``stop``, fewer at the object's end."""
        stop = min(stop, self.size_bytes)
        if start >= stop:
            return b""
        if not self._start <= start <= stop <= self._start + len(self._data):
            end = min(max(stop, start + WINDOW_BYTES), self.size_bytes)
            self._start, self._data = start, self._store.get(self._key, ByteRange(start, end))[0]
        return self._data[start - self._start : stop - self._start]


def segment_row(record: SegmentRecord, stream: str) -> dict[str, object]:
    """Manifest facts of one segment of ``stream``; positions as text, sizes only if it is complete."""
    summary = record.summary
    data, index = record.object_keys(stream)
    known = (
        {
            "entries": summary.entries,
            "payload_bytes": summary.payload_bytes,
            "object_bytes": summary.data_bytes + summary.index_bytes,
            "data_bytes": summary.data_bytes,
            "index_bytes": summary.index_bytes,
            "blocks": summary.blocks,
            "compressed": summary.compressed,
            "publish_time_min_ms": _known(summary.publish_time_min_ms),
            "publish_time_max_ms": _known(summary.publish_time_max_ms),
        }
        if summary is not None
        else {}
    )
    return {
        "uuid": str(record.uuid),
        "layout": f"V{record.layout}",
        "status": record.status.value,
        "first": str(record.begin),
        "last": None if record.end is None else str(record.end),
        "ledgers": [span.ledger_id for span in summary.ledgers] if summary else [],
        **known,
        "assigned_ms": record.assigned_ms,
        "offloaded_ms": record.offloaded_ms,
        "owned": record.owned,
        "data": data,
        "index": index,
    }


def _known(time_ms: int) -> int | None:
    return None if time_ms == TIME_UNKNOWN_MS else time_ms


def timeline_of(state: ManifestState) -> StreamTimeline:
    """Readable segments of ``state`` and the parts of ledgers in them.

    Entries count from the first readable one; a gap lies between two of them. Sizes are of the data objects, and
    payload bytes of ledgers.

    Raises:
        NotFoundError: no entry of the stream is readable.
    """
    segments: list[Span] = []
    ledgers: dict[int, Span] = {}
    timeline: list[tuple[int, int]] = []
    begins = []
    events = 0
    for number, record in enumerate(readable_segments(state), 1):
        summary = record.content
        begins.append((record.begin, events))
        at = events
        for part in summary.ledgers:
            before = ledgers.get(part.ledger_id) or Span(f"ledger {part.ledger_id}", at, at, 0)
            at += part.entries
            ledgers[part.ledger_id] = Span(before.name, before.start, at, before.size_bytes + part.payload_bytes)
        segments.append(Span(f"segment {number}", events, at, summary.data_bytes))
        timeline += [(events, summary.publish_time_min_ms), (at - 1, summary.publish_time_max_ms)]
        events = at
    if not segments:
        raise NotFoundError(f"stream {state.stream} has no readable segment", hint="offload entries first")
    gaps = [
        (next((before for begin, before in begins if begin > gap.last), events), f"gap {gap.first}..{gap.last}")
        for gap in state.gaps
    ]
    return StreamTimeline(state.stream, list(ledgers.values()), segments, timeline, gaps, where_ledgers="")
