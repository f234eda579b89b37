"""One running broker: started, asked, stopped.

It doesn't leave it behind.

    with running_broker(folder, {"managedLedgerOffloadDriver": "S3", ...}, environment) as broker:
        broker.service_url, broker.admin_url, broker.hot(7, 0, 9)
"""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from services.pulsar.asked import AskedProcess, Refused
from services.pulsar.build import DEFAULT, SOURCES, find_place

__all__ = [
    "ZOOKEEPER",
    "Broker",
    "Drained",
    "Refused",
    "offload_settings",
    "plugin_settings",
    "running_broker",
    "start_broker",
]

#: Environment of a broker whose cluster may have further ones.
ZOOKEEPER = {"PULSAR_STANDALONE_USE_ZOOKEEPER": "1"}
#: A broker that ends and writes its classes down: 10 s where nothing else runs.
#: A Java client that reads a large topic.
DRAIN_TIMEOUT_S = 900.0


class Drained(NamedTuple):
    """What a Java reader received.

    Attributes:
        first_ms, all_ms: from its creation, or its seek, to the first and to the last message.
        messages, size_bytes: how many, and of their values.
        crc32: of their values, one after the other.
        last: ledger and entry of the last one.
    """

    first_ms: float
    all_ms: float
    messages: int
    size_bytes: int
    crc32: int
    last: tuple[int, int]


class Broker(AskedProcess):
    """A broker.

    Attributes:
        service_url: for clients; known when it is ready.
        admin_url: of its REST interface.
        metadata_url: where further brokers of its cluster find their metadata, if it keeps them in ZooKeeper.
    """

    service_url: str
    admin_url: str
    metadata_url: str

    def await_ready(self) -> Any:
        """Returns when it takes clients; raises as any ``AskedProcess``."""
        ready = super().await_ready()
        self.service_url = ready["service_url"]
        self.admin_url = ready["admin_url"]
        self.metadata_url = ready["metadata_url"]
        return ready

    def ledger(self, ledger_id: int) -> Mapping[str, Any]:
        """``last``, ``length`` and ``closed`` of a ledger, from the bookie."""
        found: Mapping[str, Any] = self.ask(f"ledger {ledger_id}")
        return found

    def hot(self, ledger_id: int, first: int, last: int) -> list[bytes]:
        """Entries as the bookie has them."""
        return [base64.b64decode(entry) for entry in self.ask(f"hot {ledger_id} {first} {last}")]

    def forget(self, ledger_id: int) -> None:
        """The bookie deletes a ledger; what the broker has of it then is what it offloaded."""
        self.ask(f"forget {ledger_id}")

    def transaction(self, topic: str, count: int, end: str) -> None:
        """Sends so many messages in one transaction, which ends by ``commit``, ``abort`` or not at all (``leave``)."""
        self.ask(f"transaction {topic} {count} {end}")

    def drain(self, topic: str, count: int, start: str = "earliest", timeout_s: float = DRAIN_TIMEOUT_S) -> Drained:
        """What a Java reader receives, until it has ``count`` messages or there are no more.

        Args:
            start: ``earliest``, ``id:LEDGER:ENTRY`` or ``time:MS``, which an open reader seeks.
            timeout_s: of the whole.
        """
        found = self.ask(f"drain {topic} {count} {start} {timeout_s:.0f}", timeout_s + 60)
        return Drained(messages=found.pop("count"), last=tuple(found.pop("last")), **found)

    def staggered(self, topic: str, count: int, readers: int, timeout_s: float = DRAIN_TIMEOUT_S) -> Mapping[str, Any]:
        """What so many Java readers receive together, each of all messages: ``all_ms``, ``messages``, ``size_bytes``.

        One begins when the one before it has received a quarter.
        """
        found: Mapping[str, Any] = self.ask(f"staggered {topic} {count} {readers} {timeout_s:.0f}", timeout_s + 60)
        return found

    def beans(self, pattern: str) -> Mapping[str, Mapping[str, Any]]:
        """Attributes of the Java machine's management beans whose names match ``pattern``: numbers and texts."""
        found: Mapping[str, Mapping[str, Any]] = self.ask(f"beans {pattern}")
        return found

    def heap_bytes(self) -> int:
        """What is alive in the Java machine's heap, after a collection."""
        return int(self.ask("heap"))

    def kill(self) -> None:
        """As ``kill -9``: what it has on disk is what it had written."""
        self.process.kill()
        self.process.wait()

    def end(self) -> None:
        """Ends it at once, for a folder that isn't used again: ending in order takes five seconds, and up to a minute
        while clients are connected."""
        self.kill()
        self.close()

    def cold(self, ledger_id: int, uuid: str, first: int, last: int) -> list[bytes]:
        """Entries as the broker's offloader reads them from the object store."""
        return [base64.b64decode(entry) for entry in self.ask(f"cold {ledger_id} {uuid} {first} {last}")]

    def record(self, name: str) -> bytes:
        """What the metadata store has of a managed ledger, ``tenant/namespace/persistent/topic``."""
        return base64.b64decode(self.ask(f"record {name}"))

    def index(self, data: bytes, entries: Sequence[int]) -> Mapping[str, Any]:
        """What the offloader's classes make of an index object, and the block they'd read for each of ``entries``."""
        words = " ".join(map(str, entries))
        found: Mapping[str, Any] = self.ask(f"index {base64.b64encode(data).decode()} {words}".rstrip())
        return found


