"""The manifest's objects and all other documents: any bytes decode, or raise FormatError and nothing else; what decodes
comes back the same when it is encoded again; and edits apply, or are refused by name.

Seeds are made of the documents' types, sealed like real ones; most inputs are changed as JSON and sealed again, so that
the checks behind the checksum are reached.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from uuid import UUID

import numpy as np

from formats.checked_json import sealed
from formats.checkpoint import (
    Checkpoint,
    LedgerColumns,
    decode_checkpoint,
    decode_ledgers,
    encode_checkpoint,
    encode_ledgers,
)
from formats.checkpoint_parquet import SegmentColumns, decode_columns, encode_columns
from formats.checksum import crc32c
from formats.describe import (
    DescribedBytes,
    describe_block,
    describe_boundary,
    describe_catalog_entry,
    describe_checkpoint,
    describe_index,
    describe_ledger_run,
    describe_record,
    describe_segment_run,
)
from formats.documents import (
    AwaitedReaders,
    Decisions,
    DeletionRecord,
    GlobalHold,
    GroupState,
    Lease,
    Records,
    Subscribers,
    TopicEntry,
    TruncationIntent,
)
from formats.errors import FormatError
from formats.manifest import (
    BOUNDARY_BYTES_MAX,
    EDIT_KINDS,
    Boundary,
    CatalogEntry,
    Record,
    decode_record,
    encode_record,
)
from offloader.errors import InvalidCallError
from offloader.manifest.apply import apply_edits
from offloader.manifest.segment_table import columns_of
from offloader.manifest.state import EditRefusedError, ManifestState
from offloader.retention.cuts import StreamCut
from tests.proof.fuzz import fuzz_objects
from tests.proof.fuzz.fuzz_engine import Outcome, Target, attempt
from tests.proof.fuzz.fuzz_mutation import made, mutate, mutate_json
from tests.support.hostile_parquet import hostile_ledgers, hostile_segments
from tests.support.manifests import segment_edits

GOLDEN = Path(__file__).resolve().parents[2] / "formats" / "golden_manifest"
INCARNATION = UUID(int=7)
#: Rows of a file that is refused by their number.
ROWS = 1_000_000
LIMITS = fuzz_objects.LIMITS

#: Type -> (encode, decode), of every document that is sealed JSON.
DOCUMENTS: dict[Any, tuple[Callable[[Any], bytes], Callable[[bytes], Any]]] = {
    Record: (encode_record, decode_record),
    Boundary: (Boundary.encode, Boundary.decode),
    CatalogEntry: (CatalogEntry.encode, CatalogEntry.decode),
    Lease: (Lease.encode, Lease.decode),
    DeletionRecord: (DeletionRecord.encode, DeletionRecord.decode),
    AwaitedReaders: (AwaitedReaders.encode, AwaitedReaders.decode),
    TruncationIntent: (TruncationIntent.encode, TruncationIntent.decode),
    GlobalHold: (GlobalHold.encode, GlobalHold.decode),
    TopicEntry: (TopicEntry.encode, TopicEntry.decode),
    Subscribers: (Subscribers.encode, Subscribers.decode),
    Records: (Records.encode, Records.decode),
    Decisions: (Decisions.encode, Decisions.decode),
    GroupState: (GroupState.encode, GroupState.decode),
}


def document_seeds() -> list[bytes]:
    rng = random.Random(5)
    golden = [path.read_bytes() for path in sorted(GOLDEN.glob("*.json"))]
    others = [kind for kind in DOCUMENTS if kind is not Record]
    long = [_with_spaces(sealed_bytes) for sealed_bytes in (Boundary(1, 0, 0).encode(),)]
    return [*golden, *(DOCUMENTS[kind][0](made(kind, rng)) for kind in others for _ in range(3)), *long]


def _with_spaces(document: bytes) -> bytes:
    """The same JSON, longer than it may be, with its checksum."""
    body = document[: document.rindex(b',"crc32c"')] + b" " * BOUNDARY_BYTES_MAX
    return body + b',"crc32c":"%08x"}' % crc32c(body)


def change_document(rng: random.Random, pool: list[bytes]) -> bytes:
    """JSON changed and sealed again; now and then any bytes."""
    if rng.random() < 0.15:
        return mutate(rng, pool)
    body = _body(rng.choice(pool))
    if body is None:
        return mutate(rng, pool)
    other = _body(rng.choice(pool)) or {}
    try:
        changed = mutate_json(rng, body, list(other.values()))
        return sealed(changed) if isinstance(changed, dict) else sealed({"format": changed})
    except (ValueError, RecursionError):  # what JSON can't say, or not so deep
        return mutate(rng, pool)


def _body(data: bytes) -> dict[str, Any] | None:
    try:
        found = json.loads(data)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict):
        return None
    found.pop("crc32c", None)
    return found


def check_document(data: bytes) -> Outcome:
    outcome: list[object] = []
    for encode, decode in DOCUMENTS.values():
        found, place = attempt(lambda: decode(data), FormatError)  # noqa: B023
        outcome.append(place)
        if found is not None:
            assert decode(encode(found)) == found, "a document doesn't come back"
    return tuple(outcome)


def cut_seeds() -> list[bytes]:
    """Cuts as they are stored and sent."""
    given: list[dict[str, int | str]] = [{"0.0": 10, "1.0": 7}, {"0.0": "7:12"}, {"2.1": -1, "3.1": 0}]
    deep = b'{"stream":"orders","cut":' + b"[" * 5000
    return [*(StreamCut.of(each).to_bytes("orders") for each in given), deep]


def change_cut(rng: random.Random, pool: list[bytes]) -> bytes:
    """JSON changed, or any bytes."""
    body = _body(rng.choice(pool))
    if body is None or rng.random() < 0.3:
        return mutate(rng, pool)
    try:
        return json.dumps(mutate_json(rng, body, [])).encode()
    except (ValueError, RecursionError):
        return mutate(rng, pool)


def check_cut(data: bytes) -> Outcome:
    """A cut comes back as it was."""
    found, place = attempt(lambda: StreamCut.from_bytes(data), InvalidCallError)
    if found is not None:
        assert StreamCut.from_bytes(found[1].to_bytes(found[0]))[1] == found[1], "a cut doesn't come back"
    return (place, found is not None and len(found[1].offsets))


def check_described(data: bytes) -> Outcome:
    """Whatever an object holds, ``offloader inspect`` has something to show of it."""
    ways: list[Callable[[bytes], Iterator[DescribedBytes]]]
    ways = [describe_index, describe_record, describe_boundary, describe_catalog_entry, describe_checkpoint]
    ways += [describe_segment_run, describe_ledger_run, partial(describe_block, offset=0, **LIMITS)]
    pieces = [list(way(data)) for way in ways]
    assert all(pieces), "nothing is shown"
    assert all(each.start >= 0 and each.length >= 0 for found in pieces for each in found)
    return tuple((len(found), found[-1].what, bool(found[-1].problem)) for found in pieces)


def edit_seeds() -> list[bytes]:
    """Records of a stream that goes on, and one with every kind of edit."""
    rng = random.Random(6)
    record = json.loads((GOLDEN / "record-v1.json").read_bytes())
    record.pop("crc32c")
    seeds = []
    for _ in range(12):
        edits = [each for number in range(rng.randrange(1, 4)) for each in segment_edits(number)]
        edits += [made(kind, rng) for kind in rng.sample(list(EDIT_KINDS.values()), 3)]
        plain = json.loads(encode_record(_record_with(edits)))["edits"]
        seeds.append(sealed({**record, "edits": plain}))
    return seeds


def _record_with(edits: list[Any]) -> Record:
    found = decode_record((GOLDEN / "record-v1.json").read_bytes())
    return Record(**{**{name: getattr(found, name) for name in found.__slots__}, "edits": tuple(edits)})


def check_edits(data: bytes) -> Outcome:
    """A record that decodes is applied edit by edit: each fits, or is refused and changes nothing."""
    record, place = attempt(lambda: decode_record(data), FormatError)
    if record is None:
        return (place,)
    state = ManifestState(stream="orders", incarnation=INCARNATION)
    outcome = []
    for number, edit in enumerate(record.edits[:20], 1):
        after, place = attempt(lambda: apply_edits(state, [edit], record_id=number), EditRefusedError)  # noqa: B023
        outcome.append((edit.kind, place))
        state = after or state
    return tuple(outcome)


def parquet_seeds() -> list[bytes]:
    """Small checkpoints, runs of segments, and ledger facts."""
    rng = random.Random(7)
    seeds = []
    for rows in (0, 1, 3):
        columns = _segments(rows)
        seeds.append(encode_columns(columns, {}))
        seeds.append(encode_checkpoint(made(Checkpoint, rng), columns))
        ids = np.arange(rows, dtype=np.int64)
        seeds.extend(
            encode_ledgers(
                LedgerColumns(
                    ledger_id=ids,
                    last_entry_id=ids,
                    flags=ids.astype(np.uint8),
                    payload_bytes=fact,
                    created_ms=fact,
                )
            )
            for fact in (np.full(rows, -1, np.int64), ids)
        )
    return [*seeds, *hostile_seeds()]


def hostile_seeds() -> list[bytes]:
    """Files of more rows than their bytes can hold."""
    return [
        hostile_segments(ROWS // 20),
        hostile_segments(ROWS // 20, metadata={b"offloader.checkpoint": sealed({"format": 1})}),
        hostile_ledgers(3 * ROWS, group_rows=3 * ROWS),
    ]


def _segments(rows: int) -> SegmentColumns:
    state = ManifestState(stream="orders", incarnation=INCARNATION)
    edits = [edit for number in range(rows) for edit in segment_edits(number)]
    return columns_of(list(apply_edits(state, edits, record_id=1).segments.values()))


def check_parquet(data: bytes) -> Outcome:
    ways: list[Callable[[bytes], Any]] = [decode_checkpoint, decode_columns, decode_ledgers]
    return tuple(attempt(lambda: way(data), FormatError)[1] for way in ways)  # noqa: B023


def change_any(rng: random.Random, pool: list[bytes]) -> bytes:
    """Objects are changed as objects, documents as documents."""
    picked = rng.choice(pool)
    return (change_document if picked[:1] == b"{" else fuzz_objects.change)(rng, [picked])


TARGETS = [
    Target("documents", document_seeds, check_document, change_document),
    Target("edits", edit_seeds, check_edits, change_document, per_s=5500),
    Target("parquet", parquet_seeds, check_parquet, per_s=3000),
    Target("cuts", cut_seeds, check_cut, change_cut, per_s=18_000),
    Target(
        "inspected", lambda: [*fuzz_objects.seeds(), *document_seeds(), *parquet_seeds()], check_described, change_any
    ),
]
