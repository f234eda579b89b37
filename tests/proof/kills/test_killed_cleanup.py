"""kill -9 at each step of truncation, cleanup, undo, reconciliation and deletion; another process continues.

The bucket is then read by a reader that shares no code with this project.
"""

from __future__ import annotations

import shutil
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from uuid import UUID

import pytest

from formats.keys import data_key, new_segment_uuid
from formats.manifest import Assign, Failed
from offloader.errors import StoreUnavailableError
from offloader.gc.sweep import undo_retirements
from offloader.manifest.boundary import listed
from offloader.manifest.catalog import list_streams
from offloader.manifest.log import ManifestLog, load_manifest
from offloader.manifest.protection import TIME_KEY, take_lease
from offloader.runtime.clock import SystemClock
from offloader.store.base import ObjectStore
from offloader.store.open import open_store
from tests.independent_reader import read_segment
from tests.proof.kills.killed_cleanup import HEAD, STREAM, clean, in_own_processes, truncate
from tests.support.streams import StreamWriter, batch_of
from tests.support.waiting import eventually

pytestmark = pytest.mark.process

LEDGERS = range(1, 7)
ALL = [(ledger, entry, f"{ledger}:{entry} ".encode().ljust(20, b".")) for ledger in LEDGERS for entry in range(10)]
AFTER = [entry for entry in ALL if entry[0] >= HEAD.ledger_id]
RECORD = r"/[0-9]{20}\.json$"
UNDER_WAY, DONE = "retention/deleting/", "retention/deleted/"


@dataclass(frozen=True)
class Kill:
    """Where a process dies.

    Attributes:
        act: what it was doing.
        verb, key, when: the storage call.
    """

    act: str
    verb: str
    key: str
    when: str

    def __str__(self) -> str:
        return f"{self.act}-{self.when}-{self.verb}-{self.key.strip('/$')[:12]}"


KILLS = [
    *(Kill("truncate", "put", RECORD, when) for when in ("before", "after")),
    *(Kill("retire", "put", RECORD, when) for when in ("before", "after")),
    Kill("retire", "put", "retention/awaited", "after"),
    *(Kill("purge", "put", RECORD, when) for when in ("before", "after")),
    Kill("purge", "put", UNDER_WAY, "after"),
    *(Kill("purge", "delete", r"/[0-9a-f-]{36}$", when) for when in ("before", "half", "after")),
    Kill("purge", "put", DONE, "after"),
    Kill("purge", "delete", UNDER_WAY, "after"),
    *(Kill("undo", "put", RECORD, when) for when in ("before", "after")),
    *(Kill("orphans", "delete", r"/[0-9a-f-]{36}(-index)?$", when) for when in ("before", "half", "after")),
    Kill("orphans", "abort_upload", "killed/", "after"),
    *(Kill("delete", "put", RECORD, when) for when in ("before", "after")),
    Kill("delete", "put", "boundary", "after"),
    Kill("delete", "delete", r"killed/stream/[0-9a-f-]{36}", "half"),
    Kill("delete", "delete", r"/manifest/", "half"),
    *(Kill("delete", "put", "_catalog/killed", when) for when in ("before", "after")),
    *(Kill("delete", "delete_if_match", "_catalog/killed", when) for when in ("before", "after")),
]


STREAM_ACTS = list(dict.fromkeys(kill.act for kill in KILLS))


def prepared(act: str, directory: Path) -> str:
    """A store in which an act has something to do; its URL."""
    url = f"file://{directory}"
    store = open_store(url)
    writer = StreamWriter(store, STREAM)
    for ledger in LEDGERS:
        writer.add([batch_of(ledger, 0, 10)], closes=[ledger])
    StreamWriter(store, "killed/other").add([batch_of(1, 0, 10)])
    if act == "orphans":
        for number in range(4):
            uuid = new_segment_uuid(writer.log.state.incarnation, number)
            end = batch_of(9, 0, 1).first
            writer.log.commit([Assign(uuid, 2, end, None, 5, {}), Failed(uuid, "for a test")])
            testimony = writer.log.testimony()
            assert testimony is not None
            writer_puts_late(store, uuid, testimony.as_metadata())
    if act in ("retire", "purge", "undo"):
        truncate(store)
    if act == "retire":
        take_lease(store, STREAM, 3600, clock=SystemClock(), reader="ana@host")
    if act in ("purge", "undo"):
        eventually(lambda: retires(store))
    return url


def writer_puts_late(store: ObjectStore, uuid: UUID, told: dict[str, str]) -> None:
    key = data_key(STREAM, uuid)
    for each in (key, f"{key}-index"):
        store.put(each, b"late", metadata=told)
    store.upload_part(key, store.begin_upload(key), 1, b"late")


