"""One segment: accepted and refused offers, and failures at every storage call."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from itertools import count
from threading import Barrier
from typing import Any, TypeVar
from uuid import UUID

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from formats.block import decode_block
from formats.block_memory import BlockMemory
from formats.entries import Entry, EntryBatch, Position
from formats.keys import data_key, index_key
from formats.segment import LedgerFacts
from formats.segment_map import SegmentMap
from offloader.errors import (
    AccessDeniedError,
    ClosedError,
    CorruptError,
    InvalidCallError,
    LimitReachedError,
    OutcomeUnknownError,
    StoreUnavailableError,
)
from offloader.runtime.clock import SystemClock
from offloader.runtime.workers import Workers
from offloader.settings import Settings
from offloader.store.base import ObjectStore
from offloader.store.memory import MemoryStore
from offloader.store.wrappers import Request, StoreWrapper
from offloader.testing.faulty_store import Fault, FaultyStore
from offloader.write.offloader import LedgerOffloader
from offloader.write.quota import StreamQuota
from offloader.write.segment import PIECES_MAX, OffloadHandle
from tests.support.waiting import PATIENCE_S, eventually

Answer = TypeVar("Answer")
MIB = 1024 * 1024
STREAM = "a/b"
UUID_A = UUID("11111111-2222-8333-8444-555555555555")
_names = count()


def small(**changes: object) -> Settings:
    values = {"block_size": 4096, "part_size": 5 * MIB, "workers_max": 4, **changes}
    return Settings.of({"offload": values})


@pytest.fixture
def store() -> FaultyStore:
    return FaultyStore(MemoryStore(f"handle-{next(_names)}", "", SystemClock()))


@pytest.fixture
def new_offloader(store: FaultyStore) -> Iterator[Callable[..., LedgerOffloader]]:
    made: list[LedgerOffloader] = []

    def make(settings: Settings | None = None, *, workers: Workers | None = None) -> LedgerOffloader:
        made.append(LedgerOffloader(store, settings or small(), workers=workers))
        return made[-1]

    yield make
    for offloader in made:
        offloader.close()


def batch(ledger_id: int, first: int, number: int, size: int = 100) -> EntryBatch:
    return EntryBatch.build(ledger_id, first, [bytes([(first + i) % 251]) * size for i in range(number)])


def read_back(store: ObjectStore, uuid: UUID) -> list[Entry]:
    data, index = store.get(data_key(STREAM, uuid))[0], store.get(index_key(STREAM, uuid))[0]
    found: list[Entry] = []
    for offset in SegmentMap.parse(index).blocks.offset.tolist():
        block = decode_block(memoryview(data)[offset:], block_bytes_max=2**30, decompressed_bytes_max=2**30)
        found += block.entries()
    return found


def finish(handle: OffloadHandle) -> object:
    handle.close()
    return handle.get_offload_result_async().result(PATIENCE_S)


def test_caller_that_cancels_the_result_does_not_break_the_segment(
    new_offloader: Callable[..., LedgerOffloader], store: FaultyStore
) -> None:
    handle = new_offloader().streaming_offload(UUID_A, {}, stream=STREAM)
    assert not handle.get_offload_result_async().cancel()
    assert handle.offer_batch(batch(3, 10, 50)) == 50
    finish(handle)
    assert [entry.entry_id for entry in read_back(store, UUID_A)] == list(range(10, 60))


def test_offered_entries_arrive_and_the_result_has_their_ends(
    new_offloader: Callable[..., LedgerOffloader], store: FaultyStore
) -> None:
    handle = new_offloader().streaming_offload(UUID_A, {}, stream=STREAM)
    assert handle.last_offered() is None
    assert handle.offer_batch(batch(3, 10, 50)) == 50
    assert handle.offer_entry(Entry(3, 60, b"x", 5))
    assert handle.last_offered() == Position(3, 60)

    assert handle.close() is True
    assert handle.close() is False
    result = handle.get_offload_result_async().result(PATIENCE_S)

    assert (result.uuid, result.begin_ledger_id, result.begin_entry_id) == (UUID_A, 3, 10)
    assert (result.end_ledger_id, result.end_entry_id) == (3, 60)
    entries = read_back(store, UUID_A)
    assert [entry.entry_id for entry in entries] == list(range(10, 61))
    assert entries[-1].payload == b"x"
    assert result.summary is not None
    assert result.summary.entries == 51


def test_a_segment_below_a_part_is_one_put_and_one_index(
    new_offloader: Callable[..., LedgerOffloader], store: FaultyStore
) -> None:
    handle = new_offloader().streaming_offload(UUID_A, {}, stream=STREAM)
    handle.offer_batch(batch(1, 0, 10))
    finish(handle)

    data, index = data_key(STREAM, UUID_A), index_key(STREAM, UUID_A)
    assert sorted(store.calls) == [("head", data), ("put", data), ("put", index)]


@pytest.mark.slow
def test_large_segment_is_uploaded_in_parts_and_leaves_no_upload(
    new_offloader: Callable[..., LedgerOffloader], store: FaultyStore
) -> None:
    handle = new_offloader().streaming_offload(UUID_A, {}, stream=STREAM)
    for first in range(0, 1200, 100):
        assert handle.offer_batch(batch(1, first, 100, size=10_000)) == 100
    finish(handle)

    verbs = [verb for verb, _ in store.calls]
    assert verbs.count("upload_part") == 3
    assert verbs.count("complete_upload") == verbs.count("begin_upload") == 1
    assert store.list_uploads("") == []
    assert len(read_back(store, UUID_A)) == 1200


def test_a_segment_of_exactly_one_part_is_completed(
    new_offloader: Callable[..., LedgerOffloader], store: FaultyStore
) -> None:
    """The first part is full before the segment is closed: it must not be taken for a single PUT afterwards."""
    handle = new_offloader().streaming_offload(UUID_A, {}, stream=STREAM)
    handle.offer_batch(batch(1, 0, 1, size=5 * MIB))
    handle.offer_batch(batch(1, 1, 1, size=1))
    finish(handle)

    assert [entry.entry_id for entry in read_back(store, UUID_A)] == [0, 1]


def test_closing_without_entries_writes_no_object(
    new_offloader: Callable[..., LedgerOffloader], store: FaultyStore
) -> None:
    """Pulsar's timer leaves a zero-byte object here."""
    handle = new_offloader().streaming_offload(UUID_A, {}, stream=STREAM)
    handle.close()

    result = handle.get_offload_result_async().result(PATIENCE_S)

    assert (result.summary, result.begin_ledger_id, result.end_entry_id) == (None, -1, -1)
    assert store.calls == []


