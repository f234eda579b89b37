"""A stream offloaded while it is written: order, restarts, owners, and a failure at every storage call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import pairwise
from pathlib import Path
from random import Random

import pytest

from formats.keys import manifest_prefix
from formats.manifest import Assign, Failed, LedgerClosed, Offloaded, OpenEpoch
from offloader.errors import FencedError, StoreUnavailableError
from offloader.manifest.log import load_manifest
from offloader.store.memory import MemoryStore
from offloader.testing.faulty_store import Fault
from offloader.testing.manual_clock import ManualClock
from offloader.testing.memory_ledgers import MemoryLedgers
from offloader.write.offloader import LedgerOffloader
from offloader.write.stream import Mode
from tests.proof.simulation.simulated_workers import SimulatedWorkers
from tests.support.readback import stored_entries, unaccounted_keys
from tests.support.waiting import PATIENCE_S, eventually
from tests.write.streaming_bench import KIB, STREAM, Bench, records_in, settings


@pytest.fixture
def new_bench(tmp_path: Path) -> Iterator[Callable[..., Bench]]:
    made: list[Bench] = []

    def make(**changes: object) -> Bench:
        made.append(Bench(tmp_path, **changes))  # type: ignore[arg-type]
        return made[-1]

    yield make
    for bench in made:
        bench.close()


@pytest.mark.slow
def test_appended_entries_are_readable_once_in_order(new_bench: Callable[..., Bench]) -> None:
    bench = new_bench()
    source = bench.open()
    stream = bench.start(source)
    bench.append(source, 60)

    assert stream.offload() == bench.expected[-1][0]

    assert stored_entries(bench.memory, STREAM) == bench.expected
    state = load_manifest(bench.memory, STREAM)
    spans = [[span.ledger_id for span in s.summary.ledgers] for s in state.offloaded() if s.summary]
    assert len(spans) >= 5
    assert any(len(ledgers) > 1 for ledgers in spans), "some segments span ledgers"
    assert len({ids[0] for ids in spans}) < len(spans), "some ledgers span segments"
    assert unaccounted_keys(bench.memory, STREAM) == set()


@pytest.mark.slow
def test_history_before_the_first_start_is_offloaded_too(new_bench: Callable[..., Bench]) -> None:
    bench = new_bench()
    source = bench.open()
    bench.append(source, 30)

    stream = bench.start(source)
    stream.offload()
    bench.append(source, 30)
    stream.offload()

    assert stored_entries(bench.memory, STREAM) == bench.expected


def test_a_stream_without_entries_is_started_and_stopped_without_a_request(new_bench: Callable[..., Bench]) -> None:
    bench = new_bench()
    stream = bench.start(bench.open())

    assert stream.offload() is None
    assert stream.status().mode is Mode.LIVE
    stream.stop()
    assert bench.store.calls == []


def test_new_stream_costs_a_dozen_requests_before_its_first_segment(new_bench: Callable[..., Bench]) -> None:
    bench = new_bench()
    source = bench.open()
    stream = bench.start(source)
    bench.append(source, 1)
    stream.offload()

    manifest = f"{STREAM}/manifest/"
    sent = [(verb, key) for verb, key in bench.store.calls if not key.startswith(STREAM) or key.startswith(manifest)]
    names = [(verb, key.rpartition("/")[2] if key.startswith(manifest) else key) for verb, key in sent]
    assert names == [
        # Nobody has the name, nor one that begins with it or that it begins with.
        *[("get", f"_catalog/{STREAM}"), ("get", "_catalog/public"), ("get", "_catalog/public/default")],
        *[("get", "_catalog/public/default/persistent"), ("list", f"_catalog/{STREAM}/")],
        ("list", ""),  # no manifest is there whose entry was lost
        # The stream, its boundary, and whether it wasn't deleted in between.
        *[("put", f"_catalog/{STREAM}"), ("put", "boundary"), ("get", f"_catalog/{STREAM}")],
        # The epoch, the assignment, the end: a record and a look at the boundary each.
        *[("put", f"{1:020d}.json"), ("get", "boundary")],
        # The first stream of a store creates its identity.
        *[("get", "_store"), ("put", "_store")],
        *[call for record in (2, 3) for call in (("put", f"{record:020d}.json"), ("get", "boundary"))],
    ]


def test_a_restarted_idle_stream_reads_its_manifest_and_writes_nothing(new_bench: Callable[..., Bench]) -> None:
    bench = new_bench()
    source = bench.open()
    stream = bench.start(source)
    bench.append(source, 20)
    end = stream.offload()
    stream.stop()
    sent = len(bench.store.calls)

    again = bench.start(bench.open())
    eventually(lambda: again.status().mode is Mode.LIVE)

    assert again.status().committed == end
    calls = bench.store.calls[sent:]
    assert {verb for verb, _ in calls} <= {"get", "head", "list"}
    manifest = manifest_prefix(STREAM, load_manifest(bench.store, STREAM).incarnation)
    listings = [key for verb, key in calls if verb == "list"]
    assert [key.rpartition("/")[0] + "/" for key in listings] == [manifest], "one listing proves the end"


@pytest.mark.slow
def test_restart_continues_after_the_committed_end_and_writes_nothing_when_idle(
    new_bench: Callable[..., Bench],
) -> None:
    bench = new_bench()
    source = bench.open()
    stream = bench.start(source)
    bench.append(source, 20)
    stream.offload()
    stream.stop()
    written = len(bench.records())

    again = bench.start(bench.open())
    again.offload()
    assert len(bench.records()) == written

    bench.append(source := bench.open(), 20)
    third = bench.start(source)
    third.offload()
    assert stored_entries(bench.memory, STREAM) == bench.expected
    assert load_manifest(bench.memory, STREAM).epoch == 2


@pytest.mark.slow
def test_commit_and_next_assignment_are_one_record() -> None:
    """Without threads: with them the next segment's first entry may arrive during the commit."""
    clock = ManualClock()
    workers = SimulatedWorkers(clock, Random(1))
    memory = MemoryStore("one-record", "", clock)
    offloader = LedgerOffloader(memory, settings(), clock=clock, workers=workers)
    source = MemoryLedgers(STREAM, clock)
    stream = offloader.offload_stream(source, STREAM)
    for number in range(60):
        source.append([bytes([number]) * 150] * 10)
        if number % 13 == 12:
            source.close_ledger()
        for _ in range(4):
            workers.run_one()
    stream.request_offload()
    while workers.run_one():
        pass
    assert stream.status().committed == source.tail
    stream.stop()
    offloader.close()

    records = records_in(memory)
    assert stored_entries(memory, STREAM) == source.appended
    offloaded = [edits for edits in records if any(isinstance(edit, Offloaded) for edit in edits)]

    assert len(offloaded) > 4
    assert [type(edit) for edit in records[0]] == [OpenEpoch]
    assert [type(edit) for edit in records[1]] == [Assign]
    assert len(records) == 2 + len(offloaded)
    for edits in offloaded[:-1]:
        assert isinstance(edits[-1], Assign)
    closed = [edit.ledger_id for edits in records for edit in edits if isinstance(edit, LedgerClosed)]
    assert closed == sorted(set(closed)), "each ledger's end is recorded once"


