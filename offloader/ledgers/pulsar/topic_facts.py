"""What is known of a topic besides its entries: its ledgers, fates of skipped entries, and properties of subscriptions.

A broker tells this about ``persistent://`` topics. Of the segments of a scalable topic, brokers of Pulsar 5.0.0-M1 tell
nothing but their newest entry: ``ObservedFacts`` derives the ledgers from what readers receive.

**What ``ObservedFacts`` lists.** A prefix of the unread part without holes:

1. From the manifest (``known``), the ledger up to whose entry everything is offloaded, and earlier ones whose hot
   copies weren't released: an acknowledgement covers all earlier entries, so each of them must be released first.
2. Everything that a reader received after that, in sequence (``heard``). While a listener is subscribed, this is what
   the live reader receives. If no reader received anything since the last list, one reads some entries for the list
   alone, and all up to the newest entry in the manifest if that follows a missing one.

A reader may be behind the settled end, if another process uploaded what it reads. The ledger that it has received in
part isn't listed: with the settled end after it, that part would look like a closed ledger.

A ledger is closed when a reader received an entry of a later one right after its last, and another one that asks for
single entries received nothing in between; or when the segment is sealed and its recorded end is in it. The list ends
with the first ledger whose last entry isn't known, even if entries of later ledgers were received. Skipped entries
are gaps of reason *unconfirmed*, because the broker doesn't say why it skipped them. What no reader receives at the end
of a ledger leaves no trace: markers of transactions, entries that the bookies lost, and unread entries that the broker
deleted for message TTL or a backlog quota. A namespace with segments must have neither of the latter.

**The newest entry of the broker may be too old.** Readers receive an entry slightly before the broker names it. Brokers
of 5.0.0-M1 with ``transactionCoordinatorEnabled`` name no later one than at the first request, and one that loaded a
sealed segment with an empty last ledger names none. So a received entry counts as existing, whatever the broker names,
and ``sealed_end`` doesn't trust the answer.

Nothing here is stored. After a restart, the manifest has the settled end, and the rest is received again.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from contextlib import closing
from typing import Protocol

from formats.entries import Position
from offloader.errors import StoreUnavailableError
from offloader.ledgers.base import AskKnown, BrokerLedgers, KnownLedger, KnownLedgers, newest
from offloader.ledgers.pulsar.admin import AdminClient
from offloader.ledgers.pulsar.consumer import EARLIEST, Consumer
from offloader.ledgers.pulsar.ledger_list import SINGLE_ENTRIES
from offloader.ledgers.pulsar.scalable import scalable_topic_of
from offloader.ledgers.pulsar.topics import EntryFate, TopicInternals, TopicLedger, TopicLedgers, stream_of_topic
from offloader.settings import PulsarSettings

#: Longest wait for the next entry that the broker has.
READ_S_MAX = 15.0
#: Longest wait for the report that a sealed segment has no later entry.
END_S_MAX = 5.0
#: Messages in the buffer of a reader that reads for the list alone.
MESSAGES_MAX = 100_000
#: Ledgers that are listed; the oldest are forgotten first, which the manifest has by then.
LEDGERS_MAX = 100_000
#: Property of our subscription: the first ledger that the broker listed when its list began to be followed.
SINCE_PROPERTY = "offloader-first-ledger"


class TopicFacts(Protocol):
    """Facts about one topic. Thread-safe. Every call may raise errors of the broker: retry."""

    def internals(self) -> TopicInternals:
        """The topic's ledgers and cursors."""

    def fate(self, position: Position) -> EntryFate:
        """Why an entry wasn't delivered to a reader."""

    def trim(self) -> None:
        """Makes the broker delete unneeded ledgers soon, if it can be asked for that."""

    def properties(self) -> Mapping[str, str]:
        """Properties of our subscription; ``NotFoundError``: there is none."""

    def note(self, changes: Mapping[str, str]) -> None:
        """Sets properties of our subscription, where it can have some."""

    def known(self, ask: AskKnown) -> None:
        """Learns the manifest's facts, before the ledgers are listed."""

    def heard(self, before: Position | None, position: Position) -> None:
        """Learns that a reader received ``position``, right after ``before`` if that is given."""


class AdminFacts:
    """As the admin interface tells them."""

    def __init__(self, admin: AdminClient, topic: str, settings: PulsarSettings) -> None:
        self._admin, self._topic, self._settings = admin, topic, settings

    def internals(self) -> TopicInternals:
        return self._admin.internals(self._topic)

    def fate(self, position: Position) -> EntryFate:
        return self._admin.fate(self._topic, position)

    def trim(self) -> None:
        if self._settings.trim:
            self._admin.trim(self._topic)

    def properties(self) -> Mapping[str, str]:
        return self._admin.properties(self._topic, self._settings.subscription)

    def note(self, changes: Mapping[str, str]) -> None:
        self._admin.note(self._topic, self._settings.subscription, changes)

    def known(self, ask: AskKnown) -> None:
        pass

    def heard(self, before: Position | None, position: Position) -> None:
        pass


