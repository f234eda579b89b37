"""What ``read`` reads: a stream, or all partitions of a topic, of both tiers, from one position or time to another."""

from __future__ import annotations

import select
import threading
from collections.abc import Callable, Collection, Generator, Iterator
from dataclasses import dataclass
from typing import TextIO

from formats.entries import TIME_UNKNOWN_MS, EntryBatch, Position
from offloader.cli.options import AskedRange, chosen_range
from offloader.cli.output import duration_text
from offloader.errors import InvalidCall, OffloaderError, OutcomeUnknown
from offloader.ledgers.base import HotTierLost, ReadableLedgers
from offloader.manifest.names import named_streams
from offloader.manifest.state import ManifestState
from offloader.owner_client import OwnerClient, OwnerHotTier, OwnerUnreachable
from offloader.read.partitions import TopicReader, follow_all, merge_published, open_topic
from offloader.read.reader import Reader, load_stream, open_reader
from offloader.runtime.clock import Clock
from offloader.settings import ReadSettings
from offloader.store.base import ObjectStore

#: The hot tier by a stream's name, as far as this process can read it.
SourceOf = Callable[[str], ReadableLedgers | None]
_Range = tuple[Position | None, Position | None]
#: Between two looks whether the output's reader is still there.
_WATCH_MS = 500


@dataclass(frozen=True, slots=True)
class ReadStreams:
    """The opened readers and their ranges.

    Attributes:
        readers: of the stream, or of the partitions in their order.
        numbers: of the partitions; empty: it is one stream.
        ranges: first and last position of each; ``None``: it has nothing between the times.
    """

    readers: list[Reader]
    numbers: list[int]
    ranges: list[_Range | None]

    @classmethod
    def opened(cls, store: ObjectStore, name: str, source_of: SourceOf, asked: AskedRange) -> ReadStreams:
        """Opens what ``name`` means in the store, with the hot tier where ``source_of`` has one.

        Raises:
            NotFound: no such stream and no such topic.
            InvalidCall: a position in a topic with partitions.
        """

        def opened(stream: str, settings: ReadSettings | None) -> Reader:
            return open_reader(store, stream, settings=settings, source=source_of(stream))

        named = named_streams(store, name)
        if not named.partitions:
            readers = [opened(named.name, None)]
        else:
            if asked.first is not None or asked.last is not None:
                raise InvalidCall(
                    f"{named.name} has {len(named.partitions)} partitions, and a position is of one",
                    hint=f"--from-time and --to-time, or read one of them: {named.streams[0]}",
                )
            topic: TopicReader = open_topic(named.partitions, named.name, opened)
            readers = list(topic.partitions.values())
        return cls(readers, list(named.partitions), [chosen_range(each, asked) for each in readers])

    @property
    def streams(self) -> list[str]:
        """The streams' names."""
        return [reader.stream for reader in self.readers]

    def close(self) -> None:
        """Closes all readers. Idempotent."""
        for reader in self.readers:
            reader.close()

    def count(self) -> int:
        """Number of entries."""
        both = zip(self.readers, self.ranges, strict=True)
        return sum(reader.count(*chosen) for reader, chosen in both if chosen is not None)

    def scan(self) -> Generator[tuple[int, EntryBatch], None, None]:
        """The entries, merged by publish time, with the number of their stream in ``streams``."""
        both = zip(self.readers, self.ranges, strict=True)
        scans: list[Iterator[EntryBatch]] = [
            iter(()) if chosen is None else reader.scan(*chosen) for reader, chosen in both
        ]
        return merge_published(scans)

    def follow(
        self, owners: OwnersHotTiers, clock: Clock, stop: threading.Event, say: Callable[[str], object]
    ) -> Generator[tuple[int, EntryBatch], None, None]:
        """As ``scan``, and then what becomes readable. Where nothing is between the times, only that.

        Args:
            owners: the hot tiers; where one is lost, its stream's next owner is read, or what is offloaded.
            say: called with a line for people about a hot tier that is lost or back.
        """
        starts = [
            _after(reader.last_position) if chosen is None else chosen[0]
            for reader, chosen in zip(self.readers, self.ranges, strict=True)
        ]

        def refreshed(reader: Reader) -> Reader:
            newer = reader.refresh(owners.of)
            for line in owners.news(newer):
                say(line)
            return newer

        return follow_all(self.readers, starts, clock=clock, stop=stop, refreshed=refreshed)

    def behind(self, now_ms: int) -> Iterator[str]:
        """How far what is followed is behind now, for a person, where it is only what is offloaded."""
        cold = [reader for reader in self.readers if not reader.has_hot_tier]
        for reader in cold:
            yield f"stream {reader.stream}: {_cold_end(reader, now_ms)}"
        if cold:
            yield "newer entries come once they are offloaded; --ledgers reads them from the ledger database before"


