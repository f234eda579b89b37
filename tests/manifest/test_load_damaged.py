"""Every object of a manifest damaged in every way: the error names it, and nothing is changed or deleted."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from itertools import count

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from formats.checked_json import sealed
from formats.checksum import crc32c
from formats.entries import Position
from formats.keys import boundary_key, catalog_key, checkpoint_key, manifest_prefix, record_key
from formats.manifest import LedgerClosed
from offloader.errors import CorruptError, OffloaderError, UnsupportedError
from offloader.manifest.boundary import read_boundary
from offloader.manifest.load import load_manifest_view_at, view_in_checkpoint
from offloader.manifest.log import ManifestLog, load_manifest
from offloader.manifest.maintenance import delete_stream, expire_records
from offloader.manifest.rebuild import rebuild_manifest
from offloader.manifest.state import ManifestState
from offloader.settings import Duration, ManifestSettings
from offloader.store.base import OVERWRITE
from offloader.store.memory import MemoryStore
from offloader.testing.manual_clock import ManualClock

STREAM = "public/default/persistent/orders"
#: Everything is old enough to be deleted.
SETTINGS = ManifestSettings(checkpoint_records=5, orphan_age_min=Duration("0h"))
_names = count()


@dataclass
class Stored:
    """A manifest with a checkpoint of record 10 and two records after it."""

    store: MemoryStore
    clock: ManualClock
    state: ManifestState

    def contents(self) -> dict[str, bytes]:
        return {
            info.key: self.store.get(info.key)[0] for info in self.store.list("").objects if "_time" not in info.key
        }

    def log(self) -> ManifestLog:
        return ManifestLog(self.store, STREAM, clock=self.clock, settings=SETTINGS)

    def key(self, what: str) -> str:
        incarnation = self.state.incarnation
        return {
            "a record": record_key(STREAM, incarnation, 11),
            "the last record": record_key(STREAM, incarnation, 12),
            "the checkpoint": checkpoint_key(STREAM, incarnation, 10),
            "the boundary": boundary_key(STREAM, incarnation),
            "the catalogue entry": catalog_key(STREAM),
        }[what]


@pytest.fixture
def stored() -> Stored:
    clock = ManualClock()
    store = MemoryStore(f"bad-{next(_names)}", "", clock)
    log = ManifestLog(store, STREAM, clock=clock, settings=SETTINGS)
    log.open_epoch()
    for number in range(11):
        log.commit([LedgerClosed(number, 9)])
    assert read_boundary(store, STREAM, log.state.incarnation).boundary.checkpoint_id == 10
    return Stored(store, clock, log.state)


def flipped(body: bytes) -> bytes:
    return body[: len(body) // 2] + bytes([body[len(body) // 2] ^ 0x10]) + body[len(body) // 2 + 1 :]


def of_a_later_release(body: bytes) -> bytes:
    """The same, sealed as format 2, or a Parquet file that says so."""
    if body.startswith(b"{"):
        fields = json.loads(body)
        del fields["crc32c"]
        return sealed({**fields, "format": 2})
    table = pq.read_table(pa.BufferReader(body))
    sink = pa.BufferOutputStream()
    pq.write_table(table.replace_schema_metadata({**table.schema.metadata, b"offloader.format": b"2"}), sink)
    return bytes(sink.getvalue().to_pybytes())


OBJECTS = ["a record", "the last record", "the checkpoint", "the boundary", "the catalogue entry"]
DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "flipped": flipped,
    "truncated": lambda body: body[: len(body) * 2 // 3],
    "one byte": lambda body: body[:1],
    "of zeros": lambda body: bytes(len(body)),
    "with a tail": lambda body: body + b"\0",
}


def refused(stored: Stored, error: type[OffloaderError], named: str) -> None:
    """Whatever is asked of the manifest: a named error, and everything stays as it is."""
    before = stored.contents()

    def expire() -> object:
        return expire_records(stored.store, stored.log().load(), clock=stored.clock, settings=SETTINGS)

    def delete() -> object:
        return delete_stream(
            stored.store, STREAM, clock=stored.clock, settings=SETTINGS, delete_objects=lambda _: pytest.fail("deletes")
        )

    asked: list[Callable[[], object]] = [
        lambda: load_manifest(stored.store, STREAM),
        lambda: stored.log().open_epoch(),
        lambda: stored.log().load(create=True),
        expire,
        delete,
    ]
    for ask in asked:
        with pytest.raises(error, match=named) as caught:
            ask()
        assert caught.value.hint
    assert stored.contents() == before


@pytest.mark.slow
@pytest.mark.parametrize("damage", list(DAMAGES))
@pytest.mark.parametrize("what", OBJECTS)
def test_damage_is_named_and_nothing_is_changed(stored: Stored, what: str, damage: str) -> None:
    key = stored.key(what)
    stored.store.put(key, DAMAGES[damage](stored.store.get(key)[0]), mode=OVERWRITE)
    refused(stored, CorruptError, named=key.rpartition("/")[2])


@pytest.mark.parametrize("what", OBJECTS)
def test_records_of_a_later_release_are_refused_and_never_rebuilt(stored: Stored, what: str) -> None:
    """An older release that took it for damage would stop the newer one's writers, and drop their records."""
    key = stored.key(what)
    body = of_a_later_release(stored.store.get(key)[0])
    stored.store.put(key, body, mode=OVERWRITE)
    if what == "the checkpoint":
        boundary = read_boundary(stored.store, STREAM, stored.state.incarnation).boundary
        changed = replace(boundary, checkpoint_crc32c=crc32c(body)).encode()
        stored.store.put(stored.key("the boundary"), changed, mode=OVERWRITE)
    refused(stored, UnsupportedError, named=key.rpartition("/")[2])
    before = stored.contents()
    with pytest.raises(UnsupportedError, match=r"later release|format"):
        rebuild_manifest(stored.store, STREAM, head=Position(0, 0), clock=stored.clock)
    assert stored.contents() == before


