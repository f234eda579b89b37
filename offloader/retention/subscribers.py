"""A stream's subscribers: registration, acknowledged positions, activity."""

from __future__ import annotations

import enum
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Protocol

from formats.documents import SubscriberRow, Subscribers, document_key
from formats.entries import Position
from offloader.errors import InvalidCall, LimitReached, NotFound, OffloaderError
from offloader.manifest.state import ManifestState
from offloader.retention.cuts import Cut, Known, OwnCuts, cut_of_rows, partition_segment, rows_of_cut
from offloader.retention.scope import DocumentStore, LoadedPartitions, Place, SourceOf, Stored, find_place
from offloader.runtime.clock import Clock, SystemClock
from offloader.store.base import ObjectStore

__all__ = [
    "SUBSCRIBERS_MAX",
    "SUBSCRIBER_NAME_CHARS_MAX",
    "Activity",
    "CutLike",
    "CutRules",
    "Followed",
    "PublishStatus",
    "Published",
    "Registry",
    "StreamRetention",
    "Subscriber",
    "SubscriberStatus",
    "cut_of",
    "followed",
    "open_retention",
    "require_subscriber_name",
]

#: Most subscribers of one stream. Each takes some hundred bytes of one object, and a comparison in each cycle.
SUBSCRIBERS_MAX = 1000
#: Longest name of a subscriber.
SUBSCRIBER_NAME_CHARS_MAX = 255
#: An equal publish is a sign of life; within this time after the last one it changes nothing.
RENEWED_MS_MIN = 1000
_GENERATION_MAX = 2**63 - 1


class CutRules(Protocol):
    """Checks of cuts against a stream's history."""

    def problem(self, cut: Cut) -> str:
        """Why ``cut`` is no cut of the stream; empty if it is one."""

    def reaches(self, one: Cut, other: Cut) -> bool:
        """Whether ``one`` is at or after ``other``."""


class PublishStatus(enum.Enum):
    """Result of publishing a cut. Only ``SUCCESS`` changes anything."""

    SUCCESS = "success"
    STREAM_NOT_FOUND = "stream not found"
    SUBSCRIBER_NOT_FOUND = "subscriber not found"
    GENERATION_MISMATCH = "generation mismatch"
    CUT_NOT_VALID = "cut not valid"


class Activity(enum.Enum):
    """Whether a subscriber holds data back."""

    ACTIVE = "active"
    TIMED_OUT = "timed out"
    UNPUBLISHED = "never published"


@dataclass(frozen=True, slots=True, kw_only=True)
class Subscriber:
    """One subscriber.

    Attributes:
        name: of the subscriber.
        generation: of its registration.
        updated_ms: its registration or last change of the cut, ms since 1970 UTC.
        active_ms: its last sign of life: an equal publish is one.
        cut: what it has consumed; ``None``: it has never published.
        start: where it began; ``None``: at the stream's beginning.
    """

    name: str
    generation: int
    updated_ms: int
    active_ms: int
    cut: Cut | None = None
    start: Cut | None = None

    def activity(
        self, *, now_ms: int, timeout_ms: int | None, is_at_tail: bool = False, is_connected: bool = False
    ) -> Activity:
        """Whether it holds data back.

        Args:
            now_ms: the time; a time before ``active_ms`` makes no subscriber silent.
            timeout_ms: how long a subscriber may be silent; ``None``: forever.
            is_at_tail: whether it has consumed everything: then it has nothing to acknowledge.
            is_connected: whether a consumer is connected, if known (Pulsar's subscriptions).
        """
        if self.cut is None:
            return Activity.UNPUBLISHED
        is_silent = timeout_ms is not None and now_ms - self.active_ms > timeout_ms
        return Activity.TIMED_OUT if is_silent and not is_at_tail and not is_connected else Activity.ACTIVE

    def as_json(self) -> dict[str, object]:
        """JSON form; cuts by their segments."""
        return {
            "subscriber": self.name,
            "generation": self.generation,
            "cut": None if self.cut is None else self.cut.as_json(),
            "start": None if self.start is None else self.start.as_json(),
            "updated_ms": self.updated_ms,
            "active_ms": self.active_ms,
        }


