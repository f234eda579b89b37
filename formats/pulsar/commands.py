"""Commands of Pulsar's binary protocol, in frames: ``[total size][command size][command][entry]``.

Both directions, with size limits. Entries are opaque here: ``formats.pulsar.entry`` decodes them.
"""

from __future__ import annotations

import enum
import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

from google.protobuf.message import EncodeError

from formats.entries import Position
from formats.errors import InconsistentError, require_at_most
from formats.metadata import pulsar_protocol_pb2
from formats.metadata.messages import parse_message
from formats.pulsar.entry import signed64

_PROTOCOL: Any = pulsar_protocol_pb2
_BaseCommand: Any = _PROTOCOL.BaseCommand

#: Bytes by which a frame may exceed the largest message, as in brokers.
FRAME_PADDING_BYTES = 10 * 1024
#: The largest frame of a broker with default settings, without its size field.
FRAME_BYTES_MAX = 5 * 1024 * 1024 + FRAME_PADDING_BYTES

_SIZE = struct.Struct(">I")
_SIZES = struct.Struct(">II")


class CommandType(enum.IntEnum):
    """The supported commands; numbers of Pulsar's ``BaseCommand.Type``, and of the fields that hold them."""

    CONNECT = 2
    CONNECTED = 3
    SUBSCRIBE = 4
    PRODUCER = 5
    SEND = 6
    SEND_RECEIPT = 7
    SEND_ERROR = 8
    MESSAGE = 9
    ACK = 10
    FLOW = 11
    SUCCESS = 13
    ERROR = 14
    CLOSE_PRODUCER = 15
    CLOSE_CONSUMER = 16
    PRODUCER_SUCCESS = 17
    PING = 18
    PONG = 19
    PARTITIONED_METADATA = 21
    PARTITIONED_METADATA_RESPONSE = 22
    LOOKUP = 23
    LOOKUP_RESPONSE = 24
    REACHED_END_OF_TOPIC = 27
    SEEK = 28
    GET_LAST_MESSAGE_ID = 29
    GET_LAST_MESSAGE_ID_RESPONSE = 30
    ACTIVE_CONSUMER_CHANGE = 31
    AUTH_CHALLENGE = 36
    AUTH_RESPONSE = 37
    ACK_RESPONSE = 38
    SCALABLE_TOPIC_LOOKUP = 70
    SCALABLE_TOPIC_UPDATE = 71
    SCALABLE_TOPIC_CLOSE = 72
    SCALABLE_TOPICS_WATCH = 76
    SCALABLE_TOPICS_UPDATE = 77
    SCALABLE_TOPICS_CLOSE = 78


_TYPES = {int(kind): kind for kind in CommandType}
_FIELDS = {kind: kind.name.lower() for kind in CommandType}


class Command(NamedTuple):
    """A decoded frame.

    Attributes:
        type: which command; ``None``: an unsupported one, which may be ignored.
        body: the protobuf message of that command, complete; ``None`` where the type is.
        entry: the bytes after the command: of ``MESSAGE`` and ``SEND`` the stored form of an entry, otherwise usually
            none.
    """

    type: CommandType | None
    body: Any
    entry: bytes = b""


def encode_command(kind: CommandType, entry: bytes = b"", **fields: Any) -> bytes:
    """Encodes one frame: the command's fields (message fields as mappings; ``None`` leaves one out), then ``entry``.

    Raises:
        InconsistentError: a field's value isn't of its type, or a required one is missing.
    """
    given = {name: value for name, value in fields.items() if value is not None}
    try:
        encoded = _BaseCommand(type=int(kind), **{_FIELDS[kind]: given}).SerializeToString()
    except (TypeError, ValueError, EncodeError) as cause:
        raise InconsistentError(f"Pulsar command {kind.name}", expected="its fields", found=cause) from cause
    return b"".join((_SIZES.pack(4 + len(encoded) + len(entry), len(encoded)), encoded, entry))


def decode_command(frame: bytes) -> Command:
    """Decodes a frame, without its leading total size.

    Raises:
        InconsistentError: sizes contradict each other, or the command isn't one, or lacks a required field.
    """
    size = _SIZE.unpack_from(frame)[0] if len(frame) >= 4 else -1
    if not 0 <= size <= len(frame) - 4:
        raise InconsistentError("size of a Pulsar command", offset=0, expected=f"at most {len(frame) - 4}", found=size)
    base = parse_message(_BaseCommand, frame[4 : 4 + size], "Pulsar command", 4)
    kind = _TYPES.get(base.type)
    if kind is None:
        return Command(None, None)
    name = _FIELDS[kind]
    if not base.HasField(name):
        raise InconsistentError(
            "Pulsar command", offset=4, expected="protobuf BaseCommand", found=f"{kind.name} without its field"
        )
    return Command(kind, getattr(base, name), frame[4 + size :])


class FrameSplitter:
    """Splits a connection's byte stream into commands.

    Unusable after an error: the start of the next frame is unknown.

    Args:
        frame_bytes_max: longer frames are refused before they are received; may be changed at any time.
    """

    def __init__(self, frame_bytes_max: int = FRAME_BYTES_MAX) -> None:
        self.frame_bytes_max = frame_bytes_max
        #: The incomplete frame; at most a frame and the last input.
        self._received = bytearray()

    def feed(self, data: bytes) -> Iterator[Command]:
        """The commands that ``data`` completes; consume them before feeding more.

        Raises:
            LimitExceededError: a frame declares more than ``frame_bytes_max``.
            InconsistentError: as ``decode_command``.
        """
        received = self._received
        received += data
        at = 0
        try:
            while len(received) - at >= 4:
                size = int(_SIZE.unpack_from(received, at)[0])
                require_at_most("size of a Pulsar frame", size, self.frame_bytes_max, offset=0)
                if len(received) - at - 4 < size:
                    break
                start, at = at + 4, at + 4 + size
                yield decode_command(bytes(received[start:at]))
        finally:
            del received[:at]


def message_id(position: Position) -> dict[str, int]:
    """A position as the fields of a message's id."""
    return {"ledger_id": position.ledger_id % 2**64, "entry_id": position.entry_id % 2**64}


def position_of(body: Any) -> Position:
    """The position in a ``MessageId``; -1 for Pulsar's "none" or "before the first"."""
    return Position(signed64(body.ledger_id), signed64(body.entry_id))
