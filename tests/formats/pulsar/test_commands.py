"""Commands of Pulsar's protocol against bytes written by hand; whole, in pieces, damaged, and above their limits."""

from __future__ import annotations

import random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from formats.entries import Position
from formats.errors import FormatError, InconsistentError, LimitExceededError
from formats.pulsar.commands import (
    FRAME_BYTES_MAX,
    Command,
    CommandType,
    FrameSplitter,
    decode_command,
    encode_command,
    message_id,
    position_of,
)
from formats.pulsar.entry import decode_frame
from tests.formats.pulsar_entries import Sent, blob, number, recorded, single_entry
from tests.proof.fuzz.fuzz_mutation import mutate

ID = {"ledger_id": 7, "entry_id": 2**64 - 1}
ID_BYTES = number(1, 7) + number(2, 2**64 - 1)

#: Each command, its fields, and their bytes by the protocol's published numbers.
CASES: list[tuple[CommandType, dict[str, Any], bytes]] = [
    (
        CommandType.CONNECT,
        {
            "client_version": "v",
            "auth_data": b"secret",
            "protocol_version": 19,
            "auth_method_name": "token",
            "proxy_to_broker_url": "b:1",
            "feature_flags": {"auth_refresh": True, "broker_entry_metadata": True},
        },
        blob(1, "v") + blob(3, b"secret") + number(4, 19) + blob(5, "token") + blob(6, "b:1")
        + blob(10, number(1, 1) + number(2, 1)),
    ),
    (
        CommandType.CONNECTED,
        {
            "server_version": "s", "protocol_version": 19, "max_message_size": 5242880,
            "feature_flags": {"supports_scalable_topics": True},
        },
        blob(1, "s") + number(2, 19) + number(3, 5242880) + blob(4, number(8, 1)),
    ),
    (
        CommandType.SUBSCRIBE,
        {
            "topic": "t", "subscription": "s", "type": 2, "consumer_id": 3, "request_id": 4, "consumer_name": "n",
            "durable": False, "start_message_id": ID, "read_compacted": False, "initial_position": 1,
            "force_topic_creation": False,
        },
        blob(1, "t") + blob(2, "s") + number(3, 2) + number(4, 3) + number(5, 4) + blob(6, "n") + number(8, 0)
        + blob(9, ID_BYTES) + number(11, 0) + number(13, 1) + number(15, 0),
    ),
    (
        CommandType.PRODUCER,
        {"topic": "t", "producer_id": 3, "request_id": 4, "producer_name": "n"},
        blob(1, "t") + number(2, 3) + number(3, 4) + blob(4, "n"),
    ),
    (
        CommandType.PRODUCER_SUCCESS,
        {"request_id": 4, "producer_name": "n", "last_sequence_id": -1},
        number(1, 4) + blob(2, "n") + number(3, -1),
    ),
    (
        CommandType.SEND,
        {"producer_id": 3, "sequence_id": 2**63, "num_messages": 5},
        number(1, 3) + number(2, 2**63) + number(3, 5),
    ),
    (
        CommandType.SEND_RECEIPT,
        {"producer_id": 3, "sequence_id": 5, "message_id": ID},
        number(1, 3) + number(2, 5) + blob(3, ID_BYTES),
    ),
    (
        CommandType.SEND_ERROR,
        {"producer_id": 3, "sequence_id": 5, "error": 15, "message": "over"},
        number(1, 3) + number(2, 5) + number(3, 15) + blob(4, "over"),
    ),
    (CommandType.CLOSE_PRODUCER, {"producer_id": 3, "request_id": 4}, number(1, 3) + number(2, 4)),
    (
        CommandType.MESSAGE,
        {"consumer_id": 1, "message_id": ID, "redelivery_count": 2, "ack_set": [5, -1]},
        number(1, 1) + blob(2, ID_BYTES) + number(3, 2) + number(4, 5) + number(4, -1),
    ),
    (
        CommandType.ACK,
        {"consumer_id": 1, "type": 1, "message_id": [ID], "request_id": 9},
        number(1, 1) + number(2, 1) + blob(3, ID_BYTES) + number(8, 9),
    ),
    (CommandType.FLOW, {"consumer_id": 1, "permits": 2**32 - 1}, number(1, 1) + number(2, 2**32 - 1)),
    (CommandType.SUCCESS, {"request_id": 2**64 - 1}, number(1, -1)),
    (
        CommandType.ERROR,
        {"request_id": 1, "error": 11, "message": "no topic"},
        number(1, 1) + number(2, 11) + blob(3, "no topic"),
    ),
    (CommandType.CLOSE_CONSUMER, {"consumer_id": 1, "request_id": 2}, number(1, 1) + number(2, 2)),
    (CommandType.PING, {}, b""),
    (CommandType.PONG, {}, b""),
    (CommandType.PARTITIONED_METADATA, {"topic": "t", "request_id": 2}, blob(1, "t") + number(2, 2)),
    (
        CommandType.PARTITIONED_METADATA_RESPONSE,
        {"partitions": 3, "request_id": 2, "response": 0, "error": 6, "message": "m"},
        number(1, 3) + number(2, 2) + number(3, 0) + number(4, 6) + blob(5, "m"),
    ),
    (
        CommandType.LOOKUP,
        {"topic": "t", "request_id": 2, "authoritative": True},
        blob(1, "t") + number(2, 2) + number(3, 1),
    ),
    (
        CommandType.LOOKUP_RESPONSE,
        {
            "broker_url": "u", "broker_url_tls": "w", "response": 1, "request_id": 4, "authoritative": True,
            "error": 6, "message": "m", "proxy_through_service_url": True,
        },
        blob(1, "u") + blob(2, "w") + number(3, 1) + number(4, 4) + number(5, 1) + number(6, 6) + blob(7, "m")
        + number(8, 1),
    ),
    (CommandType.REACHED_END_OF_TOPIC, {"consumer_id": 1}, number(1, 1)),
    (
        CommandType.SEEK,
        {"consumer_id": 1, "request_id": 2, "message_id": ID},
        number(1, 1) + number(2, 2) + blob(3, ID_BYTES),
    ),
    (CommandType.GET_LAST_MESSAGE_ID, {"consumer_id": 1, "request_id": 2}, number(1, 1) + number(2, 2)),
    (
        CommandType.GET_LAST_MESSAGE_ID_RESPONSE,
        {"last_message_id": ID, "request_id": 2},
        blob(1, ID_BYTES) + number(2, 2),
    ),
    (CommandType.ACTIVE_CONSUMER_CHANGE, {"consumer_id": 1, "is_active": True}, number(1, 1) + number(2, 1)),
    (
        CommandType.AUTH_CHALLENGE,
        {"server_version": "s", "challenge": {"auth_method_name": "token", "auth_data": b"c"}, "protocol_version": 19},
        blob(1, "s") + blob(2, blob(1, "token") + blob(2, b"c")) + number(3, 19),
    ),
    (
        CommandType.AUTH_RESPONSE,
        {"client_version": "v", "response": {"auth_method_name": "token", "auth_data": b"r"}, "protocol_version": 19},
        blob(1, "v") + blob(2, blob(1, "token") + blob(2, b"r")) + number(3, 19),
    ),
    (
        CommandType.ACK_RESPONSE,
        {"consumer_id": 1, "error": 5, "message": "m", "request_id": 6},
        number(1, 1) + number(4, 5) + blob(5, "m") + number(6, 6),
    ),
    (
        CommandType.SCALABLE_TOPIC_LOOKUP,
        {"session_id": 3, "topic": "topic://t/n/x", "create_if_missing": False},
        number(1, 3) + blob(2, "topic://t/n/x") + number(3, 0),
    ),
    (
        CommandType.SCALABLE_TOPIC_UPDATE,
        {
            "session_id": 3,
            "dag": {
                "epoch": 4,
                "segments": [
                    {
                        "id": 5, "hash_start": 0, "hash_end": 9, "state": 1, "parent_ids": [1, 2], "child_ids": [7],
                        "created_at_epoch": 2, "sealed_at_epoch": 4, "created_at_ms": 6, "sealed_at_ms": 8,
                        "legacy_topic_name": "l",
                    }
                ],
            },
            "error": 11, "message": "m", "resolved_topic_name": "r",
        },
        number(1, 3)
        + blob(
            2,
            number(1, 4)
            + blob(
                2,
                number(1, 5) + number(2, 0) + number(3, 9) + number(4, 1) + number(5, 1) + number(5, 2) + number(6, 7)
                + number(7, 2) + number(8, 4) + number(9, 6) + number(10, 8) + blob(11, "l"),
            ),
        )
        + number(3, 11) + blob(4, "m") + blob(5, "r"),
    ),
    (CommandType.SCALABLE_TOPIC_CLOSE, {"session_id": 3}, number(1, 3)),
    (CommandType.SCALABLE_TOPICS_WATCH, {"watch_id": 3, "namespace": "t/n"}, number(1, 3) + blob(2, "t/n")),
    (
        CommandType.SCALABLE_TOPICS_UPDATE,
        {
            "watch_id": 3, "snapshot": {"topics": ["a", "b"]}, "diff": {"added": ["c"], "removed": ["a"]}, "error": 4,
            "message": "m",
        },
        number(1, 3) + blob(2, blob(1, "a") + blob(1, "b")) + blob(3, blob(1, "c") + blob(2, "a")) + number(4, 4)
        + blob(5, "m"),
    ),
    (CommandType.SCALABLE_TOPICS_CLOSE, {"watch_id": 3}, number(1, 3)),
]  # fmt: skip