@dataclass(frozen=True, slots=True)
class Published:
    """Result of a publish: the registry afterwards, the status, and the reason of a refusal."""

    registry: Registry
    status: PublishStatus
    why: str = ""


@dataclass(frozen=True, slots=True)
class Registry:
    """The subscribers of one stream by name, as a value."""

    subscribers: Mapping[str, Subscriber] = field(default_factory=dict)

    def names(self) -> list[str]:
        """All subscribers, sorted."""
        return sorted(self.subscribers)

    def add(self, name: str, generation: int, *, now_ms: int, start: Cut | None = None) -> Registry:
        """Register a subscriber, or raise its generation and keep its cut; a lower generation is ignored.

        Args:
            name: any text that prints on one line.
            generation: 0 or more.
            now_ms: the time; registering again is a sign of life.
            start: where a new one begins; ``None``: at the stream's beginning.

        Raises:
            InvalidCall: not a name or a generation.
            LimitReached: there are ``SUBSCRIBERS_MAX`` others.
        """
        require_subscriber_name(name)
        if not 0 <= generation <= _GENERATION_MAX:
            raise InvalidCall(f"subscriber {name}: {generation} is no generation", hint="0 or more")
        found = self.subscribers.get(name)
        if found is not None and generation < found.generation:
            return self
        if found is None:
            if len(self.subscribers) >= SUBSCRIBERS_MAX:
                raise LimitReached(
                    f"subscriber {name} can't be registered: there are {len(self.subscribers)} already",
                    hint="remove those that nobody uses",
                )
            return self._with(
                Subscriber(name=name, generation=generation, updated_ms=now_ms, active_ms=now_ms, start=start)
            )
        active_ms = max(found.active_ms, now_ms)
        updated_ms = active_ms if generation > found.generation else found.updated_ms
        return self._with(replace(found, generation=generation, updated_ms=updated_ms, active_ms=active_ms))

    def remove(self, name: str, generation: int) -> Registry:
        """Remove a subscriber and its cut, unless its generation is higher. Idempotent."""
        found = self.subscribers.get(name)
        if found is None or generation < found.generation:
            return self
        return Registry({each: row for each, row in self.subscribers.items() if each != name})

    def publish(self, name: str, generation: int, cut: Cut, rules: CutRules, *, now_ms: int) -> Published:
        """Record that a subscriber has consumed everything before ``cut``.

        An equal cut is accepted as a sign of life. Times don't move back, even if the clock does.
        """
        found = self.subscribers.get(name)
        if found is None:
            known = ", ".join(self.names()[:5]) or "nobody"
            return Published(self, PublishStatus.SUBSCRIBER_NOT_FOUND, f"{name} isn't registered; {known} is")
        if generation != found.generation:
            return Published(
                self,
                PublishStatus.GENERATION_MISMATCH,
                f"subscriber {name} has generation {found.generation}, not {generation}: it was registered anew",
            )
        problem = rules.problem(cut)
        if not problem and found.cut is not None and not rules.reaches(cut, found.cut):
            problem = f"it isn't at or after {found.cut}, which was published before"
        if problem:
            return Published(self, PublishStatus.CUT_NOT_VALID, f"the cut {cut} of subscriber {name}: {problem}")
        moved = found.cut is None or not rules.reaches(found.cut, cut)
        active_ms = max(found.active_ms, now_ms)
        if not moved and active_ms - found.active_ms < RENEWED_MS_MIN:
            return Published(self, PublishStatus.SUCCESS)
        wanted = replace(
            found,
            cut=cut if moved else found.cut,
            active_ms=active_ms,
            updated_ms=active_ms if moved else found.updated_ms,
        )
        return Published(self._with(wanted), PublishStatus.SUCCESS)

    def active(
        self,
        *,
        now_ms: int,
        timeout_ms: int | None,
        tail: Cut | None,
        rules: CutRules,
        connected: Collection[str] = (),
    ) -> dict[str, Activity]:
        """Whether each subscriber holds data back; see ``Subscriber.activity``.

        Args:
            tail: the newest cut; ``None``: unknown, then no subscriber counts as at the tail.
            connected: names of subscribers with a connected consumer.
        """
        found = {}
        for name in self.names():
            each = self.subscribers[name]
            found[name] = each.activity(
                now_ms=now_ms,
                timeout_ms=timeout_ms,
                is_at_tail=tail is not None and each.cut is not None and rules.reaches(each.cut, tail),
                is_connected=name in connected,
            )
        return found

    def unpublished(self) -> list[str]:
        """Subscribers that have never published."""
        return [name for name in self.names() if self.subscribers[name].cut is None]

    def bounding(self, first: Cut, *, protect_unpublished: bool = False) -> dict[str, Cut]:
        """Cuts that may hold data back, by name, of silent subscribers too.

        Args:
            first: the stream's beginning, used for a subscriber without a start cut.
            protect_unpublished: count subscribers that never published at their start; else they hold nothing back.
        """
        found = {}
        for name in self.names():
            each = self.subscribers[name]
            if each.cut is not None:
                found[name] = each.cut
            elif protect_unpublished:
                found[name] = first if each.start is None else each.start
        return found

    def _with(self, subscriber: Subscriber) -> Registry:
        return Registry({**self.subscribers, subscriber.name: subscriber})


