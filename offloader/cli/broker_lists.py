"""Which ledgers brokers with the offloader plugin list, asked through their admin interface."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from offloader.ledgers.base import BrokerLedgers, LedgerSource
from offloader.ledgers.pulsar.admin import AdminClient
from offloader.ledgers.pulsar.source import listed_by_broker
from offloader.ledgers.pulsar.topics import topic_of_stream
from offloader.ledgers.pulsar.transport import security_of
from offloader.retention.broker import ListedOf
from offloader.settings import PulsarSettings


@contextmanager
def opening_lists(pulsar: PulsarSettings, source_of: Callable[[str], LedgerSource | None]) -> Iterator[ListedOf]:
    """What brokers with our plugin list of a stream, from their admin interface; ``None`` for other streams.

    Args:
        source_of: a stream that has another hot tier has no broker.
    """
    if not pulsar.broker_plugin:
        yield lambda _: None
        return
    with AdminClient(pulsar.admin_url, security=security_of(pulsar), hosts=pulsar.admin_hosts) as admin:

        def listed_of(stream: str) -> BrokerLedgers | None:
            topic = topic_of_stream(stream)
            if topic is None or source_of(stream) is not None:
                return None
            return listed_by_broker(admin, topic, pulsar)

        yield listed_of
