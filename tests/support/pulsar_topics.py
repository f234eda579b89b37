"""Topics of the fake Pulsar broker: ledgers of entries, subscriptions that are acknowledged, and lies.

It doesn't touch a socket: that is ``tests.support.pulsar_broker``.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote_plus

from formats.entries import Position
from formats.pulsar.commands import Command, CommandType, message_id, position_of
from tests.support.pulsar_broker import BrokerClient, FakeBroker

__all__ = ["FakeTopic"]

#: A marker that a broker writes when a transaction was committed.
TRANSACTION_COMMITTED = 21
_UNKNOWN, _CONSUMER_BUSY, _TOPIC_NOT_FOUND = 0, 5, 11
_NO_REQUEST = 2**64 - 1
#: Answer to a lookup: another broker has the topic.
_REDIRECT = 0
_TERMINATED = "Terminated"
#: Those that name a consumer.
_CONSUMERS_COMMANDS = (
    CommandType.FLOW,
    CommandType.ACK,
    CommandType.CLOSE_CONSUMER,
    CommandType.GET_LAST_MESSAGE_ID,
)


@dataclass(eq=False)
class _Consumer:
    client: BrokerClient
    consumer_id: int
    permits: int = 0
    knows_end: bool = False


@dataclass(eq=False)
class _Subscription:
    """``consumers[0]`` works; ``sent`` is how many entries it was sent, ``turns`` how often that began anew."""

    durable: bool
    mark_delete: int
    sent: int
    turns: int = 0
    properties: dict[str, str] = field(default_factory=dict)
    consumers: list[_Consumer] = field(default_factory=list)


class Switchboard:
    """Which topic of a broker a command is about; ``elsewhere`` are those that another broker has.

    Attributes:
        epochs: of the scalable topics.
        watches: clients that want to be told about a scalable topic or a namespace, and the number of the watch.
    """

    def __init__(self) -> None:
        self.topics: dict[str, FakeTopic] = {}
        self.elsewhere: dict[str, FakeBroker] = {}
        self.consumers: dict[tuple[BrokerClient, int], FakeTopic] = {}
        self.epochs: dict[str, int] = {}
        self.watches: list[tuple[BrokerClient, str, int]] = []

    @classmethod
    def of(cls, broker: FakeBroker) -> Switchboard:
        """The one that the broker's first topic made."""
        found = getattr(broker.answer, "__self__", None)
        if not isinstance(found, cls):
            found = cls()
            broker.answer, broker.left = found.answer, found.left
        return found

    def answer(self, client: BrokerClient, command: Command) -> bool:
        if command.type is CommandType.SUBSCRIBE:
            body = command.body
            topic = self.topics.get(body.topic)
            if topic is None:
                client.send(CommandType.ERROR, error=_TOPIC_NOT_FOUND, request_id=body.request_id, message=body.topic)
                return True
            self.consumers[client, body.consumer_id] = topic
        elif command.type in _CONSUMERS_COMMANDS:
            topic = self.consumers.get((client, command.body.consumer_id))
            if topic is None and command.type is CommandType.CLOSE_CONSUMER:
                client.send(CommandType.SUCCESS, request_id=command.body.request_id)
                return True
        elif command.type is CommandType.LOOKUP and (owner := self.elsewhere.get(command.body.topic)) is not None:
            named: dict[str, Any] = {"broker_url": owner.url, "response": _REDIRECT, "authoritative": True}
            client.send(CommandType.LOOKUP_RESPONSE, request_id=command.body.request_id, **named)
            return True
        elif command.type is CommandType.SCALABLE_TOPIC_LOOKUP:
            name, number = command.body.topic, command.body.session_id
            if name not in self.epochs:
                client.send(CommandType.SCALABLE_TOPIC_UPDATE, session_id=number, error=_TOPIC_NOT_FOUND, message=name)
                return True
            self.watches.append((client, name, number))
            client.send(CommandType.SCALABLE_TOPIC_UPDATE, session_id=number, dag={"epoch": self.epochs[name]})
            return True
        elif command.type is CommandType.SCALABLE_TOPICS_WATCH:
            namespace, number = command.body.namespace, command.body.watch_id
            self.watches.append((client, namespace, number))
            topics = [name for name in self.epochs if name.startswith(f"topic://{namespace}/")]
            client.send(CommandType.SCALABLE_TOPICS_UPDATE, watch_id=number, snapshot={"topics": topics})
            return True
        else:
            return False
        return topic is not None and topic.answer(client, command)

    def change_layout(self, name: str, epoch: int) -> None:
        """Tells who watches that a scalable topic has another epoch, or is new."""
        is_new = name not in self.epochs
        self.epochs[name] = epoch
        for client, watched, number in list(self.watches):
            if watched == name:
                client.send(CommandType.SCALABLE_TOPIC_UPDATE, session_id=number, dag={"epoch": epoch})
            elif is_new and name.startswith(f"topic://{watched}/"):
                client.send(CommandType.SCALABLE_TOPICS_UPDATE, watch_id=number, diff={"added": [name]})

    def left(self, client: BrokerClient) -> None:
        """The connection is gone, and with it its consumers: others work from now on."""
        gone = [consumer for consumer in list(self.consumers) if consumer[0] is client]
        for topic in {self.consumers.pop(consumer) for consumer in gone}:
            topic.lose(client)


