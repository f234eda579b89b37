"""Topics of a Pulsar cluster, to be read only: for processes that upload history and acknowledge nothing.

A view has no subscription. It lists ledgers through the admin interface and reads entries with the broker's
non-durable readers, which leave nothing behind. So any number of views of one topic can read in parallel, in any
processes, beside the process that has the topic's subscription. The price: a view doesn't keep the broker from deleting
a ledger. The subscription of ``PulsarSource`` does that, and acknowledging is left to it.

A view that a process opens to become the stream's owner first looks for a consumer of that subscription. A manifest
can't tell an idle owner from a dead one; the broker knows whether the owner is connected.
"""

from __future__ import annotations

from uuid import UUID

from formats.entries import EntryBatch, Position
from offloader.errors import FencedError, NotFoundError, OffloaderError, UnsupportedError
from offloader.ledgers.base import AskKnown, ClosedListener, LedgerInfo, Listener, Subscription
from offloader.ledgers.pulsar.discovery import TopicPatterns, survey
from offloader.ledgers.pulsar.ledger_list import LedgerList, SkippedEntries, first_from, require_same_ledgers
from offloader.ledgers.pulsar.source import (
    PulsarCluster,
    noted_remedy,
    notes_of,
    owners_newest,
)
from offloader.ledgers.pulsar.topics import stream_of_topic, topic_of_stream
from offloader.settings import PulsarSettings
from offloader.stream_names import require_stream_name


class TopicView:
    """A topic as a ``LedgerSource`` that is only read, and compared as ``ComparedSource``. Thread-safe.

    It reads the notes of the topic's subscription as a ``NotingSource``, and adds none: no entry leaves the broker
    because of a view.
    """

    def __init__(self, topic: str, cluster: PulsarCluster) -> None:
        self.topic, self.stream = topic, stream_of_topic(topic)
        self._cluster = cluster
        self._noted_store: UUID | None = None
        skipped = SkippedEntries(
            topic,
            lambda position: cluster.admin.fate(topic, position),
            asked_max=cluster.settings.entries_asked_max,
            open_reader=lambda start: cluster.reader_from(topic, start, messages_max=1),
            clock=cluster.clock,
        )
        self._ledgers = LedgerList(
            topic,
            ask=lambda: cluster.admin.internals(topic),
            ask_last=lambda: owners_newest(cluster, topic),
            look=skipped.look,
            clock=cluster.clock,
        )

    def ledgers(self) -> list[LedgerInfo]:
        """As ``LedgerSource``; raises as the admin interface and the broker."""
        return self._ledgers.infos()

    def read(self, start: Position, max_bytes: int) -> EntryBatch | None:
        """As ``LedgerSource``; raises as ``ledgers`` and ``ReaderPool.read``."""
        # Listing asks the broker, so only if the known ledgers don't suffice.
        infos = self._ledgers.known()
        if (target := first_from(infos, start)) is None:
            infos = self._ledgers.infos()
            target = first_from(infos, start)
        if target is None:
            return None
        try:
            return self._cluster.readers.read(self._ledgers, infos, target, max_bytes)
        except OffloaderError:
            self._ledgers.doubt()
            raise

    def subscribe(self, listener: Listener | None, closed: ClosedListener | None = None) -> Subscription:  # noqa: ARG002
        """Always raises ``UnsupportedError``."""
        raise UnsupportedError(f"{self.topic}: a view has no listeners")

    def release(self, position: Position) -> None:
        """Always raises ``UnsupportedError``."""
        raise UnsupportedError(f"{self.topic}: a view can't acknowledge {position}")

    def delete(self, ledger_id: int) -> None:
        """Always raises ``UnsupportedError``."""
        raise UnsupportedError(f"{self.topic}: a view can't delete ledger {ledger_id}")

    def require_same(self, known: AskKnown) -> None:
        """As ``ComparedSource``; raises as that, and as ``ledgers``."""
        require_same_ledgers(self._ledgers, known, lambda: owners_newest(self._cluster, self.topic))

    def noted_manifests(self) -> list[tuple[UUID, int]]:
        """As ``NotingSource``: asks the admin interface; raises as that."""
        found, self._noted_store = notes_of(self._cluster, self.topic)
        return found

    def noted_store(self) -> UUID | None:
        """As ``NotingSource``: as ``noted_manifests`` found it last."""
        return self._noted_store

    def noted_remedy(self) -> str:
        """As ``NotingSource``."""
        return noted_remedy(self._cluster.settings)

    def note_manifest(self, incarnation: UUID, record_id: int) -> None:
        """Notes nothing."""

    def note_store(self, store_id: UUID) -> None:
        """Notes nothing."""


class PulsarTopics:
    """The topics of a cluster as ``Ledgers``, by their streams' names. Thread-safe.

    Args:
        settings: the section ``[pulsar]``; ``topics`` and ``exclude`` select what ``streams`` lists.
        take_over: open a view for an owner although a consumer of the subscription is connected.

    Raises:
        InvalidCallError, AccessDeniedError: as ``PulsarCluster``; an invalid pattern.
    """

    def __init__(self, settings: PulsarSettings, *, take_over: bool = False) -> None:
        self._patterns = TopicPatterns.of(settings.topics, settings.exclude)
        self._take_over = take_over
        self._cluster = PulsarCluster(settings)

    def streams(self) -> list[str]:
        """As ``Ledgers``; partitions one by one. Raises as the admin interface."""
        look, error = survey(self._cluster.admin, self._patterns)
        if error is not None:
            raise error
        return sorted(stream_of_topic(topic) for topics in look.topics.values() for topic in topics)

    def view_stream(self, stream: str, *, may_delete: bool = False) -> TopicView:
        """As ``Ledgers``.

        Raises:
            FencedError: with ``may_delete``: a consumer of the subscription is connected, and ``take_over`` is off.
            NotFoundError: no topic has this stream, or the topic doesn't exist.
        """
        require_stream_name(stream)
        topic = topic_of_stream(stream)
        if topic is None:
            raise NotFoundError(f"stream {stream} is no Pulsar topic's")
        if may_delete and not self._take_over:
            self._require_free(topic)
        return TopicView(topic, self._cluster)

    def close(self) -> None:
        """As ``Ledgers``."""
        self._cluster.close()

    def _require_free(self, topic: str) -> None:
        name = self._cluster.settings.subscription
        found = self._cluster.admin.stats(topic).subscriptions.get(name)
        if found is not None and found.consumers:
            raise FencedError(
                f"{topic}: a process is connected to its subscription {name} and offloads it, with its history",
                hint="wait for that process; or stop it, or exclude the topic there (pulsar.exclude); --take-over "
                "fences it until it takes the topic back",
            )
