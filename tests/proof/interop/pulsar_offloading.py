"""A process that offloads Pulsar topics for as long as the broker chose it; also run by itself, to be killed.

``python -m tests.proof.interop.pulsar_offloading SERVICE_URL ADMIN_URL STORE_URL TOPIC...`` prints a line for each
change and each question on its input: ``offload`` offloads all entries of now, the end of the input ends it in order.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Sequence

from offloader.errors import OffloaderError
from offloader.ledgers.pulsar.source import PulsarCluster, PulsarSource
from offloader.settings import Duration, OffloadSettings, PulsarSettings, Settings, Size
from offloader.store.base import ObjectStore
from offloader.store.open import open_store
from offloader.write.machine import StreamOffload
from offloader.write.offloader import LedgerOffloader

__all__ = ["OffloadingProcess"]

#: Small segments, so that many are under way.
SETTINGS = Settings(
    offload=OffloadSettings(
        on_gap="record",
        segment_size_max=Size(262144),
        segment_age_max=Duration("0.02m"),
        block_size=Size(64 * 1024),
        retry_delay_max=Duration(0.5),
        deletion_lag=Duration("0m"),
    )
)


class OffloadingProcess:
    """Streams of topics, each offloaded while this process is the active one.

    Args:
        service_url, admin_url: of the cluster.
        store: where segments go.
        topics: names.
    """

    def __init__(self, service_url: str, admin_url: str, store: ObjectStore, topics: Sequence[str]) -> None:
        settings = PulsarSettings(service_url=service_url, admin_url=admin_url, retry_delay_max=Duration(0.5))
        self.offloader = LedgerOffloader(store, SETTINGS)
        self.cluster = PulsarCluster(settings)
        self.streams: dict[str, StreamOffload] = {}
        self._lock = threading.Lock()
        self.changes: list[str] = []
        self._wanted = threading.Event()
        self._ends = False
        self._starter = threading.Thread(target=self._follow, name="starter")
        self._starter.start()
        self.sources = {topic: self.cluster.open_topic(topic, changed=self._changed) for topic in topics}

    def _changed(self, source: PulsarSource) -> None:
        self.changes.append(f"{source.topic} active={source.active} {source.problem or ''}")
        self._wanted.set()

    def _follow(self) -> None:
        while not self._ends:
            self._wanted.wait(0.5)
            self._wanted.clear()
            for topic, source in list(self.sources.items()) if hasattr(self, "sources") else ():
                try:
                    self._follow_one(topic, source)
                except OffloaderError as error:
                    self.changes.append(f"{topic}: {error}")

    def _follow_one(self, topic: str, source: PulsarSource) -> None:
        with self._lock:
            if self._ends:
                return
            stream = self.streams.get(topic)
            if source.active and stream is None:
                self.streams[topic] = self.offloader.offload_stream(source, source.stream)
            elif source.active is False and stream is not None:
                del self.streams[topic]
                stream.stop()

    def offload(self, topic: str) -> bool:
        """Brings up what is there now; whether this process is the one to do so and all is committed."""
        with self._lock:
            stream = self.streams.get(topic)
        if stream is None:
            return False
        try:
            infos = [info for info in self.sources[topic].ledgers() if info.entries]
            committed = stream.offload(timeout_s=5)
        except OffloaderError as error:
            self.changes.append(f"{topic}: {error}")
            return False
        newest = (infos[-1].ledger_id, infos[-1].last_entry_id) if infos else (-1, -1)
        return committed is not None and committed >= newest

    def close(self) -> None:
        self._ends = True
        self._wanted.set()
        self._starter.join()
        for stream in self.streams.values():
            stream.stop()
        self.offloader.close()
        self.cluster.close()


def main(service_url: str, admin_url: str, store_url: str, *topics: str) -> None:
    process = OffloadingProcess(service_url, admin_url, open_store(store_url), topics)
    print("ready", flush=True)
    for line in sys.stdin:
        if line.strip() == "active":
            print(*(str(process.sources[topic].active) for topic in topics), flush=True)
        else:
            print(*(str(process.offload(topic)) for topic in topics), flush=True)
    process.close()


if __name__ == "__main__":
    main(*sys.argv[1:])