def require_subscriber_name(name: str) -> None:
    """Raise ``InvalidCall`` unless it is a subscriber's name."""
    if not 1 <= len(name) <= SUBSCRIBER_NAME_CHARS_MAX or not name.isprintable() or name != name.strip():
        raise InvalidCall(
            f"{name!r:.80} is no name of a subscriber",
            hint=f"1 to {SUBSCRIBER_NAME_CHARS_MAX} characters that print, no space at the ends",
        )


@dataclass(frozen=True, slots=True)
class Followed:
    """A mirrored subscriber: what it has consumed, and whether a consumer is connected, which is a sign of life."""

    cut: Cut
    is_connected: bool


def followed(
    registry: Registry,
    wanted: Mapping[str, Followed],
    gone: Collection[str],
    rules: CutRules,
    *,
    now_ms: int,
    renew_ms: int | None,
) -> Registry:
    """The registry updated with mirrored subscribers.

    Args:
        registry: the current one.
        wanted: by the subscriber's name.
        gone: names of subscribers to remove.
        rules: of the stream's cuts; an invalid cut changes nothing.
        now_ms: the time.
        renew_ms: maximum age of a connected subscriber's sign of life before renewal; ``None``: no renewal.

    Raises:
        LimitReached: too many subscribers.
    """
    for name, each in wanted.items():
        found = registry.subscribers.get(name)
        generation = 0 if found is None else found.generation
        if found is None:
            registry = registry.add(name, generation, now_ms=now_ms)
        elif found.cut is not None and rules.reaches(found.cut, each.cut) and rules.reaches(each.cut, found.cut):
            is_old = renew_ms is not None and now_ms - found.active_ms > renew_ms
            if not (each.is_connected and is_old):
                continue
        outcome = registry.publish(name, generation, each.cut, rules, now_ms=now_ms)
        if outcome.status is PublishStatus.CUT_NOT_VALID and not rules.problem(each.cut):
            again = registry.remove(name, generation).add(name, generation + 1, now_ms=now_ms)
            outcome = again.publish(name, generation + 1, each.cut, rules, now_ms=now_ms)
        registry = outcome.registry
    for name in gone:
        there = registry.subscribers.get(name)
        if there is not None:
            registry = registry.remove(name, there.generation)
    return registry


_HOW_CUTS_ARE = "a cut has the positions of the first entries still needed, never before an earlier cut"
#: Forms of a cut in calls: a position of a stream without partitions, positions by partition, or a cut.
CutLike = Position | Mapping[int, Position] | Cut


