"""Entries of a real broker: every message comes out as the official client sent it."""

from __future__ import annotations

import base64
from typing import Any

import lz4.block
import pytest

from formats.entries import EntryBatch
from formats.pulsar.messages import MessageOptions, messages
from tests.formats.pulsar_entries import RecordedTopic, recorded

PLAIN = recorded("plain")
WITH_BROKER_METADATA = recorded("broker-metadata")
TOPICS = [("plain", name) for name in PLAIN] + [("broker-metadata", name) for name in WITH_BROKER_METADATA]
#: Topics whose entries aren't simply the messages that were sent.
SPECIAL = {"chunked-none", "chunked-lz4", "encrypted", "encrypted-batch", "transactions", "compacted-ledger"}


def topic_of(case: tuple[str, str]) -> RecordedTopic:
    return {"plain": PLAIN, "broker-metadata": WITH_BROKER_METADATA}[case[0]][case[1]]


def rows_of(topic: RecordedTopic, **options: Any) -> list[dict[str, Any]]:
    found = []
    for ledger_id in sorted({ledger_id for ledger_id, _, _ in topic.entries}):
        own = [(entry_id, data) for ledger, entry_id, data in topic.entries if ledger == ledger_id]
        batch = EntryBatch.build(ledger_id, own[0][0], [data for _, data in own])
        found += messages(batch, MessageOptions(**options), source=topic.topic).to_pylist()
    return found


def b64(text: str | None) -> bytes | None:
    return None if text is None else base64.b64decode(text)


def sent_row(message: dict[str, Any]) -> dict[str, Any]:
    """What the producer was told, in the names of the columns."""
    is_base64 = "key_bytes" in message
    return {
        "id": tuple(message["id"]),
        "key": message["key_bytes"] if is_base64 else message.get("key"),
        "key_is_base64": is_base64,
        "ordering_key": b64(message.get("ordering_key")),
        "event_time": message.get("event_time"),
        "properties": message.get("properties", {}),
        "value": b64(message["value"]),
        "deliver_at": message.get("deliver_at"),
    }


def found_row(row: dict[str, Any]) -> dict[str, Any]:
    times = {name: row[name] and round(row[name].timestamp() * 1000) for name in ("event_time", "deliver_at")}
    return {
        "id": (row["ledger_id"], row["entry_id"], row["batch_index"]),
        **{name: row[name] for name in ("key", "key_is_base64", "ordering_key", "value")},
        "properties": dict(row["properties"]),
        **times,
    }


def sort_key(row: dict[str, Any]) -> tuple[int, ...]:
    return row["id"]  # type: ignore[no-any-return]


@pytest.mark.slow
@pytest.mark.parametrize("case", [case for case in TOPICS if case[1] not in SPECIAL], ids="/".join)
def test_every_message_is_as_it_was_sent(case: tuple[str, str]) -> None:
    topic = topic_of(case)
    rows = rows_of(topic)
    assert [found_row(row) for row in rows] == sorted(map(sent_row, topic.messages), key=sort_key)
    assert {row["producer_name"] for row in rows} == {topic.producer_name}
    assert {row["error"] for row in rows} == {None}
    assert {row["compacted_out"] for row in rows} == {False}
    # Every producer here started at 0; batching by key changes the order of sending.
    assert sorted(row["sequence_id"] for row in rows) == list(range(len(rows)))


@pytest.mark.slow
@pytest.mark.parametrize("case", TOPICS, ids="/".join)
def test_columns_of_entries_alone_give_the_same_rows(case: tuple[str, str]) -> None:
    names = ("ledger_id", "entry_id", "batch_index", "batch_size", "publish_time", "broker_index", "compression")
    whole = rows_of(topic_of(case))
    assert rows_of(topic_of(case), columns=names) == [{name: row[name] for name in names} for row in whole]


@pytest.mark.parametrize("codec", ["none", "lz4", "zlib", "zstd", "snappy"])
def test_each_codec_was_really_used(codec: str) -> None:
    for prefix in ("batched-", "unbatched-", "cpp-batched-"):
        assert {row["compression"] for row in rows_of(PLAIN[prefix + codec])} == {codec}


