"""One topic, or one partition, of a Pulsar cluster as a hot tier.

Owns how the topic's ledgers, its new entries and its older ones become a ``LedgerSource``, and what of them the broker
may delete. Must never let the broker delete a ledger before it was told to give up that one and every earlier one, nor
move its subscription in any other way.

The durable subscription takes no entries: it holds the fence, and by it the broker decides who works. Entries come
through readers, which begin where they are wanted: a subscription would begin again with everything that waits for
``deletion_lag_minutes`` after each lost connection.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from contextlib import suppress
from functools import partial

from formats.entries import EntryBatch, Position
from offloader.clock import Clock
from offloader.errors import Fenced, OffloaderError, SourceMismatch, StoreUnavailable
from offloader.ledgers.base import ClosedListener, LedgerInfo, Listener, Subscription
from offloader.ledgers.known import AskKnown
from offloader.ledgers.listening import Listeners
from offloader.ledgers.pulsar.admin import AdminClient
from offloader.ledgers.pulsar.client import PulsarClient
from offloader.ledgers.pulsar.consumer import Consumer
from offloader.ledgers.pulsar.contradiction import contradiction
from offloader.ledgers.pulsar.fence import Fence
from offloader.ledgers.pulsar.ledger_list import LedgerList, first_from, newest_of
from offloader.ledgers.pulsar.live import EARLIEST, FOR_GOOD, LiveFeed, OpenReader
from offloader.ledgers.pulsar.readers import ReaderPool
from offloader.ledgers.pulsar.second_look import SecondLook
from offloader.ledgers.pulsar.standing import Standing
from offloader.ledgers.pulsar.topic_stats import TopicInternals
from offloader.ledgers.pulsar.topics import stream_of_topic
from offloader.workers import Workers

__all__ = ["PulsarSource"]

_log = logging.getLogger("offloader.ledgers.pulsar")

#: How long is waited for an entry that is on its way, before it is fetched apart from the others.
LIVE_WAIT_S = 1.0


class PulsarSource:
    """A ``LedgerSource``. Thread-safe. Made by ``PulsarCluster.open_topic``.

    Args:
        topic: ``persistent://tenant/namespace/topic``.
        client, admin: of the cluster.
        subscription: name of ours.
        open_reader: a reader at the topic's end.
        read_again: a reader for a second look at what wasn't given.
        readers: of the cluster, for what is older.
        workers: of the cluster.
        clock: of ages.
        bytes_max: how much of this topic may wait in memory now.
        entries_asked_max: as ``asked_max`` of ``SecondLook``.
        retry_s_max: longest wait before something is tried again.
        trims: whether the broker is asked to look at once what it may delete.
        changed: called on a worker when ``active`` or ``problem`` may have changed.
        closed: called once, when it is closed.
    """

    def __init__(
        self,
        topic: str,
        *,
        client: PulsarClient,
        admin: AdminClient,
        subscription: str,
        open_reader: OpenReader,
        read_again: Callable[[Position], Consumer],
        readers: ReaderPool,
        workers: Workers,
        clock: Clock,
        bytes_max: Callable[[], int],
        entries_asked_max: int,
        retry_s_max: float,
        trims: bool,
        changed: Callable[[PulsarSource], object],
        closed: Callable[[PulsarSource], object],
    ) -> None:
        self.topic = topic
        self.stream = stream_of_topic(topic)
        self._admin, self._readers, self._changed, self._closed = admin, readers, changed, closed
        self._lock = threading.Lock()
        self._is_closed = False
        self._failure: OffloaderError | None = None
        self._read_again = read_again
        self._known: AskKnown | None = None
        self._standing = Standing(
            client,
            topic,
            subscription,
            workers=workers,
            clock=clock,
            retry_s_max=retry_s_max,
            changed=lambda: changed(self),
        )
        self._fence = Fence(self._standing, subscription, trim=(lambda: admin.trim(topic)) if trims else None)
        look = SecondLook(
            topic,
            fate_of=partial(admin.fate, topic),
            asked_max=entries_asked_max,
            open_reader=read_again,
            clock=clock,
        )
        self._ledgers = LedgerList(
            topic, ask=self._ask, ask_last=self._standing.last_position, look=look.look, clock=clock
        )
        self._listeners = Listeners(self.stream)
        self._live = LiveFeed(
            self._ledgers,
            self._listeners,
            open_reader=open_reader,
            workers=workers,
            bytes_max=bytes_max,
            retry_s_max=retry_s_max,
            failed=self._break,
        )

    @property
    def active(self) -> bool | None:
        """Whether the broker chose this process to work on the topic; ``None``: it hasn't said, or can't be heard."""
        return self._standing.active

    def is_chosen_since(self, since_s: float) -> bool:
        """Whether the broker still chose this process after ``since_s``, of the clock's ``monotonic_s``. One that was
        silent since is asked to say something; False until it does."""
        return self._standing.is_chosen_since(since_s)

    @property
    def problem(self) -> OffloaderError | None:
        """Why the topic isn't subscribed, read or believed now; retryable: it is tried again by itself."""
        return self._failure or self._standing.problem or self._live.trouble

    @property
    def held_bytes(self) -> int:
        """Payload bytes of this topic that wait to be taken."""
        return self._live.held_bytes

    def start(self) -> None:
        """Subscribes, which makes the subscription where there is none; ``active`` is known some time later."""
        self._standing.start()

    @property
    def is_aside(self) -> bool:
        """Whether this process has stepped aside."""
        return self._standing.is_aside

    def step_aside(self) -> None:
        """Leaves the topic to another process that waits for it, soon: ``active`` is False until ``step_back``, and the
        broker isn't asked who should work. What the subscription keeps stays."""
        self._standing.step_aside()

    def step_back(self) -> None:
        """The broker may choose this process again."""
        self._standing.step_back()

    def close(self) -> None:
        """Leaves the topic to others; the subscription stays. Closing twice is fine."""
        with self._lock:
            was_closed, self._is_closed = self._is_closed, True
        if was_closed:
            return
        self._live.end()
        self._readers.forget(self._ledgers)
        self._standing.close()
        self._closed(self)

    # -- LedgerSource

    def ledgers(self) -> list[LedgerInfo]:
        """As ``LedgerSource``; up to some seconds old, but never older than what was delivered.

        Raises:
            StoreUnavailable: neither broker nor admin interface answers; AccessDenied, NotFound: they refuse.
            Corrupt: what the broker gave before can't be.
        """
        self._require_usable()
        return self._ledgers.infos()

    def read(self, start: Position, max_bytes: int) -> EntryBatch | None:
        """As ``LedgerSource``.

        Raises:
            as ``ledgers`` and ``ReaderPool.read``.
        """
        self._require_usable()
        found = self._live.read(start, max_bytes)
        if found is not None:
            return found
        # An answer of the broker waits behind all that it sends meanwhile: it is asked only for what isn't known.
        infos = self._ledgers.known()
        target = first_from(infos, start)
        if target is None:
            infos = self._ledgers.infos()
            target = first_from(infos, start)
        if target is None:
            return None
        told = self._live.told
        try:
            if told is not None and first_from(infos, Position(told.ledger_id, told.entry_id + 1)) == target:
                found = self._live.wait(target, max_bytes, LIVE_WAIT_S)
            return found or self._readers.read(self._ledgers, infos, target, max_bytes)
        except OffloaderError as error:
            self._ledgers.doubt()
            if isinstance(error, FOR_GOOD):
                self._break(error)
                self._require_usable()
            raise

    def subscribe(self, listener: Listener | None, closed: ClosedListener | None = None) -> Subscription:
        """As ``LedgerSource``.

        Raises: as ``ledgers``.
        """
        self._require_usable()
        if listener is None:
            return self._listeners.add(None, closed)
        self._ledgers.doubt()
        newest = newest_of(self._ledgers.infos())
        with self._lock:
            is_first = not self._listeners.want_entries
            subscription = self._listeners.add(listener, closed)
        if is_first:
            self._live.start(newest)
        return _Heard(subscription, self._live.wake)

    def release(self, position: Position) -> None:
        """Notes what is committed: what the subscription lost beyond that is lost to it.

        Raises:
            Fenced: the broker chose another process.
        """
        if self.active is False:
            raise Fenced(
                f"{self.topic}: the broker made another consumer of the subscription the active one",
                hint="that process offloads the topic; this one stands by",
            )
        self._fence.committed(position)

    def delete(self, ledger_id: int) -> None:
        """The broker may delete a closed ledger, as far as we are concerned: it is acknowledged as soon as all earlier
        ones are.

        Raises:
            StoreUnavailable: try again later.
            SourceMismatch: as ``require_same``, which was told what is known.
        """
        self._require_usable()
        self._ledgers.doubt()
        if self._known is not None:
            self.require_same(self._known)
        for gone in self._fence.give_up(ledger_id, self._ledgers.infos()):
            self._ledgers.gave_up(gone)

    # -- ComparedSource

    def require_same(self, known: AskKnown) -> None:
        """As ``ComparedSource``. A contradiction counts when the owning broker is asked again and it is still there;
        then the topic stops. What is known is compared again before a ledger is given up.

        Raises: as ``ComparedSource``, and as ``ledgers``.
        """
        self._require_usable()
        self._known = known
        if _contradiction(self._ledgers.internals(), known) is None:
            return
        self._ledgers.doubt()
        owners = self._newest_of_owner()
        internals = self._ledgers.internals()
        why = _contradiction(internals, known)
        if why is None:
            return
        stored = internals.stored()
        if owners is not None and owners.ledger_id > stored[-1][0]:
            raise StoreUnavailable(
                f"{self.topic}: the admin interface lists ledgers up to {stored[-1][0]}, and the owning broker has "
                f"{owners}: the list is older than that",
                hint="nothing is deleted meanwhile; it is asked again",
            )
        error = SourceMismatch(
            f"{self.topic}: its ledgers aren't those that the manifest knows: {why}; the cluster was made anew, or "
            "restored from an older copy. Nothing was deleted",
            hint="restore the cluster's metadata and ledgers; or offload this topic into another store or prefix, "
            "which leaves readable what is here, and start again",
        )
        self._fail(error)
        raise error

    def _newest_of_owner(self) -> Position | None:
        """The newest entry that the broker has which owns the topic now, found and connected to for this."""
        reader = self._read_again(EARLIEST)
        try:
            return reader.last_position()
        finally:
            reader.close()

    # -- the rest

    def _ask(self) -> TopicInternals:
        internals = self._admin.internals(self.topic)
        self._fence.look(internals)
        return internals

    def _require_usable(self) -> None:
        if self._is_closed:
            raise StoreUnavailable(f"{self.topic} was closed here")
        if self._failure is not None:
            raise self._failure

    def _break(self, error: OffloaderError) -> None:
        """What the broker gave can't be. Because it is another cluster's, if that is so."""
        if self._known is not None:
            with suppress(OffloaderError):
                self.require_same(self._known)
        self._fail(error)

    def _fail(self, error: OffloaderError) -> None:
        """Something that waiting doesn't mend: this topic stops, others go on."""
        with self._lock:
            if self._failure is not None:
                return
            self._failure = error
        _log.error("%s: %s; nothing of it is read any more", self.topic, error)
        self._live.end()
        self._changed(self)


def _contradiction(internals: TopicInternals, known: AskKnown) -> str | None:
    stored = internals.stored()
    return contradiction(stored, known([ledger_id for ledger_id, _ in stored]))


class _Heard:
    """A subscription; when it ends, nobody may be left to listen."""

    def __init__(self, inner: Subscription, ended: Callable[[], object]) -> None:
        self._inner, self._ended = inner, ended

    def cancel(self) -> None:
        self._inner.cancel()
        self._ended()