def open_retention(
    store: ObjectStore,
    stream: str,
    *,
    source_of: SourceOf | None = None,
    clock: Clock | None = None,
    entropy: Callable[[int], bytes] = os.urandom,
) -> StreamRetention:
    """Open the retention state of a stream, or of a partitioned topic by the topic's name.

    Args:
        store: where the stream is; open for writing, for every change.
        stream: its name; of ``<topic>-partition-0``, ``-1``, ... name the topic.
        source_of: the hot tier by a stream's name, for subscribers that read entries before they are offloaded; without
            it a stream ends at its committed end.
        clock: for times of activity.
        entropy: source of random bytes.

    Raises:
        NotFound: no such stream, and no such topic.
        InvalidCall: not a stream's name, or one partition of a topic.
    """
    documents = DocumentStore(store, clock or SystemClock(), entropy)
    find_place(store, stream)
    return StreamRetention(documents, stream, source_of or (lambda _: None), entropy)


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriberStatus:
    """State of one subscriber for display.

    Attributes:
        subscriber: its row of the registry.
        activity: whether it holds data back.
        lag_bytes, lag_entries: payload bytes and entries from its cut, or its start, to the tail.
    """

    subscriber: Subscriber
    activity: Activity
    lag_bytes: int
    lag_entries: int

    def as_json(self) -> dict[str, object]:
        """For programs."""
        return {
            **self.subscriber.as_json(),
            "activity": self.activity.value,
            "lag_bytes": self.lag_bytes,
            "lag_entries": self.lag_entries,
        }


