"""Layouts of scalable topics: their rules, and the bytes of a record."""

from __future__ import annotations

from dataclasses import replace

import pytest

from formats.entries import Position
from formats.errors import FormatError
from formats.topic_layout import HASHES, RangeSegment, TopicLayout, TopicSchema, layout_key, layout_problem

TOPIC = "topic://shop/eu/orders"


def segment(number: int, start: int, stop: int, *parents: int, sealed: int | None = None) -> RangeSegment:
    return RangeSegment(
        id=number,
        stream=f"shop/eu/segment/orders/{start:04x}-{stop - 1:04x}-{number}",
        hash_start=start,
        hash_stop=stop,
        parents=parents,
        created_epoch=number,
        sealed_epoch=sealed,
    )


def layout(*segments: RangeSegment) -> TopicLayout:
    return TopicLayout(topic=TOPIC, epoch=9, segments=segments)


HALF = HASHES // 2
SPLIT = (segment(0, 0, HASHES, sealed=1), segment(1, 0, HALF, 0), segment(2, HALF, HASHES, 0))


@pytest.mark.parametrize(
    ("segments", "problem"),
    [
        (SPLIT, ""),
        ((*SPLIT, SPLIT[2]), "a segment's id occurs twice"),
        (SPLIT[1:], "segment 1 has the parent 0, which is missing"),
        ((replace(SPLIT[0], sealed_epoch=None), *SPLIT[1:]), "segment 0 is active and has the child 1"),
        (
            (segment(0, 0, HALF, 1, sealed=1), segment(1, 0, HALF, 0, sealed=1)),
            "segments are their own ancestors: 0, 1, 0",
        ),
        ((segment(0, 0, HALF + 1), segment(1, HALF, HASHES)), "the hash ranges of the active segments 0 and 1 overlap"),
        # Migrated partitions all have the whole range.
        ((segment(0, 0, HASHES, sealed=0), segment(1, 0, HASHES, sealed=0), segment(2, 0, HASHES, 0, 1)), ""),
    ],
)
def test_rules(segments: tuple[RangeSegment, ...], problem: str) -> None:
    assert layout_problem(layout(*segments)) == problem


def test_record_is_the_same_after_decoding() -> None:
    sealed = replace(SPLIT[0], end=Position(3, 30), sealed_ms=5, created_ms=4, is_legacy=True)
    recorded = layout(sealed, *SPLIT[1:])
    assert TopicLayout.decode(recorded.encode()) == recorded


def test_bytes_of_a_record_do_not_change() -> None:
    recorded = TopicLayout(topic=TOPIC, epoch=1, segments=(replace(SPLIT[0], end=Position(3, 30)),))
    assert recorded.encode() == (
        b'{"epoch":1,"format":1,"segments":[{"created_epoch":0,"created_ms":0,"end":[3,30],"hash_start":0,'
        b'"hash_stop":65536,"id":0,"is_legacy":false,"parents":[],"sealed_epoch":1,"sealed_ms":0,'
        b'"stream":"shop/eu/segment/orders/0000-ffff-0"}],"topic":"topic://shop/eu/orders","crc32c":"83c14e18"}'
    )


def test_schemas_of_a_record_are_the_same_after_decoding() -> None:
    schemas = (
        TopicSchema(version=0, type="AVRO", data='{"type": "record"}'),
        TopicSchema(version=7, type="KEY_VALUE", data="", properties={"kv.encoding.type": "SEPARATED"}),
    )
    recorded = replace(layout(*SPLIT), schemas=schemas)
    assert TopicLayout.decode(recorded.encode()) == recorded
    assert b"schemas" not in layout(*SPLIT).encode()


def test_damaged_record_is_refused() -> None:
    with pytest.raises(FormatError):
        TopicLayout.decode(layout(*SPLIT).encode().replace(b"orders", b"Orders"))


def test_key_is_beside_the_streams_of_the_topic() -> None:
    assert layout_key("shop/eu/topic/orders").endswith("shop/eu/topic/orders/layout.json")