def test_out_of_order_offer_is_refused_and_changes_nothing(
    new_offloader: Callable[..., LedgerOffloader], store: FaultyStore
) -> None:
    handle = new_offloader().streaming_offload(UUID_A, {}, stream=STREAM, after=Position(1, 9))
    with pytest.raises(InvalidCallError, match="1:11 doesn't follow 1:9"):
        handle.offer_batch(batch(1, 11, 3))
    handle.offer_batch(batch(1, 10, 3))
    for wrong in (batch(1, 12, 3), batch(1, 14, 1), batch(2, 0, 1), batch(0, 0, 1)):
        with pytest.raises(InvalidCallError, match="doesn't follow 1:12"):
            handle.offer_batch(wrong)
        with pytest.raises(InvalidCallError, match="doesn't follow 1:12"):
            handle.offer_entry(next(wrong.entries()))
    gapped = EntryBatch(
        1, batch(1, 13, 4).entry_ids[[0, 1, 3]], batch(1, 13, 3).payloads, batch(1, 0, 3).publish_times_ms
    )
    with pytest.raises(InvalidCallError, match="gaps"):
        handle.offer_batch(gapped)
    assert handle.last_offered() == Position(1, 12)

    finish(handle)
    assert [entry.entry_id for entry in read_back(store, UUID_A)] == [10, 11, 12]


def test_next_ledger_is_accepted_after_the_previous_one_is_closed(
    new_offloader: Callable[..., LedgerOffloader], store: FaultyStore
) -> None:
    handle = new_offloader().streaming_offload(UUID_A, {}, stream=STREAM)
    handle.offer_batch(batch(1, 0, 5))
    handle.ledger_closed(LedgerFacts(ledger_id=1, closed=True), 4)
    handle.ledger_closed(LedgerFacts(ledger_id=2, closed=True), -1)
    handle.offer_batch(batch(5, 0, 2))
    finish(handle)

    assert [entry.position for entry in read_back(store, UUID_A)][-3:] == [
        Position(1, 4),
        Position(5, 0),
        Position(5, 1),
    ]


