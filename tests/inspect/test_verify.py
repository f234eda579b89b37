"""Verifying: every kind of damage is found, and intact objects have no finding."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from dataclasses import replace
from uuid import uuid4

import pytest

from formats.keys import data_key, index_key, new_segment_uuid
from formats.manifest import Assign
from formats.segment import Codec
from formats.summary import Layout
from offloader.errors import StoreUnavailableError
from offloader.inspect.verify import Damage, Finding, check_order, check_segment, check_segments, find_unexpected
from offloader.manifest.log import load_manifest
from offloader.read.fetch import Fetcher
from offloader.settings import ReadSettings, Size
from offloader.store.base import ObjectStore
from offloader.store.open import open_store
from offloader.testing.faulty_store import Fault, FaultyStore
from tests.support.streams import StreamWriter, batch_of

names = itertools.count()
STREAM = "public/default/persistent/orders"


@pytest.fixture
def store() -> ObjectStore:
    return open_store(f"memory://verify-{next(names)}")


@pytest.fixture
def writer(store: ObjectStore) -> StreamWriter:
    made = StreamWriter(store, STREAM)
    made.add([batch_of(1, 0, 300)])
    made.add([batch_of(1, 300, 100), batch_of(2, 0, 200)], closes=[1], codec=Codec.ZSTD)
    made.add([batch_of(2, 200, 50)], extension=False, closes=[2])
    made.add([batch_of(3, 0, 60)], layout=Layout.V1, closes=[3])
    return made


def all_findings(store: ObjectStore, *, deep: bool, **settings: int) -> list[Finding]:
    state = load_manifest(store, STREAM)
    fetcher = Fetcher(store, ReadSettings(**settings))  # type: ignore[arg-type]
    found = list(check_order(state))
    found += [finding for check in check_segments(fetcher, state, deep=deep) for finding in check.findings]
    return found + list(find_unexpected(store, state))


def changed(store: ObjectStore, key: str, change: Callable[[bytes], bytes]) -> None:
    data, info = store.get(key)
    store.put(key, change(data), metadata=info.metadata)


def flipped(at: int) -> Callable[[bytes], bytes]:
    return lambda data: data[:at] + bytes([data[at] ^ 1]) + data[at + 1 :]


@pytest.mark.slow
@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize("request_bytes", [1024, 8 << 20])
def test_a_whole_stream_has_no_findings_and_every_block_was_read(
    store: ObjectStore, writer: StreamWriter, deep: bool, request_bytes: int
) -> None:
    state = load_manifest(store, STREAM)
    checks = list(check_segments(Fetcher(store, ReadSettings(request_size=Size(request_bytes))), state, deep=deep))
    assert all_findings(store, deep=deep, request_size=request_bytes) == []
    assert [check.uuid for check in checks] == writer.uuids
    assert sum(check.entries for check in checks) == (len(writer.entries) if deep else 0)
    lengths = sum(record.summary.data_bytes for record in state.offloaded() if record.summary)
    assert sum(check.data_bytes for check in checks) == (lengths if deep else 0)


@pytest.mark.slow
@pytest.mark.parametrize("deep", [False, True])
@pytest.mark.parametrize("number", range(4))
@pytest.mark.parametrize("role", ["data", "index"])
def test_a_missing_object_is_named(
    store: ObjectStore, writer: StreamWriter, deep: bool, number: int, role: str
) -> None:
    key = writer.keys(writer.uuids[number], 3 if number == 3 else None)[role == "index"]
    store.delete([key])
    [finding] = all_findings(store, deep=deep)
    assert (finding.problem, finding.key, finding.segment) == (Damage.MISSING, key, writer.uuids[number])
    assert finding.is_damage
    assert key in finding.message


@pytest.mark.parametrize("deep", [False, True])
def test_an_object_of_another_length_is_named(store: ObjectStore, writer: StreamWriter, deep: bool) -> None:
    data, index = writer.keys(writer.uuids[0])
    changed(store, data, lambda data: data[:-1])
    changed(store, index, lambda data: data + b"x")
    found = all_findings(store, deep=deep)
    assert [(each.problem, each.key) for each in found] == [(Damage.CHANGED, data), (Damage.CHANGED, index)]
    assert "expected" in found[0].message
    assert "found" in found[0].message


def test_deep_check_finds_flipped_bit_in_any_block_and_checks_the_others(
    store: ObjectStore, writer: StreamWriter
) -> None:
    data, _ = writer.keys(writer.uuids[0])
    offsets = Fetcher(store, ReadSettings()).index(_objects(store, writer, 0)).blocks.offset.tolist()
    for block in (offsets[0], offsets[3], offsets[-1]):
        changed(store, data, flipped(block + 200))
    found = [each for each in all_findings(store, deep=True) if each.problem is not Damage.CHANGED]
    assert [each.problem for each in found] == [Damage.CORRUPT] * 3
    assert [each.key for each in found] == [data] * 3
    assert all(each.expected and each.found for each in found)
    state = load_manifest(store, STREAM)
    check = check_segment(Fetcher(store, ReadSettings()), STREAM, state.segments[writer.uuids[0]], deep=True)
    assert check.blocks == len(offsets) - 3


def test_flipped_bit_of_a_plain_block_fails_the_object_checksum(store: ObjectStore, writer: StreamWriter) -> None:
    """A payload byte: only the manifest's checksum detects it."""
    data, _ = writer.keys(writer.uuids[2])
    at = store.get(data)[0].index(b"2:210 ")
    changed(store, data, flipped(at))
    found = all_findings(store, deep=True)
    assert {each.problem for each in found} <= {Damage.CORRUPT, Damage.CHANGED}
    assert any("CRC-32C" in each.message and each.key == data for each in found)


