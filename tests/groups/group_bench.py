"""A topic in a store in memory, and a group whose readers take turns in one thread: shared by tests of readers."""

from __future__ import annotations

import itertools
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from formats.documents import GroupState
from formats.entries import Position
from offloader.errors import OffloaderError
from offloader.groups.group_reader import Checkpoint, GroupReader
from offloader.groups.group_service import ReaderGroup, ReaderGroups, open_reader_groups
from offloader.groups.reader_groups import GroupConfig, RetentionType
from offloader.retention.subscribers import open_retention
from offloader.store.base import ObjectStore
from offloader.store.memory import MemoryStore
from offloader.testing.manual_clock import ManualClock
from tests.support.streams import StreamWriter, batch_of

TOPIC = "a/topic"
_names = itertools.count()
Entry = tuple[str, Position]


class TurnClock(ManualClock):
    """A wait of a reader ends its turn: the iteration stops, and can be continued."""

    def wait(self, event: threading.Event, timeout_s: float) -> bool:
        return True


@dataclass(slots=True)
class Taken:
    """What a reader delivered."""

    entries: list[Entry] = field(default_factory=list)
    checkpoints: list[str] = field(default_factory=list)


class GroupBench:
    """A topic of ``partitions``, each with ``entries`` in one ledger, and the group ``rg``."""

    def __init__(
        self,
        partitions: int = 4,
        entries: int = 10,
        retention: RetentionType = RetentionType.AUTOMATIC,
        *,
        through: Callable[[ObjectStore], ObjectStore] = lambda store: store,
        **config: object,
    ) -> None:
        self.clock = TurnClock()
        self.memory = MemoryStore(f"readers-{next(_names)}", "", self.clock)
        self.writers = {number: self.partition(number) for number in range(partitions)}
        for number in range(partitions):
            self.append(number, entries)
        self.store = through(self.memory)
        self.groups = self.open()
        self.groups.create("rg", GroupConfig([TOPIC], retention, **config))  # type: ignore[arg-type]
        self.group: ReaderGroup = self.groups.open("rg")
        self.delivered: list[Entry] = []

    def open(self, clock: ManualClock | None = None) -> ReaderGroups:
        return open_reader_groups(self.store, clock=clock or self.clock)

    def partition(self, number: int) -> StreamWriter:
        return StreamWriter(self.memory, f"{TOPIC}-partition-{number}", clock=self.clock)

    def append(self, number: int, count: int) -> None:
        writer = self.writers[number]
        first = len(writer.entries)
        writer.add([batch_of(1, first, count)])

    def turn(self, *readers: GroupReader, most: int = 1000) -> dict[str, Taken]:
        """Each reader delivers everything that it has for now."""
        found = {}
        for reader in readers:
            taken = found[reader.reader] = Taken()
            for item in itertools.islice(reader, most):
                if isinstance(item, Checkpoint):
                    taken.checkpoints.append(item.name)
                else:
                    taken.entries += [(item[0], entry.position) for entry in item[1].entries()]
            self.delivered += taken.entries
        return found

    def rounds(self, *readers: GroupReader, number: int = 4, seconds: float = 3) -> None:
        for _ in range(number):
            self.turn(*readers)
            self.clock.advance(seconds)

    def state(self) -> GroupState:
        return self.groups.get("rg")

    def share(self, reader: str) -> int:
        return sum(1 for row in self.state().assignments if row.reader == reader)

    def positions(self) -> dict[int, str]:
        return {row.partition: str(row.position) for row in self.state().assignments}

    def expected(self) -> list[Entry]:
        return sorted((writer.stream, entry.position) for writer in self.writers.values() for entry in writer.entries)

    def cut(self) -> Mapping[str, int | str] | None:
        found = open_retention(self.memory, TOPIC, clock=self.clock).registry().subscribers["rg"].cut
        return None if found is None else found.as_json()


def error_of(call: Callable[[], object]) -> OffloaderError:
    """The error of a call that fails."""
    try:
        found = call()
    except OffloaderError as error:
        return error
    raise AssertionError(f"no error, but {found!r}")
