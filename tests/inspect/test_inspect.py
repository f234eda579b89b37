"""Inspecting: every byte of an object is in a piece, and damage is a piece as well."""

from __future__ import annotations

import gzip
import itertools
import os
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from formats.describe import (
    DescribedBytes,
    describe_block,
    describe_boundary,
    describe_checkpoint,
    describe_fill,
    describe_index,
    describe_record,
    describe_segment_run,
)
from formats.entries import EntryBatch
from formats.frames import encode_fill
from formats.keys import boundary_key, catalog_key, fill_key, new_segment_uuid, record_key
from formats.segment import Codec
from formats.summary import Layout
from offloader.errors import NotFoundError
from offloader.inspect.inspect import inspect_object
from offloader.manifest.checkpoint import checkpoint_now
from offloader.settings import ReadSettings, Size
from offloader.store.base import ObjectStore
from offloader.store.open import open_store
from tests.support.streams import StreamWriter, batch_of

GOLDEN = Path(__file__).resolve().parents[1] / "formats" / "golden"
names = itertools.count()
LIMITS = {"block_bytes_max": 1 << 24, "decompressed_bytes_max": 1 << 24}


@pytest.fixture
def store() -> ObjectStore:
    return open_store(f"memory://inspect-{next(names)}")


def golden_files() -> list[Path]:
    found = [path for path in sorted(GOLDEN.rglob("*")) if path.is_file() and path.suffix != ".json"]
    assert len(found) > 10
    return found


def content_of(path: Path) -> bytes:
    return gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()


def require_covered(pieces: list[DescribedBytes], size_bytes: int) -> None:
    """The pieces lie end to end from the first byte to the last."""
    at = 0
    for piece in pieces:
        assert piece.start == at, piece
        at += piece.length
    assert at == size_bytes


@pytest.mark.parametrize("path", golden_files(), ids=lambda path: path.name[-40:])
def test_every_byte_of_pulsars_objects_is_in_a_piece(store: ObjectStore, path: Path) -> None:
    data = content_of(path)
    key = path.name.removesuffix(".gz")
    store.put(key, data, metadata={"role": "any"})
    found = inspect_object(store, key)
    pieces = list(found.pieces)
    assert found.kind == ("index" if key.endswith("-index") else "data object")
    assert (found.size_bytes, found.metadata) == (len(data), {"role": "any"})
    assert [piece for piece in pieces if piece.problem] == []
    require_covered(pieces, len(data))
    if found.kind == "data object":
        first = pieces[0]
        assert (first.what, first.facts["extension"]) == ("block header", "none")
        assert first.facts["layout"] == ("V1" if "-ledger-" in key else "V2")


@pytest.mark.parametrize("layout", Layout)
@pytest.mark.parametrize("codec", [Codec.NONE, Codec.ZSTD])
def test_every_byte_of_our_objects_is_in_a_piece(store: ObjectStore, layout: Layout, codec: Codec) -> None:
    writer = StreamWriter(store)
    uuid = writer.add([batch_of(7, 0, 100)], layout=layout, codec=codec, closes=[7])
    data_key, index_key = writer.keys(uuid, 7 if layout is Layout.V1 else None)
    for key in (data_key, index_key):
        found = inspect_object(store, key)
        pieces = list(found.pieces)
        assert not any(piece.problem for piece in pieces)
        require_covered(pieces, found.size_bytes)
    blocks = list(inspect_object(store, data_key).pieces)
    whats = [piece.what for piece in blocks]
    assert whats[:4] == ["block header", "entries", "end marker", "entry table"]
    counted = [piece.facts["entries"] for piece in blocks if piece.what == "entries"]
    assert sum(counted) == 100  # type: ignore[arg-type]
    rows = [piece.facts for piece in inspect_object(store, index_key).pieces if piece.what == "block entry"]
    headers = [piece.start for piece in blocks if piece.what == "block header"]
    assert [row["offset"] for row in rows] == headers


@pytest.mark.slow
def test_a_large_object_is_walked_without_being_read_whole(store: ObjectStore) -> None:
    writer = StreamWriter(store, block_bytes=3 << 20)
    uuid = writer.add([EntryBatch.build(1, first, [bytes(1 << 20)] * 5) for first in range(0, 20, 5)])
    found = inspect_object(store, writer.keys(uuid)[0])
    require_covered(list(found.pieces), found.size_bytes)
    assert found.size_bytes > 20 << 20
    assert found.bytes_of(found.size_bytes - 4, found.size_bytes + 99) == store.get(found.key)[0][-4:]


