"""One running broker: started, asked, stopped.

Owns what it is asked. Must never leave it behind.

    with running_broker(folder, {"managedLedgerOffloadDriver": "S3", ...}, environment) as broker:
        broker.service_url, broker.admin_url, broker.hot(7, 0, 9)
"""

from __future__ import annotations

import base64
import contextlib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from services.pulsar.asked import AskedProcess
from services.pulsar.build import SOURCES, find_place

__all__ = ["Broker", "offload_settings", "running_broker"]


class Broker(AskedProcess):
    """A broker.

    Attributes:
        service_url: for clients; known when it is ready.
        admin_url: of its REST interface.
    """

    service_url: str
    admin_url: str

    def await_ready(self) -> Any:
        """Returns when it takes clients; raises as any ``AskedProcess``."""
        ready = super().await_ready()
        self.service_url = ready["service_url"]
        self.admin_url = ready["admin_url"]
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

    def cold(self, ledger_id: int, uuid: str, first: int, last: int) -> list[bytes]:
        """Entries as the broker's offloader reads them from the object store."""
        return [base64.b64decode(entry) for entry in self.ask(f"cold {ledger_id} {uuid} {first} {last}")]

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


@contextlib.contextmanager
def running_broker(
    folder: Path, settings: Mapping[str, str], environment: Mapping[str, str] | None = None
) -> Iterator[Broker]:
    """A broker with its data under ``folder``, for the length of a block; the folder can be used again afterwards.

    Args:
        folder: made when it isn't there.
        settings: any of Pulsar's and BookKeeper's.
        environment: added to this process's.

    Raises:
        Unavailable: it can't be had, or didn't start in time.
    """
    built = find_place(build=True)
    arguments = [
        str(folder),
        str(SOURCES / "broker.conf"),
        f"offloadersDirectory={built / 'offloaders'}",
        *(f"{name}={value}" for name, value in settings.items()),
    ]
    started = Broker.started("RealBroker", built, folder, arguments, environment or {})
    try:
        started.await_ready()
        yield started
    finally:
        started.close()
