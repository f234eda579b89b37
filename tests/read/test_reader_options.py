"""Options of a reader: skip missing objects, relocate buckets, hold a lease, share a cache."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Mapping

import pytest

from formats.documents import lease_prefix
from formats.entries import Position
from offloader.errors import (
    InvalidCallError,
    NotFoundError,
    ObjectMissingError,
    StoreUnavailableError,
    UnsupportedError,
)
from offloader.manifest.log import load_manifest
from offloader.manifest.protection import leases_of, take_lease
from offloader.read.cold import require_same_place
from offloader.read.fetch import Cache, process_cache
from offloader.read.reader import open_stream_reader
from offloader.settings import Pairs, Settings
from offloader.store.memory import MemoryStore
from offloader.store.open import open_store
from offloader.testing.faulty_store import Fault, FaultyStore
from offloader.testing.manual_clock import ManualClock
from tests.support.streams import StreamWriter, batch_of

names = itertools.count()


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(now_ms=1_700_000_000_000)


@pytest.fixture
def store(clock: ManualClock) -> FaultyStore:
    return FaultyStore(MemoryStore(f"choices-{next(names)}", "", clock))


@pytest.fixture
def writer(store: FaultyStore) -> StreamWriter:
    made = StreamWriter(store)
    for segment in range(4):
        made.add([batch_of(1, 50 * segment, 50)])
    return made


# --- missing objects -------------------------------------------------------------------------------------------------


@pytest.mark.slow
@pytest.mark.parametrize("role", [0, 1], ids=["data", "index"])
def test_skipping_reader_omits_and_reports_segment_of_a_missing_object(
    store: FaultyStore, writer: StreamWriter, role: int
) -> None:
    gone = writer.uuids[1]
    store.delete([writer.keys(gone)[role]])
    left = [entry for entry in writer.entries if not 50 <= entry.entry_id < 100]

    with open_stream_reader(store, writer.stream, cache=Cache(0)) as strict, pytest.raises(ObjectMissingError):
        list(strict.scan())
    assert strict.skipped == {}

    with open_stream_reader(store, writer.stream, on_missing="skip", cache=Cache(1 << 20)) as reader:
        assert [entry for batch in reader.scan() for entry in batch.entries()] == left
        assert list(reader.skipped) == [gone]
        assert writer.keys(gone)[role] in reader.skipped[gone]
        assert list(reader.read(Position(1, 40), Position(1, 110))) == [e for e in left if 40 <= e.entry_id <= 110]
        assert list(reader.read(Position(1, 60), Position(1, 61))) == []
        assert len(reader.skipped) == 1
        assert list(reader.refresh().skipped) == [gone]


def test_skipping_reader_counts_nothing_of_a_segment_that_a_range_cuts_and_whose_index_is_missing(
    store: FaultyStore, writer: StreamWriter
) -> None:
    gone = writer.uuids[1]
    store.delete([writer.keys(gone)[1]])
    ends = Position(1, 40), Position(1, 60)
    with open_stream_reader(store, writer.stream, cache=Cache(0)) as strict, pytest.raises(ObjectMissingError):
        strict.count(*ends)
    with open_stream_reader(store, writer.stream, on_missing="skip", cache=Cache(0)) as reader:
        try:
            assert reader.count(*ends) == len(reader.read(*ends)) == 10
        except ObjectMissingError as error:
            pytest.fail(error.message)
        assert list(reader.skipped) == [gone]


@pytest.mark.slow
@pytest.mark.parametrize("role", [0, 1], ids=["data", "index"])
def test_skipping_reader_counts_what_it_reads(store: FaultyStore, writer: StreamWriter, role: int) -> None:
    gone = writer.uuids[1]
    store.delete([writer.keys(gone)[role]])
    for ends in ((Position(1, 0), Position(1, 199)), (Position(1, 40), Position(1, 60)), (Position(1, 50),) * 2):
        with open_stream_reader(store, writer.stream, on_missing="skip", cache=Cache(0)) as reader:
            assert reader.count(*ends) == sum(map(len, reader.scan(*ends)))
            assert list(reader.skipped) == [gone]
        with open_stream_reader(store, writer.stream, on_missing="skip", cache=Cache(0)) as reader:
            reader.count(*ends)
            assert list(reader.skipped) == [gone]


def test_only_skipping_reader_finds_a_time_behind_a_missing_segment(store: FaultyStore, writer: StreamWriter) -> None:
    time_ms = writer.entries[60].publish_time_ms
    store.delete(list(writer.keys(writer.uuids[1])))
    with open_stream_reader(store, writer.stream, cache=Cache(0)) as strict, pytest.raises(ObjectMissingError):
        strict.position_at(time_ms)
    with open_stream_reader(store, writer.stream, on_missing="skip", cache=Cache(0)) as reader:
        assert reader.position_at(time_ms) == Position(1, 100)
        assert list(reader.skipped) == [writer.uuids[1]]


# --- moved buckets ---------------------------------------------------------------------------------------------------


def test_moved_bucket_is_read_where_the_setting_names_it(store: FaultyStore, writer: StreamWriter) -> None:
    old = {"managedLedgerOffloadDriver": "aws-s3", "bucket": "old", "region": "", "serviceEndpoint": "https://a"}
    writer.add([batch_of(1, 200, 10)], driver=old)
    here = store.driver_metadata["bucket"]
    for wrong in ({}, {"old": "elsewhere"}, {"other": here}):
        settings = Settings.of({"read": {"relocate": wrong}}).read
        with (
            open_stream_reader(store, writer.stream, settings=settings) as reader,
            pytest.raises(InvalidCallError) as refused,
        ):
            list(reader.scan())
        assert "read.relocate" in refused.value.hint
    settings = Settings.of({"read": {"relocate": {"old": here, "older": here}}}).read
    with open_stream_reader(store, writer.stream, settings=settings) as reader:
        assert [entry for batch in reader.scan() for entry in batch.entries()] == writer.entries


def test_spellings_of_one_endpoint_are_one_place() -> None:
    def place(endpoint: str, driver: str = "S3", bucket: str = "b") -> Mapping[str, str]:
        return {"managedLedgerOffloadDriver": driver, "bucket": bucket, "region": "", "serviceEndpoint": endpoint}

    store = MemoryStore("same-place", "", ManualClock())
    store.driver_metadata = place("http://127.0.0.1:9000")
    for same in ("http://localhost:9000", "http://LOCALHOST:9000/", "http://127.0.0.1:9000/", "http://[::1]:9000"):
        require_same_place("x", place(same), store)
        require_same_place("x", place(same, "aws-s3"), store)
    for other in ("http://localhost:9001", "https://localhost:9000", "http://other:9000", ""):
        with pytest.raises(InvalidCallError, match="was written to"):
            require_same_place("x", place(other), store)
    for different in (
        place("http://127.0.0.1:9000", bucket="c"),
        place("http://127.0.0.1:9000", "google-cloud-storage"),
    ):
        with pytest.raises(InvalidCallError, match="was written to"):
            require_same_place("x", different, store)
    require_same_place("x", place("http://other:9000"), store, Pairs({"b": "b"}))
    store.driver_metadata = place("https://s3.example")
    require_same_place("x", place("https://s3.example:443/"), store)


def test_invalid_relocate_setting_is_refused() -> None:
    for wrong in ("old", {"old": 1}, 7):
        with pytest.raises(InvalidCallError, match=r"read\.relocate: .* is not a table of texts"):
            Settings.of({"read": {"relocate": wrong}})
    assert Settings.of({"read": {"relocate": {"b": "2", "a": "1"}}}).read.relocate == (("a", "1"), ("b", "2"))


# --- leases ----------------------------------------------------------------------------------------------------------


def test_lease_is_written_before_the_manifest_loads_and_removed_at_the_end(
    store: FaultyStore, writer: StreamWriter, clock: ManualClock
) -> None:
    before = len(store.calls)
    reader = open_stream_reader(store, writer.stream, lease_seconds=60, clock=clock)
    asked = store.calls[before:]
    assert asked[0][0] == "put"
    assert asked[0][1].startswith(lease_prefix(writer.stream))
    assert all(verb != "put" for verb, _ in asked[1:])
    [lease] = leases_of(store, writer.stream)
    assert lease.ends_ms == clock.now_ms() + 60_000
    assert "@" in lease.reader
    reader.close()
    assert leases_of(store, writer.stream) == []


def test_a_lease_is_renewed_while_something_is_read(
    store: FaultyStore, writer: StreamWriter, clock: ManualClock
) -> None:
    with open_stream_reader(store, writer.stream, lease_seconds=60, clock=clock) as reader:
        for batch in reader.scan():
            assert len(batch)
            clock.advance(15)
            [lease] = leases_of(store, writer.stream)
            assert lease.ends_ms is not None
            assert lease.ends_ms > clock.now_ms()
        clock.advance(25)
        reader.read(Position(1, 0), Position(1, 0))
        [lease] = leases_of(store, writer.stream)
        assert lease.ends_ms == clock.now_ms() + 60_000
        again = reader.refresh()
        assert len(leases_of(store, writer.stream)) == 2
        again.close()
        assert [each.uuid for each in leases_of(store, writer.stream)] == [lease.uuid]


def test_failed_renewal_of_a_lease_is_an_error_only_after_its_end(
    store: FaultyStore, writer: StreamWriter, clock: ManualClock
) -> None:
    lease = take_lease(store, writer.stream, 60, clock=clock, reader="me")
    store.set_faults([Fault(call=1, calls=100, verb="put")])
    clock.advance(59)
    lease.renew_if_due()
    clock.advance(2)
    with pytest.raises(StoreUnavailableError):
        lease.renew_if_due()
    store.set_faults([])
    lease.renew_if_due()
    [found] = leases_of(store, writer.stream)
    assert (found.reader, found.ends_ms) == ("me", clock.now_ms() + 60_000)


def test_unreadable_lease_never_expires(store: FaultyStore, writer: StreamWriter) -> None:
    prefix = lease_prefix(writer.stream)
    store.put(f"{prefix}11111111-1111-4111-8111-111111111111", b"?")
    store.put(f"{prefix}notes.txt", b"?")
    [found] = leases_of(store, writer.stream)
    assert (found.ends_ms, found.reader) == (None, "")


def test_invalid_leases_are_refused_and_none_is_written(store: FaultyStore, writer: StreamWriter) -> None:
    with pytest.raises(InvalidCallError, match="loaded after the lease"):
        open_stream_reader(store, writer.stream, lease_seconds=60, state=load_manifest(store, writer.stream))
    for wrong in (-1, 8 * 24 * 3600):
        with pytest.raises(InvalidCallError, match="invalid lease of"):
            open_stream_reader(store, writer.stream, lease_seconds=wrong)
    with pytest.raises(NotFoundError):
        open_stream_reader(store, "nothing/here", lease_seconds=60)
    assert leases_of(store, writer.stream) == leases_of(store, "nothing/here") == []
    reading = open_store(f"memory://choices-{next(names)}", read_only=True)
    with pytest.raises(UnsupportedError):
        open_stream_reader(reading, writer.stream, lease_seconds=60)


# --- one cache -------------------------------------------------------------------------------------------------------


def test_readers_of_one_process_share_a_cache(store: FaultyStore, writer: StreamWriter) -> None:
    first, second = open_stream_reader(store, writer.stream), open_stream_reader(store, writer.stream)
    wanted = Position(1, 7)
    assert len(first.read(wanted, wanted)) == 1
    before = len(store.calls)
    assert len(second.read(wanted, wanted)) == 1
    assert len(store.calls) == before, "neither the index nor the block is fetched again"


def test_many_readers_at_once_fetch_a_block_once(store: FaultyStore, writer: StreamWriter) -> None:
    readers = [open_stream_reader(store, writer.stream) for _ in range(8)]
    wanted, start = Position(1, 120), threading.Barrier(8)
    found: list[int] = []

    def read(number: int) -> None:
        start.wait()
        found.append(len(readers[number].read(wanted, wanted)))

    before = len(store.calls)
    threads = [threading.Thread(target=read, args=(number,)) for number in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [1] * 8
    assert len(store.calls) - before == 2, "one index, one block"


def test_process_cache_grows_to_the_largest_bound_and_0_disables_it() -> None:
    bound = process_cache(1 << 20).bytes_max
    assert process_cache(bound + 1) is process_cache(1)
    assert process_cache(1).bytes_max == bound + 1
    assert process_cache(0) is not process_cache(1)
    assert process_cache(0).bytes_max == 0
