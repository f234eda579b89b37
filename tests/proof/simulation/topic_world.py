"""A simulated topic of several partitions that are offloaded, truncated as one stream, swept, deleted and made again.

It doesn't decide what happens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import TypeVar

from formats.documents import TruncationIntent, intent_key
from formats.entries import Position
from offloader.manifest.catalog import read_entry, read_intent
from offloader.manifest.load import load_manifest_view, refreshed
from offloader.manifest.state import ManifestState
from offloader.settings import Settings
from offloader.store.base import ObjectInfo, ObjectStore, UploadInfo
from offloader.store.memory import MemoryStore
from offloader.store.wrappers import Request
from offloader.testing.manual_clock import ManualClock
from offloader.testing.memory_ledgers import MemoryLedgers
from offloader.write.offloader import LedgerOffloader
from tests.proof.simulation.acts_under_way import ActsUnderWay
from tests.proof.simulation.maintained_checks import named_keys, what_is_unreadable_after_head
from tests.proof.simulation.simulated_store import FaultModel
from tests.proof.simulation.simulated_subscribers import AppendedAt
from tests.proof.simulation.simulated_workers import SimulatedWorkers
from tests.proof.simulation.simulated_world import InvariantBroken
from tests.proof.simulation.watched_store import WatchedStore

__all__ = ["PLAIN", "TOPIC", "Partition", "TopicWorld"]

TOPIC = "simulated/topic"
#: A stream without partitions beside it, which groups read as well.
PLAIN = "simulated/plain"

_Answer = TypeVar("_Answer")


@dataclass(slots=True)
class Partition:
    """One of them; the stream without partitions likewise.

    Attributes:
        ledgers: its hot tier.
        appended: all its entries.
        view: its manifest as it is in the bucket; ``None``: there is none.
    """

    stream: str
    ledgers: MemoryLedgers
    appended: list[AppendedAt] = field(default_factory=list)
    view: ManifestState | None = None

    @property
    def is_there(self) -> bool:
        """Whether its manifest is, and isn't marked as deleted."""
        return self.view is not None and not self.view.stream_deleted

    @property
    def head(self) -> Position:
        """Where it begins."""
        return (self.view.head if self.view is not None else None) or Position(0, 0)


class _Watched(WatchedStore):
    """Which also tells of intents."""

    def __init__(self, inner: ObjectStore, world: TopicWorld, by: str) -> None:
        super().__init__(inner, world, by)
        self._world = world

    def around(self, request: Request, call: Callable[[], _Answer]) -> _Answer:
        answer = super().around(request, call)
        if request.verb == "put" and request.key == intent_key(TOPIC):
            self._world.saw_intent(self._by)
        return answer


