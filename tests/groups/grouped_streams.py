"""Two streams in a store in memory and a reader group over both: what the tests of groups share."""

from __future__ import annotations

import itertools
from collections.abc import Mapping

from formats.documents import GroupState
from offloader.groups.group_service import GroupOutcome
from offloader.groups.reader_groups import GroupConfig, RetentionType
from offloader.manifest.log import ManifestLog
from offloader.retention.cuts import StreamCut
from offloader.retention.subscribers import open_retention
from offloader.store.memory import MemoryStore
from offloader.testing.faulty_store import FaultyStore
from offloader.testing.manual_clock import ManualClock
from tests.groups.bookkept_groups import BookkeptGroups, open_bookkept_groups
from tests.support.manifests import segment_edits

ONE, TWO = "a/one", "a/two"
_names = itertools.count()


def at(entry: int) -> StreamCut:
    return StreamCut.of({"0.0": f"1:{entry}"})


def is_published(group: GroupState) -> bool:
    """Whether no publication is due."""
    return not any(row.action == "publish" for row in group.to_do)


class Bench:
    """Two streams of 30 entries, and the group ``rg`` with readers ``r1`` and ``r2``."""

    def __init__(self, retention: RetentionType = RetentionType.AUTOMATIC, **config: int) -> None:
        self.clock = ManualClock()
        self.memory = MemoryStore(f"groups-{next(_names)}", "", self.clock)
        self.store = FaultyStore(self.memory, clock=self.clock)
        for name in (ONE, TWO):
            log = ManifestLog(self.memory, name, clock=self.clock)
            log.open_epoch()
            for number in range(3):
                log.commit(segment_edits(number))
        self.groups = self.open()
        self.groups.create("rg", GroupConfig([ONE, TWO], retention, **config))  # type: ignore[arg-type]
        for reader in ("r1", "r2"):
            self.groups.add_reader("rg", reader)

    def open(self) -> BookkeptGroups:
        return open_bookkept_groups(self.store, clock=self.clock)

    def cuts(self) -> dict[str, str | None]:
        """What is published of the group, by stream."""
        found = {}
        for name in (ONE, TWO):
            registry = open_retention(self.memory, name, clock=self.clock).registry()
            if "rg" in registry.subscribers:
                cut = registry.subscribers["rg"].cut
                found[name] = None if cut is None else str(cut)
        return found

    def reach(self, checkpoint: str, r1: Mapping[str, StreamCut], r2: Mapping[str, StreamCut]) -> GroupOutcome:
        self.groups.reach_checkpoint("rg", checkpoint, "r1", r1)
        return self.groups.reach_checkpoint("rg", checkpoint, "r2", r2)

    def pass_all(self, checkpoint: str) -> GroupOutcome:
        self.groups.pass_checkpoint("rg", checkpoint, "r1")
        return self.groups.pass_checkpoint("rg", checkpoint, "r2")