def by_hand(kind: CommandType, fields: bytes, entry: bytes = b"") -> bytes:
    command = number(1, int(kind)) + blob(int(kind), fields)
    return (4 + len(command) + len(entry)).to_bytes(4, "big") + len(command).to_bytes(4, "big") + command + entry


def seen(command: Command) -> tuple[Any, ...]:
    return command.type, command.body.SerializeToString(), command.entry


def test_every_command_has_a_case() -> None:
    assert {kind for kind, _, _ in CASES} == set(CommandType)


@pytest.mark.parametrize(("kind", "fields", "encoded"), CASES, ids=[kind.name for kind, _, _ in CASES])
def test_commands_are_the_bytes_of_the_protocol(kind: CommandType, fields: dict[str, Any], encoded: bytes) -> None:
    frame = by_hand(kind, encoded)
    assert encode_command(kind, **fields) == frame
    decoded = decode_command(frame[4:])
    assert seen(decoded) == (kind, encoded, b"")
    again = {name: getattr(decoded.body, name) for name in fields}
    assert encode_command(kind, **again) == frame


def test_frames_are_split_the_same_for_any_chunks() -> None:
    frames = [by_hand(kind, encoded, b"entry %d" % kind) for kind, _, encoded in CASES]
    expected = [(kind, encoded, b"entry %d" % kind) for kind, _, encoded in CASES]
    tail = frames[0][:-1]
    stream = b"".join(frames) + tail
    for step in (1, 7, 4096, len(stream)):
        splitter = FrameSplitter()
        pieces = [stream[at : at + step] for at in range(0, len(stream), step)]
        assert [seen(command) for piece in pieces for command in splitter.feed(piece)] == expected
        assert len(splitter._received) == len(tail)