@pytest.mark.parametrize(
    ("at", "what", "said"),
    [
        (1, "not a block header", "magic"),
        (60, "not a block header", "expected"),
        (150, "entries", "block payload at byte"),
    ],
)
def test_damage_is_a_piece_with_what_was_expected_after_the_intact_pieces(
    store: ObjectStore, at: int, what: str, said: str
) -> None:
    writer = StreamWriter(store)
    uuid = writer.add([batch_of(7, 0, 100)])
    key = writer.keys(uuid)[0]
    second = [p.start for p in inspect_object(store, key).pieces if p.what == "block header"][1]
    data = bytearray(store.get(key)[0])
    data[second + at] ^= 1
    store.put(key, bytes(data))
    pieces = list(inspect_object(store, key).pieces)
    [damaged] = [piece for piece in pieces if piece.problem]
    assert damaged.what == what
    assert said in damaged.problem
    assert damaged.start == second + (128 if what == "entries" else 0)
    assert [piece.start for piece in pieces[:4]] == [0, 128, *[piece.start for piece in pieces[2:4]]]


def test_truncated_object_shows_its_remaining_pieces(store: ObjectStore) -> None:
    writer = StreamWriter(store)
    key = writer.keys(writer.add([batch_of(7, 0, 100)]))[0]
    store.put(key, store.get(key)[0][:-100])
    pieces = list(inspect_object(store, key).pieces)
    assert any("block" in piece.problem for piece in pieces)
    assert not any(piece.problem for piece in pieces[:4])
    store.put(key, b"")
    assert list(inspect_object(store, key).pieces) == []


def test_the_manifests_objects_are_known_by_their_names(store: ObjectStore) -> None:
    writer = StreamWriter(store)
    uuid = writer.add([batch_of(7, 0, 10)], closes=[7])
    state = writer.log.state
    record = inspect_object(store, record_key(state.stream, state.incarnation, state.record_id))
    first, *edits = record.pieces
    assert (record.kind, first.facts["record_id"], first.problem) == ("manifest record", state.record_id, "")
    assert [piece.facts["edit"] for piece in edits] == ["assign", "offloaded", "ledger_closed"]
    text = store.get(record.key)[0]
    assert all(text[p.start : p.start + p.length].startswith(b"{") for p in edits)
    assert edits[0].facts["uuid"] == str(uuid)

    checkpoint_now(store, state, os.urandom)
    kinds = {}
    for info in store.list("").objects:
        found = inspect_object(store, info.key)
        pieces = list(found.pieces)
        assert not any(piece.problem for piece in pieces), info.key
        kinds[info.key] = found.kind
    assert kinds[boundary_key(state.stream, state.incarnation)] == "manifest boundary"
    assert kinds[catalog_key(state.stream)] == "catalogue entry"
    assert "manifest checkpoint" in kinds.values()


def test_missing_object_is_an_error(store: ObjectStore) -> None:
    with pytest.raises(NotFoundError):
        inspect_object(store, "orders/nothing")


@pytest.mark.slow
@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_describing_never_raises_for_any_bytes(data: st.DataObject) -> None:
    original = content_of(data.draw(st.sampled_from([path for path in golden_files() if path.stat().st_size < 50_000])))
    content = bytearray(original)
    for _ in range(data.draw(st.integers(0, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    content = content[: data.draw(st.integers(0, len(content)))] + data.draw(st.binary(max_size=20))
    for describe in (describe_index, describe_record, describe_boundary, describe_checkpoint, describe_segment_run):
        for piece in describe(bytes(content)):
            assert piece.length >= 0
    for piece in describe_block(bytes(content), offset=0, **LIMITS):
        assert piece.length >= 0


@pytest.mark.slow
@settings(max_examples=100, deadline=None)
@given(data=st.data())
def test_walking_a_damaged_object_ends(data: st.DataObject) -> None:
    store = open_store(f"memory://inspect-{next(names)}")
    path = data.draw(st.sampled_from([path for path in golden_files() if path.stat().st_size < 50_000]))
    content = bytearray(content_of(path))
    content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    store.put(path.name, bytes(content))
    found = inspect_object(store, path.name, settings=ReadSettings(block_size_max=Size(1 << 22)))
    starts = [piece.start for piece in found.pieces]
    assert len(starts) <= len(content)


def test_a_fill_is_described_whole_and_damaged(store: ObjectStore) -> None:
    writer = StreamWriter(store)
    body = bytes(encode_fill(batch_of(7, 3, 5)))
    key = fill_key(writer.stream, new_segment_uuid(writer.log.state.incarnation, 1))
    store.put(key, body)
    found = inspect_object(store, key)
    pieces = list(found.pieces)
    assert (found.kind, [piece.what for piece in pieces]) == ("fill", ["fill header", "frames", "end mark"])
    assert (pieces[0].facts["ledger_id"], pieces[1].facts["entries"]) == (7, 5)
    for at in range(len(body)):
        damaged = list(describe_fill(body[:at] + bytes([body[at] ^ 1]) + body[at + 1 :]))
        require_covered(damaged, len(body))
        assert [piece.problem for piece in damaged if piece.problem], f"byte {at}"
