"""Names of topics, managed ledgers and streams, and ledgers in internal statistics."""

from __future__ import annotations

from typing import Any

import pytest

from formats.keys import decode_stream, encode_stream
from offloader.errors import InvalidCallError
from offloader.ledgers.pulsar.topics import (
    TopicLedger,
    TopicLedgers,
    ledgers_of_topics,
    managed_ledger_of_stream,
    stream_of_managed_ledger,
    stream_of_topic,
)

TOPIC = "persistent://public/default/orders"


@pytest.mark.parametrize(
    ("topic", "managed_ledger", "stream"),
    [
        (TOPIC, "public/default/persistent/orders", "public/default/persistent/orders"),
        (f"{TOPIC}-partition-0", "public/default/persistent/orders-partition-0", None),
        # As java.net.URLEncoder writes them.
        ("persistent://t/n/a b#1", "t/n/persistent/a+b%231", "t/n/persistent/a b#1"),
        ("persistent://t/n/a+b", "t/n/persistent/a%2Bb", "t/n/persistent/a+b"),
        ("persistent://t/n/a%20b", "t/n/persistent/a%2520b", "t/n/persistent/a%20b"),
        ("persistent://t/n/a~b*c", "t/n/persistent/a%7Eb*c", "t/n/persistent/a~b*c"),
        ("persistent://t/n/größe", "t/n/persistent/gr%C3%B6%C3%9Fe", "t/n/persistent/größe"),
        # Two levels would be another stream's name.
        ("persistent://t/n/a/b", "t/n/persistent/a%2Fb", "t/n/persistent/a%2Fb"),
    ],
)
def test_a_topic_and_its_managed_ledger_are_one_stream(topic: str, managed_ledger: str, stream: str | None) -> None:
    expected = stream or managed_ledger
    assert TopicLedgers(topic, ()).managed_ledger == managed_ledger
    assert stream_of_topic(topic) == stream_of_managed_ledger(managed_ledger) == expected
    assert decode_stream(encode_stream(expected)) == expected


def test_our_own_encoding_of_stream_names_is_decoded() -> None:
    for stream in ("public/default/persistent/a b#1", "t/n/persistent/a~b*c", "orders"):
        assert stream_of_managed_ledger(encode_stream(stream)) == stream
        assert stream_of_managed_ledger(managed_ledger_of_stream(stream)) == stream


@pytest.mark.parametrize("topic", ["non-persistent://a/b/c", "persistent://a/b", "persistent://a//c", "orders"])
def test_other_names_are_refused(topic: str) -> None:
    with pytest.raises(InvalidCallError, match="is no persistent topic"):
        stream_of_topic(topic)


def ledger(ledger_id: int, entries: int, **more: Any) -> dict[str, Any]:
    return {"ledgerId": ledger_id, "entries": entries, "size": entries * 10, "offloaded": True, **more}


def test_all_ledgers_but_the_last_are_closed() -> None:
    document = {"ledgers": [ledger(9, 0, offloaded=False), ledger(7, 5), ledger(8, 0)], "cursors": {}}
    [found] = ledgers_of_topics(document, TOPIC)
    assert found.ledgers == (
        TopicLedger(7, 5, 50, True),
        TopicLedger(8, 0, 0, True),
        TopicLedger(9, 0, 0, False),
    )
    assert found.closed == {7: 4, 8: -1}
    assert found.stream == "public/default/persistent/orders"


def test_documents_of_many_topics() -> None:
    one = {"ledgers": [ledger(7, 5)]}
    parts = {f"{TOPIC}-partition-{number}": one for number in range(2)}
    assert [each.topic for each in ledgers_of_topics({"metadata": {}, "partitions": parts})] == list(parts)
    assert [each.topic for each in ledgers_of_topics(parts)] == list(parts)


@pytest.mark.parametrize(
    ("document", "words"),
    [
        ({"ledgers": []}, "don't say whose"),
        ([], "no internal statistics"),
        ({}, "no internal statistics"),
        ({TOPIC: 7}, "no internal statistics"),
        ({TOPIC: {"ledgers": [{"ledgerId": 1}]}}, "not a ledger"),
        ({TOPIC: {"ledgers": [7]}}, "not a ledger"),
        ({TOPIC: {"ledgers": [{"ledgerId": "x", "entries": 1, "size": 1}]}}, "not a ledger"),
        ({"orders": {"ledgers": []}}, "no persistent topic"),
    ],
)
def test_invalid_topic_document_is_refused_by_name(document: object, words: str) -> None:
    with pytest.raises(InvalidCallError, match=words):
        ledgers_of_topics(document)