def test_a_message_carries_its_entry_as_it_was_stored() -> None:
    entries = [entry for topic in recorded("plain").values() for _, _, entry in topic.entries]
    entries.append(single_entry(Sent(value=b"v"), broker=(1, 2)))
    assert len(entries) > 10
    for entry in entries:
        frame = encode_command(CommandType.MESSAGE, entry, consumer_id=1, message_id=ID)
        [command] = FrameSplitter().feed(frame)
        assert command.entry == entry
        assert decode_frame(command.entry) == decode_frame(entry)


def test_commands_of_newer_brokers_are_skipped() -> None:
    unknown = number(1, 64) + blob(64, number(1, 5))
    frame = (4 + len(unknown)).to_bytes(4, "big") + len(unknown).to_bytes(4, "big") + unknown
    found = list(FrameSplitter().feed(frame + by_hand(CommandType.PING, b"")))
    assert found[0] == (None, None, b"")
    assert found[1].type is CommandType.PING


def test_a_frame_above_the_limit_is_refused_before_it_arrives() -> None:
    splitter = FrameSplitter(100)
    with pytest.raises(LimitExceededError, match="at most 100, found 101"):
        list(splitter.feed((101).to_bytes(4, "big")))
    whole = by_hand(CommandType.MESSAGE, number(1, 1) + blob(2, ID_BYTES), bytes(FRAME_BYTES_MAX))
    entry = whole[4 : 4 + FRAME_BYTES_MAX]
    with pytest.raises(LimitExceededError):
        list(FrameSplitter().feed(whole))
    exactly = FRAME_BYTES_MAX.to_bytes(4, "big") + entry
    [command] = FrameSplitter().feed(exactly)
    assert command.type is CommandType.MESSAGE


