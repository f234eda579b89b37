"""The local directory and the ledger database after a power cut, and after processes that were killed."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import closing, suppress
from pathlib import Path

import pytest

from offloader.errors import OffloaderError, OutcomeUnknownError, PreconditionFailedError
from offloader.ledgers.sqlite.database import Database
from offloader.runtime.clock import SystemClock
from offloader.store.base import CREATE, IfMatch, ObjectStore
from offloader.store.open import open_store
from tests.support.power_cut import PowerCut
from tests.support.waiting import PATIENCE_S

OLD_S = 1_000_000_000


@pytest.fixture
def disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> PowerCut:
    return PowerCut(tmp_path, monkeypatch)


class Paused:
    """Runs ``call`` on a thread of its own, and stops it just before it syncs the directory ``at``."""

    def __init__(self, disk: PowerCut, at: Path, call: Callable[[], object], number: int = 1) -> None:
        self._at = at
        self._left = number
        self._arrived, self._go_on = threading.Event(), threading.Event()
        self._threads = ThreadPoolExecutor(1)
        disk.before_sync = self._before
        self._running: Future[object] = self._threads.submit(self._run, call)

    def _run(self, call: Callable[[], object]) -> object:
        self._thread = threading.current_thread()
        return call()

    def _before(self, directory: Path) -> None:
        if directory == self._at and threading.current_thread() is self._thread:
            self._left -= 1
            if self._left == 0:
                self._arrived.set()
                assert self._go_on.wait(PATIENCE_S)

    def __enter__(self) -> None:
        assert self._arrived.wait(PATIENCE_S)

    def __exit__(self, *_: object) -> None:
        self._go_on.set()
        self._running.result(PATIENCE_S)
        self._threads.shutdown()


def stored(disk: PowerCut) -> list[str]:
    return [name for name in disk.survivors() if ".offloader" not in name]


def test_new_root_and_its_parents_survive(disk: PowerCut, tmp_path: Path) -> None:
    open_store(f"file://{tmp_path}/a/b/c").put("x/y/k", b"body", metadata={"a": "b"})
    assert stored(disk) == ["a/b/c/x/y/k"]
    assert len([name for name in disk.survivors() if name.startswith("a/b/c/.offloader/meta/x/y/k.")]) == 1


def refused(store: ObjectStore) -> None:
    with suppress(PreconditionFailedError):
        store.put("d/k", b"second", mode=CREATE)


MEETINGS: dict[str, Callable[[ObjectStore], object]] = {
    "create": refused,
    "head": lambda store: store.head("d/k"),
    "get": lambda store: store.get("d/k"),
    "list": lambda store: store.list("d/"),
}


@pytest.mark.parametrize("meet", MEETINGS)
def test_unconfirmed_object_survives_once_another_process_relies_on_it(
    disk: PowerCut, tmp_path: Path, meet: str
) -> None:
    first, second = open_store(f"file://{tmp_path}"), open_store(f"file://{tmp_path}")
    first.put("d/other", b"")
    with Paused(disk, tmp_path / "d", lambda: first.put("d/k", b"first", mode=CREATE)):
        assert (tmp_path / "d/k").read_bytes() == b"first"
        assert "d/k" not in stored(disk)
        MEETINGS[meet](second)
        assert "d/k" in stored(disk)


@pytest.mark.parametrize("meet", ["head", "get", "list"])
def test_unconfirmed_replacement_survives_once_another_process_relies_on_it(
    disk: PowerCut, tmp_path: Path, meet: str
) -> None:
    first, second = open_store(f"file://{tmp_path}"), open_store(f"file://{tmp_path}")
    etag = first.put("d/k", b"old").etag
    with Paused(disk, tmp_path / "d", lambda: first.put("d/k", b"new", mode=IfMatch(etag))):
        assert (tmp_path / "d/k").read_bytes() == b"new"
        MEETINGS[meet](second)
        assert "d/k" in stored(disk)


def test_object_in_an_unsynced_directory_of_another_process_survives(disk: PowerCut, tmp_path: Path) -> None:
    first, second = open_store(f"file://{tmp_path}"), open_store(f"file://{tmp_path}")
    first.put("other", b"")
    with Paused(disk, tmp_path, lambda: first.put("d/e/k", b"first", mode=CREATE)):
        assert (tmp_path / "d").is_dir()
        second.put("d/e/mine", b"second", mode=CREATE)
        assert "d/e/mine" in stored(disk)


@pytest.mark.slow
def test_name_that_cannot_be_synced_is_an_unknown_outcome(disk: PowerCut, tmp_path: Path) -> None:
    store = open_store(f"file://{tmp_path}")
    store.put("d/other", b"")

    def fail(directory: Path) -> None:
        if directory == tmp_path / "d":
            raise OSError(5, "Input/output error")

    disk.before_sync = fail
    outcome: OffloaderError | None = None
    try:
        store.put("d/k", b"body")
    except OffloaderError as error:
        outcome = error
    assert isinstance(outcome, OutcomeUnknownError)
    assert "d/k" not in stored(disk)
    disk.before_sync = lambda _: None
    assert store.get("d/k")[0] == b"body"
    assert "d/k" in stored(disk)


# -- processes that were killed

KILLED = """
import os, signal, stat, sys
from offloader.store.base import CREATE
from offloader.store.open import open_store
store = open_store(sys.argv[1])
store.put("d/other", b"")
left = int(sys.argv[2])
sync = os.fsync
def fsync(descriptor):
    global left
    left -= 1
    if not left:
        os.kill(os.getpid(), signal.SIGKILL)
    sync(descriptor)