def retires(store: ObjectStore) -> bool:
    clean(store)
    return len(load_manifest(store, STREAM).segments.retired()) == HEAD.ledger_id - 1


@pytest.fixture(scope="module")
def stores(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[Kill, ObjectStore]]:
    """After each kill, and after another process came by twice."""
    base = tmp_path_factory.mktemp("killed")
    made = {act: prepared(act, base / act).removeprefix("file://") for act in STREAM_ACTS}
    urls = {}
    for number, kill in enumerate(KILLS):
        shutil.copytree(made[kill.act], base / str(number))
        urls[kill] = f"file://{base / str(number)}"

    ended = in_own_processes([(urls[kill], kill.act, kill.verb, kill.key, kill.when) for kill in KILLS])
    assert {kill: code for kill, code in zip(KILLS, ended, strict=True) if code != -signal.SIGKILL} == {}
    of_act = {act: ",".join(url for kill, url in urls.items() if kill.act == act) for act in STREAM_ACTS}
    assert set(in_own_processes([(of_act[act], act) for act in STREAM_ACTS for _ in range(2)])) == {0}
    found = {kill: open_store(url) for kill, url in urls.items()}
    yield found
    for store in found.values():
        store.close()


def in_bucket(store: ObjectStore) -> list[tuple[int, int, bytes]]:
    """Every entry in the objects of the stream, by the independent reader; each object has its partner."""
    names = {info.key for info in listed(store, f"{STREAM}/") if info.key.count("/") == STREAM.count("/") + 1}
    data = sorted(name for name in names if not name.endswith("-index"))
    assert names == {each for name in data for each in (name, f"{name}-index")}
    entries = (read_segment(store.get(name)[0], store.get(f"{name}-index")[0]) for name in data)
    return sorted(entry for found in entries for entry in found)


def check_truncated(store: ObjectStore) -> None:
    assert load_manifest(store, STREAM).head == HEAD
    assert in_bucket(store) == ALL


def check_retired(store: ObjectStore) -> None:
    state = load_manifest(store, STREAM)
    assert (len(state.offloaded()), len(state.segments.retired())) == (3, 3)
    assert in_bucket(store) == ALL, "somebody reads, and may read what is retired"


def check_purged(store: ObjectStore) -> None:
    state = load_manifest(store, STREAM)
    assert (len(state.offloaded()), len(state.segments)) == (3, 3)
    assert in_bucket(store) == AFTER
    assert list(listed(store, f"{STREAM}/{UNDER_WAY}")) == []
    assert len(list(listed(store, f"{STREAM}/{DONE}"))) == 1


def check_undone(store: ObjectStore) -> None:
    state = load_manifest(store, STREAM)
    assert (len(state.offloaded()), len(state.segments.retired())) == (6, 0)
    assert in_bucket(store) == ALL
    with pytest.raises(Exception, match="nothing is retired"):
        undo_retirements(ManifestLog(store, STREAM, clock=SystemClock()))


def check_swept(store: ObjectStore) -> None:
    assert in_bucket(store) == ALL
    assert list(store.list_uploads("")) == []


def check_deleted(store: ObjectStore, kill: Kill) -> None:
    left = {info.key for info in listed(store, "") if "killed/stream" in info.key and info.key != TIME_KEY}
    assert list_streams(store) == ["killed/other"]
    assert list(store.list_uploads("")) == []
    if (kill.verb, kill.when) == ("delete_if_match", "before"):
        # Whoever set the mark may still send its request: an hour later somebody else does.
        assert left == {"_catalog/killed/stream"}
        with pytest.raises(StoreUnavailableError, match="is being removed after a deletion"):
            ManifestLog(store, STREAM, clock=SystemClock()).open_epoch()
    else:
        assert left == set()
        ManifestLog(store, STREAM, clock=SystemClock()).open_epoch()


CHECKS: dict[str, Callable[[ObjectStore], None]] = {
    "truncate": check_truncated,
    "retire": check_retired,
    "purge": check_purged,
    "undo": check_undone,
    "orphans": check_swept,
}


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kill", KILLS, ids=str)
def test_work_of_killed_process_is_finished_by_another(kill: Kill, stores: dict[Kill, ObjectStore]) -> None:
    store = stores[kill]
    if kill.act == "delete":
        check_deleted(store, kill)
    else:
        CHECKS[kill.act](store)
    other = [info.key for info in listed(store, "killed/other/") if "/manifest/" not in info.key]
    assert len(other) == 2
    assert len(load_manifest(store, "killed/other").offloaded()) == 1
