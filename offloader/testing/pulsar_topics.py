"""Topics of the fake Pulsar broker: ledgers of entries, subscriptions that are acknowledged, and lies.

Owns what is stored and who gets it. Must never touch a socket: that is ``offloader.testing.pulsar_broker``.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import Any

from formats.entries import Position
from formats.pulsar.commands import Command, CommandType, message_id, position_of
from offloader.testing.pulsar_broker import BrokerClient, FakeBroker

__all__ = ["FakeTopic"]

_CONSUMER_BUSY, _TOPIC_NOT_FOUND = 5, 11
_NO_REQUEST = 2**64 - 1


@dataclass(eq=False)
class _Consumer:
    client: BrokerClient
    consumer_id: int
    permits: int = 0


@dataclass(eq=False)
class _Subscription:
    """``consumers[0]`` works; ``sent`` is how many entries it was sent."""

    durable: bool
    mark_delete: int
    sent: int
    consumers: list[_Consumer] = field(default_factory=list)


class FakeTopic:
    """One topic of ``broker``, which it adds itself to. Only one at a time.

    Attributes:
        entries: position, bytes, and how many messages they hold.
        lies: position -> the one that is said instead.
    """

    def __init__(self, broker: FakeBroker, name: str) -> None:
        self.name = name
        self.entries: list[tuple[Position, bytes, int]] = []
        self.lies: dict[Position, Position] = {}
        self._broker = broker
        self._lock = threading.RLock()
        self._next = Position(1, 0)
        self._subscriptions: dict[str, _Subscription] = {}
        broker.answer = self._answer

    def append(self, entry: bytes, messages: int = 1) -> Position:
        """Stores an entry and sends it on."""
        with self._lock:
            position, self._next = self._next, Position(self._next.ledger_id, self._next.entry_id + 1)
            self.entries.append((position, entry, messages))
            self._send_all()
        return position

    def roll(self) -> None:
        """The next entry begins a ledger."""
        with self._lock:
            self._next = Position(self._next.ledger_id + 1, 0)

    def mark_delete(self, subscription: str) -> Position | None:
        """The last acknowledged entry."""
        with self._lock:
            acknowledged = self._subscriptions[subscription].mark_delete
            return self.entries[acknowledged - 1][0] if acknowledged else None

    def active(self, subscription: str) -> Any:
        """The consumer id that works, ``None``: nobody."""
        with self._lock:
            consumers = self._subscriptions[subscription].consumers
            return consumers[0].consumer_id if consumers else None

    def redeliver(self, subscription: str) -> None:
        """Sends again what wasn't acknowledged."""
        with self._lock:
            found = self._subscriptions[subscription]
            found.sent = found.mark_delete
            self._send_all()

    def switch(self, subscription: str) -> None:
        """Another consumer works from now on."""
        with self._lock:
            found = self._subscriptions[subscription]
            found.consumers.append(found.consumers.pop(0))
            self._activate(found)

    def unload(self) -> None:
        """All consumers are told to subscribe again."""
        with self._lock:
            for found in self._subscriptions.values():
                for consumer in found.consumers:
                    consumer.client.send(
                        CommandType.CLOSE_CONSUMER, consumer_id=consumer.consumer_id, request_id=_NO_REQUEST
                    )
                found.consumers.clear()

    def _answer(self, client: BrokerClient, command: Command) -> bool:
        body = command.body
        with self._lock:
            match command.type:
                case CommandType.SUBSCRIBE:
                    self._subscribe(client, body)
                case CommandType.FLOW:
                    for found in self._subscriptions.values():
                        for consumer in found.consumers:
                            if consumer.client is client and consumer.consumer_id == body.consumer_id:
                                consumer.permits += body.permits
                    self._send_all()
                case CommandType.ACK:
                    self._acknowledge(client, body)
                case CommandType.CLOSE_CONSUMER:
                    self._leave(client, body.consumer_id)
                    client.send(CommandType.SUCCESS, request_id=body.request_id)
                case _:
                    return False
        return True

    def _subscribe(self, client: BrokerClient, body: Any) -> None:
        refused = {"request_id": body.request_id, "message": body.topic}
        if body.topic != self.name:
            client.send(CommandType.ERROR, error=_TOPIC_NOT_FOUND, **refused)
            return
        self._forget_lost()
        found = self._subscriptions.get(body.subscription)
        if found is not None and body.type == 0 and found.consumers:
            client.send(CommandType.ERROR, error=_CONSUMER_BUSY, **refused)
            return
        if found is None or not body.durable:
            begin = self._index_of(position_of(body.start_message_id)) if body.HasField("start_message_id") else 0
            found = self._subscriptions[body.subscription] = _Subscription(body.durable, begin, begin)
        found.consumers.append(_Consumer(client, body.consumer_id))
        client.send(CommandType.SUCCESS, request_id=body.request_id)
        if len(found.consumers) == 1:
            self._activate(found)

    def _index_of(self, start: Position) -> int:
        """Of the first entry from there on; past the end a broker falls back to the first of all."""
        return next((index for index, each in enumerate(self.entries) if each[0] >= start), 0)

    def _activate(self, found: _Subscription) -> None:
        found.sent = found.mark_delete
        for number, consumer in enumerate(found.consumers):
            consumer.client.send(
                CommandType.ACTIVE_CONSUMER_CHANGE, consumer_id=consumer.consumer_id, is_active=number == 0
            )
        self._send_all()

    def _acknowledge(self, client: BrokerClient, body: Any) -> None:
        for found in self._subscriptions.values():
            if any(each.client is client and each.consumer_id == body.consumer_id for each in found.consumers):
                upto = position_of(body.message_id[0])
                reached = sum(position <= upto for position, _, _ in self.entries)
                found.mark_delete = max(found.mark_delete, reached)
        client.send(CommandType.ACK_RESPONSE, consumer_id=body.consumer_id, request_id=body.request_id)

    def _leave(self, client: BrokerClient, consumer_id: int) -> None:
        for found in self._subscriptions.values():
            before = found.consumers[:1]
            found.consumers = [c for c in found.consumers if (c.client, c.consumer_id) != (client, consumer_id)]
            if found.consumers[:1] != before:
                self._activate(found)

    def _forget_lost(self) -> None:
        for found in self._subscriptions.values():
            found.consumers = [consumer for consumer in found.consumers if self._broker.has(consumer.client)]

    def _send_all(self) -> None:
        for found in self._subscriptions.values():
            while found.consumers and found.consumers[0].permits > 0 and found.sent < len(self.entries):
                position, entry, messages = self.entries[found.sent]
                found.sent += 1
                found.consumers[0].permits -= messages
                said = message_id(self.lies.get(position, position))
                consumer = found.consumers[0]
                consumer.client.send(CommandType.MESSAGE, entry, consumer_id=consumer.consumer_id, message_id=said)