@pytest.mark.slow
def test_source_is_acknowledged_only_after_the_record_is_durable(new_bench: Callable[..., Bench]) -> None:
    bench = new_bench(settings=settings(drain_timeout=0.2))
    source = bench.open()
    record = f"{3:020d}.json"  # epoch, assigned, offloaded
    bench.store.set_faults([Fault(call=1, calls=10_000, verb="put", key_part=record, error=StoreUnavailableError)])
    stream = bench.start(source)
    bench.append(source, 3)

    with pytest.raises(StoreUnavailableError, match=r"isn't offloaded after 0\.2 s"):
        stream.offload()
    assert source.released_position() is None

    bench.store.set_faults([])
    end = stream.offload(timeout_s=PATIENCE_S)
    assert end == bench.expected[-1][0]
    eventually(lambda: source.released_position() == end)


def test_a_segment_closes_at_its_age(new_bench: Callable[..., Bench]) -> None:
    clock = ManualClock(waits_pass=False)
    bench = new_bench(clock=clock)
    source = bench.open()
    stream = bench.start(source)
    bench.append(source, 1)
    eventually(lambda: stream.status().offered == bench.expected[-1][0])
    assert stream.status().committed is None

    clock.advance(9 * 60)
    assert stream.status().committed is None
    clock.advance(61)
    eventually(lambda: stream.status().committed == bench.expected[-1][0])

    assert stored_entries(bench.memory, STREAM) == bench.expected


