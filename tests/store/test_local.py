"""The local directory: durable, atomic between processes, readable by other tools, without leftovers."""

from __future__ import annotations

import errno
import fcntl
import os
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from formats.checksum import crc32c
from offloader.errors import (
    AccessDeniedError,
    BucketMissingError,
    CorruptError,
    InvalidCallError,
    NotFoundError,
    PreconditionFailedError,
    StoreUnavailableError,
    UnsupportedError,
)
from offloader.runtime.clock import SystemClock
from offloader.settings import Duration, StoreSettings
from offloader.store.base import CREATE, IfMatch, ObjectStore
from offloader.store.local import LocalStore, list_files
from offloader.store.open import open_store
from offloader.testing.store_suite import all_keys
from tests.support.waiting import PATIENCE_S


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return open_store(f"file://{tmp_path}/store")


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


def files_below(directory: Path) -> list[str]:
    return sorted(str(path.relative_to(directory)) for path in directory.rglob("*") if path.is_file())


def run_python(script: str, *arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", script, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=False)


CREATOR = """
import sys
from offloader.errors import PreconditionFailedError
from offloader.store.base import CREATE
from offloader.store.open import open_store
url, name = sys.argv[1:]
store = open_store(url)
print("ready", flush=True)
sys.stdin.readline()
for number in range(40):
    try:
        store.put(f"race/{number}", name.encode(), mode=CREATE, metadata={"writer": name})
        print(number)
    except PreconditionFailedError:
        pass
"""


@pytest.mark.process
def test_one_of_concurrent_creating_processes_wins_with_its_metadata(store: ObjectStore) -> None:
    command = [sys.executable, "-c", CREATOR, store.url]
    writers = {
        name: subprocess.Popen([*command, name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        for name in ("one", "two", "six")
    }
    for process in writers.values():
        assert process.stdout is not None
        assert process.stdout.readline() == "ready\n"
    for process in writers.values():
        assert process.stdin is not None
        process.stdin.write("go\n")
        process.stdin.flush()
    won: dict[str, str] = {}
    for name, process in writers.items():
        for number in process.communicate(timeout=PATIENCE_S)[0].split():
            assert number not in won
            won[number] = name
    assert len(won) == 40
    for number, name in won.items():
        body, info = store.get(f"race/{number}")
        assert (body.decode(), info.metadata["writer"]) == (name, name)


COUNTER = """
import sys
from offloader.errors import PreconditionFailedError
from offloader.store.base import IfMatch
from offloader.store.open import open_store
store = open_store(sys.argv[1])
done = 0
while done < 15:
    body, info = store.get("counter")
    try:
        store.put("counter", str(int(body) + 1).encode(), mode=IfMatch(info.etag))
        done += 1
    except PreconditionFailedError:
        pass
"""


@pytest.mark.process
def test_no_replacement_by_etag_is_lost_between_processes(store: ObjectStore) -> None:
    store.put("counter", b"0")
    with ThreadPoolExecutor(3) as threads:
        runs = list(threads.map(lambda _: run_python(COUNTER, store.url), range(3)))
    assert [run.stderr for run in runs] == [""] * 3
    assert store.get("counter")[0] == b"45"


WRITER = """
import sys
from offloader.store.base import CREATE
from offloader.store.open import open_store
store = open_store(sys.argv[1])
print("ready", flush=True)
for number in range(10_000):
    body = str(number).encode() * 3000
    store.put(f"crash/{number}", body, mode=CREATE, metadata={"number": str(number)})
    store.put("crash/same", body, metadata={"number": str(number)})
"""


@pytest.mark.process
def test_after_a_kill_every_object_is_whole_and_has_its_metadata(store: ObjectStore) -> None:
    process = subprocess.Popen([sys.executable, "-c", WRITER, store.url], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    assert process.stdout.readline() == "ready\n"
    while len(store.list("crash/").objects) < 20:
        assert process.poll() is None
    process.send_signal(signal.SIGKILL)
    process.wait(PATIENCE_S)
    process.stdout.close()
    keys = all_keys(store, "crash/")
    assert len(keys) >= 20
    for key in keys:
        body, info = store.get(key)
        assert body == info.metadata["number"].encode() * 3000
        assert info.crc32c == crc32c(body)
    # And the directory is as usable as before.
    store.put("crash/same", b"after", mode=IfMatch(store.head("crash/same").etag))
    store.put("new", b"after", mode=CREATE)


@pytest.mark.slow
def test_a_reader_never_sees_half_a_replacement(store: ObjectStore) -> None:
    stop = threading.Event()
    store.put("k", b"0", metadata={"length": "1"})

    def write() -> None:
        number = 0
        while not stop.is_set():
            number = number % 50 + 1
            store.put("k", b"x" * number * 1000, metadata={"length": str(number * 1000)})

    with ThreadPoolExecutor(1) as threads:
        writing = threads.submit(write)
        try:
            for _ in range(300):
                body, info = store.get("k")
                assert len(body) == info.size_bytes == int(info.metadata["length"])
                assert info.crc32c == crc32c(body)
        finally:
            stop.set()
        writing.result(30)


def test_other_tools_read_and_write_plain_files(store: ObjectStore, root: Path) -> None:
    store.put("a/b", b"ours", metadata={"k": "v"})
    assert (root / "a" / "b").read_bytes() == b"ours"
    (root / "a" / "c").write_bytes(b"theirs")
    body, info = store.get("a/c")
    assert (body, info.metadata, info.crc32c) == (b"theirs", {}, None)
    assert all_keys(store) == ["a/b", "a/c"]
    store.put("a/c", b"ours now", mode=IfMatch(info.etag))


def test_a_file_that_another_tool_changed_has_another_etag(store: ObjectStore, root: Path) -> None:
    before = store.put("k", b"ours", metadata={"k": "v"})
    (root / "k").write_bytes(b"changed")
    after = store.head("k")
    assert after.etag != before.etag
    assert after.metadata == {}


@pytest.mark.parametrize("copy", [shutil.copy2, shutil.copyfile])
def test_a_copied_directory_keeps_its_metadata(
    store: ObjectStore, root: Path, tmp_path: Path, copy: Callable[[str, str], object]
) -> None:
    """Also one copied without its times, as some backups are."""
    store.put("a/b", b"body", metadata={"k": "v"})
    store.put("a/b.more", b"body", metadata={"k": "w"})
    shutil.copytree(root, tmp_path / "copy", copy_function=copy)
    copied = open_store(f"file://{tmp_path}/copy")
    assert copied.get("a/b")[1].metadata == {"k": "v"}
    assert copied.head("a/b.more").crc32c == crc32c(b"body")


def test_deletes_replacements_refusals_and_aborts_leave_no_files(store: ObjectStore, root: Path) -> None:
    etag = store.put("a/b/c", b"1", metadata={"k": "v"}).etag
    store.put("a/b/c", b"22", mode=IfMatch(etag))
    store.put("a/b/c", b"333")
    for mode in (CREATE, IfMatch(etag)):
        with pytest.raises(PreconditionFailedError, match="a/b/c"):
            store.put("a/b/c", b"4", mode=mode)
    upload_id = store.begin_upload("u/v")
    part = store.upload_part("u/v", upload_id, 1, b"part")
    store.complete_upload("u/v", upload_id, [part])
    aborted = store.begin_upload("u/w")
    store.upload_part("u/w", aborted, 1, b"part")
    store.abort_upload("u/w", aborted)
    store.delete(["a/b/c", "u/v"])
    assert files_below(root) == [".offloader/lock"]
    assert sorted(path.name for path in root.iterdir()) == [".offloader"]


def test_a_damaged_part_is_not_made_an_object(store: ObjectStore, root: Path) -> None:
    upload_id = store.begin_upload("k")
    part = store.upload_part("k", upload_id, 1, b"part")
    (path,) = (root / ".offloader" / "uploads" / upload_id).glob("*.part")
    path.write_bytes(b"pxrt")
    with pytest.raises(InvalidCallError, match="CRC-32C"):
        store.complete_upload("k", upload_id, [part])
    assert all_keys(store) == []
    assert files_below(root / ".offloader" / "tmp") == []


def test_a_damaged_sidecar_is_reported_with_its_place(store: ObjectStore, root: Path) -> None:
    store.put("k", b"body", metadata={"k": "v"})
    (sidecar,) = (root / ".offloader" / "meta").glob("k.*")
    sidecar.write_bytes(b"{")
    with pytest.raises(CorruptError, match=r"\.offloader/meta/k"):
        store.head("k")


@pytest.mark.parametrize("text", ["", "[" * 5000, "[]", '{"key": "a/b", "metadata": 7}'])
def test_changed_upload_description_is_an_error(store: ObjectStore, root: Path, text: str) -> None:
    upload_id = store.begin_upload("a/b")
    [description] = root.rglob("upload.json")
    description.write_text(text)
    with pytest.raises(CorruptError, match="invalid description of an upload"):
        store.list_parts("a/b", upload_id)


def test_the_stores_own_files_are_neither_listed_nor_reachable(store: ObjectStore, root: Path) -> None:
    store.put("k", b"1", metadata={"k": "v"})
    store.begin_upload("u")
    assert all_keys(store) == ["k"]
    for prefix in (".off", ".offloader", ".offloader/", ".offloader/meta/", ".offloader/meta/k"):
        assert all_keys(store, prefix) == []
    for key in (".offloader/lock", ".offloader"):
        with pytest.raises(InvalidCallError):
            store.get(key)
        with pytest.raises(InvalidCallError):
            store.put(key, b"")
    store.put("deeper/.offloader/k", b"")
    assert all_keys(store, "deeper") == ["deeper/.offloader/k"]


def test_undecodable_file_names_are_ignored(store: ObjectStore, root: Path) -> None:
    store.put("k", b"1")
    (Path(os.fsdecode(bytes(root) + b"/bad-\xff"))).write_bytes(b"x")
    assert all_keys(store) == ["k"]


def test_a_directory_is_no_object_and_an_object_no_directory(store: ObjectStore) -> None:
    store.put("a/b", b"1")
    calls: list[Callable[[], object]] = [lambda: store.put("a", b""), lambda: store.put("a", b"", mode=CREATE)]
    for call in calls:
        with pytest.raises(UnsupportedError):
            call()
    for call in (lambda: store.put("a/b/c", b""), lambda: store.put("a/b/c", b"", mode=CREATE)):
        with pytest.raises(UnsupportedError):
            call()
    assert list(store.delete(["a"])) == []
    assert all_keys(store) == ["a/b"]


def test_a_level_longer_than_the_file_system_takes_is_refused(store: ObjectStore) -> None:
    store.put("x" * 200, b"1", metadata={"k": "v"})
    with pytest.raises(InvalidCallError, match="longer than 200 bytes"):
        store.put("x" * 201, b"1")


@pytest.mark.slow
def test_a_lock_held_elsewhere_runs_into_the_deadline(root: Path) -> None:
    store = LocalStore(root, StoreSettings(read_timeout=Duration(0.05)), SystemClock())
    store.put("k", b"1")
    with (root / ".offloader" / "lock").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with pytest.raises(StoreUnavailableError, match="another process held the lock"):
            store.put("k", b"2")
        with pytest.raises(StoreUnavailableError):
            store.delete(["k"])
        store.put("created", b"needs no lock", mode=CREATE)
    store.put("k", b"2")
    assert store.get("k")[0] == b"2"


LIMITED = """
import resource, signal, sys
from offloader.errors import OffloaderError
from offloader.settings import StoreSettings
from offloader.store.base import CREATE
from offloader.store.open import open_store
store = open_store(sys.argv[1], settings=StoreSettings(retries_max=0))
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, 50_000))
for mode in ({}, {"mode": CREATE}):
    try:
        store.put("large", bytes(100_000), **mode)
    except OffloaderError as error:
        print(type(error).__name__)
"""


@pytest.mark.process
def test_failed_write_leaves_no_file(store: ObjectStore, root: Path) -> None:
    found = run_python(LIMITED, store.url)
    assert found.stdout.split() == ["StoreUnavailableError", "StoreUnavailableError"], found.stderr
    assert files_below(root) == []


UNPRIVILEGED = """
import os, sys
from offloader.errors import OffloaderError
from offloader.store import local
from offloader.store.open import open_store
if os.geteuid() == 0:
    os.seteuid(65534)
try:
    open_store(sys.argv[1])
except OffloaderError as error:
    print(type(error).__name__, error.hint)
"""


@pytest.mark.process
@pytest.mark.parametrize("below", ["", "/new"])
def test_a_directory_that_cannot_be_written_is_denied_when_opened(tmp_path: Path, below: str) -> None:
    for parent in (tmp_path, tmp_path.parent, tmp_path.parent.parent):
        parent.chmod(0o755)
    shut = tmp_path / "shut"
    shut.mkdir(mode=0o555)
    found = run_python(UNPRIVILEGED, f"file://{shut}{below}")
    assert found.stdout.startswith("AccessDeniedError check"), found.stderr
    assert "permissions" in found.stdout


def test_missing_directory_is_created_for_writing_only(tmp_path: Path) -> None:
    with pytest.raises(BucketMissingError, match="no such directory"):
        open_store(f"file://{tmp_path}/new", read_only=True)
    assert not (tmp_path / "new").exists()
    store = open_store(f"file://{tmp_path}/new/deep")
    assert (tmp_path / "new" / "deep").is_dir()
    reader = open_store(f"file://{tmp_path}/new/deep", read_only=True)
    assert reader.list("").objects == ()
    shutil.rmtree(tmp_path / "new")
    with pytest.raises(BucketMissingError):
        store.list("")


def test_a_path_through_a_file_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises((UnsupportedError, AccessDeniedError)):
        open_store(f"file://{tmp_path}/file/store")
    with pytest.raises(UnsupportedError):
        open_store(f"file://{tmp_path}/file")


def test_directory_that_cannot_be_created_is_not_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As in /proc: the one above is there, and stays."""

    def refuse(_: Path) -> None:
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT))

    monkeypatch.setattr(Path, "mkdir", refuse)
    with pytest.raises(NotFoundError, match="opening failed"):
        open_store(f"file://{tmp_path}/new/deep")


_LEVEL = st.text(st.sampled_from("ab-/.é日"), min_size=1, max_size=6)
_PREFIX = st.just("") | _LEVEL.filter(lambda text: not any(level in ("", ".", "..") for level in text.split("/")[:-1]))


@pytest.mark.slow
@settings(max_examples=60, deadline=None)
@given(
    names=st.sets(_LEVEL, max_size=12),
    prefix=_PREFIX,
    after=_LEVEL | st.just(""),
    data=st.data(),
)
def test_a_listing_is_the_sorted_keys_after_the_mark(
    tmp_path_factory: pytest.TempPathFactory, names: set[str], prefix: str, after: str, data: st.DataObject
) -> None:
    directory = tmp_path_factory.mktemp("listing")
    keys = []
    for name in sorted(names):
        if any(level in ("", ".", "..") for level in name.split("/")):
            continue
        path = directory / name
        if path.exists() or any((directory / parent).is_file() for parent in Path(name).parents):
            continue
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"")
        keys.append(name)
    expected = sorted(key for key in keys if key.startswith(prefix) and key > after)
    limit = data.draw(st.integers(1, 13))
    assert [key for key, _ in list_files(directory, prefix, after, limit)] == expected[:limit]


def test_upload_that_ends_while_uploads_are_listed_hides_no_other_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = LocalStore(tmp_path, StoreSettings(), SystemClock())
    ids = sorted(store.begin_upload("k") for _ in range(3))
    own = LocalStore._upload_description

    def described(self: LocalStore, upload_id: str) -> object:
        found = own(self, upload_id)
        if upload_id == ids[0]:
            store._drop_upload(upload_id)
        return found

    monkeypatch.setattr(LocalStore, "_upload_description", described)
    assert {each.upload_id for each in store.list_uploads("k")} >= set(ids[1:])
