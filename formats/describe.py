"""Describes the bytes of an object, piece by piece, for display.

Doesn't raise on damaged bytes: a piece contains its problem, and the pieces before it are kept.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from formats.block import (
    END_MARKER_BYTES,
    BlockHeader,
    Layout,
    decode_block,
    decode_block_header,
    decode_run,
)
from formats.checked_json import to_json
from formats.checkpoint import decode_checkpoint, decode_ledgers
from formats.checkpoint_parquet import decode_columns
from formats.entries import Buffer, EntryBatch, byte_array
from formats.errors import FormatError
from formats.index import INDEX_ENTRY, INDEX_HEADER_BYTES, IndexGroup, decode_index, decode_index_header
from formats.manifest import decode_boundary, decode_catalog_entry, decode_record
from formats.metadata.messages import BookKeeperLedger, PulsarLedger

__all__ = [
    "DescribedBytes",
    "describe_block",
    "describe_boundary",
    "describe_catalog_entry",
    "describe_checkpoint",
    "describe_index",
    "describe_ledger_run",
    "describe_record",
    "describe_segment_run",
]

#: Bytes before the counts and the metadata of a group: V1's two counts, V2's ledger and two counts.
_GROUP_HEAD_BYTES = {Layout.V1: 8, Layout.V2: 16}


@dataclass(frozen=True, slots=True, kw_only=True)
class DescribedBytes:
    """Some bytes of an object and their meaning.

    Attributes:
        start: of the first byte, in the object.
        length: how many bytes.
        what: the piece's name, in the words of docs/FORMAT.md.
        facts: its values by name.
        problem: what is wrong with it; empty if valid.
    """

    start: int
    length: int
    what: str
    facts: Mapping[str, object] = field(default_factory=dict)
    problem: str = ""


def describe_block(
    data: Buffer, *, offset: int, ledger_id: int | None = None, block_bytes_max: int, decompressed_bytes_max: int
) -> Iterator[DescribedBytes]:
    """The pieces of the block at the start of ``data``: header, entries, end marker, entry table, padding.

    Args:
        data: the block, and any bytes after it.
        offset: of the block in its object.
        ledger_id: of a V1 block, which doesn't contain it.
        block_bytes_max, decompressed_bytes_max: as for ``decode_block``.
    """
    view = byte_array(data)
    try:
        header = decode_block_header(view, offset=offset)
    except FormatError as error:
        yield DescribedBytes(start=offset, length=len(view), what="not a block header", problem=_problem(error))
        return
    yield DescribedBytes(start=offset, length=header.header_bytes, what="block header", facts=_header_facts(header))
    try:
        batch = _entries(view, header, offset, ledger_id, block_bytes_max, decompressed_bytes_max)
    except FormatError as error:
        batch, problem = None, _problem(error)
    else:
        problem = ""
    at, end = offset + header.header_bytes, offset + header.block_bytes
    if header.extension is None:
        facts = {} if batch is None else _entries_facts(batch)
        stored = 0 if batch is None else batch.payload_bytes + 12 * len(batch)
        if batch is None:
            yield DescribedBytes(start=at, length=max(end - at, 0), what="entries", problem=problem)
            return
        yield DescribedBytes(start=at, length=stored, what="entries", facts=facts)
        at += stored
    else:
        facts = {} if batch is None else _entries_facts(batch)
        yield DescribedBytes(
            start=at, length=header.extension.stored_bytes, what="entries", facts=facts, problem=problem
        )
        at += header.extension.stored_bytes
        yield DescribedBytes(start=at, length=END_MARKER_BYTES, what="end marker")
        at += END_MARKER_BYTES
        yield DescribedBytes(start=at, length=header.extension.table_bytes, what="entry table")
        at += header.extension.table_bytes
    if end > at:
        yield DescribedBytes(start=at, length=end - at, what="padding")


def _entries(
    view: Any, header: BlockHeader, offset: int, ledger_id: int | None, block_bytes_max: int, decompressed: int
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
            offset=offset,
        )
    return decode_block(
        view,
        offset=offset,
        header_bytes=header.header_bytes,
        block_bytes_max=block_bytes_max,
        decompressed_bytes_max=decompressed,
        ledger_id=ledger_id,
    )


def _header_facts(header: BlockHeader) -> Mapping[str, object]:
    facts: dict[str, object] = {"layout": header.layout.name}
    if header.ledger_id is not None:
        facts["ledger"] = header.ledger_id
    facts |= {"first_entry": header.first_entry_id, "block_bytes": header.block_bytes}
    if header.extension is None:
        return {**facts, "extension": "none"}
    own = {each.name: getattr(header.extension, each.name) for each in dataclasses.fields(header.extension)}
    own["codec"] = header.extension.codec.name.lower()
    own |= {name: f"{own[name]:08x}" for name in ("payload_crc32c", "table_crc32c")}
    return {**facts, **own}


def _entries_facts(batch: EntryBatch) -> Mapping[str, object]:
    if not len(batch):
        return {"entries": 0}
    return {"entries": len(batch), "first": batch.first, "last": batch.last, "payload_bytes": batch.payload_bytes}


def describe_index(data: Buffer, *, ledger_id: int | None = None) -> Iterator[DescribedBytes]:
    """The pieces of an index object: header, then of each ledger its head, metadata and block entries."""
    view = byte_array(data)
    try:
        header = decode_index_header(view)
    except FormatError as error:
        yield DescribedBytes(start=0, length=len(view), what="not an index", problem=_problem(error))
        return
    yield DescribedBytes(
        start=0, length=INDEX_HEADER_BYTES, what="index header", facts=header._asdict() | {"layout": header.layout.name}
    )
    try:
        index = decode_index(view, ledger_id=ledger_id)
    except FormatError as error:
        start = INDEX_HEADER_BYTES if error.offset is None else max(error.offset, INDEX_HEADER_BYTES)
        yield DescribedBytes(start=start, length=max(len(view) - start, 0), what="ledgers", problem=_problem(error))
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
    kind: Any = BookKeeperLedger if layout is Layout.V1 else PulsarLedger
    ledger = kind.decode(group.metadata)
    facts = {
        each.name: getattr(ledger, each.name)
        for each in dataclasses.fields(ledger)
        if each.name not in ("message", "blocks", "custom", "context", "ledger_id")
    }
    custom = sorted(getattr(ledger, "custom", {}))
    known = {name: value for name, value in facts.items() if value is not None}
    return {**known, **({"custom": custom} if custom else {}), "extension": "none" if group.blocks is None else "yes"}


def describe_record(data: bytes) -> Iterator[DescribedBytes]:
    """A manifest record: its writer, and each edit."""
    yield from _document(data, "record", decode_record)


def describe_boundary(data: bytes) -> Iterator[DescribedBytes]:
    """A manifest's boundary."""
    yield from _document(data, "boundary", decode_boundary)


