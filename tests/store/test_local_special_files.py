"""A FIFO, a socket or a device where an object or its description should be: refused, and never waited for."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from pathlib import Path

import pytest

from offloader.errors import CorruptError, OffloaderError
from offloader.store.base import CREATE, ByteRange, IfMatch, ObjectStore
from offloader.store.local import LEFT_AGE_MS
from offloader.store.open import open_store

CALLS: dict[str, Callable[[ObjectStore], object]] = {
    "get": lambda store: store.get("a/k"),
    "range": lambda store: store.get("a/k", ByteRange(0, 5)),
    "head": lambda store: store.head("a/k"),
    "put": lambda store: store.put("a/k", b"x"),
    "create": lambda store: store.put("a/k", b"x", mode=CREATE),
    "replace": lambda store: store.put("a/k", b"x", mode=IfMatch('"1-1"')),
    "delete_if_match": lambda store: store.delete_if_match("a/k", '"1-1"'),
}


def make_device(path: Path) -> None:
    path.symlink_to("/dev/zero")  # never ends


def make_socket(path: Path) -> None:
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(str(path))


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "s" / "a").mkdir(parents=True)
    return tmp_path / "s"


@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize(
    ("make", "kind"), [(os.mkfifo, "FIFO"), (make_device, "character device"), (make_socket, "socket")]
)
def test_special_file_in_the_place_of_an_object_is_refused(
    folder: Path, name: str, make: Callable[[Path], object], kind: str
) -> None:
    make(folder / "a" / "k")
    store = open_store(f"file://{folder}")
    with pytest.raises(CorruptError, match=f"/a/k is a {kind}, not a plain file") as caught:
        CALLS[name](store)
    assert caught.value.hint
    assert not (folder / "a" / "k").is_file()
    store.close()


def test_special_file_is_listed_and_not_deleted(folder: Path) -> None:
    """Left out of a listing, a record of a manifest would be missing without a word."""
    os.mkfifo(folder / "a" / "k")
    store = open_store(f"file://{folder}")
    store.put("a/l", b"x")
    assert [info.key for info in store.list("a/").objects] == ["a/k", "a/l"]
    [failure] = store.delete(["a/k", "a/l"])
    assert (failure.key, failure.retryable) == ("a/k", False)
    assert "FIFO" in failure.reason
    store.close()


def test_fifo_in_the_place_of_a_description_is_refused(folder: Path) -> None:
    store = open_store(f"file://{folder}")
    store.put("a/k", b"x", metadata={"m": "1"})
    [sidecar] = (folder / ".offloader" / "meta" / "a").iterdir()
    sidecar.unlink()
    os.mkfifo(sidecar)
    with pytest.raises(OffloaderError, match="is a FIFO"):
        store.get("a/k")
    store.close()


def test_old_fifo_among_temporary_files_does_not_block_the_opening(folder: Path) -> None:
    left = folder / ".offloader" / "tmp" / ("0" * 32)
    left.parent.mkdir(parents=True)
    os.mkfifo(left)
    old_s = left.stat().st_mtime - LEFT_AGE_MS / 500
    os.utime(left, (old_s, old_s))
    store = open_store(f"file://{folder}")
    store.put("k", b"x")
    store.close()
