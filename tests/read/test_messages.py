"""Decoding of a batch's messages: entries that aren't Pulsar's are refused, damaged ones are corrupt."""

from __future__ import annotations

import pytest

from formats.entries import EntryBatch
from formats.pulsar.messages import MessageDecoder, MessageOptions
from offloader.errors import CorruptError, InvalidCallError
from offloader.read.messages import FOREIGN_ENTRIES_MAX, decode_messages
from tests.formats.pulsar_entries import Sent, single_entry

GOOD = single_entry(Sent(value=b"a"))


def decode(*payloads: bytes) -> None:
    batch = EntryBatch.build(7, 3, list(payloads))
    decoder = MessageDecoder(MessageOptions(columns=("value",)), source="stream orders,")
    list(decode_messages(batch, decoder, remedy="skip them"))


@pytest.mark.parametrize("payloads", [[b"hello there"], [b""], [b"{}"] * (FOREIGN_ENTRIES_MAX + 1)])
def test_entries_of_another_system_are_refused(payloads: list[bytes]) -> None:
    with pytest.raises(
        InvalidCallError, match=r"^stream orders, entry 7:3 isn't a message of Pulsar's: .* at byte 0"
    ) as caught:
        decode(*payloads)
    assert caught.value.hint == "read the entries without decoding messages, or skip them"


@pytest.mark.parametrize("payloads", [[GOOD[:-1] + b"b"], [b"hello there", GOOD], [GOOD, b"hello there"]])
def test_damaged_entry_of_pulsars_is_corrupt(payloads: list[bytes]) -> None:
    with pytest.raises(CorruptError, match="stream orders, entry 7:"):
        decode(*payloads)
