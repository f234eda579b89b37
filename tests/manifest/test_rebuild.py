"""Rebuilding a manifest from the objects alone."""

from __future__ import annotations

import random
from contextlib import suppress
from itertools import count
from uuid import UUID

import pytest

from formats.entries import Position
from formats.keys import boundary_key, catalog_key, data_key, index_key, manifest_prefix, new_segment_uuid, record_key
from formats.manifest import LedgerClosed, Truncate
from formats.summary import Layout
from offloader.errors import CorruptError, InvalidCallError, NotFoundError, OffloaderError, StoreUnavailableError
from offloader.manifest.log import ManifestLog, load_manifest
from offloader.manifest.rebuild import Rebuild, rebuild_manifest
from offloader.manifest.state import EditRefusedError
from offloader.read.reader import open_stream_reader
from offloader.runtime.clock import SystemClock
from offloader.store.base import OVERWRITE
from offloader.store.memory import MemoryStore
from offloader.testing.faulty_store import Fault, FaultyStore
from tests.support.schedule import Schedule
from tests.support.streams import StreamWriter, batch_of, build, put_objects

STREAM = "public/default/persistent/orders"
_names = count()


def new_store() -> MemoryStore:
    return MemoryStore(f"rebuild-{next(_names)}", "", SystemClock())


class NoChecksums(MemoryStore):
    """A store that keeps neither checksums nor user metadata."""

    def head(self, key: str):  # type: ignore[no-untyped-def]
        from dataclasses import replace

        return replace(super().head(key), crc32c=None)


def rebuild(writer: StreamWriter, head: Position | None = None, **more: object) -> Rebuild:
    return rebuild_manifest(writer.store, writer.stream, head=head, clock=SystemClock(), **more)  # type: ignore[arg-type]


def break_manifest(writer: StreamWriter) -> None:
    """A bit flips in the first record."""
    key = record_key(writer.stream, writer.log.state.incarnation, 1)
    body = bytearray(writer.store.get(key)[0])
    body[20] ^= 1
    writer.store.put(key, body, mode=OVERWRITE)
    with pytest.raises(CorruptError):
        load_manifest(writer.store, writer.stream)


def filled(store: MemoryStore | None = None) -> StreamWriter:
    """Two layouts, ledgers that end inside a segment and between two."""
    writer = StreamWriter(store or new_store(), STREAM)
    writer.add([batch_of(1, 0, 50)])
    writer.add([batch_of(1, 50, 50), batch_of(2, 0, 30)], closes=[1])
    writer.add([batch_of(2, 30, 30)], closes=[2])
    writer.add([batch_of(3, 0, 40)], layout=Layout.V1, closes=[3])
    writer.add([batch_of(4, 0, 20)])
    return writer


def payloads(writer: StreamWriter) -> list[tuple[Position, bytes]]:
    with open_stream_reader(writer.store, writer.stream) as reader:
        return [(entry.position, entry.payload) for batch in reader.scan() for entry in batch.entries()]


@pytest.mark.slow
@pytest.mark.parametrize("store_kind", [MemoryStore, NoChecksums])
def test_everything_is_readable_again_from_the_objects_alone(store_kind: type[MemoryStore]) -> None:
    writer = filled(store_kind(f"rebuild-{next(_names)}", "", SystemClock()))
    before = load_manifest(writer.store, STREAM)
    expected = payloads(writer)
    break_manifest(writer)

    done = rebuild(writer, closed_ledgers={2: 59})

    state = load_manifest(writer.store, STREAM)
    assert done.state == state
    assert state.incarnation != before.incarnation
    assert [(s.uuid, s.begin, s.end, s.summary) for s in state.offloaded()] == [
        (s.uuid, s.begin, s.end, s.summary) for s in before.offloaded()
    ]
    assert state.totals() == before.totals()
    assert all(s.owned for s in state.offloaded())
    assert payloads(writer) == expected
    assert done.problems == []
    assert list(done.chosen.unproven) == []


def test_rebuild_reports_unproven_ledger_end_and_reads_up_to_it() -> None:
    """A segment with the rest of it may be lost, and no record would prove that."""
    writer = filled()
    prefix = manifest_prefix(STREAM, writer.log.state.incarnation)
    writer.store.delete([info.key for info in writer.store.list(prefix).objects])

    done = rebuild(writer)

    assert list(done.chosen.unproven) == [Position(2, 59)]
    assert dict(done.chosen.closed_ledgers) == {1: 99, 3: 39}
    assert load_manifest(writer.store, STREAM).committed_end() == Position(2, 59)