@pytest.mark.parametrize(
    "frame",
    [
        b"",
        b"\0\0\0",
        b"\0\0\0\5abc",
        b"\xff\xff\xff\xff",
        b"\0\0\0\0",
        b"\0\0\0\2\x08\x09",  # a type without its command
        b"\0\0\0\2\x08\xff",
        by_hand(CommandType.MESSAGE, number(1, 1))[4:],  # no message id
        by_hand(CommandType.ERROR, number(1, 1) + number(2, 3))[4:],
    ],
)
def test_invalid_command_frame_is_refused(frame: bytes) -> None:
    with pytest.raises(InconsistentError, match="Pulsar command"):
        decode_command(frame)
    with pytest.raises(InconsistentError, match="Pulsar command"):
        list(FrameSplitter().feed(len(frame).to_bytes(4, "big") + frame))


@pytest.mark.parametrize(
    "fields",
    [{"topic": "t"}, {"topic": 5, "request_id": 1}, {"topic": "t", "request_id": 2**64}, {"nothing": 1}],
    ids=["missing", "type", "range", "unknown"],
)
def test_a_command_that_cannot_be_sent_is_refused(fields: dict[str, Any]) -> None:
    with pytest.raises(InconsistentError, match="Pulsar command LOOKUP"):
        encode_command(CommandType.LOOKUP, **fields)


@given(st.integers(0, 2**32))
def test_damaged_streams_are_commands_or_format_errors(seed: int) -> None:
    rng = random.Random(seed)
    pool = [by_hand(kind, encoded, b"e" * rng.randrange(20)) for kind, _, encoded in CASES]
    stream = b"".join(mutate(rng, pool) for _ in range(5))
    limit = rng.choice((64, 4096))

    def cut(step: int) -> tuple[list[Any], str]:
        splitter, found = FrameSplitter(limit), []
        try:
            for at in range(0, len(stream), step):
                for command in splitter.feed(stream[at : at + step]):
                    assert len(command.entry) <= limit
                    found.append(seen(command) if command.body is not None else command)
                assert len(splitter._received) <= limit + 4
        except FormatError as error:
            return found, str(error)
        return found, ""

    assert cut(1) == cut(len(stream) or 1)


def test_positions_are_ids_of_messages() -> None:
    for position in (Position(7, 3), Position(-1, -1), Position(5, -1)):
        frame = encode_command(
            CommandType.GET_LAST_MESSAGE_ID_RESPONSE, last_message_id=message_id(position), request_id=1
        )
        [command] = FrameSplitter().feed(frame)
        assert position_of(command.body.last_message_id) == position