class StreamRetention:
    """See ``open_retention``. Thread-safe: it only caches the latest views of the manifests."""

    def __init__(
        self, documents: DocumentStore, name: str, source_of: SourceOf, entropy: Callable[[int], bytes] = os.urandom
    ) -> None:
        self.name = name
        self.documents = documents
        self._source_of = source_of
        self._entropy = entropy
        self._views: dict[str, ManifestState] = {}

    def place(self, *, create: bool = False) -> Place:
        """Location of the state; see ``find_place``."""
        return find_place(self.documents.store, self.name, create=create, entropy=self._entropy)

    def cuts(
        self, place: Place | None = None, known: Mapping[int, Known] | None = None, *, ahead: Iterable[int] = ()
    ) -> OwnCuts:
        """The stream's current entries, counted and checked.

        Args:
            place: where the state is, if already known.
            known: where sizes are counted from, by partition.
            ahead: partitions to load now, in parallel; others are loaded on access.
        """
        found = place or self.place()
        partitions = LoadedPartitions(self.documents.store, found, self._source_of, known, self._views)
        partitions.load(ahead)
        return OwnCuts(partitions)

    def tail(self) -> Cut:
        """Current end of the stream: after the newest entry of each partition."""
        place = self.place()
        return self.cuts(place, ahead=place.partitions).tail()

    def registry(self, place: Place | None = None) -> Registry:
        """Current subscribers.

        Raises:
            Corrupt: the registry is damaged. Nothing is deleted then, as the subscribers' positions are unknown.
        """
        found = place or self.place()
        if found.incarnation is None:
            return Registry()
        stored = self.documents.read(*self._document(found))
        return _registry(stored, found)

    def add(self, name: str, *, generation: int = 0, start: CutLike | None = None) -> Subscriber:
        """Register a subscriber, or raise the generation of an existing one; see ``Registry.add``.

        Args:
            name: of the subscriber.
            generation: from an owner that counts them, else 0.
            start: where it begins; default: at the stream's beginning.

        Raises:
            NotFound: the stream was deleted.
            InvalidCall: not a name, a generation, a cut of the stream.
            LimitReached: too many subscribers.
        """
        require_subscriber_name(name)
        place = self.place()
        begin = None
        if start is not None:
            own = self.cuts(place)
            begin = own.canonical(cut_of(start))
            problem = own.problem(begin)
            if problem:
                what = f"subscriber {name} of stream {self.name} can't start at {begin}: {problem}"
                raise InvalidCall(what, hint=_HOW_CUTS_ARE)
        # Create it only now: a refused call leaves nothing behind.
        place = self.place(create=True) if place.is_topic else place

        def added(registry: Registry, now_ms: int) -> Registry:
            return registry.add(name, generation, now_ms=now_ms, start=begin)

        return self._changed(place, added).subscribers[name]

    def remove(self, name: str, *, generation: int | None = None) -> bool:
        """Remove a subscriber, unless its generation is higher by now (default: any generation).

        Returns:
            Whether it is unregistered now.
        """
        place = self.place()
        if place.incarnation is None:
            return True

        def removed(registry: Registry, _: int) -> Registry:
            found = registry.subscribers.get(name)
            given = generation if generation is not None or found is None else found.generation
            return registry if given is None else registry.remove(name, given)

        return name not in self._changed(place, removed).subscribers

    def follow(
        self, wanted: Mapping[str, Followed], *, gone: Collection[str] = (), renew_ms: int | None = None
    ) -> Registry:
        """Update mirrored subscribers in one write; see ``followed``.

        Args:
            wanted: name -> what it has consumed; the cuts are this stream's.
            gone: names to remove.
            renew_ms: maximum age of a connected subscriber's sign of life before renewal; ``None``: no renewal.

        Raises:
            NotFound: the stream was deleted.
            LimitReached: too many subscribers.
        """
        place = self.place(create=True) if wanted else self.place()
        if place.incarnation is None:
            return Registry()
        own = self.cuts(place, ahead=place.partitions)

        def changed(registry: Registry, now_ms: int) -> Registry:
            return followed(registry, wanted, gone, own, now_ms=now_ms, renew_ms=renew_ms)

        return self._changed(place, changed)

    def try_publish(self, name: str, cut: CutLike, *, generation: int | None = None) -> Published:
        """Record what a subscriber has consumed; the status shows whether it was accepted.

        Args:
            name: of the subscriber.
            cut: everything before it; the positions are those of the first entries that are still needed.
            generation: of the subscriber's registration; default: any.

        Raises:
            OffloaderError: the store or a document of it failed, not the call: retry, or inspect the document.
        """
        try:
            place = self.place()
            given = cut_of(cut)
            own = self.cuts(place, ahead=[segment.number for segment in given.offsets])
            wanted = own.canonical(given)
        except NotFound as error:
            return Published(Registry(), PublishStatus.STREAM_NOT_FOUND, error.message)
        except InvalidCall as error:
            return Published(Registry(), PublishStatus.CUT_NOT_VALID, error.message)
        outcome = Published(Registry(), PublishStatus.SUBSCRIBER_NOT_FOUND, f"{name} isn't registered; nobody is")
        if place.incarnation is None:
            return outcome

        def published(registry: Registry, now_ms: int) -> Registry:
            nonlocal outcome
            found = registry.subscribers.get(name)
            expected = generation if generation is not None or found is None else found.generation
            outcome = registry.publish(name, expected or 0, wanted, own, now_ms=now_ms)
            return outcome.registry

        try:
            self._changed(place, published)
        except NotFound as error:
            return Published(Registry(), PublishStatus.STREAM_NOT_FOUND, error.message)
        return outcome

    def publish(self, name: str, cut: CutLike, *, generation: int | None = None) -> Subscriber:
        """As ``try_publish``; a refusal raises and changed nothing.

        Raises:
            NotFound: no such stream, or no such subscriber.
            InvalidCall: another generation, or a cut that is invalid or behind the last one.
        """
        outcome = self.try_publish(name, cut, generation=generation)
        error = self.refusal(outcome)
        if error is not None:
            raise error
        return outcome.registry.subscribers[name]

    def refusal(self, outcome: Published) -> OffloaderError | None:
        """Error of a refused publish."""
        match outcome.status:
            case PublishStatus.SUCCESS:
                return None
            case PublishStatus.STREAM_NOT_FOUND:
                return NotFound(outcome.why, hint="`offloader ls` lists the streams")
            case PublishStatus.SUBSCRIBER_NOT_FOUND:
                hint = f"`offloader retention add {self.name} NAME` registers one"
                return NotFound(f"stream {self.name}: subscriber {outcome.why}", hint=hint)
            case PublishStatus.GENERATION_MISMATCH:
                return InvalidCall(f"stream {self.name}: {outcome.why}", hint="publish with the newest generation")
            case PublishStatus.CUT_NOT_VALID:
                return InvalidCall(f"stream {self.name}: {outcome.why}", hint=_HOW_CUTS_ARE)

    def subscribers(self, *, timeout_ms: int | None = None, connected: Collection[str] = ()) -> list[SubscriberStatus]:
        """All subscribers with their lag.

        Args:
            timeout_ms: silence after which one doesn't count; ``None``: never.
            connected: names of those with a connected consumer.
        """
        place = self.place()
        registry = self.registry(place)
        if not registry.subscribers:
            return []
        own = self.cuts(place, ahead=place.partitions)
        activities = registry.active(
            now_ms=self.documents.clock.now_ms(), timeout_ms=timeout_ms, tail=own.tail(), rules=own, connected=connected
        )
        total, head = own.total(), own.head()
        found = []
        for name, cut in registry.bounding(Cut(), protect_unpublished=True).items():
            # Truncated entries are unreadable and don't count as lag.
            lag = total.minus(own.size_before(own.joined(cut, head)))
            found.append(
                SubscriberStatus(
                    subscriber=registry.subscribers[name],
                    activity=activities[name],
                    lag_bytes=max(lag.payload_bytes, 0),
                    lag_entries=max(lag.entries, 0),
                )
            )
        return found

    def _document(self, place: Place) -> tuple[str, Subscribers]:
        assert place.incarnation is not None, "made before something is written"
        key = document_key(Subscribers, self.name, place.incarnation)
        return key, Subscribers(name=self.name, partitions=place.rows)

    def _changed(self, place: Place, change: Callable[[Registry, int], Registry]) -> Registry:
        """Apply a change to the registry; an unchanged one isn't written."""

        def alter(stored: Stored[Subscribers]) -> Subscribers | None:
            before = _registry(stored, place)
            # With a slow clock the subscriber would look silent: the registry's last change is certainly past.
            after = change(before, max(self.documents.clock.now_ms(), stored.modified_ms))
            if after == before:
                return None
            rows = tuple(_row(after.subscribers[name]) for name in after.names())
            return replace(stored.document, partitions=place.rows, subscribers=rows)

        return _registry(self.documents.change(*self._document(place), alter), place)


