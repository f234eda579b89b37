"""The proposal's interface as a whole: offload, read by context, delete."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import count
from pathlib import Path

import pytest

from formats.metadata.messages import OffloadContext, PulsarLedger
from offloader.errors import InvalidCallError, NotFoundError, ObjectMissingError, StoreUnavailableError
from offloader.ledgers.sqlite.embedded import EmbeddedLedgers
from offloader.manifest.log import load_manifest
from offloader.manifest.state import offload_context
from offloader.runtime.clock import SystemClock
from offloader.settings import Settings
from offloader.store.memory import MemoryStore
from offloader.testing.faulty_store import Fault, FaultyStore
from offloader.write.offloader import LedgerOffloader
from tests.support.ledger_records import encoded_ledger
from tests.support.waiting import PATIENCE_S

STREAM = "a/b"
SETTINGS = Settings.of(
    {
        "offload": {"block_size": 1024, "segment_size_max": "16KiB"},
        "ledgers": {"ledger_size_max": 25_000},
    }
)
_names = count()


class Bench:
    def __init__(self, directory: Path) -> None:
        self.memory = MemoryStore(f"interface-{next(_names)}", "", SystemClock())
        self.store = FaultyStore(self.memory)
        self.database = EmbeddedLedgers(str(directory / "ledgers.db"), settings=SETTINGS.ledgers)
        self.source = self.database.open_stream(STREAM)
        self.offloader = LedgerOffloader(self.store, SETTINGS)
        self.payloads: dict[int, list[bytes]] = {}

    def append(self, entries: int) -> None:
        for batch in self.source.append([bytes([i % 250]) * 100 for i in range(entries)], 0):
            self.payloads.setdefault(batch.ledger_id, []).extend(batch.payloads.to_pylist())

    def context(self, ledger_id: int) -> OffloadContext:
        context = offload_context(load_manifest(self.store, STREAM), ledger_id)
        # As it would come out of Pulsar's metadata store.
        stored = PulsarLedger.decode(encoded_ledger(PulsarLedger(ledger_id=ledger_id, context=context))).context
        assert stored is not None
        return stored


@pytest.fixture
def bench(tmp_path: Path) -> Iterator[Bench]:
    made = Bench(tmp_path)
    yield made
    made.offloader.close()
    made.database.close()


@pytest.mark.slow
def test_ledgers_of_both_layouts_are_read_by_their_context(bench: Bench) -> None:
    bench.append(300)
    bench.source.close_ledger()
    bench.offloader.offload_ledgers(bench.source, STREAM)
    bench.append(700)
    stream = bench.offloader.offload_stream(bench.source, STREAM)
    stream.offload()
    stream.stop()

    contexts = {ledger_id: bench.context(ledger_id) for ledger_id in bench.payloads}
    layouts = {bool(context.segments) for context in contexts.values()}
    assert layouts == {True, False}
    assert any(len(context.segments) > 1 for context in contexts.values()), "a ledger in several segments"
    driver = bench.store.driver_metadata
    for ledger_id, payloads in bench.payloads.items():
        handle = bench.offloader.read_offloaded(ledger_id, contexts[ledger_id], driver, stream=STREAM)
        assert handle.last_entry_id == len(payloads) - 1
        assert [entry.payload for entry in handle.read(0, len(payloads) - 1)] == payloads
        assert [entry.payload for entry in handle.read(8, 8)] == payloads[8:9], "Pulsar answers 0..8"
        handle.close()


def test_context_has_the_end_of_each_segment_of_a_ledger(bench: Bench) -> None:
    bench.append(400)
    stream = bench.offloader.offload_stream(bench.source, STREAM)
    stream.offload()
    stream.stop()

    ledger_id = max(bench.payloads, key=lambda each: len(bench.payloads[each]))
    context = bench.context(ledger_id)

    ends = [segment.end_entry_id for segment in context.segments]
    assert ends == sorted(ends, key=lambda end: end or -1)
    assert ends[-1] == len(bench.payloads[ledger_id]) - 1
    assert context.uuid == context.segments[0].uuid
    assert all(segment.complete and segment.driver_metadata["bucket"] for segment in context.segments)


def test_an_unknown_ledger_has_an_empty_context(bench: Bench) -> None:
    bench.append(10)
    bench.offloader.offload_stream(bench.source, STREAM).offload()

    context = bench.context(999)

    assert (context.uuid, context.segments) == (None, ())
    with pytest.raises((InvalidCallError, NotFoundError)):
        bench.offloader.read_offloaded(999, context, {}, stream=STREAM)


def test_deleting_a_segment_removes_both_objects_and_doing_it_twice_is_fine(bench: Bench) -> None:
    bench.append(10)
    stream = bench.offloader.offload_stream(bench.source, STREAM)
    stream.offload()
    [segment] = load_manifest(bench.store, STREAM).offloaded()
    ledger_id = segment.begin.ledger_id
    context = bench.context(ledger_id)

    for _ in range(2):
        bench.offloader.delete_offloaded(segment.uuid, {}, stream=STREAM).result(PATIENCE_S)

    assert not any(str(segment.uuid) in info.key for info in bench.memory.list("").objects)
    with pytest.raises(ObjectMissingError):
        bench.offloader.read_offloaded(ledger_id, context, {}, stream=STREAM)


def test_a_delete_that_the_store_did_not_do_is_an_error(bench: Bench) -> None:
    bench.append(10)
    bench.offloader.offload_stream(bench.source, STREAM).offload()
    [segment] = load_manifest(bench.store, STREAM).offloaded()
    bench.store.set_faults([Fault(call=1, verb="delete", error=StoreUnavailableError)])

    with pytest.raises(StoreUnavailableError):
        bench.offloader.delete_offloaded(segment.uuid, {}, stream=STREAM).result(PATIENCE_S)
    with pytest.raises(InvalidCallError, match="elsewhere"):
        bench.offloader.delete_offloaded(segment.uuid, {"bucket": "elsewhere"}, stream=STREAM)