class FakeTopic:
    """One topic of ``broker``, which it adds itself to.

    Attributes:
        entries: position, bytes, and how many messages they hold; none: it is stored and given to nobody.
        lies: position -> the one that is said instead.
        skips: position -> how often it is still passed over, though it is there like any other.
        lost: positions that are listed, and that the bookies don't have any more.
        read_batch: as many entries as it reads at once, but no more than the reader has permits for; it passes over all
            of them if one of those in the first ledger is lost.
        offloaded: ledgers that the broker has offloaded itself.
        state: of its managed ledger, as internal statistics say it.
        named_last: the entry that it names as its newest one, instead of that; entry -1: none.
        refuses_readers: but no subscriptions, as a broker of 5.0.0-M1 that loaded a sealed segment without entries.
        offloads: the positions before which it was asked to.

    Besides clients that speak the protocol, a test may hold subscriptions itself: ``subscribe``, ``acknowledge``.
    """

    def __init__(self, broker: FakeBroker, name: str) -> None:
        self.name = name
        self.entries: list[tuple[Position, bytes, int]] = []
        self.lies: dict[Position, Position] = {}
        self.skips: dict[Position, int] = {}
        self.lost: set[Position] = set()
        self.read_batch = 1
        self.offloaded: set[int] = set()
        self.state = "LedgerOpened"
        self.named_last: Position | None = None
        self.refuses_readers = False
        self.offloads: list[Position] = []
        self._markers: dict[Position, int] = {}
        self._broker = broker
        self._lock = threading.RLock()
        self._next = Position(1, 0)
        self._subscriptions: dict[str, _Subscription] = {}
        Switchboard.of(broker).topics[name] = self

    def append(self, entry: bytes, messages: int = 1) -> Position:
        """Stores an entry and sends it on."""
        [position] = self.append_all([entry], messages)
        return position

    def append_all(self, entries: Sequence[bytes], messages: int = 1) -> list[Position]:
        """Stores entries before it sends the first one on."""
        with self._lock:
            begin = self._next
            positions = [Position(begin.ledger_id, begin.entry_id + number) for number in range(len(entries))]
            self._next = Position(begin.ledger_id, begin.entry_id + len(entries))
            self.entries.extend((position, entry, messages) for position, entry in zip(positions, entries, strict=True))
            self._send_all()
        return positions

    def append_marker(self, kind: int = TRANSACTION_COMMITTED) -> Position:
        """Stores an entry that no client ever gets; ``kind``: what brokers call the marker's type."""
        with self._lock:
            position = self.append(b"marker", messages=0)
            self._markers[position] = kind
        return position

    def expire(self, before_ledger_id: int) -> None:
        """Closed ledgers before that one are deleted, whoever needed them."""
        with self._lock:
            gone = [each for each in self.entries if each[0].ledger_id < before_ledger_id]
            self._forget(len([each for each in gone if each[0].ledger_id < self._next.ledger_id]))

    def begin_at(self, ledger_id: int) -> None:
        """The next entry begins a ledger of that id: ids are unique in a cluster."""
        with self._lock:
            self._next = Position(ledger_id, 0)

    def roll(self) -> None:
        """The next entry begins a ledger."""
        with self._lock:
            self._next = Position(self._next.ledger_id + 1, 0)

    def mark_delete(self, subscription: str) -> Position | None:
        """The last acknowledged entry."""
        with self._lock:
            acknowledged = self._subscriptions[subscription].mark_delete
            return self.entries[acknowledged - 1][0] if acknowledged else None

    def subscribe(self, subscription: str, *, durable: bool = True) -> None:
        """A subscription at the topic's beginning, without a consumer."""
        with self._lock:
            self._subscriptions.setdefault(subscription, _Subscription(durable, 0, 0))

    def unsubscribe(self, subscription: str) -> None:
        """It is gone, with what it had consumed."""
        with self._lock:
            del self._subscriptions[subscription]

    def acknowledge(self, subscription: str, position: Position | None) -> None:
        """Everything up to ``position`` is consumed, as by message TTL or a reset; ``None``: nothing is."""
        with self._lock:
            found = self._subscriptions[subscription]
            found.mark_delete = 0 if position is None else sum(each[0] <= position for each in self.entries)
            found.sent = max(found.sent, found.mark_delete)

    def internals(self) -> Mapping[str, Any]:
        """The document ``internalStats``, as a broker's admin interface answers it."""
        with self._lock:
            sizes: dict[int, list[int]] = {self._next.ledger_id: []}
            for position, entry, _ in self.entries:
                sizes.setdefault(position.ledger_id, []).append(len(entry))
            is_open = self._next.ledger_id
            last = self.entries[-1][0] if self.entries else Position(min(sizes), -1)
            return {
                "state": self.state,
                "currentLedgerEntries": len(sizes[is_open]),
                "currentLedgerSize": sum(sizes[is_open]),
                "lastConfirmedEntry": str(last),
                "ledgers": [
                    {
                        "ledgerId": ledger_id,
                        "entries": len(found),
                        "size": sum(found),
                        "offloaded": ledger_id in self.offloaded,
                    }
                    if ledger_id != is_open
                    else {"ledgerId": ledger_id, "entries": 0, "size": 0, "offloaded": False}
                    for ledger_id, found in sorted(sizes.items())
                ],
                "cursors": {
                    quote_plus(name): {
                        "markDeletePosition": str(self._mark_delete(found)),
                        "individuallyDeletedMessages": "[]",
                    }
                    for name, found in self._subscriptions.items()
                },
            }

    def stats(self) -> Mapping[str, Any]:
        """The document ``stats``."""
        with self._lock:
            self._forget_lost()
            subscriptions = {
                name: {
                    "isDurable": found.durable,
                    "consumers": [{}] * len(found.consumers),
                    "subscriptionProperties": dict(found.properties),
                }
                for name, found in self._subscriptions.items()
            }
            return {"subscriptions": subscriptions, "deduplicationStatus": "Disabled"}

    def entry(self, position: Position) -> tuple[int, Mapping[str, str], bytes]:
        """What the admin interface answers about one entry: status, headers, body."""
        with self._lock:
            messages = next((each[2] for each in self.entries if each[0] == position), None)
            if messages is None or position in self.lost:
                return 404, {}, b'{"reason":"Message id not found"}'
            more = {} if messages else {"X-Pulsar-marker-type": str(self._markers[position])}
            return 200, {"X-Pulsar-txn-uncommitted": "false", **more}, b""

    def offload(self, before: Position) -> None:
        """The closed ledgers before a position are offloaded at once."""
        with self._lock:
            self.offloads.append(before)
            self.offloaded |= {each[0].ledger_id for each in self.entries if each[0].ledger_id < before.ledger_id}

    def subscription_properties(self, subscription: str) -> dict[str, str] | None:
        """``None``: there is no such subscription."""
        with self._lock:
            found = self._subscriptions.get(subscription)
            return None if found is None else dict(found.properties)

    def note(self, subscription: str, properties: Mapping[str, str]) -> None:
        """A subscription has these properties from now on."""
        with self._lock:
            self._subscriptions[subscription].properties = dict(properties)

    def trim(self) -> None:
        """Deletes the closed ledgers that every durable subscription has consumed; without one, all of them."""
        with self._lock:
            needed = [found.mark_delete for found in self._subscriptions.values() if found.durable]
            gone = [position for position, _, _ in self.entries if position.ledger_id < self._next.ledger_id]
            at = min([len(gone), *needed])
            while 0 < at < len(self.entries) and self.entries[at][0].ledger_id == self.entries[at - 1][0].ledger_id:
                at -= 1
            self._forget(at)

    def _forget(self, count: int) -> None:
        """The first entries are gone."""
        del self.entries[:count]
        for found in self._subscriptions.values():
            found.mark_delete, found.sent = max(found.mark_delete - count, 0), max(found.sent - count, 0)

    def _mark_delete(self, found: _Subscription) -> Position:
        """With -1 for the entry, where nothing of the first ledger is consumed."""
        if found.mark_delete:
            return self.entries[found.mark_delete - 1][0]
        first = self.entries[0][0] if self.entries else self._next
        return first.previous()

    def turns(self, subscription: str) -> int:
        """How often somebody's turn to work began: who came first, and who was there when the one before left."""
        with self._lock:
            return self._subscriptions[subscription].turns

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
        """Another consumer works from now on, if there is one."""
        with self._lock:
            found = self._subscriptions[subscription]
            found.consumers = found.consumers[1:] + found.consumers[:1]
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

    def move(self, to: FakeBroker) -> None:
        """Another broker has it from now on, and the one before names that one."""
        with self._lock:
            self.unload()
            here, there = Switchboard.of(self._broker), Switchboard.of(to)
            del here.topics[self.name]
            here.elsewhere[self.name] = to
            there.elsewhere.pop(self.name, None)
            there.topics[self.name] = self
            self._broker = to

    def answer(self, client: BrokerClient, command: Command) -> bool:
        """To a command about this topic; False: that is somebody else's."""
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
                case CommandType.GET_LAST_MESSAGE_ID:
                    given = [position for position, _, messages in self.entries if messages]
                    last = message_id(self.named_last or (given[-1] if given else Position(-1, -1)))
                    client.send(
                        CommandType.GET_LAST_MESSAGE_ID_RESPONSE, request_id=body.request_id, last_message_id=last
                    )
                case CommandType.CLOSE_CONSUMER:
                    self._leave(client, body.consumer_id)
                    client.send(CommandType.SUCCESS, request_id=body.request_id)
                case _:
                    return False
        return True

    def _subscribe(self, client: BrokerClient, body: Any) -> None:
        refused = {"request_id": body.request_id, "message": body.topic}
        self._forget_lost()
        if self.refuses_readers and not body.durable:
            client.send(CommandType.ERROR, error=_UNKNOWN, **refused)
            return
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
        else:
            client.send(CommandType.ACTIVE_CONSUMER_CHANGE, consumer_id=body.consumer_id, is_active=False)

    def _index_of(self, start: Position) -> int:
        """Of the first entry from there on; past the end a broker falls back to the first of all, unless it was
        terminated."""
        beyond = len(self.entries) if self.state == _TERMINATED else 0
        return next((index for index, each in enumerate(self.entries) if each[0] >= start), beyond)

    def _activate(self, found: _Subscription) -> None:
        found.turns += bool(found.consumers)
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

    def lose(self, client: BrokerClient) -> None:
        """A client's connection is gone."""
        with self._lock:
            for found in self._subscriptions.values():
                for consumer in [each for each in found.consumers if each.client is client]:
                    self._leave(client, consumer.consumer_id)

    def _leave(self, client: BrokerClient, consumer_id: int) -> None:
        for found in self._subscriptions.values():
            before = found.consumers[:1]
            found.consumers = [c for c in found.consumers if (c.client, c.consumer_id) != (client, consumer_id)]
            if found.consumers[:1] != before:
                self._activate(found)
        self._drop_readers()

    def _forget_lost(self) -> None:
        for found in self._subscriptions.values():
            found.consumers = [consumer for consumer in found.consumers if self._broker.has(consumer.client)]
        self._drop_readers()

    def _drop_readers(self) -> None:
        self._subscriptions = {
            name: found for name, found in self._subscriptions.items() if found.durable or found.consumers
        }

    def _send_all(self) -> None:
        for found in self._subscriptions.values():
            while found.consumers and found.consumers[0].permits > 0 and found.sent < len(self.entries):
                consumer = found.consumers[0]
                read = self.entries[found.sent : found.sent + min(self.read_batch, consumer.permits)]
                of_ledger = [each for each in read if each[0].ledger_id == read[0][0].ledger_id]
                if any(position in self.lost for position, _, _ in of_ledger):
                    found.sent += len(read)
                    continue
                found.sent += len(of_ledger)
                for position, entry, messages in of_ledger:
                    if messages and not self._is_skipped(position):
                        consumer.permits -= messages
                        said = message_id(self.lies.get(position, position))
                        ids = {"consumer_id": consumer.consumer_id, "message_id": said}
                        consumer.client.send(CommandType.MESSAGE, entry, **ids)
            self._tell_end(found)

    def _tell_end(self, found: _Subscription) -> None:
        """Once, who works and wants more, if everything is acknowledged."""
        left = any(messages for _, _, messages in self.entries[found.mark_delete :])
        consumer = next(iter(found.consumers), None)
        if self.state == _TERMINATED and not left and consumer and consumer.permits > 0 and not consumer.knows_end:
            consumer.knows_end = True
            consumer.client.send(CommandType.REACHED_END_OF_TOPIC, consumer_id=consumer.consumer_id)

    def _is_skipped(self, position: Position) -> bool:
        left = self.skips.get(position, 0)
        if left:
            self.skips[position] = left - 1
        return left > 0