def test_an_end_is_proven_by_the_size_that_the_ledger_had_when_it_was_closed() -> None:
    from formats.segment import LedgerFacts, SegmentBuilder

    writer = StreamWriter(new_store(), STREAM)
    first, second = batch_of(1, 0, 50), batch_of(1, 50, 50)
    size = first.payload_bytes + second.payload_bytes
    for batch, facts in (
        (first, {}),
        (second, {1: LedgerFacts(ledger_id=1, closed=True, size_bytes=size, closed_ms=5)}),
    ):
        builder = SegmentBuilder(layout=Layout.V2, block_bytes=1024, part_bytes=1 << 20)
        parts = builder.append(batch)
        finished = builder.finish(facts)
        uuid = new_segment_uuid(writer.log.state.incarnation, random.getrandbits(64))
        data = b"".join(bytes(part.body) for part in [*parts, *finished.parts])
        put_objects(writer.store, writer.log, uuid, None, finished, data)
    writer.add([batch_of(2, 0, 10)])
    break_manifest(writer)

    done = rebuild(writer)

    assert dict(done.chosen.closed_ledgers) == {1: 99}
    assert load_manifest(writer.store, STREAM).committed_end() == Position(2, 9)


def test_a_readable_manifest_is_never_rebuilt() -> None:
    writer = filled()
    before = {info.key for info in writer.store.list("").objects}
    with pytest.raises(InvalidCallError, match="can be read"):
        rebuild(writer)
    assert {info.key for info in writer.store.list("").objects} == before


def test_a_dry_run_writes_nothing() -> None:
    writer = filled()
    break_manifest(writer)
    writer.store.delete([index_key(STREAM, writer.uuids[0])])
    before = {info.key: info.etag for info in writer.store.list("").objects}

    done = rebuild(writer, dry_run=True)

    assert done.state is None
    assert [s.uuid for s in done.chosen.recorded] == writer.uuids
    assert {info.key: info.etag for info in writer.store.list("").objects} == before


def test_rebuild_records_the_longer_of_overlapping_attempts_and_deletes_none() -> None:
    writer = StreamWriter(new_store(), STREAM)
    writer.add([batch_of(1, 0, 50)])
    shorter = new_segment_uuid(writer.log.state.incarnation, 5)
    finished, data = build([batch_of(1, 0, 30)], 1024)
    put_objects(writer.store, writer.log, shorter, None, finished, data)
    break_manifest(writer)

    done = rebuild(writer)

    assert [s.uuid for s in done.chosen.recorded] == writer.uuids
    assert [s.uuid for s in done.chosen.overlapping] == [shorter]
    assert writer.store.head(data_key(STREAM, shorter)).size_bytes == len(data)
    assert [s.uuid for s in load_manifest(writer.store, STREAM).offloaded()] == writer.uuids


def test_two_neighbours_win_over_one_attempt_that_holds_less() -> None:
    writer = StreamWriter(new_store(), STREAM)
    writer.add([batch_of(1, 0, 50)])
    writer.add([batch_of(1, 50, 50)])
    across = new_segment_uuid(writer.log.state.incarnation, 5)
    finished, data = build([batch_of(1, 10, 80)], 1024)
    put_objects(writer.store, writer.log, across, None, finished, data)
    break_manifest(writer)
    assert [s.uuid for s in rebuild(writer).chosen.overlapping] == [across]


def test_damaged_objects_are_listed_and_left_alone() -> None:
    writer = filled()
    break_manifest(writer)
    store = writer.store
    cut, _ = writer.keys(writer.uuids[4])
    store.put(cut, store.get(cut)[0][:-7], mode=OVERWRITE)
    damaged = index_key(STREAM, writer.uuids[1])
    store.put(damaged, b"\0" * 50, mode=OVERWRITE)
    lonely = index_key(STREAM, UUID(int=9))
    store.put(lonely, b"x")
    stray = f"{STREAM}/notes.txt"
    store.put(stray, b"x")

    done = rebuild(writer)

    assert sorted(key for key, _ in done.problems) == sorted([cut, data_key(STREAM, writer.uuids[1]), lonely])
    # The records that are there name what the damaged objects held.
    assert list(done.missing) == [(Position(1, 50), Position(2, 29)), (Position(4, 0), Position(4, 19))]
    assert [(gap.first, gap.last) for gap in load_manifest(store, STREAM).gaps] == list(done.missing)
    assert {cut, damaged, lonely, stray} <= {info.key for info in store.list(STREAM).objects}


