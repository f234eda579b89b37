"""A Pulsar cluster as a place of streams: its connections and threads, shared by all its topics.

Owns the client, the admin interface, the worker threads of its sources and the memory that they share. Must never let
one topic's failure reach another.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import TracebackType

from formats.entries import Position
from offloader.clock import Clock, SystemClock
from offloader.errors import InvalidCall, LimitReached
from offloader.ledgers.pulsar.admin import AdminClient
from offloader.ledgers.pulsar.client import ClientLimits, PulsarClient
from offloader.ledgers.pulsar.connection import ConnectionLimits
from offloader.ledgers.pulsar.consumer import Consumer, ConsumerLimits
from offloader.ledgers.pulsar.readers import ReaderPool
from offloader.ledgers.pulsar.security import Security, security_of
from offloader.ledgers.pulsar.source import PulsarSource
from offloader.settings import PulsarSettings
from offloader.workers import Workers

__all__ = ["PulsarCluster"]

#: What a topic may hold at least, however many there are: a few messages of usual size.
TOPIC_BYTES_MIN = 128 * 1024
#: And at most: a connection's bytes of about a tenth of a second.
TOPIC_BYTES_MAX = 16 * 1024 * 1024
#: Of readers in the middle of a topic: what is read ahead.
READER_BYTES = 4 * 1024 * 1024
_MESSAGES_MAX = 100_000


class PulsarCluster:
    """Thread-safe. Closing it closes its sources.

    Args:
        settings: the section ``[pulsar]``.
        security: of brokers and of the admin interface, instead of what the settings say.
        clock: of waits.
        admin: instead of one for ``settings.admin_url``; belongs to the cluster.

    Raises:
        InvalidCall: a URL or another setting is missing, or isn't what it should be.
        AccessDenied: there is no token where the settings say.
    """

    def __init__(
        self,
        settings: PulsarSettings,
        *,
        security: Security | None = None,
        clock: Clock | None = None,
        admin: AdminClient | None = None,
    ) -> None:
        if not settings.service_url or not (settings.admin_url or admin):
            raise InvalidCall(
                "pulsar.service_url and pulsar.admin_url are needed",
                hint='service_url = "pulsar://broker:6650", admin_url = "http://broker:8080"',
            )
        self.settings = settings
        self._clock = clock or SystemClock()
        # A call is tried once: whoever needs it tries again later and keeps no thread meanwhile.
        limits = ClientLimits(
            connection=ConnectionLimits(
                connect_s=settings.connect_seconds_max,
                request_s=settings.request_seconds_max,
                keep_alive_s=settings.keep_alive_seconds,
            ),
            retry_s=0.0,
            delay_s_max=settings.retry_seconds_max,
        )
        security = security or security_of(settings)
        self.client = PulsarClient(settings.service_url, security=security, limits=limits, clock=self._clock)
        # Once more at once, for a connection that the other side had closed.
        self.admin = admin or AdminClient(settings.admin_url, security=security, clock=self._clock, retries_max=1)
        self._workers = Workers(settings.workers_max, self._clock)
        self._readers = ReaderPool(self._reader_from, workers=self._workers, clock=self._clock)
        self._lock = threading.Lock()
        self._sources: dict[str, PulsarSource] = {}

    def __enter__(self) -> PulsarCluster:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def open_topic(self, topic: str, *, changed: Callable[[PulsarSource], object] = lambda _: None) -> PulsarSource:
        """A topic, or a partition, as a hot tier; its subscription is made soon, if there is none.

        Args:
            topic: ``persistent://tenant/namespace/topic``.
            changed: called on a worker of the cluster when ``active`` or ``problem`` of the source may have changed.

        Raises:
            InvalidCall: no topic's name, or it is open already.
            LimitReached: ``pulsar.topics_max`` are open.
        """
        with self._lock:
            if topic in self._sources:
                raise InvalidCall(f"{topic} is open already")
            if len(self._sources) >= self.settings.topics_max:
                raise LimitReached(
                    f"{topic}: {len(self._sources)} topics are open, as many as pulsar.topics_max allows",
                    hint="raise pulsar.topics_max, or share the topics between several processes",
                )
            source = self._sources[topic] = PulsarSource(
                topic,
                client=self.client,
                admin=self.admin,
                subscription=self.settings.subscription,
                open_reader=lambda begin, after, ready: self._live_reader(topic, begin, after, ready),
                read_again=lambda start: self._reader_from(topic, start, messages_max=1),
                readers=self._readers,
                workers=self._workers,
                clock=self._clock,
                bytes_max=self._topic_bytes,
                entries_asked_max=self.settings.entries_asked_max,
                retry_s_max=self.settings.retry_seconds_max,
                trims=self.settings.trim,
                changed=changed,
                closed=self._closed,
            )
        source.start()
        return source

    def topics(self) -> list[str]:
        """Those that are open, ascending."""
        with self._lock:
            return sorted(self._sources)

    def close(self) -> None:
        """Closes all sources, then everything else. Closing twice is fine."""
        with self._lock:
            sources = list(self._sources.values())
        for source in sources:
            source.close()
        self._readers.close()
        self.client.close()
        self._workers.close()
        self.admin.close()

    def _closed(self, source: PulsarSource) -> None:
        with self._lock:
            self._sources.pop(source.topic, None)

    def _topic_bytes(self) -> int:
        """What may wait of one topic: its share of what may wait of all."""
        return min(max(self.settings.receive_bytes_max // max(len(self._sources), 1), TOPIC_BYTES_MIN), TOPIC_BYTES_MAX)

    def _live_reader(
        self, topic: str, begin: Position, after: Position | None, ready: Callable[[], object]
    ) -> Consumer:
        return Consumer(
            self.client,
            topic,
            f"{self.settings.subscription}-live",
            start=begin,
            after=after,
            limits=ConsumerLimits(messages_max=_MESSAGES_MAX, bytes_max=self._topic_bytes()),
            bytes_max=self._topic_bytes,
            clock=self._clock,
            ready=ready,
        )

    def _reader_from(self, topic: str, start: Position, messages_max: int = _MESSAGES_MAX) -> Consumer:
        return Consumer(
            self.client,
            topic,
            f"{self.settings.subscription}-history",
            start=start,
            limits=ConsumerLimits(messages_max=messages_max, bytes_max=READER_BYTES),
            clock=self._clock,
        )
