"""A stream's subscribers: registration, acknowledged positions, activity.

A registry that is lost, or restored to before a registration, would allow the deletion of entries that a subscriber
hasn't read. Therefore the boundary of the stream's manifest (of a topic: of its first partition) names the revision of
the registry at its newest registration or removal, after that was written and before the call returns. Each process
that reads the registry to decide or to register compares the two. With an older registry nothing is deleted and no
subscriber is registered, until the document is restored or ``accept_registry`` accepts the loss.
"""

from __future__ import annotations

import enum
import os
from collections.abc import Callable, Collection, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Protocol

from formats.documents import SubscriberRow, Subscribers
from formats.entries import Position
from offloader.errors import CorruptError, InvalidCallError, LimitReachedError, NotFoundError, OffloaderError
from offloader.manifest.boundary import change_boundary, read_boundary
from offloader.manifest.names import stream_name
from offloader.manifest.state import ManifestState
from offloader.parallel_map import at_once
from offloader.retention.cuts import StreamCut, cut_at, cut_of_rows, rows_of_cut
from offloader.retention.entries import Known, StreamEntries
from offloader.retention.former import former_registry
from offloader.retention.lineage import Lineage
from offloader.retention.scope import (
    DocumentStore,
    LoadedPartitions,
    Partition,
    ReadableOf,
    Scope,
    Stored,
    find_scope,
    no_source,
    require_own_state,
)
from offloader.runtime.clock import Clock, SystemClock
from offloader.store.base import ObjectStore, require_open_store

#: Most subscribers of one stream. Each takes some hundred bytes of one object, and a comparison in each cycle.
SUBSCRIBERS_MAX = 1000
#: Longest name of a subscriber.
SUBSCRIBER_NAME_CHARS_MAX = 255
#: An equal publish is a sign of life; within this time after the last one it changes nothing.
RENEWED_MS_MIN = 1000
_GENERATION_MAX = 2**63 - 1


