"""A real broker of Pulsar 5, a client of its scalable topics, and the store of sidecars that offload them."""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self
from urllib.error import URLError

from google.protobuf.unknown_fields import UnknownFieldSet

import offloader
from formats.entries import Position
from formats.metadata import pulsar_ledger_pb2
from formats.pulsar.messages import MessageOptions
from formats.topic_layout import TopicLayout
from offloader.errors import NotFoundError
from offloader.manifest.topic_layouts import in_order, read_layout
from offloader.store.base import ObjectStore
from offloader.store.open import open_store
from services.pulsar.broker import Broker
from services.pulsar.scalable import ScalableClient
from tests.proof.interop.record_scalable_layouts import Admin
from tests.support.waiting import eventually

__all__ = ["CHANGES", "KEYS", "KILLS", "NAMESPACE", "SETTINGS", "Sent", "World", "added", "terminated_at"]

NAMESPACE = "public/served"
KEYS = 20
KILLS = 20
#: Which kill is followed by which change.
CHANGES = {2: "split", 6: "split", 10: "merge", 14: "split", 18: "merge"}
#: Columns that tell the messages of one producer apart.
IDENTITY = ("producer_name", "sequence_id", "batch_index")
_RECORD: Any = pulsar_ledger_pb2
#: Key -> values.
Sent = dict[str, list[str]]
#: Of brokers: short ledgers.
SETTINGS = {
    "managedLedgerMaxEntriesPerLedger": "20",
    "managedLedgerMinLedgerRolloverTimeMinutes": "0",
    # "A sealed segment that is never complete" in docs/how-to/scalable-topics.md says why.
    "topicFencingTimeoutSeconds": "2",
}


