"""A stream of Pulsar entries, a target on the fake broker, and runs of a replay between them."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from uuid import UUID

from formats.entries import EntryBatch, Position
from formats.pulsar.entry import decode_frame
from offloader.ledgers.pulsar.producer import ProducerLimits
from offloader.ledgers.pulsar.protocol import ClientLimits, PulsarClient
from offloader.read.reader import open_stream_reader
from offloader.replay import Progress, ProgressFile, Replayer, ReplayLimits, ReplayResult, lease_name, producer_name
from offloader.runtime.clock import SystemClock
from offloader.store.base import ObjectStore
from tests.formats.pulsar_entries import Sent, batch_entry, single_entry
from tests.support.pulsar_broker import FakeBroker
from tests.support.pulsar_producers import FakeProducers
from tests.support.pulsar_topics import FakeTopic
from tests.support.streams import StreamWriter

TARGET = "persistent://t/n/target"
STREAM = "t/n/persistent/origin"


def entry_of(position: Position) -> bytes:
    """One message, or a batch of three, that say where they are."""
    if position.entry_id % 3 == 2:
        return batch_entry([Sent(value=f"{position} {n}".encode(), key=f"k{n}") for n in range(3)], codec=1)
    return single_entry(Sent(value=str(position).encode(), key="k", properties={"p": str(position)}, event_time=5))


def write_stream(store: ObjectStore, ledgers: dict[int, list[bytes]], *, stream: str = STREAM) -> UUID:
    """Ledger -> entries, offloaded; the incarnation."""
    writer = StreamWriter(store, stream)
    times = iter(range(1_700_000_000_000, 1_800_000_000_000, 1000))
    for ledger_id, entries in ledgers.items():
        writer.add([EntryBatch.build(ledger_id, 0, entries, [next(times) for _ in entries])], closes=[ledger_id])
    return writer.log.state.incarnation


def entries_of(ledgers: dict[int, int]) -> dict[int, list[bytes]]:
    return {each: [entry_of(Position(each, number)) for number in range(count)] for each, count in ledgers.items()}


@dataclass
class Place:
    """Everything of one replay."""

    store: ObjectStore
    incarnation: UUID
    broker: FakeBroker
    topic: FakeTopic
    producers: FakeProducers
    folder: Path
    limits: dict[str, Any] = field(default_factory=lambda: {"retry_s": 20.0, "retry_delay_s": 0.0})

    @property
    def wanted(self) -> Progress:
        name = producer_name(STREAM, self.incarnation, TARGET, "")
        return Progress(producer=name, stream=STREAM, topic=TARGET)

    @property
    def file(self) -> ProgressFile:
        return ProgressFile(self.folder / "progress.json")

    def client(self) -> PulsarClient:
        limits = ClientLimits(request_s=10, keep_alive_s=10, retry_s=5, delay_first_s=0.01)
        return PulsarClient(self.broker.url, limits=limits)

    def run(self, *, first: Position | None = None, last: Position | None = None, **more: Any) -> ReplayResult:
        options = {name: more.pop(name) for name in ("with_transactions", "on_progress", "wanted") if name in more}
        limits = ReplayLimits(producer=ProducerLimits(entries_max=20, store_s=20), **{**self.limits, **more})
        wanted = options.pop("wanted", self.wanted)
        with self.client() as client, open_stream_reader(self.store, STREAM) as reader:
            begin, end = first or reader.first_position, last or reader.last_position
            assert begin is not None
            assert end is not None
            return Replayer(
                reader,
                begin,
                end,
                client=client,
                wanted=wanted,
                lease=lease_name(STREAM, self.incarnation, TARGET),
                file=self.file,
                clock=SystemClock(),
                limits=limits,
                **options,
            ).run()

    @property
    def arrived(self) -> list[Position]:
        """Of which entries the target has the messages, in order, by their sequence ids."""
        numbers = [decode_frame(entry).metadata.sequence_id for _, entry, _ in self.topic.entries]
        return [Position(number >> 28, number % 2**28) for number in numbers]