def describe_catalog_entry(data: bytes) -> Iterator[DescribedBytes]:
    """A stream's entry in the catalogue."""
    yield from _document(data, "catalogue entry", decode_catalog_entry)


def _document(data: bytes, what: str, decode: Callable[[bytes], object]) -> Iterator[DescribedBytes]:
    problem, facts = "", _readable_json(data)
    try:
        decode(data)
    except FormatError as error:
        problem = _problem(error)
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
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return {}
    return found if isinstance(found, dict) else {}


def describe_checkpoint(data: bytes) -> Iterator[DescribedBytes]:
    """A checkpoint: its header, its runs, and how many segments it has itself."""
    try:
        header, segments = decode_checkpoint(data)
    except FormatError as error:
        yield DescribedBytes(start=0, length=len(data), what="not a checkpoint", problem=_problem(error))
        return
    facts = to_json(header)
    runs = [*facts.pop("runs"), *facts.pop("ledger_runs")]
    counted = {name: len(facts.pop(name)) for name in ("gaps", "assigned", "rewrites", "replaced", "ledgers")}
    yield DescribedBytes(
        start=0, length=len(data), what="checkpoint", facts={**facts, **counted, "segments": len(segments)}
    )
    for run in runs:
        dead = sum(each["stop"] - each["start"] for each in run.pop("dead"))
        yield DescribedBytes(start=0, length=0, what="sealed run", facts={**run, "dead": dead})


def describe_segment_run(data: bytes) -> Iterator[DescribedBytes]:
    """A run of segments."""
    yield from _run(data, "sealed run of segments", decode_columns)


def describe_ledger_run(data: bytes) -> Iterator[DescribedBytes]:
    """A run of ledgers."""
    yield from _run(data, "sealed run of ledgers", decode_ledgers)


def _run(data: bytes, what: str, decode: Callable[[bytes], Any]) -> Iterator[DescribedBytes]:
    try:
        rows = len(decode(data))
    except FormatError as error:
        yield DescribedBytes(start=0, length=len(data), what=f"not a {what}", problem=_problem(error))
        return
    yield DescribedBytes(start=0, length=len(data), what=what, facts={"rows": rows})


def _problem(error: FormatError) -> str:
    at = "" if error.offset is None else f" at byte {error.offset}"
    text = f"{error.problem}{at}"
    if error.expected is not None or error.found is not None:
        text += f": expected {error.expected}, found {error.found}"
    return text