def _cold_end(reader: Reader, now_ms: int) -> str:
    """Up to where a stream is followed that is read from the cold tier only."""
    newest = max((record.content.publish_time_max_ms for record in reader.segments()), default=TIME_UNKNOWN_MS)
    last, what = reader.state.committed_end(), "only what is offloaded is followed"
    if last is None:
        return f"{what}: nothing yet"
    if newest == TIME_UNKNOWN_MS:
        return f"{what}: up to {last} now"
    return f"{what}: up to {last} now, published {duration_text(max(now_ms - newest, 0) / 1000)} ago"


#: A follower looks for a lost hot tier so long before it says so, and says it again so often while it lasts.
SILENCE_S_MAX, AGAIN_S = 10.0, 60.0
#: Nobody is asked again at an address within so long after it didn't answer, for whichever stream.
ASK_AGAIN_S = 5.0


@dataclass(slots=True)
class _Outage:
    """A hot tier that can't be read: since when, why, when that was said last (``None``: not yet), whether it ended."""

    since_s: float
    why: str
    said_s: float | None = None
    is_over: bool = False


class OwnersHotTiers:
    """Hot tiers of streams whose owners answer over HTTP; the others are left out.

    Args:
        found: the hot tiers that this process can read itself.
        hosts: that may receive a token, as of ``OwnerClient``.

    Attributes:
        reasons: why an owner's hot tier isn't read from the start, a line each.
    """

    def __init__(self, store: ObjectStore, found: SourceOf, hosts: Collection[str], clock: Clock) -> None:
        self._store, self._found, self._hosts, self._clock = store, found, hosts, clock
        self.reasons = list[str]()
        self._own: dict[str, ReadableLedgers] = {}
        self._tiers: dict[str, OwnerHotTier] = {}
        self._outages: dict[str, _Outage] = {}
        self._silent: dict[str, tuple[float, HotTierLost]] = {}

    def __call__(self, stream: str) -> ReadableLedgers | None:
        """The hot tier of a stream; ``None``: it can't be read from here."""
        own = self._found(stream)
        if own is not None:
            self._own[stream] = own
            return own
        hot = self.of(load_stream(self._store, stream, may_be_absent=True))
        outage = self._outages.get(stream)
        if outage is not None:
            outage.said_s = self._clock.monotonic_s()  # by ``reasons``
            self.reasons.append(f"stream {stream}: its owner can't be asked for what isn't offloaded: {outage.why}")
        return hot

    def of(self, state: ManifestState) -> ReadableLedgers | None:
        """The hot tier of the stream's owner by its manifest, once that answers; ``None``: it doesn't, or has none."""
        stream, url = state.stream, state.owner.url
        if stream in self._own:
            return self._own[stream]
        known = self._tiers.get(stream)
        if known is not None and known.url == url.rstrip("/") and not known.lost:
            if stream in self._outages:  # a whole look at it went well
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
        """The hot tier at an address that answers; raises ``HotTierLost``, or what is wrong with the address."""
        if not url:
            raise HotTierLost("no process that serves it is known")
        at_s, error = self._silent.get(url, (0.0, None))
        if error is not None and self._clock.monotonic_s() - at_s < ASK_AGAIN_S:
            raise error
        hot = OwnerHotTier(OwnerClient(url, clock=self._clock, hosts=self._hosts), stream)
        try:
            hot.ledgers()
        except HotTierLost as lost:
            if isinstance(lost.__cause__, OwnerUnreachable | OutcomeUnknown):
                self._silent[url] = self._clock.monotonic_s(), lost
            raise
        return hot

    def _note(self, stream: str, why: str) -> None:
        outage = self._outages.setdefault(stream, _Outage(self._clock.monotonic_s(), ""))
        outage.why, outage.is_over = why, False

    def news(self, reader: Reader) -> Iterator[str]:
        """What is to be said about a stream now: its hot tier has been lost for long, or is back."""
        outage, now_s = self._outages.get(reader.stream), self._clock.monotonic_s()
        if outage is None:
            return
        if outage.is_over:
            del self._outages[reader.stream]
            if outage.said_s is not None:
                yield f"stream {reader.stream}: followed from {self._tiers[reader.stream].url} now"
        elif now_s - (outage.since_s + SILENCE_S_MAX if outage.said_s is None else outage.said_s + AGAIN_S) >= 0:
            outage.said_s = now_s
            what = f"its owner has been lost for {duration_text(now_s - outage.since_s)}: {outage.why}"
            yield f"stream {reader.stream}: {what}; {_cold_end(reader, self._clock.now_ms())}"


def _after(position: Position | None) -> Position | None:
    return None if position is None else position.next()


def watch_output(out: TextIO, stop: threading.Event) -> None:
    """Sets ``stop`` when the reader of a pipe has gone, while nothing is written; ends with ``stop``."""
    try:
        descriptor = out.fileno()
    except (OSError, ValueError):
        return  # not a file: nobody can close it
    poll = select.poll()
    poll.register(descriptor, 0)  # errors only

    def watch() -> None:
        while not stop.is_set():
            if any(event & (select.POLLERR | select.POLLNVAL) for _, event in poll.poll(_WATCH_MS)):
                stop.set()

    threading.Thread(target=watch, name="offloader-output", daemon=True).start()
