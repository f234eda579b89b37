"""A serving process with an Arrow Flight door, and a producer that talks to it over a real socket."""

from __future__ import annotations

import contextlib
import json
import logging
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import pyarrow as pa
import pyarrow.flight as fl

from formats.entries import EntryBatch, Position
from offloader.runtime.clock import SystemClock
from offloader.service.bootstrap import Assembled, assemble
from offloader.service.flight.messages import ENTRY_SCHEMA
from offloader.service.process import RecentErrors
from offloader.service.providers.flight import FlightProvider
from offloader.store.base import ObjectStore
from tests.ledgers.pushing_broker import Broker
from tests.support.served import settings_file

__all__ = ["APPEND_SCHEMA", "Door", "Producer", "flight_door"]

APPEND_SCHEMA = pa.schema([pa.field("payload", pa.binary())])


class Door:
    """The door, and who comes in."""

    def __init__(self, feed: FlightProvider, store: ObjectStore, process: Any, scheme: str) -> None:
        self.feed, self.store, self.process, self._scheme = feed, store, process, scheme
        self.clients: list[fl.FlightClient] = []
        self.producers: list[Producer] = []

    @property
    def location(self) -> str:
        return f"{self._scheme}://{self.feed.address}"

    def client(self, token: str = "", **options: Any) -> fl.FlightClient:
        client = fl.FlightClient(self.location, **options)
        self.clients.append(client)
        return client

    def put(self, command: Mapping[str, Any], schema: pa.Schema = ENTRY_SCHEMA, **options: Any) -> Producer:
        self.producers.append(Producer(self.client(), command, schema, **options))
        return self.producers[-1]

    def act(self, name: str, **body: Any) -> dict[str, Any]:
        return act(self.client(), name, **body)


def act(client: fl.FlightClient, name: str, **body: Any) -> dict[str, Any]:
    """What an action answers."""
    (result,) = client.do_action(fl.Action(name, json.dumps(body).encode()))
    return dict(json.loads(result.body.to_pybytes()))


class Producer:
    """One DoPut. ``send`` waits for the answer to what was sent; ``news`` for the next thing that is told."""

    def __init__(
        self,
        client: fl.FlightClient,
        command: Mapping[str, Any],
        schema: pa.Schema = ENTRY_SCHEMA,
        options: fl.FlightCallOptions | None = None,
    ) -> None:
        descriptor = fl.FlightDescriptor.for_command(json.dumps(command).encode())
        self.writer, self._answers = client.do_put(descriptor, schema, options)
        self.sent = 0
        self.latest: dict[str, Any] = {}

    def news(self) -> dict[str, Any]:
        said = self._answers.read()
        if said is None:
            # The call is over: ending it says why.
            self.writer.close()
            raise EOFError("the call ended without an error")
        self.latest = json.loads(said.to_pybytes())
        return self.latest

    def write(self, batch: pa.RecordBatch | None, note: Mapping[str, Any] | None = None) -> None:
        metadata = json.dumps(note).encode() if note else b""
        if batch is None:
            self.writer.write_metadata(metadata)
        else:
            self.writer.write_with_metadata(batch, metadata)
        self.sent += 1

    def send(self, batch: pa.RecordBatch | None, note: Mapping[str, Any] | None = None) -> dict[str, Any]:
        self.write(batch, note)
        return self.until(lambda said: said.get("batch") == self.sent)

    def until(self, is_so: Any) -> dict[str, Any]:
        while not is_so(self.news()):
            pass
        return self.latest

    def push(self, broker: Broker, count: int = 100) -> dict[str, Any]:
        """What a broker has after what is taken."""
        taken = self.latest.get("taken")
        pushed = broker.next_after(Position.parse(taken) if taken else None, count)
        return self.send(arrow_of(pushed.batches), {"closed": pushed.closed} if pushed.closed else None)

    def push_all(self, broker: Broker, count: int = 100) -> None:
        while self.latest["taken"] != str(broker.end):
            self.push(broker, count)

    def end(self) -> None:
        self.writer.close()


def arrow_of(batches: list[EntryBatch]) -> pa.RecordBatch | None:
    """Entries of several ledgers as one record batch."""
    if not batches:
        return None
    return pa.Table.from_batches([each.to_arrow() for each in batches]).combine_chunks().to_batches()[0]


@contextmanager
def flight_door(store: ObjectStore, scheme: str = "grpc", **settings: Any) -> Iterator[Door]:
    """A process that is stopped without draining; segments close by age within tens of milliseconds."""
    recent, feeds = RecentErrors(), []
    logger = logging.getLogger("offloader")
    logger.addHandler(recent)

    def feed(parts: Assembled) -> list[FlightProvider]:
        feeds.append(
            FlightProvider(
                parts.settings, parts.store, credentials=parts.credentials, control=parts.control, clock=parts.clock
            )
        )
        return feeds

    file = settings_file(**{"flight__listen": "127.0.0.1:0", **settings})
    assembled = assemble(file, clock=SystemClock(), recent=recent, store=store, feeds=feed)
    door = Door(feeds[0], store, assembled, scheme)
    try:
        assembled.process.start()
        yield door
    finally:
        for producer in door.producers:
            with contextlib.suppress(pa.ArrowException, fl.FlightError):
                producer.end()
        for client in door.clients:
            client.close()
        assembled.process.stop(drain=False)
        logger.removeHandler(recent)