class CutRules(Protocol):
    """Checks of cuts against a stream's history."""

    def problem(self, cut: StreamCut) -> str:
        """Why ``cut`` is no cut of the stream; empty if it is one."""

    def reaches(self, one: StreamCut, other: StreamCut) -> bool:
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
        generation: of its registration.
        updated_ms: its registration or last change of the cut, ms since 1970 UTC.
        active_ms: its last sign of life: an equal publish is one.
        cut: position up to which it has consumed; ``None``: it has never published.
        start: where it began; ``None``: at the stream's beginning.
    """

    name: str
    generation: int
    updated_ms: int
    active_ms: int
    cut: StreamCut | None = None
    start: StreamCut | None = None

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

    def add(self, name: str, generation: int, *, now_ms: int, start: StreamCut | None = None) -> Registry:
        """Register a subscriber, or raise its generation and keep its cut; a lower generation is ignored.

        Args:
            name: any text that prints on one line.
            generation: 0 or more.
            now_ms: the time; registering again is a sign of life.
            start: where a new one begins; ``None``: at the stream's beginning.

        Raises:
            InvalidCallError: not a name or a generation.
            LimitReachedError: there are ``SUBSCRIBERS_MAX`` others.
        """
        require_subscriber_name(name)
        if not 0 <= generation <= _GENERATION_MAX:
            raise InvalidCallError(f"subscriber {name}: {generation} is not a generation", hint="use 0 or more")
        found = self.subscribers.get(name)
        if found is not None and generation < found.generation:
            return self
        if found is None and len(self.subscribers) >= SUBSCRIBERS_MAX:
            raise _no_room(name, self)
        if found is None:
            return self._with(
                Subscriber(name=name, generation=generation, updated_ms=now_ms, active_ms=now_ms, start=start)
            )
        active_ms = max(found.active_ms, now_ms)
        updated_ms = active_ms if generation > found.generation else found.updated_ms
        return self._with(replace(found, generation=generation, updated_ms=updated_ms, active_ms=active_ms))

    def remove(self, name: str, generation: int) -> Registry:
        """Remove a subscriber and its cut, unless its generation is higher. Idempotent."""
        if (found := self.subscribers.get(name)) is None or generation < found.generation:
            return self
        return Registry({each: row for each, row in self.subscribers.items() if each != name})

    def publish(self, name: str, generation: int, cut: StreamCut, rules: CutRules, *, now_ms: int) -> Published:
        """Record that a subscriber has consumed everything before ``cut``; an equal cut is a sign of life.

        Times don't move back, even if the clock does.
        """
        if (found := self.subscribers.get(name)) is None:
            known = ", ".join(self.names()[:5]) or "none"
            return Published(self, PublishStatus.SUBSCRIBER_NOT_FOUND, f"{name} isn't registered; registered: {known}")
        if generation != found.generation:
            return Published(
                self,
                PublishStatus.GENERATION_MISMATCH,
                f"subscriber {name} has generation {found.generation}, not {generation}: it was registered again",
            )
        problem = rules.problem(cut)
        if not problem and found.cut is not None and not rules.reaches(cut, found.cut):
            problem = f"it isn't at or after {found.cut}, which was published earlier"
        if problem:
            return Published(self, PublishStatus.CUT_NOT_VALID, f"the cut {cut} of subscriber {name}: {problem}")
        moved = found.cut is None or not rules.reaches(found.cut, cut)
        active_ms = max(found.active_ms, now_ms)
        if not moved and active_ms - found.active_ms < RENEWED_MS_MIN:
            return Published(self, PublishStatus.SUCCESS)
        active = replace(found, active_ms=active_ms)
        after = replace(active, cut=cut, updated_ms=active_ms) if moved else active
        return Published(self._with(after), PublishStatus.SUCCESS)

    def active(
        self,
        *,
        now_ms: int,
        timeout_ms: int | None,
        tail: StreamCut | None,
        rules: CutRules,
        connected: Collection[str] = (),
    ) -> dict[str, Activity]:
        """Whether each subscriber holds data back; see ``Subscriber.activity``.

        Args:
            tail: the newest cut; ``None``: unknown, then no subscriber counts as at the tail.
            connected: names of subscribers with a connected consumer.
        """
        return {
            name: each.activity(
                now_ms=now_ms,
                timeout_ms=timeout_ms,
                is_at_tail=tail is not None and each.cut is not None and rules.reaches(each.cut, tail),
                is_connected=name in connected,
            )
            for name, each in sorted(self.subscribers.items())
        }

    def bounding(self, first: StreamCut, *, protect_unpublished: bool = False) -> dict[str, StreamCut]:
        """Cuts that may hold data back, by name, of silent subscribers too.

        Args:
            first: the stream's beginning, used for a subscriber without a start cut.
            protect_unpublished: count subscribers that never published at their start; else they hold nothing back.
        """
        return {
            name: each.cut or each.start or first
            for name, each in sorted(self.subscribers.items())
            if each.cut is not None or protect_unpublished
        }

    def _with(self, subscriber: Subscriber) -> Registry:
        return Registry({**self.subscribers, subscriber.name: subscriber})


def _no_room(name: str, registry: Registry) -> LimitReachedError:
    return LimitReachedError(
        f"subscriber {name} can't be registered: the limit of {len(registry.subscribers)} is reached",
        hint="remove unused ones",
    )


def require_subscriber_name(name: str) -> None:
    """Raise ``InvalidCallError`` unless it is a subscriber's name."""
    if not 1 <= len(name) <= SUBSCRIBER_NAME_CHARS_MAX or not name.isprintable() or name != name.strip():
        raise InvalidCallError(
            f"{name!r:.80} isn't a valid subscriber name",
            hint=f"1 to {SUBSCRIBER_NAME_CHARS_MAX} printable characters without spaces at the ends",
        )