def test_full_buffer_takes_what_fits_and_then_refuses_without_blocking(
    new_offloader: Callable[..., LedgerOffloader],
) -> None:
    buffer = StreamQuota(100_000)
    handle = new_offloader().streaming_offload(UUID_A, {}, stream=STREAM, buffer=buffer, sending=False)

    taken = handle.offer_batch(batch(1, 0, 200, size=988))

    assert taken == 100
    assert not handle.can_offer(988)
    assert handle.offer_batch(batch(1, 100, 10, size=988)) == 0
    assert handle.offer_entry(Entry(1, 100, bytes(988))) is False
    assert handle.last_offered() == Position(1, 99)
    handle.abandon(ClosedError("enough"), abort=True)
    assert buffer.held_bytes == 0


@pytest.mark.slow
def test_bytes_leave_the_buffer_when_their_part_is_acknowledged(
    new_offloader: Callable[..., LedgerOffloader],
) -> None:
    buffer = StreamQuota(64 * MIB)
    handle = new_offloader().streaming_offload(UUID_A, {}, stream=STREAM, buffer=buffer)
    for first in range(0, 600, 100):
        handle.offer_batch(batch(1, first, 100, size=10_000))

    eventually(lambda: buffer.held_bytes < 2 * MIB)
    finish(handle)
    assert buffer.held_bytes == 0


def test_entries_above_a_limit_are_refused_by_name(new_offloader: Callable[..., LedgerOffloader]) -> None:
    handle = new_offloader(small(entry_size_max=1000)).streaming_offload(UUID_A, {}, stream=STREAM)
    with pytest.raises(LimitReachedError, match="above the limit of 1000 set by entry_size_max"):
        handle.offer_entry(Entry(1, 0, bytes(1001)))

    tight = new_offloader().streaming_offload(UUID(int=2), {}, stream=STREAM, buffer=StreamQuota(70_000))
    with pytest.raises(LimitReachedError, match="above the limit of 69988 set by offload_buffer_size_max"):
        tight.offer_batch(batch(1, 0, 1, size=70_000))


def test_closed_handle_refuses_offers(new_offloader: Callable[..., LedgerOffloader]) -> None:
    handle = new_offloader().streaming_offload(UUID_A, {}, stream=STREAM)
    handle.close()

    assert not handle.can_offer(1)
    with pytest.raises(ClosedError):
        handle.offer_entry(Entry(1, 0, b""))
    with pytest.raises(ClosedError):
        handle.offer_batch(batch(1, 0, 1))


def test_a_uuid_is_used_once_and_only_for_this_store(new_offloader: Callable[..., LedgerOffloader]) -> None:
    offloader = new_offloader()
    offloader.streaming_offload(UUID_A, offloader.store.driver_metadata, stream=STREAM).close()

    with pytest.raises(InvalidCallError, match="exists already"):
        offloader.streaming_offload(UUID_A, {}, stream=STREAM)
    with pytest.raises(InvalidCallError, match="other-bucket"):
        offloader.streaming_offload(UUID(int=9), {"bucket": "other-bucket"}, stream=STREAM)


def test_handle_copies_the_callers_memory(new_offloader: Callable[..., LedgerOffloader], store: FaultyStore) -> None:
    handle = new_offloader().streaming_offload(UUID_A, {}, stream=STREAM)
    payload = bytearray(b"before")
    handle.offer_entry(Entry(1, 0, payload))  # type: ignore[arg-type]
    payload[:] = b"after!"
    finish(handle)

    assert read_back(store, UUID_A)[0].payload == b"before"


def test_parts_wait_until_the_segment_is_assigned(
    new_offloader: Callable[..., LedgerOffloader], store: FaultyStore
) -> None:
    handle = new_offloader().streaming_offload(UUID_A, {}, stream=STREAM, sending=False)
    handle.offer_batch(batch(1, 0, 10))
    handle.close()
    assert store.calls == []

    handle.start_sending()
    handle.get_offload_result_async().result(PATIENCE_S)
    assert len(read_back(store, UUID_A)) == 10