def test_an_edit_that_only_a_later_release_knows_is_left_to_it(stored: Stored) -> None:
    key = stored.key("the last record")
    fields = json.loads(stored.store.get(key)[0])
    del fields["crc32c"]
    stored.store.put(key, sealed({**fields, "edits": [{"edit": "teleport"}]}), mode=OVERWRITE)
    refused(stored, UnsupportedError, named="teleport")


@pytest.mark.parametrize(
    ("lost", "named"),
    [
        ("a record", "record 11 is missing, but later records exist"),
        ("the checkpoint", "checkpoint 10 or a run of it is missing"),
        ("the boundary", "the boundary of stream .* is missing, but its records exist"),
    ],
)
def test_a_lost_object_is_an_error_and_not_an_empty_stream(stored: Stored, lost: str, named: str) -> None:
    stored.store.delete([stored.key(lost)])
    refused(stored, CorruptError, named)


def test_lost_boundary_with_expired_records_is_not_an_empty_stream(stored: Stored) -> None:
    """Numbers begin above 1 here: two absent ones would look like an unused stream."""
    expire_records(stored.store, stored.state, clock=stored.clock, settings=SETTINGS)
    assert record_key(STREAM, stored.state.incarnation, 1) not in stored.contents()
    stored.store.delete([stored.key("the boundary")])
    refused(stored, CorruptError, "is missing, but its records exist")


def test_stream_still_being_created_is_empty(stored: Stored) -> None:
    """Its creator has made the entry and paused."""
    for key in stored.contents():
        if key.startswith(manifest_prefix(STREAM, stored.state.incarnation)):
            stored.store.delete([key])
    assert load_manifest(stored.store, STREAM).record_id == 0
    assert stored.log().open_epoch() == 1


def test_another_streams_object_isn_t_believed(stored: Stored) -> None:
    other = ManifestLog(stored.store, "public/default/persistent/other", clock=stored.clock, settings=SETTINGS)
    other.open_epoch()
    for number in range(11):
        other.commit([LedgerClosed(number, 8)])
    for what, theirs in (
        ("the last record", record_key(other.stream, other.state.incarnation, 12)),
        ("the checkpoint", checkpoint_key(other.stream, other.state.incarnation, 10)),
        ("the catalogue entry", catalog_key(other.stream)),
    ):
        key = stored.key(what)
        own = stored.store.get(key)[0]
        stored.store.put(key, stored.store.get(theirs)[0], mode=OVERWRITE)
        refused(stored, CorruptError, "doesn't follow|has CRC-32C|names stream")
        stored.store.put(key, own, mode=OVERWRITE)
    assert load_manifest(stored.store, STREAM) == stored.state


def test_a_checkpoint_under_another_ones_name_isn_t_believed(stored: Stored) -> None:
    """A pinned view is read from an older checkpoint, whose checksum is in the next one."""
    incarnation = stored.state.incarnation
    five, ten = (checkpoint_key(STREAM, incarnation, number) for number in (5, 10))
    own = stored.store.get(ten)[0]
    stored.store.put(ten, stored.store.get(five)[0], mode=OVERWRITE)
    with pytest.raises(CorruptError, match=r"has CRC-32C|belongs to record 5"):
        load_manifest_view_at(stored.store, stored.state, 12)
    boundary = read_boundary(stored.store, STREAM, incarnation).boundary
    sealed_in = replace(boundary, checkpoint_crc32c=crc32c(stored.store.get(five)[0]))
    stored.store.put(stored.key("the boundary"), sealed_in.encode(), mode=OVERWRITE)
    refused(stored, CorruptError, "belongs to record 5")
    stored.store.put(stored.key("the boundary"), boundary.encode(), mode=OVERWRITE)
    stored.store.put(ten, own, mode=OVERWRITE)
    assert load_manifest_view_at(stored.store, stored.state, 7).record_id == 7
    stored.store.put(five, stored.store.get(ten)[0], mode=OVERWRITE)
    for record_id in (7, 3):
        with pytest.raises(CorruptError, match=r"0005\.checkpoint\.parquet has CRC-32C"):
            load_manifest_view_at(stored.store, stored.state, record_id)
    with pytest.raises(CorruptError, match="belongs to record 10"):
        view_in_checkpoint(stored.store, STREAM, incarnation, 5)


def test_lost_record_is_named_wherever_it_is_among_later_ones() -> None:
    store, clock = MemoryStore(f"lost-{next(_names)}", "", ManualClock()), ManualClock()
    log = ManifestLog(store, STREAM, clock=clock)
    log.open_epoch()
    for ledger_id in range(1, 7):
        log.commit([LedgerClosed(ledger_id, 9)])
    key = record_key(STREAM, log.state.incarnation, 4)
    store.delete([key])
    with pytest.raises(
        CorruptError, match=r"record 4 is missing, but later records exist: record [567] certainly existed"
    ):
        load_manifest(store, STREAM)