def test_broker_metadata_is_read() -> None:
    for name, topic in WITH_BROKER_METADATA.items():
        rows = rows_of(topic)
        if name != "encrypted-batch":
            assert [row["broker_index"] for row in rows] == list(range(len(rows)))
        assert all(abs((row["broker_time"] - row["publish_time"]).total_seconds()) < 10 for row in rows)
    assert {row["broker_index"] for row in rows_of(PLAIN["unbatched"])} == {None}


def test_a_json_schema_has_a_version() -> None:
    assert {row["schema_version"] for row in rows_of(PLAIN["json-schema"])} == {bytes(8)}
    assert {row["schema_version"] for row in rows_of(PLAIN["unbatched"])} == {None}


@pytest.mark.parametrize("name", ["key-value-batched", "key-value-unbatched"])
def test_null_keys_are_distinguished_from_missing_keys(name: str) -> None:
    assert [row["null_key"] for row in rows_of(PLAIN[name])] == [False, True, False, True]
    assert {row["null_key"] for row in rows_of(PLAIN["unbatched"])} == {False}


@pytest.mark.parametrize("codec", ["none", "lz4"])
def test_chunks_are_rows_from_which_the_message_can_be_put_together(codec: str) -> None:
    topic = PLAIN[f"chunked-{codec}"]
    *chunks, small = rows_of(topic)
    assert [(row["chunk_id"], row["chunk_count"], row["chunk_total_bytes"]) for row in chunks] == [
        (number, 3, sum(len(row["value"]) for row in chunks)) for number in range(3)
    ]
    assert len({row["chunk_uuid"] for row in chunks}) == 1
    assert (small["chunk_uuid"], small["chunk_id"], small["chunk_count"]) == (None, None, None)
    joined = b"".join(row["value"] for row in chunks)
    if codec == "lz4":
        joined = lz4.block.decompress(joined, uncompressed_size=chunks[0]["uncompressed_bytes"])
    big, little = sorted(map(sent_row, topic.messages), key=sort_key)
    assert (joined, small["value"]) == (big["value"], little["value"])
    assert {row["key"] for row in chunks} == {"big"}


def test_encrypted_payloads_are_returned_encrypted_with_their_keys() -> None:
    for row in rows_of(PLAIN["encrypted"]):
        assert [key["name"] for key in row["encryption_keys"]] == ["k1"]
        assert len(row["encryption_parameter"]) == 12
        assert b"secret" not in row["value"]
    [row] = rows_of(PLAIN["encrypted-batch"])
    assert (row["batch_index"], row["batch_size"], row["compression"]) == (-1, 4, "lz4")
    _, _, entry = PLAIN["encrypted-batch"].entries[0]
    assert entry.endswith(row["value"])


def test_transactions_have_ids_and_their_end_markers_can_be_omitted() -> None:
    topic = PLAIN["transactions"]
    rows = rows_of(topic)
    assert [row["marker_type"] for row in rows] == [None, None, 21, None, None, 22]
    assert [(row["txn_most_bits"], row["txn_least_bits"]) for row in rows] == [(0, 0)] * 3 + [(0, 1)] * 3
    left = rows_of(topic, markers=False)
    assert [row["value"] for row in left] == [b64(message["value"]) for message in topic.messages]


def test_messages_removed_by_compaction_are_marked() -> None:
    before, after = rows_of(PLAIN["compacted"]), rows_of(PLAIN["compacted-ledger"])
    assert [row["key"] for row in before] == ["k0", "k1", "k0", "k1", "k0", "k1", "k2", None]
    kept = {4, 6}  # the last of k0 and of k2; k1 was deleted, and what has no key is not kept either
    assert [row["compacted_out"] for row in after] == [number not in kept for number in range(8)]
    assert [row["value"] for row in after] == [row["value"] if n in kept else None for n, row in enumerate(before)]