LARGE = [batch(1, first, 100, size=10_000) for first in range(0, 1200, 100)]


def offload_large(offloader: LedgerOffloader, buffer: StreamQuota) -> OffloadHandle:
    handle = offloader.streaming_offload(UUID_A, {}, stream=STREAM, buffer=buffer)
    for each in LARGE:
        try:
            handle.offer_batch(each)
        except ClosedError:
            break
    handle.close()
    return handle


@pytest.mark.slow
@pytest.mark.parametrize("large", [False, True], ids=["put", "upload"])
@pytest.mark.parametrize("error", [StoreUnavailableError, AccessDeniedError])
def test_sent_object_that_cannot_be_verified_is_an_unknown_outcome(
    new_offloader: Callable[..., LedgerOffloader], store: FaultyStore, error: type[Exception], large: bool
) -> None:
    faults = [Fault(call=1, calls=1000, verb="head", error=error)]  # type: ignore[arg-type]
    if large:
        faults.append(Fault(call=1, calls=1000, verb="complete_upload", after=True, error=OutcomeUnknownError))
    store.set_faults(faults)
    offloader = new_offloader()
    if large:
        handle = offload_large(offloader, StreamQuota(64 * MIB))
    else:
        handle = offloader.streaming_offload(UUID_A, {}, stream=STREAM)
        handle.offer_batch(batch(1, 0, 10))
        handle.close()

    failure = handle.get_offload_result_async().exception(PATIENCE_S)
    assert isinstance(failure, OutcomeUnknownError)
    assert isinstance(failure.__cause__, error)


@pytest.mark.slow
@pytest.mark.parametrize("large", [False, True], ids=["put", "upload"])
def test_sent_object_is_not_sent_again_after_a_failed_verification(
    new_offloader: Callable[..., LedgerOffloader], store: FaultyStore, large: bool
) -> None:
    faults = [Fault(call=1, calls=2, verb="head", error=StoreUnavailableError)]
    if large:
        faults.append(Fault(call=1, verb="complete_upload", after=True, error=OutcomeUnknownError))
    store.set_faults(faults)
    handle = new_offloader().streaming_offload(UUID_A, {}, stream=STREAM)
    for each in LARGE if large else LARGE[:1]:
        handle.offer_batch(each)
    handle.close()

    assert handle.get_offload_result_async().exception(PATIENCE_S) is None
    assert len(read_back(store, UUID_A)) == (1200 if large else 100)


@pytest.mark.slow
@pytest.mark.parametrize("verb", ["begin_upload", "upload_part", "complete_upload", "put"])
@pytest.mark.parametrize("error", [StoreUnavailableError, AccessDeniedError])
def test_refused_call_fails_the_segment_and_frees_its_bytes_and_upload(
    new_offloader: Callable[..., LedgerOffloader], store: FaultyStore, verb: str, error: type[Exception]
) -> None:
    store.set_faults([Fault(call=1, calls=1000, verb=verb, error=error)])  # type: ignore[arg-type]
    buffer = StreamQuota(64 * MIB)

    handle = offload_large(new_offloader(), buffer)

    with pytest.raises(error):
        handle.get_offload_result_async().result(PATIENCE_S)
    assert buffer.held_bytes == 0
    assert store.inner.list_uploads("") == []
    with pytest.raises(ClosedError):
        handle.offer_entry(Entry(1, 1200, b""))


@pytest.mark.slow
def test_completion_with_a_lost_response_is_verified(
    new_offloader: Callable[..., LedgerOffloader], store: FaultyStore
) -> None:
    store.set_faults([Fault(call=1, verb="complete_upload", after=True, error=OutcomeUnknownError)])

    offload_large(new_offloader(), StreamQuota(64 * MIB)).get_offload_result_async().result(PATIENCE_S)

    assert [verb for verb, _ in store.calls].count("complete_upload") == 1
    assert len(read_back(store, UUID_A)) == 1200


@pytest.mark.slow
def test_completion_that_did_not_happen_is_repeated_after_verification(
    new_offloader: Callable[..., LedgerOffloader], store: FaultyStore
) -> None:
    store.set_faults([Fault(call=1, verb="complete_upload", error=OutcomeUnknownError)])

    offload_large(new_offloader(), StreamQuota(64 * MIB)).get_offload_result_async().result(PATIENCE_S)

    verbs = [verb for verb, _ in store.calls if verb != "put"]
    first = verbs.index("complete_upload")
    assert verbs[first : first + 3] == ["complete_upload", "head", "complete_upload"]
    assert len(read_back(store, UUID_A)) == 1200


