"""Describes the bytes of an object, piece by piece, for display.

Doesn't raise on damaged bytes: a piece contains its problem, and the pieces before it are kept.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from formats.block import END_MARKER_BYTES, BlockHeader, decode_block, decode_block_header, decode_run
from formats.checked_json import to_json
from formats.checkpoint import decode_checkpoint, decode_ledgers
from formats.checkpoint_parquet import decode_columns
from formats.entries import Buffer, EntryBatch, byte_array
from formats.errors import FormatError, located
from formats.frames import END_MARK_BYTES, FILL_HEADER_BYTES, decode_fill_header, decode_frames
from formats.index import INDEX_ENTRY, INDEX_HEADER_BYTES, IndexGroup, decode_index, decode_index_header
from formats.manifest import Boundary, CatalogEntry, decode_record
from formats.metadata.messages import BookKeeperLedger, PulsarLedger
from formats.summary import Layout

_Decoded = TypeVar("_Decoded")

#: Bytes before the counts and the metadata of a group: V1's two counts, V2's ledger and two counts.
_GROUP_HEAD_BYTES = {Layout.V1: 8, Layout.V2: 16}


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedBytes:
    """Some bytes of an object and their meaning.

    Attributes:
        start: of the first byte, in the object.
        what: the piece's name, in the words of docs/reference/format.md.
        problem: the defect; empty if valid.
    """

    start: int
    length: int
    what: str
    facts: Mapping[str, object] = field(default_factory=dict)
    problem: str = ""


def _tried(decode: Callable[[], _Decoded], offset: int | None = None) -> tuple[_Decoded | None, str]:
    """The result of ``decode``; or ``None`` and the defect of the bytes, which begin at ``offset``."""
    try:
        with located("", offset):
            return decode(), ""
    except FormatError as error:
        return None, error.described()


def describe_block(
    data: Buffer, *, offset: int, ledger_id: int | None = None, block_bytes_max: int, decompressed_bytes_max: int
) -> Iterator[DescribedBytes]:
    """The pieces of the block at the start of ``data``: header, entries, end marker, entry table, padding.

    Args:
        ledger_id: of a V1 block, which doesn't contain it.
        block_bytes_max, decompressed_bytes_max: as for ``decode_block``.
    """
    view = byte_array(data)
    header, problem = _tried(partial(decode_block_header, view, offset=offset))
    if header is None:
        yield DescribedBytes(start=offset, length=len(view), what="not a block header", problem=problem)
        return
    yield DescribedBytes(start=offset, length=header.header_bytes, what="block header", facts=_header_facts(header))
    batch, problem = _tried(partial(_entries, view, header, ledger_id, block_bytes_max, decompressed_bytes_max), offset)
    at, end = offset + header.header_bytes, offset + header.block_bytes
    own = header.extension
    lengths = (
        {"entries": max(end - at, 0) if batch is None else batch.wire_bytes}
        if own is None
        else {"entries": own.stored_bytes, "end marker": END_MARKER_BYTES, "entry table": own.table_bytes}
    )
    facts = _entries_facts(batch)
    for what, length in lengths.items():
        yield DescribedBytes(start=at, length=length, what=what, facts=facts, problem=problem)
        at, facts, problem = at + length, {}, ""
    if end > at:
        yield DescribedBytes(start=at, length=end - at, what="padding")


def _entries(
    view: Any, header: BlockHeader, ledger_id: int | None, block_bytes_max: int, decompressed: int
) -> EntryBatch:
    if header.extension is None and header.block_bytes <= block_bytes_max:
        of_ledger = header.ledger_id if header.ledger_id is not None else ledger_id
        return decode_run(
            view,
            header_bytes=header.header_bytes,
            length=header.block_bytes,
            first_entry_id=header.first_entry_id,
            ledger_id=-1 if of_ledger is None else of_ledger,
            run_bytes_max=decompressed,
        )
    return decode_block(
        view,
        header_bytes=header.header_bytes,
        block_bytes_max=block_bytes_max,
        decompressed_bytes_max=decompressed,
        ledger_id=ledger_id,
    )


def _header_facts(header: BlockHeader) -> Mapping[str, object]:
    own: dict[str, object] = {"extension": "none"}
    if header.extension is not None:
        own = header.extension._asdict() | {"codec": header.extension.codec.name.lower()}
        own |= {name: f"{own[name]:08x}" for name in ("payload_crc32c", "table_crc32c")}
    return {
        "layout": header.layout.name,
        **({} if header.ledger_id is None else {"ledger": header.ledger_id}),
        "first_entry": header.first_entry_id,
        "block_bytes": header.block_bytes,
        **own,
    }


def _entries_facts(batch: EntryBatch | None) -> Mapping[str, object]:
    if not batch:
        return {} if batch is None else {"entries": 0}
    return {"entries": len(batch), "first": batch.first, "last": batch.last, "payload_bytes": batch.payload_bytes}


def describe_fill(data: Buffer) -> Iterator[DescribedBytes]:
    """The pieces of a fill: its header, the frames of its entries, the end mark."""
    view = byte_array(data)
    header, problem = _tried(partial(decode_fill_header, view))
    if header is None:
        yield DescribedBytes(start=0, length=len(view), what="not a fill", problem=problem)
        return
    yield DescribedBytes(start=0, length=FILL_HEADER_BYTES, what="fill header", facts=dataclasses.asdict(header))
    frames = partial(decode_frames, view[FILL_HEADER_BYTES:], ledger_id=header.ledger_id)
    batch, problem = _tried(frames, FILL_HEADER_BYTES)
    stop = max(len(view) - END_MARK_BYTES, FILL_HEADER_BYTES)
    yield DescribedBytes(
        start=FILL_HEADER_BYTES,
        length=stop - FILL_HEADER_BYTES,
        what="frames",
        facts=_entries_facts(batch),
        problem=problem,
    )
    yield DescribedBytes(start=stop, length=len(view) - stop, what="end mark")


def describe_index(data: Buffer, *, ledger_id: int | None = None) -> Iterator[DescribedBytes]:
    """The pieces of an index object: header, then of each ledger its head, metadata and block entries."""
    view = byte_array(data)
    header, problem = _tried(partial(decode_index_header, view))
    if header is None:
        yield DescribedBytes(start=0, length=len(view), what="not an index", problem=problem)
        return
    yield DescribedBytes(
        start=0, length=INDEX_HEADER_BYTES, what="index header", facts=header._asdict() | {"layout": header.layout.name}
    )
    try:
        index = decode_index(view, ledger_id=ledger_id)
    except FormatError as error:
        start = INDEX_HEADER_BYTES if error.offset is None else max(error.offset, INDEX_HEADER_BYTES)
        yield DescribedBytes(start=start, length=max(len(view) - start, 0), what="ledgers", problem=error.described())
        return
    at = INDEX_HEADER_BYTES
    for group in index.groups:
        yield from _group_pieces(group, index.layout, at)
        at += _GROUP_HEAD_BYTES[index.layout] + len(group.metadata) + INDEX_ENTRY.itemsize * len(group.entries)
    if len(view) > at:
        yield DescribedBytes(start=at, length=len(view) - at, what="bytes after the index")


def _group_pieces(group: IndexGroup, layout: Layout, at: int) -> Iterator[DescribedBytes]:
    head, blocks = _GROUP_HEAD_BYTES[layout], len(group.entries)
    of_ledger = {} if group.ledger_id < 0 else {"ledger": group.ledger_id}
    yield DescribedBytes(start=at, length=head, what="ledger", facts={**of_ledger, "blocks": blocks})
    yield DescribedBytes(
        start=at + head, length=len(group.metadata), what="ledger metadata", facts=_metadata_facts(group, layout)
    )
    start = at + head + len(group.metadata)
    for number, row in enumerate(group.entries):
        yield DescribedBytes(
            start=start + INDEX_ENTRY.itemsize * number,
            length=INDEX_ENTRY.itemsize,
            what="block entry",
            facts={"first_entry": int(row["first_entry_id"]), "part": int(row["part"]), "offset": int(row["offset"])},
        )


def _metadata_facts(group: IndexGroup, layout: Layout) -> Mapping[str, object]:
    ledger = (BookKeeperLedger if layout is Layout.V1 else PulsarLedger).decode(group.metadata)
    facts = {
        each.name: getattr(ledger, each.name)
        for each in dataclasses.fields(ledger)
        if each.name not in ("message", "blocks", "custom", "context", "ledger_id")
    }
    custom = sorted(getattr(ledger, "custom", {}))
    known = {name: value for name, value in facts.items() if value is not None}
    return {**known, **({"custom": custom} if custom else {}), "extension": "none" if group.blocks is None else "yes"}


def _document(data: bytes, what: str, decode: Callable[[bytes], object]) -> Iterator[DescribedBytes]:
    facts, (_, problem) = _readable_json(data), _tried(partial(decode, data))
    edits = facts.pop("edits", [])
    yield DescribedBytes(start=0, length=len(data), what=what, facts=facts, problem=problem)
    at = 0
    for edit in edits if isinstance(edits, list) else []:
        # Edits appear in the document in this order; the start of each is only shown if it is found.
        text = json.dumps(edit, separators=(",", ":"), sort_keys=True, ensure_ascii=False).encode()
        found = data.find(text, at)
        start, length = (found, len(text)) if found >= 0 else (0, len(data))
        at = max(found, at)
        yield DescribedBytes(start=start, length=length, what="edit", facts=edit if isinstance(edit, dict) else {})


def _readable_json(data: bytes) -> dict[str, Any]:
    with suppress(ValueError, RecursionError):
        found = json.loads(data)
        return found if isinstance(found, dict) else {}
    return {}


def describe_checkpoint(data: bytes) -> Iterator[DescribedBytes]:
    """A checkpoint: its header, its runs, and how many segments it has itself."""
    decoded, problem = _tried(partial(decode_checkpoint, data))
    if decoded is None:
        yield DescribedBytes(start=0, length=len(data), what="not a checkpoint", problem=problem)
        return
    header, segments = decoded
    facts = to_json(header)
    runs = [*facts.pop("runs"), *facts.pop("ledger_runs")]
    counted = {name: len(facts.pop(name)) for name in ("gaps", "assigned", "rewrites", "replaced", "ledgers")}
    counted |= {name: len(facts.pop(name)) for name in ("fills",) if name in facts}
    yield DescribedBytes(
        start=0, length=len(data), what="checkpoint", facts={**facts, **counted, "segments": len(segments)}
    )
    for run in runs:
        run["dead"] = sum(each["stop"] - each["start"] for each in run["dead"])
        yield DescribedBytes(start=0, length=0, what="sealed run", facts=run)


def _run(data: bytes, what: str, decode: Callable[[bytes], Any]) -> Iterator[DescribedBytes]:
    rows, problem = _tried(partial(decode, data))
    if rows is None:
        yield DescribedBytes(start=0, length=len(data), what=f"not a {what}", problem=problem)
        return
    yield DescribedBytes(start=0, length=len(data), what=what, facts={"rows": len(rows)})


describe_record = partial(_document, what="record", decode=decode_record)
describe_boundary = partial(_document, what="boundary", decode=Boundary.decode)
describe_catalog_entry = partial(_document, what="catalogue entry", decode=CatalogEntry.decode)
describe_segment_run = partial(_run, what="sealed run of segments", decode=decode_columns)
describe_ledger_run = partial(_run, what="sealed run of ledgers", decode=decode_ledgers)