def test_changed_checksum_is_found_without_reading_the_object(store: ObjectStore, writer: StreamWriter) -> None:
    data, _ = writer.keys(writer.uuids[1])
    changed(store, data, flipped(1000))
    assert store.head(data).crc32c is not None
    found = all_findings(store, deep=False)
    assert [(each.problem, each.key) for each in found] == [(Damage.CHANGED, data)]


@pytest.mark.parametrize("at", [5, 40, -3])
def test_a_damaged_index_is_named(store: ObjectStore, writer: StreamWriter, at: int) -> None:
    _, index = writer.keys(writer.uuids[1])
    size = store.head(index).size_bytes
    changed(store, index, flipped(at % size))
    [finding] = all_findings(store, deep=False)
    assert (finding.problem, finding.key) == (Damage.CORRUPT, index)


def test_index_with_other_sums_contradicts_the_manifest(store: ObjectStore, writer: StreamWriter) -> None:
    state = load_manifest(store, STREAM)
    record = state.segments[writer.uuids[0]]
    assert record.summary is not None
    other = replace(record, summary=replace(record.summary, entries=299, payload_bytes=1))
    check = check_segment(Fetcher(store, ReadSettings()), STREAM, other, deep=False)
    assert [(each.problem, each.expected, each.found) for each in check.findings] == [
        (Damage.CONTRADICTION, "entries 299", "entries 300"),
        (Damage.CONTRADICTION, "payload_bytes 1", "payload_bytes 6000"),
    ]


def test_unreferenced_objects_are_notes_told_apart_by_their_uuid(store: ObjectStore, writer: StreamWriter) -> None:
    ours, theirs = new_segment_uuid(writer.log.state.incarnation, 77), uuid4()
    for key in (data_key(STREAM, ours), index_key(STREAM, theirs), f"{STREAM}/notes.txt"):
        store.put(key, b"abc")
    store.put(f"{STREAM}/leases/{uuid4()}", b"{}")
    upload = store.begin_upload(data_key(STREAM, theirs))
    found = all_findings(store, deep=False)
    assert {(each.problem, each.key) for each in found} == {
        (Damage.ORPHAN, data_key(STREAM, ours)),
        (Damage.FOREIGN, index_key(STREAM, theirs)),
        (Damage.FOREIGN, f"{STREAM}/notes.txt"),
        (Damage.UNFINISHED, data_key(STREAM, theirs)),
    }
    assert not any(each.is_damage for each in found)
    assert store.list_uploads(data_key(STREAM, theirs))[0].upload_id == upload


def test_segment_being_written_is_no_finding(store: ObjectStore, writer: StreamWriter) -> None:
    end = writer.log.state.newest_end
    assert end is not None
    uuid = new_segment_uuid(writer.log.state.incarnation, 78)
    writer.log.commit([Assign(uuid, 2, end._replace(ledger_id=4, entry_id=0), None, 0, {})])
    store.put(data_key(STREAM, uuid), b"half")
    store.begin_upload(data_key(STREAM, uuid))
    assert all_findings(store, deep=True) == []


def test_unreachable_store_is_an_error_and_no_finding(store: ObjectStore, writer: StreamWriter) -> None:
    state = load_manifest(store, STREAM)
    faulty = FaultyStore(store, [Fault(call=1, calls=100, verb="head")])
    with pytest.raises(StoreUnavailableError):
        list(check_segments(Fetcher(faulty, ReadSettings()), state, deep=False))


def _objects(store: ObjectStore, writer: StreamWriter, number: int):  # type: ignore[no-untyped-def]
    from offloader.read.cold import objects_of

    return objects_of(STREAM, load_manifest(store, STREAM).segments[writer.uuids[number]], store)
