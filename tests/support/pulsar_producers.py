"""Producers of the fake Pulsar broker's topics: what they send is stored, deduplicated, refused or lost on the way.

It doesn't store what a broker that said no wouldn't have.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass
from typing import Any

from formats.entries import Position
from formats.pulsar.commands import Command, CommandType, message_id
from tests.support.pulsar_broker import BrokerClient, FakeBroker
from tests.support.pulsar_topics import FakeTopic

__all__ = ["FakeProducers"]

_PRODUCER_BUSY, _TOPIC_NOT_FOUND = 16, 11
_NO_REQUEST = 2**64 - 1


@dataclass(eq=False)
class _Producer:
    client: BrokerClient
    producer_id: int
    name: str


class FakeProducers:
    """Lets producers write to ``topic``.

    Args:
        broker: of the topic.
        topic: where it goes.
        deduplicates: whether sequence ids that a name has used are dropped.

    Attributes:
        stored: name, sequence id and position of each stored entry.
        cut_after: the connection is reset when so many more entries are stored, the last one's receipt unsent, and what
            receipts are on their way is lost; ``None``: never.
        refuse: the error code that the next entries are refused with; 0: none.
        is_held: entries are stored, and receipts aren't sent.
        delay: so many further entries are only stored right before the next one after them, whoever sends that; their
            producers hear nothing.
    """

    def __init__(self, broker: FakeBroker, topic: FakeTopic, *, deduplicates: bool = False) -> None:
        self.stored: list[tuple[str, int, Position]] = []
        self.deduplicates = deduplicates
        self.cut_after: int | None = None
        self.refuse = 0
        self.is_held = False
        self.delay = 0
        self._delayed: list[tuple[str, Any, bytes]] = []
        self._broker = broker
        self._topic = topic
        self._lock = threading.RLock()
        self._producers: list[_Producer] = []
        self._newest: dict[str, int] = {}
        self._others = broker.answer
        broker.answer = self._answer

    def give_up(self) -> None:
        """All producers are told to connect again."""
        with self._lock:
            for each in self._producers:
                each.client.send(CommandType.CLOSE_PRODUCER, producer_id=each.producer_id, request_id=_NO_REQUEST)
            self._producers.clear()

    def _answer(self, client: BrokerClient, command: Command) -> bool:
        body = command.body
        with self._lock:
            match command.type:
                case CommandType.PRODUCER:
                    self._let_in(client, body)
                case CommandType.SEND:
                    self._store(client, body, command.entry)
                case CommandType.CLOSE_PRODUCER:
                    self._producers = [
                        each
                        for each in self._producers
                        if (each.client, each.producer_id) != (client, body.producer_id)
                    ]
                    client.send(CommandType.SUCCESS, request_id=body.request_id)
                case _:
                    return self._others(client, command)
        return True

    def _let_in(self, client: BrokerClient, body: Any) -> None:
        self._producers = [each for each in self._producers if self._broker.has(each.client)]
        refused = {"request_id": body.request_id, "message": body.topic}
        if body.topic != self._topic.name:
            client.send(CommandType.ERROR, error=_TOPIC_NOT_FOUND, **refused)
        elif any(each.name == body.producer_name for each in self._producers):
            client.send(CommandType.ERROR, error=_PRODUCER_BUSY, **refused)
        else:
            self._producers.append(_Producer(client, body.producer_id, body.producer_name))
            last = self._newest.get(body.producer_name, -1) if self.deduplicates else -1
            client.send(
                CommandType.PRODUCER_SUCCESS,
                request_id=body.request_id,
                producer_name=body.producer_name,
                last_sequence_id=last,
            )

    def _store(self, client: BrokerClient, body: Any, entry: bytes) -> None:
        found = [p for p in self._producers if (p.client, p.producer_id) == (client, body.producer_id)]
        if not found:
            return
        name, receipt = found[0].name, {"producer_id": body.producer_id, "sequence_id": body.sequence_id}
        if self.refuse:
            client.send(CommandType.SEND_ERROR, error=self.refuse, message="refused", **receipt)
            return
        if self.delay:
            self.delay -= 1
            self._delayed.append((name, body, entry))
            position = Position(-1, -1)
        else:
            for delayed in self._delayed:
                self._append(*delayed)
            self._delayed.clear()
            position = self._append(name, body, entry)
        if self.cut_after is not None:
            self.cut_after -= 1
            if self.cut_after <= 0:
                self.cut_after = None
                self._producers.remove(found[0])
                self._broker.cut()
                return
        if not self.is_held and (name, body, entry) not in self._delayed:
            client.send(CommandType.SEND_RECEIPT, message_id=message_id(position), **receipt)

    def _append(self, name: str, body: Any, entry: bytes) -> Position:
        if self.deduplicates and body.sequence_id <= self._newest.get(name, -1):
            return Position(-1, -1)
        position = self._topic.append(entry, body.num_messages)
        self._newest[name] = body.sequence_id
        self.stored.append((name, body.sequence_id, position))
        return position