@dataclass
class World:
    """A broker of Pulsar 5 with short ledgers, a client of it, and the store and settings of sidecars."""

    broker: Broker
    client: ScalableClient
    admin: Admin
    config: Path
    url: str
    #: Of the store, beside its URL.
    options: Mapping[str, Any] = field(default_factory=dict)
    namespace: str = NAMESPACE

    @classmethod
    def made(cls, folder: Path, broker: Broker, client: ScalableClient, service_url: str = "") -> Self:
        """One whose store is below ``folder``; ``service_url``: of all brokers, if there are several."""
        admin, config, url = Admin(broker), folder / "offloader.toml", f"file://{folder}/store"
        admin.do("PUT", f"namespaces/{NAMESPACE}")
        config.write_text(
            f'streaming_offload = true\n[serve]\nstore = "{url}"\nmaintenance = false\n'
            f'[pulsar]\nservice_url = "{service_url or broker.service_url}"\nadmin_url = "{broker.admin_url}"\n'
            f'topics = ["{NAMESPACE}"]\ndiscovery_interval = "500ms"\n'
            "[offload]\nsegment_age_max = '600ms'\ntakeover_after = '2s'\ndeletion_lag = '0s'\n"
        )
        return cls(broker, client, admin, config, url)

    def store(self) -> ObjectStore:
        return open_store(self.url, **self.options)

    def layout(self, name: str) -> Mapping[str, Any]:
        found: Mapping[str, Any] = self.admin.get(f"scalable/{self.namespace}/{name}")["segments"]
        return found

    def active(self, name: str) -> list[int]:
        """The active segments, ascending by hash."""
        rows = [row for row in self.layout(name).values() if row["active"]]
        return [row["segmentId"] for row in sorted(rows, key=lambda row: row["hashRange"]["start"])]

    def named(self, name: str, change: str) -> str:
        """A ``split`` of the last active segment, a ``merge`` of the first two, with their numbers."""
        first, *more = self.active(name)
        return f"merge/{first}/{more[0]}" if change == "merge" else f"split/{(more or [first])[-1]}"

    def change(self, name: str, what: str) -> None:
        self.admin.do("POST", f"scalable/{self.namespace}/{name}/{what}")

    def change_until(self, name: str, kind: str) -> None:
        """Returns when the topic has other active segments: a broker that has just started refuses for a while."""
        before = self.active(name)
        path = f"scalable/{self.namespace}/{name}/{self.named(name, kind)}"

        def is_changed() -> bool:
            with suppress(URLError, TimeoutError):
                if self.active(name) == before:
                    self.admin.ask("POST", path)
            with suppress(URLError, TimeoutError, AssertionError):
                return self.active(name) != before
            return False

        eventually(is_changed, within_s=180)

    def sent_through_kills(
        self,
        name: str,
        kill: Callable[[int], object],
        *,
        count: int,
        keys: int = KEYS,
        settle: Callable[[Sent], object] = lambda _: None,
    ) -> Sent:
        """What the broker acknowledged of ``count`` messages while processes were killed and the topic changed.

        Args:
            kill: called ``KILLS`` times, with the number of the kill.
            settle: called before each part of the messages during which the topic changes, and at the end; may send
                more, and adds what was acknowledged.
        """
        dice, sent = random.Random(7), Sent()
        with ThreadPoolExecutor(1) as producer:
            for number in range(KILLS):
                if number in CHANGES:
                    settle(sent)
                produced: Future[Mapping[str, Sequence[str]]] = producer.submit(
                    self.client.produce,
                    f"topic://{self.namespace}/{name}",
                    count=count // KILLS,
                    keys=keys,
                    prefix=f"part{number}",
                    rate=2500,
                )
                threading.Event().wait(dice.uniform(0.5, 2))
                kill(number)
                if number in CHANGES:
                    self.change_until(name, CHANGES[number])
                added(sent, produced.result())
            settle(sent)
        self.complete(name)
        return sent

    def complete(self, name: str) -> None:
        """Returns when the end of each sealed segment is recorded.

        A broker that is killed while it seals a segment may not terminate it, which needs the request in
        ``docs/how-to/scalable-topics.md``.
        """

        def is_complete() -> bool:
            rows = [row for row in self.recorded(name).segments if row.sealed_epoch is not None and row.end is None]
            for row in rows:
                with suppress(URLError, TimeoutError):
                    if terminated_at(self.broker.record(row.stream)) is None:
                        path = f"{self.namespace}/{name}/{row.stream.rpartition('/')[2]}"
                        self.admin.ask("POST", f"segments/{path}/terminate")
            return not rows

        eventually(is_complete, within_s=300)

    def read(self, name: str) -> Sent:
        """Key -> the values in the store, in the order in which the topic is read."""
        return self.values(f"topic://{self.namespace}/{name}")

    def recorded(self, name: str) -> TopicLayout:
        """The layout in the store."""
        found = read_layout(self.store(), f"{self.namespace}/topic/{name}")
        assert found is not None
        return found

    def segments(self, name: str) -> dict[int, Sent]:
        """Id -> what the stream of that segment has, parents first."""
        return {row.id: self.values(row.stream) for group in in_order(self.recorded(name)) for row in group}

    def of_segments(self, name: str) -> Sent:
        """The values of all segments, one segment after the other."""
        found = Sent()
        for values in self.segments(name).values():
            added(found, values)
        return found

    def has_all(self, name: str, sent: Sent) -> bool:
        """Whether every message can be read, once, and those of a key in the order of the segments.

        That isn't always the order of sending: after a split or a merge, a producer of 5.0.0-M1 that sends again what
        wasn't acknowledged may send it behind later messages of the key.
        """
        found = self.read(name)
        return {key: sorted(values) for key, values in found.items()} == {
            key: sorted(values) for key, values in sent.items()
        } and found == self.of_segments(name)

    def values(self, name: str) -> Sent:
        """The same without what a producer sent twice: after a lost connection it repeats batches, which this broker
        doesn't recognise."""
        found, seen = Sent(), set[tuple[object, ...]]()
        stream = offloader.open_store(self.url, **self.options).stream(name)
        try:
            scan = stream.scan()
        except NotFoundError:
            return found
        for batch in scan.messages(MessageOptions(columns=(*IDENTITY, "key", "value"), join_chunks=True)):
            for *identity, key, value in zip(*(column.to_pylist() for column in batch.columns), strict=True):
                if tuple(identity) not in seen:
                    seen.add(tuple(identity))
                    found.setdefault(key, []).append(value.decode())
        return found


def added(sent: Sent, more: Mapping[str, Sequence[str]]) -> None:
    for key, values in more.items():
        sent.setdefault(key, []).extend(values)


def terminated_at(record: bytes) -> Position | None:
    """The last entry of a terminated segment; ``None``: it isn't terminated.

    A later ledger has entries if the broker was killed while it sealed the segment. It acknowledged none of these, and
    the producer sends their messages to the next segment.
    """
    for each in UnknownFieldSet(_RECORD.ManagedLedgerInfo.FromString(record)):
        if each.field_number == 2:  # terminatedPosition: two numbers, as the first fields of a ledger
            found = _RECORD.LedgerInfo.FromString(each.data)
            return Position(found.ledgerId, found.entries)
    return None