def test_a_segment_closed_by_age_costs_four_puts(new_bench: Callable[..., Bench]) -> None:
    """What the documents and `doctor` say of small topics: two records, data and index."""
    clock = ManualClock(waits_pass=False)
    bench = new_bench(clock=clock)
    source = bench.open()
    stream = bench.start(source)
    puts = []
    for _ in range(5):
        bench.append(source, 1, size=20)
        eventually(lambda: stream.status().offered == bench.expected[-1][0])
        clock.advance(10 * 60 + 1)
        eventually(lambda: stream.status().committed == bench.expected[-1][0])
        puts.append([key for verb, key in bench.store.calls if verb == "put"])
    assert [len(after) - len(before) for before, after in pairwise(puts)] == [4] * 4


@pytest.mark.slow
def test_stream_with_a_full_buffer_catches_up_and_is_live_again(new_bench: Callable[..., Bench]) -> None:
    """The store is down while entries are appended: the buffer fills, the writer never waits."""
    bench = new_bench(settings=settings(offload_buffer_size_max=64 * KIB))
    source = bench.open()
    stream = bench.start(source)
    bench.append(source, 1)
    stream.offload()
    bench.store.set_faults([Fault(call=1, calls=10_000, error=StoreUnavailableError)])
    bench.append(source, 100, size=600)
    status = stream.status()
    assert status.buffer_bytes <= 2 * 64 * KIB
    assert status.committed == bench.expected[9][0]

    bench.store.set_faults([])
    stream.offload()

    assert stored_entries(bench.memory, STREAM) == bench.expected
    eventually(lambda: stream.status().mode is Mode.LIVE)


@pytest.mark.slow
def test_a_new_owner_fences_the_old_one_which_deletes_nothing(new_bench: Callable[..., Bench]) -> None:
    bench = new_bench()
    source = bench.open()
    first = bench.start(source)
    bench.append(source, 10)
    first.offload()
    second = bench.start(source)
    bench.append(source, 10)
    second.offload()
    bench.append(source, 10)

    with pytest.raises(FencedError, match="is owned by epoch 2"):
        first.offload()
    second.offload()

    assert first.status().mode is Mode.STOPPED
    assert not any(verb.startswith(("delete", "abort")) for verb, _ in bench.store.calls)
    assert stored_entries(bench.memory, STREAM) == bench.expected


def test_unfinished_segment_of_the_last_owner_is_offloaded_again(
    new_bench: Callable[..., Bench],
) -> None:
    bench = new_bench(settings=settings(segment_size_max="100MiB"))
    source = bench.open()
    first = bench.start(source)
    bench.append(source, 10)
    eventually(bench.has_assigned)
    left = load_manifest(bench.memory, STREAM).assigned()[0]
    first.stop()

    stream = bench.start(bench.open())
    stream.offload()

    edits = [edit for record in bench.records() for edit in record]
    assert Failed(left.uuid, "its owner was replaced") in edits
    taken_over = next(record for record in bench.records() if Failed(left.uuid, "its owner was replaced") in record)
    assert any(isinstance(edit, Assign) and edit.begin == left.begin for edit in taken_over), "in one record"
    assert stored_entries(bench.memory, STREAM) == bench.expected
