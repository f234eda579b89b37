"""Replays onto the fake broker: the same messages after any interruption, and duplicates are counted."""

from __future__ import annotations

import random
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from formats.entries import EntryBatch, Position
from formats.pulsar.messages import messages
from offloader import replay as replayer
from offloader.errors import CorruptError, InvalidCallError, StoreUnavailableError, UnsupportedError
from offloader.replay import Rate, Replayer, ReplayResult, number_of, place_of
from offloader.store.open import open_store
from offloader.testing.manual_clock import ManualClock
from tests.formats.pulsar_entries import Sent, single_entry
from tests.support.pulsar_broker import FakeBroker
from tests.support.pulsar_producers import FakeProducers
from tests.support.pulsar_topics import FakeTopic
from tests.support.replaying import STREAM, TARGET, Place, entries_of, entry_of, write_stream

LEDGERS = {7: 40, 9: 1, 12: 59}
ALL = [Position(ledger, number) for ledger, count in LEDGERS.items() for number in range(count)]
TERMINATED = 15


@pytest.fixture
def broker() -> Iterator[FakeBroker]:
    with FakeBroker() as broker:
        yield broker


@pytest.fixture
def place(broker: FakeBroker, tmp_path: Path) -> Place:
    store = open_store(f"file://{tmp_path}/store")
    topic = FakeTopic(broker, TARGET)
    producers = FakeProducers(broker, topic)
    return Place(store, write_stream(store, entries_of(LEDGERS)), broker, topic, producers, tmp_path / "state")


def content(entry: bytes) -> list[dict[str, object]]:
    names = {"key", "value", "properties", "event_time", "publish_time", "ordering_key", "compression"}
    return [{name: row[name] for name in names} for row in messages(EntryBatch.build(1, 0, [entry])).to_pylist()]


@pytest.mark.slow
def test_every_message_arrives_as_it_was(place: Place) -> None:
    told: list[ReplayResult] = []
    result = place.run(on_progress=told.append)
    assert place.arrived == ALL
    for position, (_, entry, _) in zip(ALL, place.topic.entries, strict=True):
        assert content(entry) == content(entry_of(position))
    batches = sum(position.entry_id % 3 == 2 for position in ALL)
    assert (result.entries, result.messages) == (100, 100 + 2 * batches)
    assert (result.resumed_after, result.sent, result.twice) == (None, ALL[-1], 0)
    assert told[-1] == result
    again = place.run()
    assert (again.entries, again.resumed_after) == (0, ALL[-1])
    assert place.arrived == ALL


@pytest.mark.slow
def test_only_the_range_is_sent(place: Place) -> None:
    place.run(first=Position(7, 38), last=Position(12, 1))
    assert place.arrived == [Position(7, 38), Position(7, 39), Position(9, 0), Position(12, 0), Position(12, 1)]


