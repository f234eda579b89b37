"""Arbitrary messages come back as they were sent; arbitrary bytes raise format errors."""

from __future__ import annotations

import contextlib

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from formats.entries import EntryBatch
from formats.errors import FormatError
from formats.pulsar.messages import messages
from tests.formats.pulsar_entries import Sent, batch_entry, single_entry

TIMES = st.none() | st.integers(1, 253_402_300_799_999)
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=12)
MESSAGES = st.builds(
    Sent,
    value=st.binary(max_size=300),
    key=st.none() | TEXT,
    ordering_key=st.none() | st.binary(max_size=8),
    event_time=TIMES,
    sequence_id=st.none() | st.integers(0, 2**63 - 1),
    properties=st.dictionaries(TEXT, TEXT, max_size=3),
    null_value=st.none() | st.booleans(),
)


@pytest.mark.slow
@settings(deadline=None)
@given(
    sent=st.lists(MESSAGES, min_size=1, max_size=12),
    codec=st.integers(0, 4),
    checksum=st.booleans(),
    broker=st.none() | st.tuples(st.integers(1, 2**40), st.integers(0, 2**40)),
)
def test_any_messages_read_back_as_sent(
    sent: list[Sent], codec: int, checksum: bool, broker: tuple[int, int] | None
) -> None:
    entries = [batch_entry(sent, codec=codec, checksum=checksum, broker=broker, sequence_id=77)]
    entries += [single_entry(each, codec=codec, checksum=checksum, broker=broker) for each in sent]
    table = messages(EntryBatch.build(1, 0, entries))
    table.validate(full=True)
    rows = table.to_pylist()
    for row, each in zip(rows, [*sent, *sent], strict=True):
        assert row["value"] == (None if each.null_value else each.value)
        assert (row["key"], row["ordering_key"]) == (each.key, each.ordering_key)
        assert dict(row["properties"]) == each.properties
        assert (row["event_time"] and round(row["event_time"].timestamp() * 1000)) == each.event_time
        assert row["error"] is None
    for row, each in zip(rows, sent, strict=False):
        assert row["sequence_id"] == (77 if each.sequence_id is None else each.sequence_id)


@settings(deadline=None)
@given(data=st.binary(max_size=200))
def test_any_bytes_decode_or_raise_a_format_error(data: bytes) -> None:
    for entry in (data, b"\x0e\x02" + data, b"\x0e\x01" + data):
        with contextlib.suppress(FormatError):
            messages(EntryBatch.build(1, 0, [entry]))
