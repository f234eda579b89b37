"""Streams that are read together and followed: their ranges, and the hot tiers of the processes that write them.

A hot tier that can't be read delays entries and loses none: they are read once they are offloaded, or from the hot
tier of the stream's next owner. ``OwnersHotTiers`` finds it by the address in the manifest.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Generator, Iterator, Sequence
from contextlib import closing
from dataclasses import dataclass, replace

from formats.entries import TIME_UNKNOWN_MS, EntryBatch, Position
from offloader.errors import InvalidCallError, OffloaderError, OutcomeUnknownError
from offloader.ledgers.base import HotTierLostError, ReadableLedgers
from offloader.ledgers.sqlite.embedded import EmbeddedLedgers
from offloader.manifest.names import named_streams
from offloader.manifest.state import ManifestState
from offloader.owner_client import OwnerClient, OwnerHotTier, OwnerUnreachableError
from offloader.read.partitions import FollowedSegments, follow_all, merge_published, open_topic
from offloader.read.reader import Reader, load_stream, open_stream_reader
from offloader.retention.scope import no_source
from offloader.runtime.clock import Clock, SystemClock
from offloader.settings import ReadSettings, Settings
from offloader.store.base import ObjectStore
from offloader.times import duration_text

_log = logging.getLogger("offloader.follow")

#: The hot tier of a stream by its name; ``None``: this process can't read it.
SourceOf = Callable[[str], ReadableLedgers | None]
_Range = tuple[Position | None, Position | None]
#: First and last position, first and last time in ms, as ``Reader.range_of`` takes them; ``None``: the stream's own.
Asked = tuple[Position | None, Position | None, int | None, int | None]


@dataclass(frozen=True, slots=True)
class ReadStreams:
    """The opened readers and their ranges.

    Attributes:
        parts: the reader of the stream, or those of the partitions in their order, each with its first and last
        position; ``None``: it has no entries between the times.
        numbers: of the partitions, or ids of the segments; empty: it is one stream.
        streams: their names. ``follow`` appends new segments to both.
        schemas_of: a name that the schemas of the values belong to: of a stream, or of a scalable topic.
        after: of each part, the places of those that are read to their end before it.
    """

    parts: list[tuple[Reader, _Range | None]]
    numbers: list[int]
    streams: list[str]
    schemas_of: str
    after: Sequence[Sequence[int]] = ()
    segments: FollowedSegments | None = None

    @classmethod
    def opened(
        cls,
        store: ObjectStore,
        name: str,
        source_of: SourceOf,
        asked: Asked,
        settings_of: Callable[[str], Settings] = lambda _: Settings(),
    ) -> ReadStreams:
        """Opens the stream or topic ``name``, with the hot tier if ``source_of`` has one.

        Raises:
            NotFoundError: there is no such stream or topic.
            InvalidCallError: a position in a topic with partitions.
        """

        def opened(stream: str, settings: ReadSettings | None) -> Reader:
            own = settings_of(stream).read
            chosen = own if settings is None else replace(settings, relocate=own.relocate)
            return open_stream_reader(store, stream, settings=chosen, source=source_of(stream))

        named = named_streams(store, name)
        if not named.partitions:
            reader = opened(named.name, None)
            return cls([(reader, reader.range_of(*asked))], [], [reader.stream], reader.stream)
        if asked[0] is not None or asked[1] is not None:
            raise InvalidCallError(
                f"{named.name} has {len(named.partitions)} {named.kind}s, but a position belongs to one",
                hint=f"use --since and --until, or read one {named.kind}: {named.streams[0]}",
            )
        topic = open_topic(named, opened)
        parts = [(each, each.range_of(*asked)) for each in topic.partitions.values()]
        numbers, streams = list(topic.partitions), [each.stream for each in topic.partitions.values()]
        segments = None
        if named.layout is not None:

            def added(stream: str) -> Reader:
                streams.append(stream)
                return opened(stream, None)

            segments = FollowedSegments(lambda: named_streams(store, name), added, numbers)
        schemas_of = named.streams[0] if named.layout is None else named.name
        return cls(parts, numbers, streams, schemas_of, topic.after, segments)

    def close(self) -> None:
        """Closes all readers. Idempotent."""
        for reader, _ in self.parts:
            reader.close()

    def count(self) -> int:
        """Number of entries."""
        return sum(reader.count(*chosen) for reader, chosen in self.parts if chosen is not None)

    def scan(self) -> Generator[tuple[int, EntryBatch], None, None]:
        """The entries, merged by publish time, with the number of their stream in ``streams``."""
        scans: list[Iterator[EntryBatch]] = [
            iter(()) if chosen is None else reader.scan(*chosen) for reader, chosen in self.parts
        ]
        return merge_published(scans, self.after)

    def follow(
        self, owners: OwnersHotTiers, clock: Clock, stop: threading.Event, say: Callable[[str], object]
    ) -> Generator[tuple[int, EntryBatch], None, None]:
        """As ``scan``, and then new entries. Only new ones if no entries are between the times.

        Args:
            owners: the hot tiers; if one is lost, reads that of the stream's next owner, or offloaded entries only.
            say: called with a line of text about a lost or recovered hot tier.
        """
        starts = [_after(reader.last_position) if chosen is None else chosen[0] for reader, chosen in self.parts]

        def refreshed(reader: Reader) -> Reader:
            newer = reader.refresh(owners.of)
            for line in owners.news(newer):
                say(line)
            return newer

        readers = [reader for reader, _ in self.parts]
        return follow_all(readers, starts, clock=clock, stop=stop, refreshed=refreshed, segments=self.segments)

    def behind(self, now_ms: int) -> Iterator[str]:
        """Text lines with the lag of the streams of which only offloaded entries are read."""
        cold = [reader for reader, _ in self.parts if not reader.has_hot_tier]
        for reader in cold:
            yield f"stream {reader.stream}: {_cold_end(reader, now_ms)}"
        if cold:
            yield "newer entries appear after they are offloaded; with --ledgers, before"


def followed(
    store: ObjectStore,
    name: str,
    from_ms: int | None,
    database: EmbeddedLedgers | None,
    settings: Settings,
    stopping: threading.Event | None,
) -> Generator[tuple[str, EntryBatch], None, None]:
    """``Stream.follow``: batches with the names of their streams; logs what ``offloader read --follow`` notes.

    Args:
        from_ms: start at the earliest entry published then or later; ``None``: at the beginning.
    """

    def say(line: str) -> None:
        _log.warning("%s", line, extra={"event": "followed"})

    clock = SystemClock()
    owners = OwnersHotTiers(
        store, no_source if database is None else database.source_of, settings.access.owner_hosts, clock
    )
    part = ReadStreams.opened(store, name, owners, (None, None, from_ms, None), lambda _: settings)
    with closing(part):
        for line in owners.reasons:
            say(line)
        with closing(part.follow(owners, clock, stopping or threading.Event(), say)) as batches:
            for number, batch in batches:
                yield part.streams[number], batch


def _cold_end(reader: Reader, now_ms: int) -> str:
    """The end of a stream of which only the cold tier is read, as text."""
    newest = max((record.content.publish_time_max_ms for record in reader.segments()), default=TIME_UNKNOWN_MS)
    last, what = reader.state.committed_end(), "following offloaded entries only"
    if last is None:
        return f"{what}: none yet"
    if newest == TIME_UNKNOWN_MS:
        return f"{what}: up to {last} now"
    return f"{what}: up to {last} now, published {duration_text(max(now_ms - newest, 0) / 1000)} ago"


#: Time for which a follower tolerates a lost hot tier before it reports it, and the interval of further reports.
SILENCE_S_MAX, AGAIN_S = 10.0, 60.0
#: After an address did not answer, it gets no request for this time, for any stream.
ASK_AGAIN_S = 5.0


@dataclass(slots=True)
class _Outage:
    """A hot tier that can't be read: start, cause, time of the last report (``None``: none), and whether it ended."""

    since_s: float
    why: str
    said_s: float | None = None
    is_over: bool = False


