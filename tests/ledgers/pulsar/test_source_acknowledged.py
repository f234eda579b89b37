"""What a Pulsar broker may delete: acknowledged ledgers that are provably in the cold tier, after the lag.

The promises of docs/explanation/pulsar-topics.md about releasing ledgers, over a fake broker that records its requests.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from itertools import count

import pytest

from formats.entries import Position
from formats.keys import data_key, index_key
from formats.pulsar.commands import CommandType, position_of
from offloader.ledgers.pulsar.source import PulsarSource
from offloader.manifest.log import ManifestLog, load_manifest
from offloader.runtime.clock import SystemClock
from offloader.settings import OffloadSettings, Settings, Size
from offloader.store.memory import MemoryStore
from offloader.write.hot_release import ReleasedLedgers, release_hot_ledgers
from offloader.write.offloader import LedgerOffloader
from tests.ledgers.pulsar_bench import NAME, PulsarBench
from tests.support.readback import stored_entries
from tests.support.waiting import eventually

#: Entries of a closed ledger: more than one segment.
COUNT = 60
LAG_MS = 4 * 3600 * 1000
SETTINGS = Settings(offload=OffloadSettings(block_size=Size(1024), segment_size_max=Size(1049)))
_names = count()


class Kept:
    """A topic with two closed ledgers and an open one, all of it offloaded."""

    def __init__(self) -> None:
        self.bench = PulsarBench()
        for _ in range(2):
            self.bench.fill(COUNT)
            self.bench.topic.roll()
        self.bench.fill(5)
        self.store = MemoryStore(f"pulsar-fence-{next(_names)}", "", SystemClock())
        self.source = self.bench.open()
        self.offload(self.source)

    def offload(self, source: PulsarSource) -> None:
        with closing(LedgerOffloader(self.store, SETTINGS)) as offloader:
            stream = offloader.offload_stream(source, source.stream)
            stream.offload()
            stream.stop()
        assert stored_entries(self.store, source.stream)[-1] == self.bench.stored()[-1]

    def release(self, later_ms: int, source: PulsarSource | None = None) -> ReleasedLedgers:
        """As some time after everything was offloaded."""
        source = source or self.source
        log = ManifestLog(self.store, source.stream, clock=SystemClock())
        return release_hot_ledgers(source, log, now_ms=self.newest_ms() + later_ms, lag_ms=LAG_MS)

    def newest_ms(self) -> int:
        return max(each.offloaded_ms or 0 for each in load_manifest(self.store, self.source.stream).offloaded())

    def acknowledged(self) -> list[Position]:
        """All acknowledgements, each of which is cumulative."""
        found = self.bench.broker.of(CommandType.ACK)
        assert all(each.type == 1 for each in found)
        return [position_of(each.message_id[0]) for each in found]


@pytest.fixture
def kept() -> Iterator[Kept]:
    made = Kept()
    yield made
    # Whatever happened: the subscription was never moved in another way, and not beyond what is committed.
    assert made.bench.broker.of(CommandType.SEEK) == []
    end = load_manifest(made.store, made.source.stream).committed_end()
    assert end is not None
    assert all(position <= end for position in made.acknowledged())
    made.bench.close()


@pytest.mark.slow
def test_only_whole_closed_ledgers_are_acknowledged_after_the_lag(kept: Kept) -> None:
    assert kept.release(-1).deleted == []
    assert kept.release(LAG_MS // 2).deleted == []
    assert kept.acknowledged() == []
    assert kept.bench.topic.mark_delete(NAME) is None
    assert kept.release(LAG_MS).deleted == [1, 2]
    assert kept.acknowledged() == [Position(1, COUNT - 1), Position(2, COUNT - 1)]
    # The broker deleted them; the open one stays, however old it is.
    assert [position.ledger_id for position, _ in kept.bench.stored()] == [3] * 5
    assert kept.release(10 * LAG_MS) == ReleasedLedgers()


@pytest.mark.slow
@pytest.mark.parametrize("lost", ["data", "index"])
def test_nothing_is_acknowledged_while_an_object_is_not_found(kept: Kept, lost: str) -> None:
    stream = kept.source.stream
    second = next(each for each in load_manifest(kept.store, stream).offloaded() if each.begin.ledger_id == 2)
    key = (data_key if lost == "data" else index_key)(stream, second.uuid)
    body, _ = kept.store.get(key)
    kept.store.delete([key])
    released = kept.release(LAG_MS)
    assert (released.deleted, len(released.errors)) == ([1], 1)
    assert kept.acknowledged() == [Position(1, COUNT - 1)]
    assert kept.bench.stored()[0][0] == Position(2, 0)
    kept.store.put(key, body)
    assert kept.release(LAG_MS).deleted == [2]


def test_ledger_is_acknowledged_only_after_earlier_ones(kept: Kept) -> None:
    stream = kept.source.stream
    ends = {each.end: each for each in load_manifest(kept.store, stream).offloaded() if each.end is not None}
    first = ends[min(ends)]
    assert first.end is not None
    assert first.end.ledger_id == 1, "the second ledger doesn't need it"
    kept.store.delete([index_key(stream, first.uuid)])
    assert kept.release(LAG_MS).deleted == [2]
    # An acknowledgement counts for everything before it.
    assert kept.acknowledged() == []
    assert kept.bench.stored()[0][0] == Position(1, 0)


@pytest.mark.slow
def test_standby_continues_at_committed_end_wherever_subscription_stands(kept: Kept) -> None:
    standby = kept.bench.open()
    assert standby.active is False
    kept.release(LAG_MS)
    kept.bench.fill(3)
    kept.source.close()
    eventually(lambda: standby.active)
    before = stored_entries(kept.store, standby.stream)
    begins = len(kept.bench.broker.of(CommandType.SUBSCRIBE))
    kept.offload(standby)
    # Nothing is missing, and nothing came twice: what was committed isn't even asked for.
    assert stored_entries(kept.store, standby.stream) == before + kept.bench.stored()[-3:]
    asked = kept.bench.broker.of(CommandType.SUBSCRIBE)[begins:]
    assert all(position_of(each.start_message_id) >= Position(3, 4) for each in asked if not each.durable)
    # It may say again what the first one said.
    assert kept.release(LAG_MS, standby).deleted == []
    kept.bench.topic.roll()
    kept.bench.fill(1)
    assert kept.release(LAG_MS, standby).deleted == [3]
    assert kept.bench.topic.mark_delete(NAME) == Position(3, 7) or kept.bench.stored()[0][0] == Position(4, 0)


@pytest.mark.slow
def test_redelivery_of_the_whole_subscription_changes_nothing(kept: Kept) -> None:
    before = stored_entries(kept.store, kept.source.stream)
    kept.bench.topic.redeliver(NAME)
    kept.bench.topic.unload()
    eventually(lambda: kept.source.active)
    kept.bench.fill(2)
    kept.offload(kept.source)
    assert stored_entries(kept.store, kept.source.stream) == before + kept.bench.stored()[-2:]