def cut_of(cut: CutLike) -> Cut:
    """Convert to a cut of this stream.

    Raises:
        InvalidCall: an offset that is no position.
    """
    if isinstance(cut, Cut):
        return cut
    positions = {0: cut} if isinstance(cut, Position) else cut
    return Cut({partition_segment(number): position for number, position in positions.items()})


def _registry(stored: Stored[Subscribers], place: Place) -> Registry:
    document = stored.document
    alive = {row.number for row in document.partitions if place.is_alive(row)}
    found = {}
    for row in document.subscribers:
        found[row.name] = Subscriber(
            name=row.name,
            generation=row.generation,
            updated_ms=row.updated_ms,
            # No activity is later than the last write: a clock far ahead must not hold data back forever.
            active_ms=min(row.active_ms, stored.modified_ms or row.active_ms),
            cut=None if row.cut is None else cut_of_rows(row.cut, alive),
            start=None if row.start is None else cut_of_rows(row.start, alive),
        )
    return Registry(found)


def _row(subscriber: Subscriber) -> SubscriberRow:
    return SubscriberRow(
        name=subscriber.name,
        generation=subscriber.generation,
        updated_ms=subscriber.updated_ms,
        active_ms=subscriber.active_ms,
        cut=None if subscriber.cut is None else rows_of_cut(subscriber.cut),
        start=None if subscriber.start is None else rows_of_cut(subscriber.start),
    )