class OwnersHotTiers:
    """Hot tiers of streams whose owners answer over HTTP; the others are left out.

    Args:
        found: the hot tiers that this process can read directly.
        hosts: that may receive a token, as for ``OwnerClient``.

    Attributes:
        reasons: a line for each owner's hot tier that could not be read at the start.
    """

    def __init__(self, store: ObjectStore, found: SourceOf, hosts: Collection[str], clock: Clock) -> None:
        self._store, self._found, self._hosts, self._clock = store, found, hosts, clock
        self.reasons = list[str]()
        self._own: dict[str, ReadableLedgers] = {}
        self._tiers: dict[str, OwnerHotTier] = {}
        self._outages: dict[str, _Outage] = {}
        self._silent: dict[str, tuple[float, HotTierLostError]] = {}

    def __call__(self, stream: str) -> ReadableLedgers | None:
        """The hot tier of a stream; ``None``: this process can't read it."""
        own = self._found(stream)
        if own is not None:
            self._own[stream] = own
            return own
        hot = self.of(load_stream(self._store, stream, may_be_absent=True))
        outage = self._outages.get(stream)
        if outage is not None:
            outage.said_s = self._clock.monotonic_s()  # ``reasons`` reports it
            self.reasons.append(f"stream {stream}: its owner can't provide entries that aren't offloaded: {outage.why}")
        return hot

    def of(self, state: ManifestState) -> ReadableLedgers | None:
        """The hot tier of the owner named in the manifest; ``None``: the owner does not answer, or has no hot tier."""
        stream, url = state.stream, state.owner.url
        if stream in self._own:
            return self._own[stream]
        known = self._tiers.get(stream)
        if known is not None and known.url == url.rstrip("/") and not known.lost:
            if stream in self._outages:  # a complete read of it succeeded
                self._outages[stream].is_over = True
            return known
        if known is not None and known.lost:
            self._note(stream, known.lost)
        try:
            self._tiers[stream] = hot = self._asked(stream, url)
        except OffloaderError as error:
            if known is not None or url:
                self._note(stream, error.message)
            return None
        return hot

    def _asked(self, stream: str, url: str) -> OwnerHotTier:
        """The hot tier at an address; raises ``HotTierLostError``, or an error about the address."""
        if not url:
            raise HotTierLostError("the manifest has no address of a serving process")
        at_s, error = self._silent.get(url, (0.0, None))
        if error is not None and self._clock.monotonic_s() - at_s < ASK_AGAIN_S:
            raise error
        hot = OwnerHotTier(OwnerClient(url, clock=self._clock, hosts=self._hosts), stream)
        try:
            hot.ledgers()
        except HotTierLostError as lost:
            if isinstance(lost.__cause__, OwnerUnreachableError | OutcomeUnknownError):
                self._silent[url] = self._clock.monotonic_s(), lost
            raise
        return hot

    def _note(self, stream: str, why: str) -> None:
        outage = self._outages.setdefault(stream, _Outage(self._clock.monotonic_s(), ""))
        outage.why, outage.is_over = why, False

    def news(self, reader: Reader) -> Iterator[str]:
        """Reports about a stream: its hot tier has been lost for long, or has recovered."""
        outage, now_s = self._outages.get(reader.stream), self._clock.monotonic_s()
        if outage is None:
            return
        if outage.is_over:
            del self._outages[reader.stream]
            if outage.said_s is not None:
                url = self._tiers[reader.stream].url
                yield f"stream {reader.stream}: the hot tier has recovered; reading it from {url}"
        elif now_s - (outage.since_s + SILENCE_S_MAX if outage.said_s is None else outage.said_s + AGAIN_S) >= 0:
            outage.said_s = now_s
            what = f"its owner has been unreachable for {duration_text(now_s - outage.since_s)}: {outage.why}"
            yield f"stream {reader.stream}: {what}; {_cold_end(reader, self._clock.now_ms())}"


def _after(position: Position | None) -> Position | None:
    return None if position is None else position.next()