os.fsync = fsync
getattr(store, sys.argv[3])("d/k", **({"body": b"body", "mode": CREATE} if sys.argv[3] == "put" else {}))
"""


def killed(root: Path, sync: int, verb: str = "put") -> list[Path]:
    """What a process that is killed at its ``sync``-th sync leaves in the hidden folder, made old."""
    command = [sys.executable, "-c", KILLED, f"file://{root}", str(sync), verb]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)
    assert ended.returncode == -signal.SIGKILL, ended.stderr
    left = [*(root / ".offloader/tmp").iterdir(), *(root / ".offloader/uploads").glob("*.new")]
    for path in left:
        os.utime(path, (OLD_S, OLD_S))
    return left


@pytest.mark.process
@pytest.mark.parametrize("sync", [1, 2, 3, 4])
def test_files_left_by_a_killed_process_are_removed(tmp_path: Path, sync: int) -> None:
    left = killed(tmp_path, sync)
    assert left
    store = open_store(f"file://{tmp_path}")
    assert not [path for path in left if path.exists()]
    store.put("d/new", b"")


@pytest.mark.process
def test_upload_begun_by_a_killed_process_is_removed(tmp_path: Path) -> None:
    [left] = [path for path in killed(tmp_path, 3, "begin_upload") if path.is_dir()]
    open_store(f"file://{tmp_path}")
    assert not left.exists()


@pytest.mark.process
def test_unconfirmed_object_of_a_killed_process_survives_the_cleanup(disk: PowerCut, tmp_path: Path) -> None:
    sync = next(each for each in range(1, 9) if killed(tmp_path / f"{each}", each) and exists(tmp_path / f"{each}"))
    open_store(f"file://{tmp_path / f'{sync}'}")
    assert f"{sync}/d/k" in stored(disk)


def exists(root: Path) -> bool:
    return (root / "d/k").exists()


def test_temporary_files_that_are_new_or_of_a_living_process_stay(disk: PowerCut, tmp_path: Path) -> None:
    store = open_store(f"file://{tmp_path}")
    store.put("d/other", b"")
    with Paused(disk, tmp_path / ".offloader/meta/d", lambda: store.put("d/k", b"body", mode=CREATE)):
        [mine] = (tmp_path / ".offloader/tmp").iterdir()
        os.utime(mine, (OLD_S, OLD_S))
        young = tmp_path / ".offloader/tmp/young"
        young.write_bytes(b"")
        open_store(f"file://{tmp_path}")
        assert mine.exists()
        assert young.exists()
    assert store.get("d/k")[0] == b"body"


# -- the ledger database


def test_new_database_and_its_folders_survive(disk: PowerCut, tmp_path: Path) -> None:
    with closing(Database(str(tmp_path / "a/b/ledgers.db"), clock=SystemClock())):
        assert "a/b/ledgers.db" in disk.survivors()


def test_database_that_another_process_is_making_survives_once_it_is_used(disk: PowerCut, tmp_path: Path) -> None:
    path = tmp_path / "ledgers.db"

    def make() -> None:
        Database(str(path), clock=SystemClock()).close()

    with Paused(disk, tmp_path, make):
        assert path.exists()
        with closing(Database(str(path), clock=SystemClock())):
            assert "ledgers.db" in disk.survivors()