def test_a_missing_index_is_made_from_the_blocks() -> None:
    writer = filled()
    expected = payloads(writer)
    index = writer.store.get(index_key(STREAM, writer.uuids[0]))[0]
    writer.store.delete([index_key(STREAM, writer.uuids[0])])
    break_manifest(writer)

    rebuild(writer, closed_ledgers={2: 59})

    assert len(writer.store.get(index_key(STREAM, writer.uuids[0]))[0]) == len(index)
    assert payloads(writer) == expected


def test_pulsars_objects_are_recorded_as_not_owned() -> None:
    store = new_store()
    writer = StreamWriter(store, STREAM)
    writer.add([batch_of(7, 0, 30)], layout=Layout.V1, extension=False, closes=[7])
    key, own_index = writer.keys(writer.uuids[0], 7)
    for name in (key, own_index):
        store.put(name, store.get(name)[0], mode=OVERWRITE, metadata={"S3ManagedLedgerOffloaderFormatVersion": "1"})
    break_manifest(writer)

    rebuild(writer)

    [segment] = load_manifest(store, STREAM).offloaded()
    assert (segment.owned, segment.begin, segment.end, segment.layout) == (False, Position(7, 0), Position(7, 29), 1)
    assert len(payloads(writer)) == 30


def test_rebuild_takes_the_head_from_its_caller() -> None:
    writer = filled()
    break_manifest(writer)

    done = rebuild(writer, Position(1, 60), closed_ledgers={2: 59})

    assert [s.uuid for s in done.chosen.before_head] == writer.uuids[:1]
    state = load_manifest(writer.store, STREAM)
    assert state.head == Position(1, 60)
    assert state.first_position() == Position(1, 60)
    assert payloads(writer)[0][0] == Position(1, 60)


def test_rebuild_refuses_a_head_past_the_end_and_keeps_the_old_entry() -> None:
    writer = filled()
    break_manifest(writer)
    entry = writer.store.get(catalog_key(STREAM))[0]
    with pytest.raises(EditRefusedError, match="past the committed end"):
        rebuild(writer, Position(4, 19 + 5))
    assert writer.store.get(catalog_key(STREAM))[0] == entry
    rebuild(writer, Position(1, 0))
    assert load_manifest(writer.store, STREAM).head == Position(1, 0)


@pytest.mark.slow
@pytest.mark.parametrize("damage", ["entry", "boundary", "record"])
def test_former_writer_stops_once_its_manifest_was_given_up(damage: str) -> None:
    """Otherwise it would acknowledge entries to its source in a manifest that no reader uses."""
    writer = filled()
    if damage == "boundary":
        writer.store.put(boundary_key(STREAM, writer.log.state.incarnation), b"{}", mode=OVERWRITE)
    else:
        break_manifest(writer)
    if damage == "entry":
        writer.store.put(catalog_key(STREAM), b"{}", mode=OVERWRITE)
    rebuild(writer)
    after = load_manifest(writer.store, STREAM)

    with pytest.raises(OffloaderError):
        writer.log.commit([LedgerClosed(9, 9)])

    assert load_manifest(writer.store, STREAM) == after
    fresh = ManifestLog(writer.store, STREAM, clock=SystemClock())
    fresh.open_epoch()
    fresh.commit([Truncate(Position(1, 5))])


@pytest.mark.parametrize("lost", [b"", b"{}", None])
def test_a_readable_manifest_that_lost_its_entry_gets_it_back(lost: bytes | None) -> None:
    writer = filled()
    if lost is None:
        writer.store.delete([catalog_key(STREAM)])
    else:
        writer.store.put(catalog_key(STREAM), lost, mode=OVERWRITE)

    done = rebuild(writer)

    assert done.attached == writer.log.state.incarnation
    assert load_manifest(writer.store, STREAM) == writer.log.state
    writer.log.commit([LedgerClosed(9, 9)])


