"""Four processes of one group over 16 partitions, with appends and retention running, killed at random moments."""

from __future__ import annotations

import random
import signal
import subprocess
import sys
import threading
import time
from collections import Counter, defaultdict
from pathlib import Path

import pytest

from formats.entries import Position
from offloader.errors import OutcomeUnknownError, StoreUnavailableError
from offloader.gc.sweep import cleanup_all
from offloader.groups.group_service import open_reader_groups
from offloader.groups.reader_groups import GroupConfig, RetentionType
from offloader.retention.cycle import RetentionCycle
from offloader.retention.subscribers import open_retention
from offloader.runtime.clock import SystemClock
from offloader.settings import Settings
from offloader.store.base import ObjectStore
from offloader.store.open import open_store
from tests.support.streams import StreamWriter, batch_of
from tests.support.waiting import eventually

pytestmark = [pytest.mark.process, pytest.mark.slow, pytest.mark.timeout(900)]

TOPIC = "shop/orders"
PARTITIONS, PROCESSES, KILLS = 16, 4, 40
CONFIG = GroupConfig(
    [TOPIC], RetentionType.AUTOMATIC, automatic_checkpoint_ms=400, heartbeat_ms=300, expiry_ms=2_000, refresh_ms=100
)
#: What the group has consumed goes at once.
SETTINGS = Settings.of(
    {
        "retention": {"policy": "consumption"},
        "cleanup": {"grace_period": "0h", "allow_large_delete": True},
        "manifest": {"orphan_age_min": "0h"},
    }
)


class World:
    """The topic, its writer and its retention, and what the readers consumed."""

    def __init__(self, path: Path) -> None:
        self.store: ObjectStore = open_store(f"file://{path}/store")
        self.path, self.readers = path, dict[str, subprocess.Popen[bytes]]()
        self.writers = [StreamWriter(self.store, f"{TOPIC}-partition-{n}") for n in range(PARTITIONS)]
        self.random, self.started, self.codes = random.Random(38), 0, Counter[int]()
        for number in range(PARTITIONS):
            self.append(number)
        open_reader_groups(self.store).create("rg", CONFIG)

    def append(self, number: int) -> None:
        writer = self.writers[number]
        writer.add([batch_of(1, len(writer.entries), self.random.randint(1, 20))])

    def start(self, name: str) -> None:
        self.started += 1
        journal = self.path / f"journal-{self.started}"
        command = [sys.executable, "-m", "tests.proof.kills.killed_group_reader", self.store.url, "rg", name]
        self.readers[name] = subprocess.Popen([*command, str(journal)])

    def end(self, name: str, how: signal.Signals) -> None:
        process = self.readers.pop(name)
        process.send_signal(how)
        code = process.wait(60)
        self.codes[code] += 1
        # One that is still starting doesn't handle SIGTERM.
        assert code in (0, 5, -signal.SIGTERM, -signal.SIGKILL), f"{name} ended with {code}"

    def end_all(self) -> None:
        for process in self.readers.values():
            process.terminate()
        for process in self.readers.values():
            process.wait(60)

    def consumed(self) -> dict[str, set[Position]]:
        found = defaultdict[str, set[Position]](set)
        for kind, stream, position, *_ in self.journal():
            if kind == "entry":
                found[stream].add(Position.parse(position))
        return found

    def journal(self) -> list[list[str]]:
        # A process that is killed may leave a part of its last line; what it wrote there wasn't confirmed.
        texts = [path.read_text() for path in sorted(self.path.glob("journal-*"))]
        return [line.split() for text in texts for line in text[: text.rfind("\n") + 1].splitlines()]

    def require_published_is_consumed(self) -> None:
        cut = open_retention(self.store, TOPIC).registry().subscribers["rg"].cut
        consumed = self.consumed()  # after the cut
        for segment, position in ({} if cut is None else cut.offsets).items():
            writer = self.writers[segment.number]
            entries = {entry.position for entry in list(writer.entries) if entry.position < position}  # type: ignore[operator]
            assert entries <= consumed[writer.stream], f"{writer.stream} is published up to {position}"

    def retain(self) -> None:
        """Delete what retention may delete."""
        RetentionCycle(self.store, clock=SystemClock(), settings_of=lambda _: SETTINGS).run(TOPIC)
        list(cleanup_all(self.store, clock=SystemClock(), settings_of=lambda _: SETTINGS))

    def require_one_reader_an_epoch(self) -> None:
        owners = defaultdict[tuple[str, str], set[str]](set)
        for kind, stream, *rest in self.journal():
            if kind == "epoch":
                owners[stream, rest[0]].add(rest[1])
        assert {key: pids for key, pids in owners.items() if len(pids) > 1} == {}


def background(world: World, stop: threading.Event, failures: list[BaseException]) -> threading.Thread:
    """Appends, retention, and the check of what is published, until ``stop``."""

    def run() -> None:
        try:
            while not stop.is_set():
                for _ in range(4):
                    world.append(world.random.randrange(PARTITIONS))
                world.require_published_is_consumed()
                try:
                    world.retain()
                except (StoreUnavailableError, OutcomeUnknownError):
                    continue
        except BaseException as error:
            failures.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    return thread


def test_no_entry_is_skipped_or_deleted_unread_under_kills(tmp_path: Path) -> None:
    world, failures, stop = World(tmp_path), list[BaseException](), threading.Event()
    events = random.Random(47)
    names = [f"reader {number}" for number in range(PROCESSES)]
    for name in names:
        world.start(name)
    worker = background(world, stop, failures)
    moment = threading.Event()  # never set: the moments of the kills are drawn
    kills, deadline_s = 0, time.monotonic() + 600
    try:
        while kills < KILLS and not failures and time.monotonic() < deadline_s:
            name = events.choice(names)
            moment.wait(events.uniform(0.2, 2.5))
            how = signal.SIGTERM if events.random() < 0.2 else signal.SIGKILL
            world.end(name, how)
            kills += how is signal.SIGKILL
            # Under its own name, or a new one whose predecessor has to expire.
            names[names.index(name)] = again = name if events.random() < 0.5 else f"reader {world.started}"
            world.start(again)
    except BaseException:
        world.end_all()
        raise
    finally:
        stop.set()
        worker.join(60)
    try:
        assert failures == []
        expected = {writer.stream: {entry.position for entry in writer.entries} for writer in world.writers}
        eventually(lambda: world.consumed() == expected, within_s=120)
        world.require_published_is_consumed()
    finally:
        world.end_all()
    world.require_one_reader_an_epoch()
    assert kills == KILLS
    state = open_reader_groups(world.store).get("rg")
    assert {row.partition: row.position for row in state.assignments} == {
        number: writer.entries[-1].position.next() for number, writer in enumerate(world.writers)
    }
