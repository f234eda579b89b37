"""One ledger by an offload context: the proposal's ReadHandle, over Pulsar's and our objects."""

from __future__ import annotations

import gzip
import itertools
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

import pytest

from formats.entries import Entry, EntryBatch, Position
from formats.keys import data_key, index_key
from formats.metadata.messages import OffloadContext, OffloadSegment
from formats.summary import Layout
from offloader.errors import (
    BeyondEndError,
    ClosedError,
    CorruptError,
    InvalidCallError,
    NotFoundError,
    ObjectMissingError,
)
from offloader.read.reader import ReadHandle, read_offloaded
from offloader.settings import ReadSettings, Size
from offloader.store.base import ObjectStore
from offloader.store.open import open_store
from tests.support.streams import batch_of, build

GOLDEN = Path(__file__).resolve().parents[1] / "formats" / "golden"
names = itertools.count()


@pytest.fixture
def store() -> ObjectStore:
    return open_store(f"memory://handle-{next(names)}")


def golden(name: str) -> dict[str, Any]:
    cases = json.loads((GOLDEN / name[:2] / "manifest.json").read_text())
    return next(case for case in cases if case["name"] == name)


def put_golden(store: ObjectStore, folder: str, key: str) -> None:
    path = GOLDEN / folder / key
    data = path.read_bytes() if path.exists() else gzip.decompress(path.with_name(key + ".gz").read_bytes())
    metadata = json.loads(path.with_name(key + ".meta.json").read_text())["userMetadata"]
    store.put(key, data, metadata=metadata)


def golden_payload(ledger_id: int, entry_id: int, size: int) -> bytes:
    return bytes((ledger_id * 31 + entry_id * 7 + i) & 0xFF for i in range(size))


def golden_entries(ledger_id: int, first: int, runs: Sequence[tuple[int, int]]) -> list[tuple[int, bytes]]:
    sizes = [size for count, size in runs for _ in range(count)]
    return [(first + n, golden_payload(ledger_id, first + n, size)) for n, size in enumerate(sizes)]


def got(handle: ReadHandle, first: int, last: int) -> list[tuple[int, bytes]]:
    return [(entry.entry_id, entry.payload) for entry in handle.read(first, last)]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["v1-tiny", "v1-multi", "v1-edges", "v1-rich-metadata"])