@pytest.mark.slow
def test_rebuild_of_a_stream_without_an_entry_that_was_killed_is_done_again() -> None:
    """What it left can be read, and has only some of the segments."""
    for puts in range(100):
        writer = filled()
        expected = payloads(writer)
        manifest = writer.store.list(manifest_prefix(STREAM, writer.log.state.incarnation)).objects
        writer.store.delete([*(info.key for info in manifest), catalog_key(STREAM)])
        killed = FaultyStore(writer.store, [Fault(call=puts + 1, verb="put", calls=10**6)])
        with suppress(OffloaderError):
            rebuild_manifest(killed, STREAM, head=None, clock=SystemClock(), closed_ledgers={2: 59})
            break
        rebuild(writer, closed_ledgers={2: 59})
        assert payloads(writer) == expected, f"killed after {puts} writes"
    assert puts > 5


def test_one_of_two_concurrent_rebuilds_replaces_the_entry() -> None:
    """A has read the entry and pauses; B rebuilds and replaces it: A's would take B's manifest out of sight."""
    writer = filled()
    break_manifest(writer)
    schedule = Schedule(writer.store)
    schedule.start("A", lambda store: rebuild_manifest(store, STREAM, head=None, clock=SystemClock()))
    schedule.until("A", "put", "_catalog")
    done = rebuild(writer)

    with pytest.raises(StoreUnavailableError, match="its catalogue entry changed during the rebuild"):
        schedule.finish("A")

    assert done.state is not None
    assert load_manifest(writer.store, STREAM) == done.state


def test_metadata_alone_prove_nothing() -> None:
    """Metadata can be copied along with an object; only the uuid proves for which stream it was made."""
    writer = filled()
    break_manifest(writer)
    copied = UUID(int=77)
    for own, name in zip(writer.keys(writer.uuids[0]), (str(copied), f"{copied}-index"), strict=True):
        body, info = writer.store.get(own)
        writer.store.put(f"{STREAM}/{name}", body, metadata=writer.store.head(own).metadata or info.metadata)
        writer.store.delete([own])

    done = rebuild(writer)

    assert {s.uuid: s.owned for s in done.chosen.recorded}[copied] is False
    assert all(s.owned for s in done.chosen.recorded if s.uuid != copied)


def test_foreign_objects_are_reported_by_rebuild_and_make_no_stream() -> None:
    writer = filled()
    break_manifest(writer)
    strangers = [f"{STREAM}/notes.txt", f"{STREAM}/00000000-0000-0000-0000-000000000001-indexes", f"{STREAM}/sub/x"]
    for key in strangers:
        writer.store.put(key, b"not ours")

    done = rebuild(writer)

    assert sorted(done.unknown) == sorted(strangers)
    assert done.problems == []
    with pytest.raises(NotFoundError):
        rebuild_manifest(writer.store, "public/default", head=None, clock=SystemClock())


def test_a_rebuilt_name_is_never_the_beginning_of_another() -> None:
    writer = filled()
    objects = [info.key for info in writer.store.list(f"{STREAM}/").objects if "/manifest/" not in info.key]
    for key in objects:
        writer.store.put(f"public/{key.rpartition('/')[2]}", writer.store.get(key)[0])
    with pytest.raises(InvalidCallError, match="one name begins with the other"):
        rebuild_manifest(writer.store, "public", head=None, clock=SystemClock())
    assert load_manifest(writer.store, STREAM) == writer.log.state


def test_rebuild_of_a_missing_stream_is_refused() -> None:
    store = new_store()
    with pytest.raises(NotFoundError):
        rebuild_manifest(store, STREAM, head=None, clock=SystemClock())
    assert store.list("").objects == ()


@pytest.mark.slow
def test_a_thousand_segments_take_a_few_records_and_a_checkpoint() -> None:
    writer = StreamWriter(new_store(), STREAM)
    for number in range(1100):
        finished, data = build([batch_of(1, number * 2, 2)], 1024)
        uuid = new_segment_uuid(writer.log.state.incarnation, number)
        put_objects(writer.store, writer.log, uuid, None, finished, data)
    break_manifest(writer)

    state = rebuild(writer).state

    assert state is not None
    assert state.committed_end() == Position(1, 2199)
    prefix = manifest_prefix(STREAM, state.incarnation)
    names = [info.key[len(prefix) :] for info in writer.store.list(prefix).objects]
    assert len([name for name in names if name.endswith(".json")]) == 5
    assert len([name for name in names if name.endswith("checkpoint.parquet")]) == 1