def test_single_put_with_a_lost_response_is_verified(
    new_offloader: Callable[..., LedgerOffloader], store: FaultyStore
) -> None:
    store.set_faults([Fault(call=1, verb="put", but="-index", after=True, error=OutcomeUnknownError)])
    handle = new_offloader().streaming_offload(UUID_A, {}, stream=STREAM)
    handle.offer_batch(batch(1, 0, 10))

    finish(handle)

    assert len(read_back(store, UUID_A)) == 10


@pytest.mark.slow
def test_data_and_index_are_completed_concurrently(
    new_offloader: Callable[..., LedgerOffloader],
) -> None:
    """Each of the two requests at a segment's end waits until the other was sent."""
    uploads = MeetingStore(MemoryStore(f"handle-{next(_names)}", "", SystemClock()))
    offloader = LedgerOffloader(uploads, small())
    handle = offload_large(offloader, StreamQuota(64 * MIB))

    handle.get_offload_result_async().result(PATIENCE_S)

    assert sorted(uploads.met) == ["complete_upload", "put"]
    assert len(read_back(uploads, UUID_A)) == 1200
    offloader.close()


class MeetingStore(StoreWrapper):
    """The completion and the index each wait for the other before they go on."""

    def __init__(self, inner: ObjectStore) -> None:
        super().__init__(inner)
        self._both = Barrier(2)
        self.met: list[str] = []

    def around(self, request: Request, call: Callable[[], Answer]) -> Answer:
        if request.verb in ("complete_upload", "put"):
            self._both.wait(PATIENCE_S)
            self.met.append(request.verb)
        return call()


def test_an_index_of_other_bytes_is_never_replaced(
    new_offloader: Callable[..., LedgerOffloader], store: FaultyStore
) -> None:
    store.put(index_key(STREAM, UUID_A), b"somebody else's")
    handle = new_offloader().streaming_offload(UUID_A, {}, stream=STREAM)
    handle.offer_batch(batch(1, 0, 10))
    handle.close()

    with pytest.raises(CorruptError, match="isn't the index of this data"):
        handle.get_offload_result_async().result(PATIENCE_S)
    assert store.get(index_key(STREAM, UUID_A))[0] == b"somebody else's"


def test_objects_have_ownership_metadata(new_offloader: Callable[..., LedgerOffloader], store: FaultyStore) -> None:
    handle = new_offloader().streaming_offload(UUID_A, {}, stream=STREAM, incarnation=UUID(int=5), epoch=3)
    handle.offer_batch(batch(1, 0, 10))
    finish(handle)

    data, index = store.head(data_key(STREAM, UUID_A)).metadata, store.head(index_key(STREAM, UUID_A)).metadata
    assert (data["role"], index["role"]) == ("data", "index")
    for metadata in (data, index):
        assert metadata["managedledgername"] == STREAM
        assert metadata["s3managedledgeroffloaderformatversion"] == "1"


