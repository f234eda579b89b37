"""Retention documents of a scalable topic are kept as long as a segment exists, or may be restored."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from formats.documents import topic_key
from formats.keys import catalog_key
from formats.topic_layout import TopicLayout, layout_key
from offloader.errors import NotFoundError
from offloader.gc.delete_stream import remove_stream
from offloader.gc.sweep import LargeDeleteError, cleanup_stream
from offloader.maintenance import delete_streams
from offloader.manifest.topic_layouts import read_layout, record_layout
from offloader.retention.subscribers import open_retention
from offloader.settings import Settings
from tests.gc.test_delete_stream_retention_documents import DAY_S, kinds, reconcile, rounds
from tests.retention.scalable_topic import NAME, PLACE, ScalableBench

pytestmark = pytest.mark.slow


def lived() -> ScalableBench:
    """A segment and its two children, a subscriber, and a truncation."""
    bench = ScalableBench(policy="consumption")
    bench.fill(0)
    for number in bench.split(0):
        bench.fill(number, 2)
    bench.record()
    bench.subscribe("billing", NAME)
    bench.publish("billing", {0: bench.newest[0].next()}, NAME)
    bench.run(PLACE)
    bench.require_in_order()
    return bench


def delete(bench: ScalableBench, number: int) -> None:
    remove_stream(bench.memory, bench.stream(number), clock=bench.clock)
    bench.clock.advance(DAY_S + 1)
    rounds(bench)


def lose_catalogue_entry(bench: ScalableBench) -> None:
    bench.memory.delete([catalog_key(bench.stream(2))])


def lose_layout(bench: ScalableBench) -> None:
    bench.memory.delete([layout_key(PLACE)])


def damage_layout(bench: ScalableBench) -> None:
    bench.memory.put(layout_key(PLACE), b"damaged")


def lose_topic_entry(bench: ScalableBench) -> None:
    bench.memory.delete([topic_key(PLACE)])


@pytest.mark.parametrize("lose", [lose_catalogue_entry, lose_layout, damage_layout, lose_topic_entry])
def test_documents_are_kept_while_a_segment_exists_or_may_be_restored(lose: Callable[[ScalableBench], None]) -> None:
    bench = lived()
    kept = kinds(bench, PLACE)
    assert kept >= {"subscribers", "records", "decisions", "topic", "truncation.json"}
    for number in (0, 1):
        delete(bench, number)
    reconcile(bench.memory, bench.clock)
    assert kinds(bench, PLACE) == kept
    lose(bench)
    bench.clock.advance(DAY_S + 1)
    reconcile(bench.memory, bench.clock)
    assert kinds(bench, PLACE) >= kept - {"topic"}


def test_documents_go_with_the_last_segment() -> None:
    bench = lived()
    for number in range(3):
        assert "subscribers" in kinds(bench, PLACE)
        delete(bench, number)
    assert not kinds(bench, PLACE) & {"subscribers", "records", "decisions"}


def test_topic_is_truncated_further_after_its_first_segment_was_purged() -> None:
    bench = lived()
    settings = Settings.of({"cleanup": {"allow_large_delete": True, "grace_period": "0s"}})
    for _ in range(2):
        cleanup_stream(bench.memory, bench.stream(0), clock=bench.clock, settings=settings)
        bench.clock.advance(DAY_S)
    assert not [key for key in bench.objects() if key.startswith(bench.stream(0)) and key.endswith("-index")]
    open_retention(bench.memory, NAME, clock=bench.clock).publish(
        "billing", {number: bench.newest[number].next() for number in range(3)}
    )
    bench.run(PLACE)
    assert {number: at for number, at in bench.heads().items() if number} == {
        number: bench.newest[number].next() for number in (1, 2)
    }


def test_deleted_topic_may_be_created_again() -> None:
    bench = lived()
    delete_streams(bench.memory, PLACE, clock=bench.clock, settings=Settings().manifest)
    assert read_layout(bench.memory, PLACE) is None
    again = ScalableBench()
    row = replace(again.rows[0], created_ms=1_800_000_000_000)
    record_layout(bench.memory, PLACE, TopicLayout(topic=NAME, epoch=0, segments=(row,)))
    bench.clock.advance(DAY_S + 1)
    rounds(bench)
    assert "subscribers" not in kinds(bench, PLACE)
    recorded = read_layout(bench.memory, PLACE)
    assert recorded is not None
    assert recorded.segments == (row,)


def test_deletion_of_a_topic_is_finished_by_the_same_command_a_day_later() -> None:
    bench = lived()
    for _ in range(2):
        done = delete_streams(bench.memory, PLACE, clock=bench.clock, settings=Settings().manifest)
        bench.clock.advance(DAY_S + 1)
    assert [each.deletion and each.deletion.is_finished for each in done] == [True] * 3
    assert not [key for key in bench.objects() if "orders" in key and "/retention/" not in key]
    with pytest.raises(NotFoundError):
        delete_streams(bench.memory, PLACE, clock=bench.clock, settings=Settings().manifest)


def test_record_of_a_deleted_topic_is_kept_while_a_segment_may_be_restored() -> None:
    bench = lived()
    lose_catalogue_entry(bench)
    delete_streams(bench.memory, PLACE, clock=bench.clock, settings=Settings().manifest)
    assert read_layout(bench.memory, PLACE) is not None


def test_segment_goes_without_approval_while_the_topic_keeps_half() -> None:
    bench = lived()
    settings = Settings.of({"cleanup": {"grace_period": "0s"}})

    def clean(number: int) -> int:
        report = cleanup_stream(bench.memory, bench.stream(number), clock=bench.clock, settings=settings)
        return report.swept.retired

    assert clean(0) == 1  # all of the segment, a fifth of the topic
    open_retention(bench.memory, NAME, clock=bench.clock).publish(
        "billing", {number: bench.newest[number].next() for number in range(3)}
    )
    bench.run(PLACE)
    with pytest.raises(LargeDeleteError, match=r"more than half, and [0-9,]+ of [0-9,]+ of the topic's"):
        clean(1)
    bench.memory.put(layout_key(PLACE), b"damaged")
    with pytest.raises(LargeDeleteError, match="more than half: nothing new was retired"):
        clean(2)  # the others are unknown


def test_record_of_a_topic_whose_segments_were_deleted_alone_is_deleted_by_name() -> None:
    """As after a deletion of the topic that was interrupted before its last step."""
    bench = lived()
    for number in range(3):
        delete(bench, number)
    assert read_layout(bench.memory, PLACE) is not None
    assert delete_streams(bench.memory, PLACE, clock=bench.clock, settings=Settings().manifest) == []
    assert read_layout(bench.memory, PLACE) is None
    with pytest.raises(NotFoundError):
        delete_streams(bench.memory, PLACE, clock=bench.clock, settings=Settings().manifest)
