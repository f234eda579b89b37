"""Pushed entries under the offloader: after any failure each is in the cold tier once and in order."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from uuid import uuid4

import pytest

from formats.entries import Position
from formats.keys import new_segment_uuid
from formats.manifest import Assign, LedgerClosed
from offloader.errors import ClosedError, StoreUnavailableError
from offloader.ledgers.pushed import Offered, OutOfOrderError, PushedLedgers, PushMemory, PushNews
from offloader.manifest.log import ManifestLog
from offloader.read.reader import load_stream
from offloader.runtime.clock import SystemClock
from offloader.settings import Settings
from offloader.store.open import open_store
from offloader.testing.faulty_store import Fault, FaultyStore
from offloader.write.offloader import LedgerOffloader
from offloader.write.stream import Mode
from offloader.write.stream_state import StreamStatus
from tests.ledgers.pushing_broker import Broker
from tests.support.readback import stored_entries
from tests.support.waiting import PATIENCE_S, eventually

STREAM = "public/default/persistent/orders"
KIB = 1024


def settings(**changes: object) -> Settings:
    offload = {
        "block_size": 2 * KIB,
        "segment_size_max": 16 * KIB,
        "offload_buffer_size_max": 64 * KIB,
        "retry_delay_max": 0.05,
        "drain_timeout": PATIENCE_S,
    }
    return Settings.of({"offload": {**offload, **changes}})


class Sidecar:
    """One process that offloads what a broker pushes to it."""

    def __init__(self, store: FaultyStore, chosen: Settings, window_bytes_max: int = 16 * KIB) -> None:
        state = load_stream(store, STREAM, may_be_absent=True)
        self.memory = PushMemory(64 * KIB)
        self.source = PushedLedgers(
            STREAM,
            committed=state.committed_end(),
            closed=dict(state.closed_ledgers),
            promised=state.newest_end,
            window_bytes_max=window_bytes_max,
            push_bytes_max=128 * KIB,
            memory=self.memory,
            clock=SystemClock(),
        )
        self.offloader = LedgerOffloader(store, chosen)
        self.stream = self.offloader.offload_stream(self.source, STREAM)
        self.source.offered = self.offered

    def offered(self) -> Offered:
        status: StreamStatus = self.stream.status()
        error = ClosedError(status.error) if status.mode is Mode.STOPPED else None
        return Offered(status.offered, status.committed, error)

    def push(self, broker: Broker, count: int, *, within_s: float = PATIENCE_S) -> None:
        """What comes after what is taken."""
        pushed = broker.next_after(self.source.news().taken, count)
        self.source.push(pushed.batches, pushed.ends, within_s=within_s)

    def push_all(self, broker: Broker, count: int = 40) -> None:
        def is_taken() -> bool:
            if self.source.news().taken == broker.end:
                return True
            self.push(broker, count)
            return False

        eventually(is_taken)

    def finish(self, broker: Broker) -> None:
        """Pushes until everything is durable, whatever fails meanwhile."""

        def durable() -> bool:
            self.push(broker, 40)
            self.stream.request_offload()
            return self.source.news().durable == broker.end

        eventually(durable)

    def kill(self) -> None:
        self.stream.forget()
        self.offloader.close()
        self.source.end()


@pytest.fixture
def start() -> Iterator[Callable[..., Sidecar]]:
    made: list[Sidecar] = []

    def make(store: FaultyStore, window_bytes_max: int = 16 * KIB, **changes: object) -> Sidecar:
        made.append(Sidecar(store, settings(**changes), window_bytes_max))
        return made[-1]

    yield make
    for each in made:
        each.stream.stop()
        each.kill()


@pytest.fixture
def store() -> FaultyStore:
    return FaultyStore(open_store(f"memory://{uuid4()}"))


def history(broker: Broker, ledgers: int, entries: int) -> Broker:
    for _ in range(ledgers):
        broker.append(entries)
        broker.close_ledger()
    broker.append(entries)
    return broker


@pytest.mark.slow
def test_pushed_entries_are_stored_once_and_release_their_memory(
    store: FaultyStore, start: Callable[..., Sidecar]
) -> None:
    broker = history(Broker(), ledgers=4, entries=150)
    sidecar = start(store)
    sidecar.push_all(broker)
    assert sidecar.stream.offload() == broker.end

    assert stored_entries(store, STREAM) == broker.entries
    assert sidecar.source.news() == PushNews(broker.end, broker.end)
    assert sidecar.memory.held_bytes == 0
    known = load_stream(store, STREAM).closed_ledgers
    assert all(known[each] == len(broker.ledgers[each]) - 1 for each in broker.closed)


@pytest.mark.slow
def test_failed_segment_is_requested_again_from_the_committed_end(
    store: FaultyStore, start: Callable[..., Sidecar]
) -> None:
    broker = history(Broker(), ledgers=1, entries=100)
    sidecar = start(store)
    sidecar.push_all(broker)
    sidecar.stream.offload()
    committed = sidecar.source.news().durable
    store.set_faults([Fault(call=1, key_part=STREAM, but="/manifest/", verb="put", calls=3)])
    broker.append(30)
    sidecar.push_all(broker)
    sidecar.stream.request_offload()

    eventually(lambda: sidecar.source.waits_for_broker)
    assert sidecar.source.news() == PushNews(committed, committed), "the broker is told to go back"
    with pytest.raises(StoreUnavailableError, match=r"has to push the entries .* again"):
        sidecar.source.ledgers()

    sidecar.finish(broker)
    assert stored_entries(store, STREAM) == broker.entries
    assert sidecar.stream.status().gaps_recorded == 0


@pytest.mark.slow
def test_pushes_sent_before_a_reset_was_received_are_skipped(store: FaultyStore, start: Callable[..., Sidecar]) -> None:
    broker = history(Broker(), ledgers=0, entries=100)
    sidecar = start(store)
    store.set_faults([Fault(call=1, key_part="-index", verb="put", calls=2)])
    sidecar.push_all(broker)
    sidecar.stream.request_offload()
    eventually(lambda: sidecar.source.waits_for_broker)

    broker.append(20)
    late = broker.next_after(Position(broker.end.ledger_id, 99), 20)  # type: ignore[union-attr]
    assert sidecar.source.push(late.batches, late.ends, within_s=1).taken == 0

    sidecar.finish(broker)
    broker.append(5)
    missing = broker.next_after(Position(broker.end.ledger_id, 121), 3)  # type: ignore[union-attr]
    with pytest.raises(OutOfOrderError):  # once it knows, a gap is a gap
        sidecar.source.push(missing.batches, missing.ends, within_s=1)
    assert stored_entries(store, STREAM) == broker.entries[:120]


@pytest.mark.slow
@pytest.mark.parametrize("has_committed", [False, True])
def test_ledger_pushed_before_a_reset_was_received_is_skipped(
    has_committed: bool, store: FaultyStore, start: Callable[..., Sidecar]
) -> None:
    """The end of the ledger before was told with its last entry, so the late push looks like a new one's beginning."""
    broker = Broker()
    sidecar = start(store, on_gap="record")
    for is_committed in [True] * has_committed + [False]:
        broker.append(60)
        broker.close_ledger()
        sidecar.push_all(broker)
        if is_committed:
            sidecar.stream.offload()
    store.set_faults([Fault(call=1, key_part="-index", verb="put", calls=2)])
    sidecar.stream.request_offload()
    eventually(lambda: sidecar.source.waits_for_broker)
    before = sidecar.source.news()

    sent = broker.end
    broker.append(20)
    late = broker.next_after(sent, 20)
    assert sidecar.source.push(late.batches, [], within_s=1).taken == 0
    assert sidecar.source.news() == before
    assert sidecar.source.waits_for_broker

    sidecar.finish(broker)
    assert stored_entries(store, STREAM) == broker.entries
    assert load_stream(store, STREAM).gaps == ()