@dataclass(frozen=True, slots=True)
class Followed:
    """A mirrored subscriber: its cut, and whether a consumer is connected, which counts as activity."""

    cut: StreamCut
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
        wanted: by the subscriber's name.
        gone: names of subscribers to remove.
        rules: of the stream's cuts; an invalid cut changes nothing.
        renew_ms: maximum age of a connected subscriber's sign of life before renewal; ``None``: no renewal.

    Returns:
        It lacks new subscribers above ``SUBSCRIBERS_MAX``.
    """
    registry = Registry({name: each for name, each in registry.subscribers.items() if name not in gone})
    for name, each in wanted.items():
        found = registry.subscribers.get(name)
        generation = 0 if found is None else found.generation
        if found is None:
            if name in gone or len(registry.subscribers) >= SUBSCRIBERS_MAX:
                continue
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
    return registry


_HOW_CUTS_ARE = "a cut has the positions of the first entries still needed, never before an earlier cut"
#: Forms of a cut in calls: a position of a stream without partitions, positions by partition, or a cut.
CutLike = Position | Mapping[int, Position] | StreamCut


def open_retention(
    store: ObjectStore,
    stream: str,
    *,
    source_of: ReadableOf | None = None,
    clock: Clock | None = None,
    entropy: Callable[[int], bytes] = os.urandom,
) -> StreamRetention:
    """Open the retention state of a stream, or of a partitioned topic by the topic's name.

    Args:
        store: where the stream is; open for writing, for every change.
        stream: its name, or its topic's, ``persistent://tenant/ns/topic``; of ``<topic>-partition-0``, ``-1``, ... name
            the topic.
        source_of: the hot tier by a stream's name, for subscribers that read entries before they are offloaded; without
            it a stream ends at its committed end.

    Raises:
        NotFoundError: no such stream, and no such topic.
        InvalidCallError: not a stream's name, or one partition of a topic.
    """
    require_open_store(store)
    stream = stream_name(stream)
    documents = DocumentStore(store, clock or SystemClock(), entropy)
    find_scope(store, stream)
    return StreamRetention(documents, stream, source_of or no_source)


@dataclass(frozen=True, slots=True, kw_only=True)
class SubscriberStatus:
    """One subscriber for display; its lag is from its cut, or its start, to the tail, in payload bytes and entries."""

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

    def __init__(self, documents: DocumentStore, name: str, source_of: ReadableOf) -> None:
        self.name = name
        self.documents = documents
        self._source_of = source_of
        self._views: dict[str, ManifestState] = {}

    def scope(self, *, create: bool = False) -> Scope:
        """Partitions that the state covers; see ``find_scope``."""
        return find_scope(self.documents.store, self.name, create=create, entropy=self.documents.entropy)

    def cuts(
        self, scope: Scope | None = None, known: Mapping[int, Known] | None = None, *, ahead: Iterable[int] = ()
    ) -> StreamEntries:
        """The stream's current entries, counted and checked.

        Args:
            known: where sizes are counted from, by partition.
            ahead: partitions to load now, in parallel; others are loaded on access.
        """
        found = scope or self.scope()
        partitions = LoadedPartitions(self.documents.store, found, self._source_of, known, self._views)
        partitions.load(ahead)
        return StreamEntries(partitions)

    def tail(self) -> StreamCut:
        """Current end of the stream: after the newest entry of each partition."""
        scope = self.scope()
        return self.cuts(scope, ahead=scope.partitions).tail()

    def registry(self, scope: Scope | None = None) -> Registry:
        """Current subscribers.

        Raises:
            CorruptError: their document is damaged, missing, or older than one that certainly existed: nothing is
                deleted.
        """
        found = scope or self.scope()
        named = self._named_revision(found)  # before the registry, which may only get newer
        stored = self._read(found, named=named)
        self._require_newest(stored.document.version.revision, named)
        return _registry(stored, found)

    def _read(self, scope: Scope, *, named: int) -> Stored[Subscribers]:
        """The registry as stored; of a scalable topic without one, that of its parts, if they name one."""
        nobody = Subscribers(name=scope.name, partitions=scope.rows)
        stored = Stored(nobody, None)
        if scope.incarnation is not None:
            stored = self.documents.read(scope.key(Subscribers), nobody)
        if stored.etag is None and scope.layout is not None and named:
            return Stored(former_registry(self.documents, scope), None)
        return stored

    def accept_registry(self, *, dry_run: bool = False) -> tuple[int, int]:
        """Accepts the current registry although a newer one existed; subscribers only in the newer one are lost.

        Returns:
            Its revision, and the one that the manifest named.
        """
        scope = self.scope()
        named, revision = self._named_revision(scope), 0
        if scope.incarnation is not None:
            revision = self._read(scope, named=named).document.version.revision
        if revision < named and not dry_run:
            self._name_revision(scope, lambda _: revision)
        return revision, named

    def _named_revision(self, scope: Scope) -> int:
        """The revision that certainly existed; 0: none.

        Every partition that existed at a registration names it. The first partition decides, unless it names none: it
            may have been created, or created again, since then.
        """
        first, *others = (scope.partitions[number] for number in sorted(scope.partitions))
        named = self._named_by(first)
        return named if named or not others else max(at_once(self._named_by, others))

    def _named_by(self, partition: Partition) -> int:
        with suppress(NotFoundError):  # the stream is being created, or was deleted
            stored = read_boundary(self.documents.store, partition.stream, partition.incarnation)
            return stored.boundary.subscribers_revision
        return 0

    def _name_revision(self, scope: Scope, revision: Callable[[int], int]) -> None:
        """Changes the revision named by each partition, the first one before the others."""

        def name(partition: Partition) -> None:
            change_boundary(
                *(self.documents.store, partition.stream, partition.incarnation),
                lambda found: replace(found, subscribers_revision=revision(found.subscribers_revision)),
            )

        def name_other(partition: Partition) -> None:
            with suppress(NotFoundError):  # it was deleted meanwhile
                name(partition)

        first, *others = (scope.partitions[number] for number in sorted(scope.partitions))
        name(first)
        at_once(name_other, others)

    def _require_newest(self, revision: int, named: int) -> None:
        if revision < named:
            what = f"is revision {revision}" if revision else "is missing"
            raise CorruptError(
                f"stream {self.name}: its registry of subscribers {what}, but revision {named} existed: it was lost "
                "or restored to an earlier state. Nothing is deleted",
                hint="restore its newest version; or register missing subscribers again after `offloader subscriber "
                f"accept-loss {self.name}`",
            )

    def add(self, name: str, *, generation: int = 0, start: CutLike | None = None) -> Subscriber:
        """Register a subscriber, or raise the generation of an existing one; see ``Registry.add``.

        Args:
            generation: from an owner that counts them, else 0.
            start: where it begins; default: at the stream's beginning.

        Raises:
            NotFoundError: the stream was deleted.
            InvalidCallError: not a name, a generation, a cut of the stream.
            LimitReachedError: too many subscribers.
        """
        added = self.add_if(lambda: True, name, generation=generation, start=start)
        assert added is not None, "it is always wanted"
        return added

    def add_if(
        self, is_wanted: Callable[[], bool], name: str, *, generation: int, start: CutLike | None
    ) -> Subscriber | None:
        """As ``add``, unless it isn't wanted any more, which returns ``None`` and changes nothing.

        Args:
            is_wanted: called each time the registry was read, before it is replaced. After it has turned false, a
                removal with a generation leaves no subscriber, whatever calls of this are under way.
        """
        require_subscriber_name(name)
        scope = self.scope()
        begin = None
        if start is not None:
            own = self.cuts(scope)
            begin = own.canonical(cut_of(start))
            if problem := own.problem(begin):
                raise InvalidCallError(
                    f"subscriber {name} of stream {self.name} can't start at {begin}: {problem}", hint=_HOW_CUTS_ARE
                )
        # Create it only now: a refused call leaves nothing behind.
        scope = self.scope(create=True) if scope.is_topic else scope
        registered: list[Subscriber] = []

        def added(registry: Registry, now_ms: int) -> Registry:
            registered.clear()
            if not is_wanted():
                return registry
            after = registry.add(name, generation, now_ms=now_ms, start=begin)
            registered.append(after.subscribers[name])
            return after

        registry = self._changed(scope, added, registers=True)
        # If the answer was lost, another call may have removed it again before it was looked for.
        return registry.subscribers.get(name, registered[0]) if registered else None

    def remove(self, name: str, *, generation: int | None = None) -> bool:
        """Remove a subscriber, unless its generation is higher by now (default: any generation).

        With a generation the registry is written in any case: an ``add_if`` that read it earlier has to read it again.

        Returns:
            Whether it is unregistered now.
        """
        scope = self.scope()
        if scope.incarnation is None:
            return True

        def removed(registry: Registry, _: int) -> Registry:
            found = registry.subscribers.get(name)
            given = generation if generation is not None or found is None else found.generation
            return registry if given is None else registry.remove(name, given)

        return name not in self._changed(scope, removed, always=generation is not None, registers=True).subscribers

    def follow(
        self, wanted: Mapping[str, Followed], *, gone: Collection[str] = (), renew_ms: int | None = None
    ) -> Registry:
        """Update mirrored subscribers in one write; arguments as for ``followed``, the cuts are this stream's.

        Raises:
            NotFoundError: the stream was deleted.
            LimitReachedError: too many subscribers; all but the new ones for which there is no room are updated.
        """
        scope = self.scope(create=True) if wanted else self.scope()
        if scope.incarnation is None:
            return Registry()
        own = self.cuts(scope, ahead=scope.partitions)

        def updated(registry: Registry, now_ms: int) -> Registry:
            # A clock behind the registry's last change doesn't tell how long ago that was.
            is_behind = self.documents.clock.now_ms() < now_ms
            due_ms = -1 if is_behind and renew_ms is not None else renew_ms
            return followed(registry, wanted, gone, own, now_ms=now_ms, renew_ms=due_ms)

        registry = self._changed(scope, updated, registers=True)
        left = wanted.keys() - registry.subscribers.keys() - set(gone)
        # Another process may have removed one meanwhile.
        if left and len(registry.subscribers) >= SUBSCRIBERS_MAX:
            raise _no_room(min(left), registry)
        return registry

    def try_publish(self, name: str, cut: CutLike, *, generation: int | None = None) -> Published:
        """Record the position up to which a subscriber has consumed; the status shows whether it was accepted.

        Args:
            cut: everything before it; the positions are those of the first entries that are still needed.
            generation: of the subscriber's registration; default: any.

        Raises:
            OffloaderError: the store or a document of it failed, not the call: retry, or inspect the document.
        """
        outcome = Published(
            Registry(), PublishStatus.SUBSCRIBER_NOT_FOUND, f"{name} isn't registered; registered: none"
        )

        def published(registry: Registry, now_ms: int) -> Registry:
            nonlocal outcome
            found = registry.subscribers.get(name)
            expected = generation if generation is not None or found is None else found.generation
            outcome = registry.publish(name, expected or 0, own.canonical(given), own, now_ms=now_ms)
            return outcome.registry

        try:
            scope, given = self.scope(), cut_of(cut)
            own = self.cuts(scope, ahead=[segment.number for segment in given.offsets])
            if scope.incarnation is not None:
                self._changed(scope, published)
        except NotFoundError as error:
            return Published(Registry(), PublishStatus.STREAM_NOT_FOUND, error.message)
        except InvalidCallError as error:
            return Published(Registry(), PublishStatus.CUT_NOT_VALID, error.message)
        return outcome

    def publish(self, name: str, cut: CutLike, *, generation: int | None = None) -> Subscriber:
        """As ``try_publish``; a refusal raises and changed nothing.

        Raises:
            NotFoundError: no such stream, or no such subscriber.
            InvalidCallError: another generation, or a cut that is invalid or behind the last one.
        """
        outcome = self.try_publish(name, cut, generation=generation)
        if (error := self.refusal(outcome)) is not None:
            raise error
        return outcome.registry.subscribers[name]

    def refusal(self, outcome: Published) -> OffloaderError | None:
        """Error of a refused publish."""
        stream, why, register = self.name, outcome.why, f"`offloader subscriber add {self.name} NAME` registers one"
        errors: dict[PublishStatus, OffloaderError] = {
            PublishStatus.STREAM_NOT_FOUND: NotFoundError(why, hint="run `offloader ls` to list the streams"),
            PublishStatus.SUBSCRIBER_NOT_FOUND: NotFoundError(f"stream {stream}: subscriber {why}", hint=register),
            PublishStatus.GENERATION_MISMATCH: InvalidCallError(
                f"stream {stream}: {why}", hint="publish with the newest generation"
            ),
            PublishStatus.CUT_NOT_VALID: InvalidCallError(f"stream {stream}: {why}", hint=_HOW_CUTS_ARE),
        }
        return None if outcome.status is PublishStatus.SUCCESS else errors[outcome.status]

    def subscribers(self, *, timeout_ms: int | None = None, connected: Collection[str] = ()) -> list[SubscriberStatus]:
        """All subscribers with their lag.

        Args:
            timeout_ms: silence after which one doesn't count; ``None``: never.
            connected: names of those with a connected consumer.
        """
        scope = self.scope()
        registry = self.registry(scope)
        if not registry.subscribers:
            return []
        own = self.cuts(scope, ahead=scope.partitions)
        activities = registry.active(
            now_ms=self.documents.clock.now_ms(), timeout_ms=timeout_ms, tail=own.tail(), rules=own, connected=connected
        )
        lineage, total, head = Lineage.of_partitions(scope.partitions), own.total(), own.head()
        cuts = registry.bounding(StreamCut(), protect_unpublished=True)
        # Truncated entries are unreadable and don't count as lag.
        lags = {name: total.minus(own.size_before(lineage.join((cut, head)))) for name, cut in cuts.items()}
        return [
            SubscriberStatus(
                subscriber=registry.subscribers[name],
                activity=activities[name],
                lag_bytes=max(lag.payload_bytes, 0),
                lag_entries=max(lag.entries, 0),
            )
            for name, lag in lags.items()
        ]

    def _changed(
        self,
        scope: Scope,
        change: Callable[[Registry, int], Registry],
        *,
        always: bool = False,
        registers: bool = False,
    ) -> Registry:
        """Apply a change to the registry; an unchanged one is written only if ``always``.

        Args:
            registers: the change may register or remove subscribers.
        """
        named = self._named_revision(scope) if registers else 0
        names = set[tuple[str, int]]()

        def alter(stored: Stored[Subscribers]) -> Subscribers | None:
            self._require_newest(stored.document.version.revision, named)
            before = _registry(stored, scope)
            names.clear()
            names.update((each.name, each.generation) for each in before.subscribers.values())
            # With a slow clock the subscriber would look silent: the registry's last change is certainly past.
            after = change(before, max(self.documents.clock.now_ms(), stored.modified_ms))
            if after == before and not always:
                return None
            rows = tuple(_row(after.subscribers[name]) for name in after.names())
            return replace(stored.document, partitions=scope.rows, subscribers=rows)

        empty = Subscribers(name=scope.name, partitions=scope.rows)
        if scope.layout is not None:
            before = self._read(scope, named=self._named_revision(scope))
            empty = before.document if before.etag is None else empty
        stored = self.documents.change(scope.key(Subscribers), empty, alter)
        registry = _registry(stored, scope)
        if registers:
            require_own_state(
                self.documents.store, self.name
            )  # a topic that was migrated meanwhile refuses its former name: register there again
        # Also where an earlier call ended between the two writes.
        if registers and (not named or names != {(s.name, s.generation) for s in registry.subscribers.values()}):
            revision = stored.document.version.revision
            if revision > named:
                self._name_revision(scope, lambda found: max(found, revision))
        return registry


def cut_of(cut: CutLike) -> StreamCut:
    """Convert to a cut of this stream; raises ``InvalidCallError`` for an offset that is no position."""
    return cut if isinstance(cut, StreamCut) else cut_at({0: cut} if isinstance(cut, Position) else cut)


def _registry(stored: Stored[Subscribers], scope: Scope) -> Registry:
    document = stored.document
    alive = scope.alive(document.partitions)
    found = [
        Subscriber(
            name=row.name,
            generation=row.generation,
            updated_ms=row.updated_ms,
            # No activity is later than the last write: a clock far ahead must not hold data back forever.
            active_ms=min(row.active_ms, stored.modified_ms or row.active_ms),
            cut=None if row.cut is None else cut_of_rows(row.cut, alive),
            start=None if row.start is None else cut_of_rows(row.start, alive),
        )
        for row in document.subscribers
    ]
    return Registry({each.name: each for each in found})


def _row(subscriber: Subscriber) -> SubscriberRow:
    return SubscriberRow(
        name=subscriber.name,
        generation=subscriber.generation,
        updated_ms=subscriber.updated_ms,
        active_ms=subscriber.active_ms,
        cut=None if subscriber.cut is None else rows_of_cut(subscriber.cut),
        start=None if subscriber.start is None else rows_of_cut(subscriber.start),
    )
