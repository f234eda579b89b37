"""Reads a topic's raw entries from a real broker with nothing but our connection, for comparing with the bookie's."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field

from formats.entries import Position
from formats.pulsar.commands import Command, CommandType, position_of
from formats.pulsar.frame import decode_frame
from offloader.errors import OffloaderError
from offloader.ledgers.pulsar.client import PulsarClient

__all__ = ["read_raw"]

#: Messages that may be on their way; a permit more for each that arrived.
_PERMITS = 1000
_WITHIN_S = 60.0


@dataclass
class _Listener:
    """Keeps entries until ``last`` is among them."""

    last: Position
    entries: list[tuple[Position, bytes]] = field(default_factory=list)
    messages: int = 0
    error: BaseException | None = None
    done: threading.Event = field(default_factory=threading.Event)
    more: threading.Event = field(default_factory=threading.Event)

    def received(self, command: Command) -> None:
        if command.type is not CommandType.MESSAGE:
            return
        frame = decode_frame(command.entry)  # checks the CRC
        self.messages += max(frame.metadata.num_messages_in_batch, 1)
        self.entries.append((position_of(command.body.message_id), command.entry))
        if self.entries[-1][0] >= self.last:
            self.done.set()
        self.more.set()

    def lost(self, error: OffloaderError) -> None:
        self.error = error
        self.done.set()
        self.more.set()


def read_raw(client: PulsarClient, topic: str, first: Position, last: Position) -> list[tuple[Position, bytes]]:
    """Every entry from ``first`` to ``last``, as the broker sends them to a reader that leaves no trace."""
    listener = _Listener(last)
    connection = client.connection(topic)
    consumer_id = connection.attach(listener)
    start = {"ledger_id": first.ledger_id, "entry_id": first.entry_id}
    connection.request(
        CommandType.SUBSCRIBE,
        topic=topic,
        subscription="raw reader",
        type=0,
        consumer_id=consumer_id,
        durable=False,
        start_message_id=start,
        force_topic_creation=False,
    )
    granted = _PERMITS
    connection.send(CommandType.FLOW, consumer_id=consumer_id, permits=granted)
    while not listener.done.is_set():
        assert listener.more.wait(_WITHIN_S), f"nothing came after {len(listener.entries)} entries"
        listener.more.clear()
        if granted - listener.messages < _PERMITS // 2:
            more = listener.messages + _PERMITS - granted
            connection.send(CommandType.FLOW, consumer_id=consumer_id, permits=more)
            granted += more
    if listener.error is not None:
        raise listener.error
    connection.request(CommandType.CLOSE_CONSUMER, consumer_id=consumer_id)
    connection.detach(consumer_id)
    return [each for each in listener.entries if each[0] <= last]
