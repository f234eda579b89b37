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
from offloader.errors import InvalidCall, OffloaderError
from offloader.ledgers.base import ReadableLedgers
from offloader.manifest.names import named_streams
from offloader.owner_client import OwnerClient, OwnerHotTier
from offloader.read.partitions import TopicReader, follow_all, merge_published, open_topic
from offloader.read.reader import Reader, load_stream, open_reader
from offloader.runtime.clock import Clock, SystemClock
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

    def follow(self, clock: Clock, stop: threading.Event) -> Generator[tuple[int, EntryBatch], None, None]:
        """As ``scan``, and then what becomes readable. Where nothing is between the times, only that."""
        starts = [
            _after(reader.last_position) if chosen is None else chosen[0]
            for reader, chosen in zip(self.readers, self.ranges, strict=True)
        ]
        return follow_all(self.readers, starts, clock=clock, stop=stop)

    def behind(self, now_ms: int) -> Iterator[str]:
        """How far what is followed is behind now, for a person, where it is only what is offloaded."""
        cold = [reader for reader in self.readers if not reader.has_hot_tier]
        for reader in cold:
            newest = max((record.content.publish_time_max_ms for record in reader.segments()), default=TIME_UNKNOWN_MS)
            last = reader.last_position
            what = f"stream {reader.stream}: only what is offloaded is followed"
            if last is None:
                yield f"{what}: nothing yet"
            elif newest == TIME_UNKNOWN_MS:
                yield f"{what}: up to {last} now"
            else:
                yield f"{what}: up to {last} now, published {duration_text(max(now_ms - newest, 0) / 1000)} ago"
        if cold:
            yield "newer entries come once they are offloaded; --ledgers reads them from the ledger database before"


class OwnersHotTiers:
    """Hot tiers of streams whose owners answer over HTTP; the others are left out.

    Args:
        found: the hot tiers that this process can read itself.
        hosts: that may receive a token, as of ``OwnerClient``.

    Attributes:
        reasons: why an owner's hot tier isn't read, a line each.
    """

    def __init__(self, store: ObjectStore, found: SourceOf, hosts: Collection[str]) -> None:
        self._store, self._found, self._hosts, self.reasons = store, found, hosts, list[str]()

    def __call__(self, stream: str) -> ReadableLedgers | None:
        """The hot tier of a stream; ``None``: it can't be read from here."""
        own = self._found(stream)
        if own is not None:
            return own
        url = load_stream(self._store, stream, may_be_absent=True).owner.url
        if not url:
            return None
        try:
            hot = OwnerHotTier(OwnerClient(url, clock=SystemClock(), hosts=self._hosts), stream)
            return hot if hot.ledgers() else None
        except OffloaderError as error:
            self.reasons.append(f"stream {stream}: its owner can't be asked for what isn't offloaded: {error}")
            return None


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