def offload_settings(endpoint_url: str, bucket: str) -> dict[str, str]:
    """Makes a broker offload to ``bucket`` of an S3 server that isn't AWS.

    Driver ``S3``, not ``aws-s3``: that one asks AWS for the bucket's region whatever endpoint it is given. Its keys
    come from the environment: ``ACCESS_KEY_ID`` and ``ACCESS_KEY_SECRET``.
    """
    return {
        "managedLedgerOffloadDriver": "S3",
        "managedLedgerOffloadBucket": bucket,
        "managedLedgerOffloadRegion": "us-east-1",
        "managedLedgerOffloadServiceEndpoint": endpoint_url,
    }


def plugin_settings(nar: Path, sidecar_url: str, port: int, admin_port: int) -> dict[str, str]:
    """Makes a broker offload through our plugin, as soon as a ledger is closed, and then give up its own copy.

    Args:
        nar: the plugin (``services.broker_plugin.built_nar``).
        sidecar_url: of the first process that the plugin asks.
        port, admin_port: of the broker, which must be the same after a restart.
    """
    return {
        "brokerServicePort": str(port),
        "webServicePort": str(admin_port),
        "offloadersDirectory": str(nar.parent),
        "managedLedgerOffloadDriver": "offloader",
        "managedLedgerOffloadServiceEndpoint": sidecar_url,
        "managedLedgerOffloadAutoTriggerSizeThresholdBytes": "0",
        "managedLedgerOffloadDeletionLagMs": "0",
        "managedLedgerDataReadPriority": "bookkeeper-first",
        "exposingBrokerEntryMetadataToClientEnabled": "true",
    }


def start_broker(
    folder: Path,
    settings: Mapping[str, str],
    environment: Mapping[str, str] | None = None,
    *,
    release: str = DEFAULT,
    java_options: Sequence[str] = (),
) -> Broker:
    """A broker with its data under ``folder`` that takes clients; the caller closes it.

    Args:
        folder: made when it isn't there; what an earlier broker left there is its data.
        settings: any of Pulsar's and BookKeeper's; ``joins`` is the ``metadata_url`` of a cluster's first broker, whose
            bookie is used.
        environment: added to this process's.
        release: one of ``services.pulsar.build.RELEASES``.
        java_options: of the Java machine, such as system properties of an offloader.

    Raises:
        Unavailable: it can't be had, or didn't start in time.
    """
    built = find_place(release, build=True)
    arguments = [
        str(folder),
        str(SOURCES / "broker.conf"),
        f"offloadersDirectory={built / 'offloaders'}",
        *(f"{name}={value}" for name, value in settings.items()),
    ]
    started = Broker.started("RealBroker", built, folder, arguments, environment or {}, java_options=java_options)
    try:
        started.await_ready()
    except BaseException:
        started.close()
        raise
    return started


@contextlib.contextmanager
def running_broker(
    folder: Path,
    settings: Mapping[str, str],
    environment: Mapping[str, str] | None = None,
    *,
    release: str = DEFAULT,
    java_options: Sequence[str] = (),
) -> Iterator[Broker]:
    """The broker of ``start_broker`` for the length of a block; use the folder for no other one afterwards."""
    started = start_broker(folder, settings, environment, release=release, java_options=java_options)
    try:
        yield started
    finally:
        started.end()