@pytest.mark.slow
def test_a_full_buffer_holds_the_broker_back_and_a_limit_ends_its_wait(
    store: FaultyStore, start: Callable[..., Sidecar]
) -> None:
    broker = history(Broker(size_max=2 * KIB), ledgers=0, entries=400)
    sidecar = start(store, offload_buffer_size_max=64 * KIB)
    sidecar.push(broker, 1)
    sidecar.stream.offload()
    store.set_faults([Fault(call=1, calls=10**6)])  # nothing leaves any more

    def is_full() -> bool:
        """Not only slow: what is refused stays in the window."""
        try:
            sidecar.push(broker, 8, within_s=0.2)
        except StoreUnavailableError as error:
            return "no room" in str(error) and sidecar.memory.held_bytes > 8 * KIB
        return False

    eventually(is_full)
    assert sidecar.source.news().taken != broker.end
    assert sidecar.memory.held_bytes < 64 * KIB, "the window, and one push more"

    store.set_faults([])
    sidecar.finish(broker)
    assert stored_entries(store, STREAM) == broker.entries


@pytest.mark.slow
def test_next_process_completes_the_work_of_a_killed_one(store: FaultyStore, start: Callable[..., Sidecar]) -> None:
    broker = history(Broker(), ledgers=2, entries=100)
    first = start(store)
    first.push_all(broker)
    first.kill()  # most of it was never committed, and is nowhere but at the broker

    second = start(store)
    taken = second.source.news().taken
    assert taken is None or taken < broker.end  # type: ignore[operator]
    second.finish(broker)
    assert stored_entries(store, STREAM) == broker.entries