class ObservedFacts:
    """As readers of the topic receive its entries; see the head of this module.

    Args:
        ask_last: returns the newest entry that the broker delivers, ``None`` if there is none.
        open_reader: opens a reader of the topic at a position, with so many messages in its buffer.
        is_acknowledged: returns whether the segment is sealed and our subscription has no entry to receive.

    Attributes:
        end: the last entry of a sealed segment, as recorded; ``None``: it isn't sealed, or its end isn't known yet.
    """

    def __init__(
        self,
        topic: str,
        *,
        ask_last: Callable[[], Position | None],
        open_reader: Callable[[Position, int], Consumer],
        is_acknowledged: Callable[[], bool] = lambda: False,
    ) -> None:
        self._topic, self._ask_last, self._open_reader = topic, ask_last, open_reader
        self._is_acknowledged = is_acknowledged
        self._lock = threading.Lock()
        #: Ledger -> its entries that were received, or are settled.
        self._entries: dict[int, int] = {}
        #: Ledgers of which the last entry was received.
        self._exact: set[int] = set()
        self._settled: Position | None = None
        self._ask_known: AskKnown = lambda _: KnownLedgers()
        #: The newest entry in the manifest that follows a missing one and wasn't received yet.
        self._unheard: Position | None = None
        #: Whether a reader received an entry since the last list.
        self._is_read = False
        #: Whether the last reader received nothing: the broker may have skipped everything (see ``ledger_list``).
        self._is_silent = False
        self.end: Position | None = None

    def internals(self) -> TopicInternals:
        sealed = self.end if self.end is not None and self.end.entry_id >= 0 else None
        last = newest(self._ask_last(), sealed)
        if last is not None:
            self._advance(last)
        with self._lock:
            received = self._list()
            last = newest(last, self._end())
        # The last entries of a ledger may have been lost since another process received them.
        ends = self._ask_known([ledger_id for ledger_id, _ in received]).ledgers
        found = [(each, max(count, _end_in(ends, each) + 1)) for each, count in received]
        newest_ledger, entries = found[-1] if found else (-1, 0)
        if last is not None and last.ledger_id == newest_ledger:
            entries = max(entries, last.entry_id + 1)
        ledgers = [TopicLedger(ledger_id, count, 0, False) for ledger_id, count in found[:-1]]
        ledgers += [TopicLedger(newest_ledger, 0, 0, False)] if found else []
        return TopicInternals(
            ledgers=TopicLedgers(self._topic, tuple(ledgers)),
            open_entries=entries,
            open_size_bytes=0,
            last_confirmed=last,
            is_terminated=self.end is not None and self.end.ledger_id == newest_ledger,
            cursors={},
        )

    def fate(self, position: Position) -> EntryFate:  # noqa: ARG002  of no entry
        return EntryFate.UNKNOWN

    def trim(self) -> None:
        pass

    def properties(self) -> Mapping[str, str]:
        return {}

    def note(self, changes: Mapping[str, str]) -> None:
        pass

    def known(self, ask: AskKnown) -> None:
        known = ask(None)
        self._ask_known = ask
        settled = known.settled
        with self._lock:
            if settled is not None:
                gone = [each for each in self._entries if each < settled.ledger_id and each not in self._exact]
                for ledger_id in gone:
                    del self._entries[ledger_id]
                for ledger_id in known.ledgers:
                    self._add(Position(ledger_id, _end_in(known.ledgers, ledger_id)))
                    self._exact.add(ledger_id)
                self._settled = settled
                if settled.entry_id >= 0:
                    self._add(settled)
            heard = self._end()
            is_unheard = known.newest is not None and (heard is None or known.newest > heard)
            self._unheard = known.newest if is_unheard else None

    def heard(self, before: Position | None, position: Position) -> None:
        # A reader may begin after entries that were never received, those that another process uploaded.
        end = self.received()
        since = min((each for each in (before, end) if each is not None), default=None)
        if since is None or not self._are_listed(since.ledger_id, position.ledger_id):
            self._receive_between(since, position)
        with self._lock:
            self._is_read = True
            if before is not None and min(before) >= 0:
                self._add(before)
            self._add(position)

    def sealed_end(self) -> Position | None:
        """The last entry of the sealed segment; ``None``: it has none.

        A reader begins after the newest known entry: either it receives an entry, or the broker reports the end. A
        broker of 5.0.0-M1 refuses readers of a segment that has no ledger, which is so after the restart of a broker
        that sealed it without an entry. Our subscription isn't refused. It tells the same, because nothing of a segment
        is acknowledged that the manifest doesn't have.

        Raises:
            OffloaderError: the end isn't known yet: retry.
        """
        last = newest(self._ask_last(), self.received())
        try:
            with closing(self._open_reader(EARLIEST if last is None else last.next(), 1)) as reader:
                came, is_at_end = reader.take(END_S_MAX), reader.is_at_end
        except StoreUnavailableError:
            if last is None and self._is_acknowledged():
                return None
            raise
        if came or not is_at_end:
            seen = f"has {came[0].position} after it" if came else f"reported no end for {END_S_MAX:g} s"
            raise StoreUnavailableError(
                f"{self._topic}: {last or 'no entry'} is the last known one, but the broker {seen}",
                hint="the broker is asked again after more entries were read",
            )
        return last

    def received(self) -> Position | None:
        """The newest entry before which nothing is unknown: received, or settled; ``None``: nothing is known yet."""
        with self._lock:
            return newest(self._settled, self._end())

    def _are_listed(self, first: int, last: int) -> bool:
        """Whether the list has the ledgers from ``first`` to ``last``, and the ends of those before ``last``."""
        end = self.received()
        with self._lock:
            return first >= last or (end is not None and last <= end.ledger_id and first in self._exact)

    def _list(self) -> list[tuple[int, int]]:
        """Ledgers and their entries, ascending, up to the first one whose last entry isn't known; lock held."""
        found = list[tuple[int, int]]()
        for ledger_id in sorted(self._entries):
            if not self._is_partial(ledger_id):
                found.append((ledger_id, self._entries[ledger_id]))
                if ledger_id not in self._exact:
                    break
        return found

    def _is_partial(self, ledger_id: int) -> bool:
        """Whether a reader that is behind the settled end may have received a part of a ledger; lock held."""
        is_behind = self._settled is not None and ledger_id < self._settled.ledger_id
        return is_behind and ledger_id not in self._exact and ledger_id != max(self._entries)

    def _end(self) -> Position | None:
        """The last entry of the list; call with the lock held."""
        return next((Position(ledger_id, count - 1) for ledger_id, count in reversed(self._list())), None)

    def _receive_between(self, before: Position | None, position: Position) -> None:
        """Receives what is between two entries that a reader received in sequence; ``None``: the topic's beginning.

        A broker that passes over a lost entry may pass over later ones with it, even whole ledgers. A reader that asks
        for single entries doesn't miss those.
        """
        with closing(self._open_reader(EARLIEST if before is None else before.next(), 1)) as reader:
            while before is None or before < position:
                for each in self._taken(reader, before):
                    with self._lock:
                        if before is not None and before.ledger_id < each.ledger_id:
                            self._exact.add(before.ledger_id)
                        self._add(each)
                    before = each

    def _add(self, position: Position) -> None:
        """Call with the lock held."""
        self._entries[position.ledger_id] = max(self._entries.get(position.ledger_id, 0), position.entry_id + 1)
        while len(self._entries) > LEDGERS_MAX:
            oldest = min(self._entries)
            del self._entries[oldest]
            self._exact.discard(oldest)

    def _advance(self, last: Position) -> None:
        """Receives more entries, unless a reader received some since the last call, or everything is listed."""
        with self._lock:
            heard = self._end()
            until, is_read = self._unheard, self._is_read
            self._is_read = False
            before = heard or self._settled
        if (before is not None and before >= last) or (heard is not None and is_read and until is None):
            return
        messages_max, entries_max = (1, SINGLE_ENTRIES) if self._is_silent else (MESSAGES_MAX, 2**63)
        with closing(self._open_reader(EARLIEST if before is None else before.next(), messages_max)) as reader:
            entries, is_reached = 0, False
            while not entries or (not is_reached and entries < entries_max):
                for each in self._taken(reader, before):
                    self.heard(before, each)
                    before, entries = each, entries + 1
                    is_reached = until is None or each >= min(until, last)
        with self._lock:
            self._unheard, self._is_read = None if is_reached else until, False

    def _taken(self, reader: Consumer, after: Position | None) -> list[Position]:
        came = reader.take(READ_S_MAX)
        self._is_silent = not came
        if came:
            return [each.position for each in came]
        raise StoreUnavailableError(
            f"{self._topic}: the broker has later entries, and delivered nothing after {after or 'the beginning'} for "
            f"{READ_S_MAX:g} s",
            hint="the topic is read again later",
        )


def _end_in(known: Mapping[int, KnownLedger], ledger_id: int) -> int:
    """The newest entry of a ledger in the manifest, also of a segment that isn't uploaded yet; -1: it has none."""
    found = known.get(ledger_id, KnownLedger())
    return max(-1 if found.last_entry_id is None else found.last_entry_id, found.reached)


def listed_by_broker(admin: AdminClient, topic: str, settings: PulsarSettings) -> BrokerLedgers:
    """The ledgers that a broker lists of a topic now, and since when that is followed; of a segment, the layout.

    A topic that is created again has another subscription, without the property. Raises as the admin interface.
    """
    if (scalable := scalable_topic_of(stream_of_topic(topic))) is not None:
        return BrokerLedgers(layout=admin.layout(scalable))
    # In this order: of a topic that is created again in between, the list is the old one.
    stored = admin.internals(topic).stored()
    subscriptions = admin.stats(topic).subscriptions if settings.follow_broker_trim else {}
    subscription = subscriptions.get(settings.subscription)
    noted = "" if subscription is None else subscription.properties.get(SINCE_PROPERTY, "")
    return BrokerLedgers(stored=tuple(stored), since=int(noted) if noted.isdecimal() else None)