class TopicWorld:
    """See the module. What must not be ends everything with ``InvariantBroken``.

    Args:
        name: of its bucket, which is its own: another world's of that name is another.
        random: decides what is left to chance.
        settings: of everybody.

    Attributes:
        partitions: by number.
        plain: the stream beside them.
        on_heads: hears of which partition the head moved, where it was before, and when the decision began, as a number
            of the trace's line.
        truncations: how many were finished.
    """

    def __init__(self, name: str, random: Random, settings: Callable[[Random], Settings]) -> None:
        self._random = random
        self.clock = ManualClock()
        self.store = MemoryStore(name, "", self.clock, is_shared=False)
        self.weather = FaultModel(Random(random.getrandbits(64)), self.clock)
        self.acts = ActsUnderWay(random, self.weather, self.quiet)
        self.settings = settings(random)
        self.partitions: dict[int, Partition] = {}
        self.plain = Partition(PLAIN, MemoryLedgers(PLAIN, self.clock))
        self.on_heads: Callable[[int, Position, int], object] = lambda _number, _before, _since: None
        self.broken = ""
        self.truncations = 0
        self._intent: TruncationIntent | None = None
        self._intent_since = 0
        #: The trace's line at which a partition was deleted last.
        self.deleted_at = -1

    @property
    def trace(self) -> list[str]:
        """Every request, with what became of it, and whatever else happened."""
        return self.weather.trace

    def quiet(self, name: str) -> ObjectStore:
        """A way to the store without any weather."""
        return _Watched(self.store, self, name)

    def must_not(self, what: str) -> None:
        """Raises ``InvariantBroken`` when something is wrong; kept in case whoever was told doesn't hand it on."""
        if what:
            self.broken = self.broken or what
            raise InvariantBroken(what)

    # -- what is in it

    def add_partition(self) -> None:
        """The topic is scaled."""
        number = len(self.partitions)
        self.partitions[number] = self._fresh(f"{TOPIC}-partition-{number}")
        self.trace.append(f"partition {number}")

    def _fresh(self, stream: str) -> Partition:
        return Partition(stream, MemoryLedgers(stream, self.clock))

    def made_again(self, number: int) -> None:
        """A partition that was deleted, and of which nothing is left, begins anew."""
        self.partitions[number] = self._fresh(self.partitions[number].stream)
        self.trace.append(f"partition {number} again")

    def append(self, to: Partition, sizes: Sequence[int]) -> None:
        """Entries arrive."""
        batch = to.ledgers.append([self._random.randbytes(size) for size in sizes])
        now_ms = self.clock.now_ms()
        to.appended += [(entry.position, len(entry.payload), now_ms) for entry in batch.entries()]

    def offload(self, store: ObjectStore, of: Partition) -> None:
        """Everything of a partition, by a writer that takes it for that."""
        random = Random(self._random.getrandbits(64))
        workers = SimulatedWorkers(self.clock, random)
        writer = LedgerOffloader(store, self.settings, clock=self.clock, entropy=random.randbytes, workers=workers)
        try:
            writer.history.backfill(of.ledgers, of.stream, take_over=True)
        finally:
            workers.close()

    def source_of(self, stream: str) -> MemoryLedgers | None:
        """The hot tier of a stream."""
        found = [each for each in (*self.partitions.values(), self.plain) if each.stream == stream]
        return found[0].ledgers if found else None

    @property
    def alive(self) -> dict[int, Partition]:
        """The partitions that are there, by number."""
        return {number: each for number, each in self.partitions.items() if each.is_there}

    # -- what is seen at once

    def saw_record(self, by: str, key: str) -> None:
        """See ``Watcher``."""
        for number, each in self.partitions.items():
            if key.startswith(f"{each.stream}/"):
                self._look(by, number, each)

    def _look(self, by: str, number: int, each: Partition) -> None:
        before, was_there = each.head, each.is_there
        each.view = self._newest(each)
        if each.view is None or each.head == before:
            self.deleted_at = len(self.trace) if was_there and not each.is_there else self.deleted_at
            return
        if each.head < before:
            self.must_not(f"{by} moved the head of {number} back from {before} to {each.head}")
        end = each.view.committed_end()
        lost = [at for at, _, _ in each.appended if at < each.head and (end is None or at > end)]
        self.must_not(f"{by} truncated {lost[0]} of {number}, which isn't offloaded" if lost else "")
        intended = {} if self._intent is None or self._intent.is_done else self._intended(self._intent)
        if intended.get(number) != each.head:
            self.must_not(f"{by} moved the head of {number} to {each.head}, and no intent says so")
        self.on_heads(number, before, self._intent_since)

    def _intended(self, intent: TruncationIntent) -> dict[int, Position]:
        """What it wants of partitions that are still the same."""
        wanted = {(each.stream, each.incarnation): each.head for each in intent.heads}
        return {
            number: wanted[each.stream, each.view.incarnation]
            for number, each in self.partitions.items()
            if each.view is not None and (each.stream, each.view.incarnation) in wanted
        }

    def saw_intent(self, by: str) -> None:
        """Somebody wrote what is to be truncated, or that it is."""
        before, self._intent = self._intent, read_intent(self.store, TOPIC)[0]
        now = self._intent
        if now is None or now == before:
            return
        is_under_way = before is not None and not before.is_done and not now.is_done
        self.must_not(f"{by} began a truncation while another wasn't finished" if is_under_way else "")
        if not now.is_done:
            self._intent_since = self.acts.began(by, len(self.trace))
            return
        self.truncations += 1
        for number, head in self._intended(now).items():
            each = self.partitions[number]
            self.must_not(
                f"{by} says that {number} begins at {head}, and it begins at {each.head}"
                if each.is_there and each.head < head
                else ""
            )

    def saw_delete(self, by: str, objects: Sequence[ObjectInfo]) -> None:
        """See ``Watcher``."""
        keys = {info.key for info in objects}
        for each in self.alive.values():
            named = named_keys(each.view).intersection(keys) if each.view is not None else None
            self.must_not(f"{by} deleted {min(named)}, which the manifest names" if named else "")

    def saw_abort(self, by: str, uploads: Sequence[UploadInfo]) -> None:
        """See ``Watcher``."""

    def saw_stop(self, *, on: bool) -> None:
        """See ``Watcher``."""

    def _newest(self, each: Partition) -> ManifestState | None:
        entry = read_entry(self.store, each.stream)
        if entry is None:
            return each.view
        if each.view is not None and each.view.incarnation == entry.incarnation:
            return refreshed(self.store, each.view, requests_max=1).state
        return load_manifest_view(self.store, each.stream, entry.incarnation, requests_max=1).state

    # -- rest

    def check_readable(self, *, whole: bool) -> None:
        """What is readable of each partition is what was appended, from its head on."""
        for each in self.alive.values():
            assert each.view is not None, "it is there"
            appended = each.ledgers.appended
            self.must_not(what_is_unreadable_after_head(self.store, each.view, appended, whole=whole))

    def erase(self) -> None:
        """Nothing of it takes memory any more."""
        self.acts.end()
        for upload in self.store.list_uploads(""):
            self.store.abort_upload(upload.key, upload.upload_id)
        self.store.delete([info.key for info in self.store.list("").objects])