@pytest.mark.slow
def test_assigned_range_is_not_reported_lost_before_the_broker_pushes_it_again(
    store: FaultyStore, start: Callable[..., Sidecar]
) -> None:
    """An owner planned up to 3:79 and died; the first push of the next broker session brings a part of that."""
    broker = Broker()
    broker.ledgers[3] = [b"%d" % each for each in range(80)]
    broker.closed.add(3)
    broker.append(40)
    log = ManifestLog(store, STREAM, clock=SystemClock())
    log.open_epoch()
    uuid = new_segment_uuid(log.state.incarnation, 7)
    log.commit([LedgerClosed(3, 79), Assign(uuid, 2, Position(3, 0), Position(3, 79), 1, dict(store.driver_metadata))])

    sidecar = start(store, on_gap="record", window_bytes_max=4 * KIB)
    for _ in range(4):
        sidecar.push(broker, 10)
        with pytest.raises(StoreUnavailableError):
            sidecar.source.ledgers()
    sidecar.finish(broker)

    assert stored_entries(store, STREAM) == broker.entries
    assert load_stream(store, STREAM).gaps == ()


def test_complete_segment_of_an_earlier_owner_is_adopted_without_a_push(
    store: FaultyStore, start: Callable[..., Sidecar]
) -> None:
    broker = history(Broker(), ledgers=0, entries=100)
    first = start(store)
    # Both objects are there, the record that says so is not: what a crash just before it leaves.
    first.push(broker, 60)
    eventually(lambda: load_stream(store, STREAM, may_be_absent=True).assigned())
    store.set_faults([Fault(call=1, verb="put", key_part="/manifest/", calls=10**6)])
    first.stream.request_offload()
    eventually(lambda: any(key.endswith("-index") for verb, key in store.calls if verb == "put"))
    eventually(lambda: first.stream.status().error)
    first.kill()
    store.set_faults([])

    second = start(store)
    assert second.source.news() == PushNews(None, None)
    second.push(broker, 10)
    eventually(lambda: second.source.news().durable is not None and second.source.news().durable.entry_id == 59)  # type: ignore[union-attr]
    assert second.source.news().taken == second.source.news().durable
    second.finish(broker)
    assert stored_entries(store, STREAM) == broker.entries


def test_stopped_stream_reports_its_reason_to_the_broker(store: FaultyStore, start: Callable[..., Sidecar]) -> None:
    broker = history(Broker(), ledgers=0, entries=50)
    first = start(store)
    first.push_all(broker)
    first.stream.offload()
    second = start(store)
    broker.append(10)
    second.push_all(broker)
    second.stream.offload()

    def refused() -> bool:
        broker.append(10)
        try:
            first.push(broker, 10)
        except ClosedError as error:
            return "epoch" in str(error)
        first.stream.request_offload()
        return False

    eventually(refused)


def test_other_readers_get_a_retryable_error_for_entries_not_yet_pushed(
    store: FaultyStore, start: Callable[..., Sidecar]
) -> None:
    broker = history(Broker(size_max=10), ledgers=0, entries=100)
    sidecar = start(store, segment_size_max="1.0MiB")
    sidecar.push_all(broker)
    eventually(lambda: sidecar.stream.status().mode is Mode.LIVE)
    sidecar.source.news()
    with pytest.raises(StoreUnavailableError, match="is being written to a segment"):
        sidecar.source.read(Position(broker.end.ledger_id, 5), 1000)  # type: ignore[union-attr]
    assert sidecar.source.news().taken == broker.end
    assert len(sidecar.source.ledgers()) == 1
