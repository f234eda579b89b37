"""Resent entries: those of a real broker, and every field written by hand."""

from __future__ import annotations

import random

import pyarrow as pa
import pytest

from formats.entries import EntryBatch
from formats.errors import FormatError
from formats.pulsar.entry import decode_frame, resent
from formats.pulsar.messages import messages
from tests.formats.pulsar_entries import RECORDED, Sent, batch_entry, recorded, single_entry
from tests.proof.fuzz.fuzz_mutation import mutate

FILES = sorted(path.stem for path in RECORDED.glob("*.jsonl"))
#: What a message must not keep.
CHANGED = {"producer_name", "sequence_id", "broker_index", "broker_time", "replicated_from"}
CHANGED |= {"txn_most_bits", "txn_least_bits"}


def rows_of(entry: bytes, *, without: set[str]) -> pa.RecordBatch:
    rows = messages(EntryBatch.build(7, 0, [entry]))
    return rows.drop_columns([name for name in rows.schema.names if name in without])


@pytest.mark.slow
@pytest.mark.parametrize("file", FILES)
def test_recorded_messages_are_unchanged_when_resent(file: str) -> None:
    seen = 0
    for topic in recorded(file).values():
        for number, (_, _, entry) in enumerate(topic.entries):
            sent = resent(entry, "another", number)
            if decode_frame(entry).metadata.HasField("marker_type"):
                assert (sent.entry, sent.messages) == (b"", 0)
                continue
            before, after = rows_of(entry, without=CHANGED), rows_of(sent.entry, without=CHANGED)
            assert after.to_pydict() == before.to_pydict()
            assert sent.messages == max(decode_frame(entry).metadata.num_messages_in_batch, 1)
            metadata = decode_frame(sent.entry).metadata
            assert (metadata.producer_name, metadata.sequence_id) == ("another", number)
            seen += 1
    assert seen


def test_every_field_but_those_of_the_place_stays() -> None:
    message = Sent(
        value=b"v",
        key="a2V5",
        key_is_base64=True,
        ordering_key=b"o",
        event_time=5,
        properties=[("a", "1"), ("a", "2")],
    )
    entry = single_entry(
        message,
        codec=3,
        encryption=[("name", b"key", {"m": "1"})],
        encryption_algorithm="aes",
        encryption_parameter=b"iv",
        schema_version=b"\0\1",
        deliver_at=9,
        chunk=("uuid", 0, 2, 10),
        replicated_from="elsewhere",
        txn=(1, 2),
        broker=(1_700_000_000_001, 12),
    )
    sent = resent(entry, "another", 77)
    assert sent.is_of_transaction
    before, after = decode_frame(entry), decode_frame(sent.entry)
    assert sent.entry[after.payload_start :] == entry[before.payload_start :]
    assert after.broker is None
    wanted = before.metadata
    wanted.producer_name, wanted.sequence_id = "another", 77
    for name in ("replicated_from", "txnid_least_bits", "txnid_most_bits"):
        wanted.ClearField(name)
    assert after.metadata == wanted
    # An entry that was sent so once is sent so again.
    assert resent(sent.entry, "another", 77)[:2] == sent[:2]


def test_resent_entry_keeps_unknown_fields_and_drops_highest_sequence_id() -> None:
    entry = batch_entry([Sent(value=b"1", sequence_id=4), Sent(value=b"2", sequence_id=5)])
    frame = decode_frame(entry)
    unknown = bytes([0xC0, 0x3E, 7])  # field 1000
    metadata = frame.metadata.SerializeToString() + bytes([0xC0, 0x01, 99]) + unknown  # field 24
    raw = len(metadata).to_bytes(4, "big") + metadata + entry[frame.payload_start :]
    sent = resent(raw, "another", 3)
    after = decode_frame(sent.entry).metadata
    assert not after.HasField("highest_sequence_id")
    assert unknown in after.SerializeToString()
    assert sent.messages == 2
    assert rows_of(sent.entry, without=set()).column("sequence_id").to_pylist() == [4, 5]


def test_markers_are_not_for_consumers() -> None:
    assert resent(single_entry(Sent(), marker=21), "another", 1).entry == b""


def test_damage_is_named_and_never_sent_on() -> None:
    rng = random.Random(5)
    entry = batch_entry([Sent(value=b"x" * 40, key="k")] * 3, codec=1)
    refused = 0
    for _ in range(400):
        damaged = mutate(rng, [entry])
        try:
            sent = resent(damaged, "another", 1)
        except FormatError:
            refused += 1
            continue
        assert not sent.entry or decode_frame(sent.entry).metadata.producer_name == "another"
    assert refused > 200