@pytest.mark.slow
def test_concurrent_replays_of_a_stream_to_one_topic_are_refused(
    place: Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # After each entry; at the end at most 20 are on their way, so it is told of some that are stored before.
    monkeypatch.setattr(replayer, "NOTE_S", 0.0)
    elsewhere = replace(place, folder=tmp_path / "another-machine")
    another = replace(place.wanted, producer="begins-elsewhere")
    refused: list[StoreUnavailableError] = []

    def meanwhile(_: ReplayResult) -> None:
        if place.topic.entries and not refused:
            with pytest.raises(StoreUnavailableError) as found:
                elsewhere.run(first=Position(9, 0), wanted=another, retry_s=0.0)
            refused.append(found.value)

    place.run(on_progress=meanwhile)
    [error] = refused
    assert f"another replay of {STREAM} to {TARGET} is running" in error.message
    assert "--label" in error.hint
    assert place.arrived == ALL
    # It has ended: the other one may send its range now.
    elsewhere.run(first=Position(9, 0), wanted=another)
    assert place.arrived == [*ALL, *ALL[40:]]


@pytest.mark.slow
@pytest.mark.parametrize("step", ["_target_end", "_leased"])
def test_replay_that_stalls_before_it_sends_repeats_nothing_that_another_one_sent_meanwhile(
    place: Place, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    place.producers.deduplicates = False
    own, stalls = getattr(Replayer, step), [True]

    def stalled(replay: Replayer) -> object:
        if stalls and stalls.pop():
            place.run()
            assert place.arrived == ALL
        return own(replay)

    monkeypatch.setattr(Replayer, step, stalled)
    result = place.run()
    assert place.arrived == ALL
    assert (result.resumed_after, result.entries) == (ALL[-1], 0)


@pytest.mark.slow
@pytest.mark.parametrize("deduplicates", [True, False])
def test_repeatedly_broken_connection_loses_and_repeats_nothing(place: Place, deduplicates: bool) -> None:
    place.producers.deduplicates = deduplicates
    generator = random.Random(7)

    def break_again(_: ReplayResult) -> None:
        place.producers.cut_after = generator.randint(1, 25)

    result = place.run(on_progress=break_again)
    assert place.arrived == ALL
    assert result.deduplicates is deduplicates
    assert (result.twice, result.entries) == (0, 100)


@pytest.mark.slow
@pytest.mark.parametrize("deduplicates", [True, False])
def test_late_entries_are_stored_once_or_counted_as_duplicates(place: Place, deduplicates: bool) -> None:
    place.producers.deduplicates = deduplicates
    place.producers.delay, place.producers.cut_after = 5, 5
    result = place.run()
    if deduplicates:
        assert place.arrived == ALL
        assert result.twice == 0
    else:
        # The five came before the one that was sent alone, which is the first of them.
        assert place.arrived == [*ALL[:5], ALL[0], *ALL[5:]]
        assert result.twice == 1


@pytest.mark.slow
@settings(max_examples=12, deadline=None)
@given(seed=st.integers(0, 2**32), deduplicates=st.booleans(), foreign=st.booleans())
def test_replays_killed_anywhere_send_every_entry_once(
    tmp_path_factory: pytest.TempPathFactory, seed: int, deduplicates: bool, foreign: bool
) -> None:
    """The last note is as old as it may be: what the target has beyond it is found there."""
    generator = random.Random(seed)
    folder = tmp_path_factory.mktemp("replay")
    store = open_store(f"file://{folder}/store")
    ledgers = {3: generator.randint(1, 30), 5: generator.randint(1, 30)}
    positions = [Position(ledger, number) for ledger, count in ledgers.items() for number in range(count)]
    with FakeBroker() as broker:
        topic = FakeTopic(broker, TARGET)
        producers = FakeProducers(broker, topic, deduplicates=deduplicates)
        place = Place(store, write_stream(store, entries_of(ledgers)), broker, topic, producers, folder / "state")
        if foreign:
            topic.append(single_entry(Sent(value=b"of others")))
        for _ in range(generator.randint(1, 4)):
            producers.cut_after = generator.randint(1, 20)
            noted: list[bytes | None] = []

            def note(_: ReplayResult, noted: list[bytes | None] = noted) -> None:
                noted.append(place.file.path.read_bytes())

            place.limits = {"retry_s": 0.0}
            try:
                place.run(on_progress=note)
            except StoreUnavailableError:
                # As if it had been killed before any note but the first one it made.
                place.file.path.write_bytes(noted[0] or b"")
            if foreign:
                topic.append(single_entry(Sent(value=b"of others")))
            if generator.random() < 0.3:
                topic.roll()
        producers.cut_after = None
        place.limits = {"retry_s": 20.0, "retry_delay_s": 0.0}
        result = place.run()
        ours = [position for position in place.arrived if position.ledger_id]
        assert ours == positions
        assert result.twice == 0
        assert not result.target_forgot


@pytest.mark.slow
def test_target_that_lost_its_producer_state_is_reported(place: Place) -> None:
    place.producers.cut_after = 30
    with pytest.raises(StoreUnavailableError):
        place.run(retry_s=0.0)
    place.topic.roll()
    place.topic.subscribe("all is consumed")
    place.topic.acknowledge("all is consumed", place.topic.entries[-1][0])
    place.topic.trim()
    assert place.topic.entries == []
    result = place.run()
    assert result.target_forgot
    assert place.arrived[-1] == ALL[-1]


@pytest.mark.slow
def test_refusing_broker_ends_the_replay_and_the_next_run_continues(place: Place) -> None:
    place.producers.refuse = 7
    with pytest.raises(StoreUnavailableError, match="quota"):
        place.run(retry_s=0.05)
    place.producers.refuse = 0
    place.run()
    assert place.arrived == ALL


@pytest.mark.slow
def test_permanent_refusal_ends_the_replay_at_once(place: Place) -> None:
    place.producers.refuse = TERMINATED
    with pytest.raises(InvalidCallError, match="terminated"):
        place.run(retry_s=1e9)


@pytest.mark.slow
def test_damaged_entry_ends_the_replay_after_the_intact_ones(place: Place, tmp_path: Path) -> None:
    store = open_store(f"file://{tmp_path}/damaged")
    damaged = bytearray(entry_of(Position(1, 3)))
    damaged[-1] ^= 1
    place.incarnation = write_stream(store, {1: [*(entry_of(Position(1, n)) for n in range(3)), bytes(damaged)]})
    place.store = store
    with pytest.raises(CorruptError, match="entry 1:3 of stream"):
        place.run()
    assert place.arrived == [Position(1, 0), Position(1, 1), Position(1, 2)]


@pytest.mark.slow
def test_markers_stay_and_transactions_are_asked_about(place: Place, tmp_path: Path) -> None:
    store = open_store(f"file://{tmp_path}/transactions")
    entries = [
        entry_of(Position(1, 0)),
        single_entry(Sent(value=b"in a transaction"), txn=(1, 2)),
        single_entry(Sent(), marker=21),
        entry_of(Position(1, 3)),
    ]
    place.incarnation, place.store = write_stream(store, {1: entries}), store
    with pytest.raises(InvalidCallError, match=r"entry 1:1 .* belongs to a transaction"):
        place.run()
    result = place.run(with_transactions=True)
    assert place.arrived == [Position(1, 0), Position(1, 1), Position(1, 3)]
    assert (result.markers, result.entries) == (1, 2)


def test_progress_file_of_another_replay_is_refused(place: Place) -> None:
    place.file.write(place.wanted)
    place.store = open_store("memory://another-stream")
    place.incarnation = write_stream(place.store, entries_of({1: 1}))
    with pytest.raises(InvalidCallError, match="another replay"):
        place.run()
    place.file.path.write_text("{")
    with pytest.raises(CorruptError, match="no valid progress"):
        place.run()
    assert place.topic.entries == []


def test_a_rate_is_kept() -> None:
    clock = ManualClock()
    rate = Rate(10, 1000, clock)
    for _ in range(100):
        rate.take(1, 10, threading.Event())
    assert 8.5 <= clock.monotonic_s() <= 10
    clock.advance(100)
    begin_s = clock.monotonic_s()
    for _ in range(100):
        rate.take(1, 1000, threading.Event())
    assert clock.monotonic_s() - begin_s >= 98


def test_positions_and_sequence_ids_are_each_others() -> None:
    for position in (Position(0, 0), Position(2**35 - 1, 2**28 - 1), Position(7, 12)):
        assert place_of(number_of(position)) == position
    assert place_of(-1) is None
    numbers = [number_of(position) for position in ALL]
    assert numbers == sorted(set(numbers))
    for position in (Position(2**35, 0), Position(0, 2**28), Position(-1, 0)):
        with pytest.raises(UnsupportedError):
            number_of(position)