def test_compressed_segments_have_format_version_2(
    new_offloader: Callable[..., LedgerOffloader], store: FaultyStore
) -> None:
    handle = new_offloader(small(codec="zstd")).streaming_offload(UUID_A, {}, stream=STREAM)
    handle.offer_batch(batch(1, 0, 500))
    finish(handle)

    assert store.head(data_key(STREAM, UUID_A)).metadata["s3managedledgeroffloaderformatversion"] == "2"
    assert len(read_back(store, UUID_A)) == 500


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(
    sizes=st.lists(st.integers(0, 3000), min_size=1, max_size=120),
    cuts=st.lists(st.integers(1, 30), min_size=1, max_size=30),
    limit=st.sampled_from([70_000, 200_000]),
    singles=st.booleans(),
    stop=st.booleans(),
)
def test_held_bytes_are_counted_exactly_for_any_offers(
    sizes: list[int], cuts: list[int], limit: int, singles: bool, stop: bool
) -> None:
    store = MemoryStore(f"handle-{next(_names)}", "", SystemClock())
    offloader = LedgerOffloader(store, small())
    buffer = StreamQuota(limit)
    handle = offloader.streaming_offload(UUID_A, {}, stream=STREAM, buffer=buffer, sending=False)
    payloads = [bytes(size) for size in sizes]
    offered, step = 0, 0
    while offered < len(payloads):
        number = min(cuts[step % len(cuts)], len(payloads) - offered)
        if singles and step % 2:
            taken = int(handle.offer_entry(Entry(1, offered, payloads[offered])))
        else:
            taken = handle.offer_batch(EntryBatch.build(1, offered, payloads[offered : offered + number]))
        if taken == 0:
            break
        offered += taken
        step += 1
    assert handle.last_offered() == Position(1, offered - 1)
    if stop:
        offloader.close()  # waits for the encoder, so that both numbers are of one moment
        assert buffer.held_bytes == handle.held_bytes > 0
        handle.abandon(ClosedError("stopped"), abort=True)
        assert buffer.held_bytes == handle.held_bytes == 0
        return

    handle.start_sending()
    finish(handle)
    offloader.close()

    assert buffer.held_bytes == handle.held_bytes == 0
    assert [entry.payload for entry in read_back(store, UUID_A)] == payloads[:offered]


def test_small_offers_wait_for_each_other_and_are_encoded_together(
    new_offloader: Callable[..., LedgerOffloader], store: FaultyStore
) -> None:
    """Waking a worker for each of them would cost the appender more than the append."""
    turns: list[int] = []

    class Counting(Workers):
        def submit(self, run: Callable[[], object]) -> None:
            turns.append(1)
            super().submit(run)

    offloader = new_offloader(small(block_size=MIB), workers=Counting(2, SystemClock()))
    handle = offloader.streaming_offload(UUID_A, {}, stream=STREAM)
    for first in range(0, 500, 50):
        handle.offer_batch(batch(1, first, 1))
        handle.offer_batch(batch(1, first + 1, 49))
    assert not turns, "56 KB of a block of a megabyte"
    finish(handle)
    assert [entry.entry_id for entry in read_back(store, UUID_A)] == list(range(500))


def test_too_many_pending_pieces_are_encoded_whatever_their_size(
    new_offloader: Callable[..., LedgerOffloader],
) -> None:
    buffer = StreamQuota(64 * MIB)
    handle = new_offloader(small(block_size=MIB)).streaming_offload(UUID_A, {}, stream=STREAM, buffer=buffer)
    offered_bytes = 0
    for first in range(0, 2 * PIECES_MAX, 2):
        each = batch(1, first, 2, size=10)
        handle.offer_batch(each)
        offered_bytes += each.wire_bytes
    # Encoded entries are counted with their columns, so the count tells.
    eventually(lambda: buffer.held_bytes > offered_bytes)
    finish(handle)


class CountedMemory(BlockMemory):
    """Knows how many of its buffers somebody still looks at."""

    lent = lent_ever = 0

    def take(self) -> Any:
        self.lent, self.lent_ever = self.lent + 1, self.lent_ever + 1
        return super().take()

    def give_back(self, buffer: Any) -> None:
        self.lent -= 1
        super().give_back(buffer)


@pytest.mark.parametrize("fails", [False, True])
def test_finished_handle_holds_no_entries_while_it_is_referenced(
    new_offloader: Callable[..., LedgerOffloader], store: FaultyStore, monkeypatch: pytest.MonkeyPatch, fails: bool
) -> None:
    """Handles are parts of reference cycles: their entries would stay in memory until those are collected."""
    block_bytes = 128 * 1024
    memory = CountedMemory(block_bytes, 64 * block_bytes)
    monkeypatch.setattr("offloader.write.offloader.BlockMemory", lambda *_: memory)
    offloader = new_offloader(small(block_size=block_bytes))
    handle = offloader.streaming_offload(UUID_A, {}, stream=STREAM)
    handle.offer_batch(batch(1, 0, 800, size=1000))
    if fails:
        eventually(lambda: memory.lent > 3)
        handle.abandon(StoreUnavailableError("given up"), abort=False)
    else:
        finish(handle)
    offloader.close()
    assert handle.get_offload_result_async().done()
    assert memory.lent_ever > 3
    eventually(lambda: memory.lent == 0)