def test_a_ledger_that_pulsar_offloaded_as_v1_is_read_whole_and_in_parts(store: ObjectStore, name: str) -> None:
    case = golden(name)
    for role in ("data", "index"):
        put_golden(store, "v1", case[role]["key"])
    context = OffloadContext(uuid=UUID(case["uuid"]), complete=True)
    handle = read_offloaded(store, case["ledger"], context, {})
    expected = golden_entries(case["ledger"], 0, case["sizes_runs"])
    assert handle.last_entry_id == case["last"]
    assert handle.length == case["payload_bytes"]
    assert got(handle, 0, case["last"]) == expected
    for first, last in [(0, 0), (case["last"], case["last"]), (case["last"] // 2, case["last"] - 1)]:
        assert got(handle, first, last) == expected[first : last + 1]


@pytest.mark.parametrize("name", ["v2-small", "v2-two-ledgers", "v2-hash-order", "v2-begin-100"])
def test_ledgers_that_pulsar_offloaded_as_v2_are_read_each_by_itself(store: ObjectStore, name: str) -> None:
    case = golden(name)
    for segment, role in itertools.product(case["segments"], ("data", "index")):
        put_golden(store, "v2", segment[role]["key"])
    for read in case["reads"]:
        segments = tuple(OffloadSegment(uuid=UUID(each), complete=True) for each in read["segments"])
        handle = read_offloaded(store, read["ledger"], OffloadContext(segments=segments), {})
        parts = [p for s in case["segments"] for p in s["parts"] if p["ledger"] == read["ledger"]]
        expected = [e for p in parts for e in golden_entries(p["ledger"], p["first"], p["sizes_runs"])]
        assert (handle.first_entry_id, handle.last_entry_id) == (read["first"], read["last"])
        assert got(handle, read["first"], read["last"]) == expected
        for n, entry in enumerate(expected):
            assert got(handle, entry[0], entry[0]) == [expected[n]]


def put_segment(
    store: ObjectStore, batches: Sequence[EntryBatch], *, layout: Layout = Layout.V2, extension: bool = True
) -> UUID:
    uuid = uuid4()
    ledger = batches[0].ledger_id if layout is Layout.V1 else None
    finished, data = build(batches, 600, layout, extension)
    metadata = {"s3managedledgeroffloaderformatversion": "1"}
    store.put(data_key("", uuid, ledger), data, metadata=metadata)
    store.put(index_key("", uuid, ledger), finished.index, metadata=metadata)
    return uuid


def context_of(*uuids: UUID) -> OffloadContext:
    return OffloadContext(segments=tuple(OffloadSegment(uuid=uuid, complete=True) for uuid in uuids))


def entries_of(batches: Sequence[EntryBatch]) -> list[Entry]:
    return [entry for batch in batches for entry in batch.entries()]


@pytest.mark.slow
@pytest.mark.parametrize("extension", [True, False])
@pytest.mark.parametrize("begin", [1, 20, 127, 128, 129, 200, 1000])
def test_ledger_in_two_segments_reads_in_order_wherever_the_second_begins(
    store: ObjectStore, begin: int, extension: bool
) -> None:
    """Pulsar gives 20..44 then 0..19, and fails for a while on segments that begin at 128, 129 or 200."""
    batches = [batch_of(7, 0, begin, times=-1), batch_of(7, begin, 100, times=-1)]
    uuids = [put_segment(store, [batch], extension=extension) for batch in batches]
    expected = entries_of(batches)
    for order in (uuids, uuids[::-1]):
        handle = read_offloaded(store, 7, context_of(*order), {})
        assert list(handle.read(0, begin + 99)) == expected
        assert list(handle.read(begin - 1, begin)) == expected[begin - 1 : begin + 1]
        assert list(handle.read(begin, begin)) == expected[begin : begin + 1]
        assert handle.last_entry_id == begin + 99


def test_segment_of_many_ledgers_returns_only_the_requested_one(store: ObjectStore) -> None:
    batches = [batch_of(3, 50, 10), batch_of(4, 0, 100), batch_of(9, 0, 20)]
    context = context_of(put_segment(store, batches))
    for batch in batches:
        handle = read_offloaded(store, batch.ledger_id, context, {})
        first, last = batch.first.entry_id, batch.last.entry_id
        assert (handle.first_entry_id, handle.last_entry_id) == (first, last)
        assert list(handle.read(first, last)) == entries_of([batch])
    with pytest.raises(NotFoundError, match="have no entry of ledger 5"):
        read_offloaded(store, 5, context, {})


@pytest.mark.slow
def test_entries_of_very_different_sizes_are_read_exactly(store: ObjectStore) -> None:
    sizes = [1 << 20, *([100] * 3000), 0, 1 << 16, 1]
    batch = EntryBatch.build(7, 0, [bytes([n % 251]) * size for n, size in enumerate(sizes)])
    handle = read_offloaded(
        store, 7, context_of(put_segment(store, [batch])), {}, settings=ReadSettings(cache_size_max=Size(10_000))
    )
    expected = entries_of([batch])
    assert list(handle.read(0, len(sizes) - 1)) == expected
    assert list(handle.read(2999, 3003)) == expected[2999:3004]


def test_read_past_the_last_entry_fails_with_pulsars_message(store: ObjectStore) -> None:
    handle = read_offloaded(store, 7, context_of(put_segment(store, [batch_of(7, 0, 10)])), {})
    with pytest.raises(BeyondEndError, match="entry index: 10 beyond last entry id: 9") as caught:
        handle.read(5, 10)
    assert caught.value.last_available == Position(7, 9)


@pytest.mark.parametrize("wanted", [(-1, 3), (5, 4)])
def test_invalid_range_is_refused(store: ObjectStore, wanted: tuple[int, int]) -> None:
    handle = read_offloaded(store, 7, context_of(put_segment(store, [batch_of(7, 0, 10)])), {})
    with pytest.raises(InvalidCallError, match="are not a valid range"):
        handle.read(*wanted)


def test_a_gap_between_segments_is_named_and_not_read_over(store: ObjectStore) -> None:
    uuids = [put_segment(store, [batch_of(7, 0, 10)]), put_segment(store, [batch_of(7, 15, 10)])]
    handle = read_offloaded(store, 7, context_of(*uuids), {})
    assert len(handle.read(15, 24)) == 10
    with pytest.raises(NotFoundError, match=r"entries 10\.\.14 aren't offloaded"):
        handle.read(8, 16)


def test_segments_that_both_hold_an_entry_are_corrupt(store: ObjectStore) -> None:
    uuids = [put_segment(store, [batch_of(7, 0, 10)]), put_segment(store, [batch_of(7, 9, 10)])]
    with pytest.raises(CorruptError, match="both hold entry 9"):
        read_offloaded(store, 7, context_of(*uuids), {})


def test_incomplete_segments_do_not_count(store: ObjectStore) -> None:
    uuid = put_segment(store, [batch_of(7, 0, 10)])
    open_one = OffloadSegment(uuid=uuid4(), complete=False)
    context = OffloadContext(segments=(OffloadSegment(uuid=uuid, complete=True), open_one))
    assert read_offloaded(store, 7, context, {}).last_entry_id == 9
    with pytest.raises(InvalidCallError, match="no segment of it is completely offloaded"):
        read_offloaded(store, 7, OffloadContext(segments=(open_one,)), {})


def test_the_recorded_place_must_be_the_stores(store: ObjectStore) -> None:
    context = context_of(put_segment(store, [batch_of(7, 0, 10)]))
    assert read_offloaded(store, 7, context, store.driver_metadata).last_entry_id == 9
    elsewhere = {**store.driver_metadata, "bucket": "elsewhere"}
    with pytest.raises(InvalidCallError, match="bucket=elsewhere"):
        read_offloaded(store, 7, context, elsewhere)


def test_missing_objects_are_named(store: ObjectStore) -> None:
    uuid = put_segment(store, [batch_of(7, 0, 10)])
    store.delete([data_key("", uuid)])
    handle = read_offloaded(store, 7, context_of(uuid), {})
    with pytest.raises(ObjectMissingError, match=str(uuid)):
        handle.read(0, 1)
    with pytest.raises(ObjectMissingError):
        read_offloaded(store, 7, context_of(uuid4()), {})


def test_a_closed_handle_refuses(store: ObjectStore) -> None:
    handle = read_offloaded(store, 7, context_of(put_segment(store, [batch_of(7, 0, 10)])), {})
    handle.close()
    handle.close()
    with pytest.raises(ClosedError, match="handle on ledger 7 is closed"):
        handle.read(0, 0)
