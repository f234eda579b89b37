"""A simulated world in which a stream is also read with leases, truncated, swept, undone, held, deleted and made again.

It doesn't decide what happens.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from random import Random
from uuid import UUID

from formats.documents import GLOBAL_HOLD_KEY
from formats.entries import Position
from formats.keys import data_key
from offloader.errors import NotFoundError
from offloader.manifest.boundary import listed
from offloader.manifest.catalog import read_entry
from offloader.manifest.load import load_manifest_view, refreshed
from offloader.manifest.log import ManifestLog
from offloader.manifest.protection import TIME_KEY
from offloader.manifest.state import ManifestState
from offloader.settings import Settings
from offloader.store.base import ObjectInfo, ObjectStore, UploadInfo
from offloader.testing.memory_ledgers import MemoryLedgers
from tests.proof.simulation.acts_under_way import Act, ActsUnderWay
from tests.proof.simulation.interleaving import Strand
from tests.proof.simulation.maintained_checks import named_keys, what_is_unreadable_after_head
from tests.proof.simulation.maintained_rules import MaintainedRules
from tests.proof.simulation.simulated_reader import SimulatedReader
from tests.proof.simulation.simulated_store import FaultPlan
from tests.proof.simulation.simulated_world import STREAM, TOPIC, InvariantBroken, World
from tests.proof.simulation.watched_store import WatchedStore

__all__ = ["FOREIGN", "MaintainedWorld"]

#: Somebody else's objects below the stream: one that looks like nothing of ours, one like a segment.
FOREIGN = (f"{STREAM}/notes.txt", data_key(STREAM, UUID(int=0xABCDEF0123456789ABCDEF0123456789)))
#: What anybody may delete at any time.
_SCRATCH = (TIME_KEY, GLOBAL_HOLD_KEY)


class MaintainedWorld(World):
    """See the module. Arguments as for ``World``, and:

    Args:
        is_topic: whether the stream is the partition of a topic, or one of its own beside a stream of that name.

    Attributes:
        acts: what is under way.
        readers: that live.
        view: the manifest as it is in the bucket; ``None``: there is none.
        is_deleted: whether the stream is marked as deleted; it may be made again once its entry is gone.
    """

    def __init__(
        self,
        name: str,
        random: Random,
        settings: Callable[[Random], Settings],
        plan_of: Callable[[int], FaultPlan] = lambda _: FaultPlan(),
        *,
        is_topic: bool = False,
    ) -> None:
        super().__init__(name, random, settings, plan_of, way_in=lambda bucket, _: WatchedStore(bucket, self, ""))
        self.acts = ActsUnderWay(self._random, self.weather, self.quiet)
        self.readers: list[SimulatedReader] = []
        self.view: ManifestState | None = None
        self.is_deleted = False
        #: Hears who moved the head on, from where and where to.
        self.on_head: Callable[[str, Position, Position], object] = lambda _by, _before, _head: None
        #: What was wrong, in case whoever was told didn't hand it on.
        self.broken = ""
        self.rules = MaintainedRules(
            self.clock.now_ms,
            lambda: len(self.trace),
            lambda by: self.acts.began(by, -1),
            grace_ms=int(self.settings.cleanup.grace_period.hours * 3_600_000),
            orphan_age_ms=int(self.settings.manifest.orphan_age_min.hours * 3_600_000),
        )
        #: Under whose name retention is.
        self.home = TOPIC if is_topic else STREAM
        for key in FOREIGN:
            self.store.put(key, b"not ours")
        if not is_topic:
            ManifestLog(self.store, TOPIC, clock=self.clock, entropy=random.randbytes).open_epoch()
        #: What isn't the stream's, and stays.
        self.others = {info.key for info in listed(self.store, "")}

    # -- acts

    def begin(
        self,
        what: str,
        act: Act,
        plan: FaultPlan,
        done: Callable[[Strand], object] = lambda _: None,
        *,
        off_ms: int = 0,
    ) -> None:
        """Something else begins, unless enough is under way; see ``ActsUnderWay``.

        Args:
            off_ms: by how much its clock is wrong.
        """

        def named(name: str) -> None:
            if off_ms:
                self.rules.skewed[name] = off_ms, self.clock.now_ms()

        self.acts.begin(what, act, plan, done, named)

    def began(self, name: str) -> int:
        """When an act began, as a number of the trace's line; what isn't one begins now."""
        return self.acts.began(name, len(self.trace))

    def quiet(self, name: str) -> ObjectStore:
        """A way to the store without any weather."""
        return WatchedStore(self.store, self, name)

    def _others_work(self, name: str) -> None:
        if self.acts and self._random.random() < 0.5:
            self.weather.meanwhile = lambda _: None
            self.acts.go_on()
            self.weather.meanwhile = self._others_work
        else:
            super()._others_work(name)

    def erase(self) -> None:
        self.acts.end()
        for upload in self.store.list_uploads(""):
            self.store.abort_upload(upload.key, upload.upload_id)
        super().erase()

    def log(self, store: ObjectStore) -> ManifestLog:
        """Of a command, over its way to the store."""
        return ManifestLog(
            store, STREAM, clock=self.clock, entropy=self._random.randbytes, settings=self.settings.manifest
        )

    # -- readers

    def open_reader(self, store: ObjectStore, seconds: int) -> None:
        """A reader comes, and begins to read when its lease and the manifest are there."""
        reader = SimulatedReader(store, STREAM, seconds, clock=self.clock, entropy=self._random.randbytes)
        if not self.is_deleted and self.view is not None and reader.incarnation == self.view.incarnation:
            self.readers.append(reader)

    def read(self, *, gives_up: bool) -> None:
        """One of the readers goes on, or away."""
        if not self.readers:
            return
        reader = self._random.choice(self.readers)
        try:
            if reader.planned and not gives_up:
                reader.read_one(self.store)
        except NotFoundError as error:
            self.must_not(f"a reader with a lease misses what it planned to read: {error}")
        if not reader.planned or gives_up:
            reader.close()
            self.readers.remove(reader)

    # -- what is seen at once

    def saw_record(self, by: str, key: str) -> None:
        """See ``Watcher``."""
        before, self.view = self.view, self._newest()
        if self.view is None:
            return
        self.must_not(self.rules.of_record(by, before, self.view))
        if before is not None and before.incarnation == self.view.incarnation:
            self._check_head(by, before.head, self.view.head)
        if self.view.stream_deleted and not self.is_deleted:
            self.is_deleted = True
            self.trace.append(f"deleted by {by}")
            self.readers.clear()

    def saw_delete(self, by: str, objects: Sequence[ObjectInfo]) -> None:
        """See ``Watcher``."""
        keys = [info.key for info in objects]
        self.must_not(self.rules.of_delete(by, [info for info in objects if info.key not in _SCRATCH]))
        if self.view is not None and not self.is_deleted:
            named = named_keys(self.view).intersection(keys)
            if named:
                self.must_not(f"{by} deleted {min(named)}, which the manifest names")
        for reader in self.readers:
            needed = set(reader.planned).intersection(keys)
            if needed and self._protects(reader):
                self.must_not(f"{by} deleted {min(needed)}, which a reader with a lease planned to read")
        if set(FOREIGN).intersection(keys):
            self.must_not(f"{by} deleted what isn't ours: {keys}")

    def saw_abort(self, by: str, uploads: Sequence[UploadInfo]) -> None:
        """See ``Watcher``."""
        self.must_not(self.rules.of_abort(by, uploads))

    def saw_stop(self, *, on: bool) -> None:
        """See ``Watcher``."""
        self.rules.stopped(on=on)

    def _protects(self, reader: SimulatedReader) -> bool:
        try:
            return reader.is_protected(self.store)
        except NotFoundError as error:
            self.must_not(f"a lease is gone that holds: {error}")
            return False

    def _newest(self) -> ManifestState | None:
        entry = read_entry(self.store, STREAM)
        if entry is None:
            return self.view
        if self.view is not None and self.view.incarnation == entry.incarnation:
            return refreshed(self.store, self.view, requests_max=1).state
        return load_manifest_view(self.store, STREAM, entry.incarnation, requests_max=1).state

    def _check_head(self, by: str, before: Position | None, head: Position | None) -> None:
        if head == before:
            return
        if before is not None and (head is None or head < before):
            if not by.startswith("undo"):
                self.must_not(f"{by or 'a writer'} moved the head back from {before} to {head}")
            return
        assert head is not None
        end = self.view.committed_end() if self.view else None
        lost = [each for each, _ in self.ledgers.appended if each < head and (end is None or each > end)]
        self.must_not(f"{by} truncated {lost[0]}, which isn't offloaded" if lost else "")
        self.on_head(by, before or Position(0, 0), head)

    # -- deletion and re-creation

    def make_again(self) -> bool:
        """Whoever produces into the stream begins anew, once nothing stands in the way."""
        if not self.is_deleted or read_entry(self.store, STREAM) is not None:
            return False
        self.leave()
        self.is_deleted, self.view = False, None
        self.trace.append("made again")
        self.start()
        return True

    def leave(self) -> None:
        """The topic of a deleted stream goes, and with it whoever offloaded it."""
        for process in self.processes:
            process.die()
        self.processes.clear()
        self.ledgers = MemoryLedgers(STREAM, self.clock)

    def bury(self) -> None:
        if self.is_deleted:
            self.leave()
        else:
            super().bury()

    # -- what must hold

    def must_not(self, what: str) -> None:
        """Ends everything when something is wrong.

        Raises:
            InvariantBroken: it is.
        """
        if what:
            self.broken = self.broken or what
            raise InvariantBroken(what)

    def check_now(self) -> None:
        """At any time: what is readable from the head on is the beginning of what was appended from there on."""
        if self.view is not None and not self.is_deleted:
            self._check_readable(self.view, whole=False)

    def check(self) -> None:
        self._check_released(self.view)
        if self.view is not None and self.ledgers.appended:
            self._check_readable(self.view, whole=True)

    def _check_readable(self, state: ManifestState, *, whole: bool) -> None:
        self.must_not(what_is_unreadable_after_head(self.store, state, self.ledgers.appended, whole=whole))
