"""A directory that is another one for a while: its file system was unmounted, or it was moved away."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest

from offloader.errors import OutcomeUnknownError, StoreUnavailableError
from offloader.runtime.clock import SystemClock
from offloader.settings import StoreSettings
from offloader.store.base import CREATE, OVERWRITE, IfMatch, ObjectStore
from offloader.store.local import LocalStore

OPERATIONS: dict[str, Callable[[ObjectStore], object]] = {
    "get": lambda store: store.get("a/b"),
    "head": lambda store: store.head("a/b"),
    "list": lambda store: store.list("a/"),
    "create": lambda store: store.put("a/c", b"new", mode=CREATE),
    "overwrite": lambda store: store.put("a/b", b"new", mode=OVERWRITE),
    "replace": lambda store: store.put("a/b", b"new", mode=IfMatch('"1-1"')),
    "delete": lambda store: store.delete(["a/b"]),
    "delete if match": lambda store: store.delete_if_match("a/b", '"1-1"'),
    "upload": lambda store: store.begin_upload("a/d"),
}


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


@pytest.fixture
def store(root: Path) -> ObjectStore:
    root.mkdir()
    opened = LocalStore(root, StoreSettings(), SystemClock())
    opened.put("a/b", b"old")
    return opened


@pytest.mark.parametrize("there", [None, "empty"])
@pytest.mark.parametrize("name", OPERATIONS)
def test_operation_in_another_directory_is_refused_and_writes_nothing(
    name: str, there: str | None, root: Path, store: ObjectStore
) -> None:
    root.rename(root.with_name("away"))
    if there:
        root.mkdir()
    with pytest.raises(StoreUnavailableError, match="isn't the directory that was opened") as caught:
        OPERATIONS[name](store)
    assert caught.value.retryable
    assert not (list(root.iterdir()) if there else root.exists())
    if there:
        root.rmdir()
    root.with_name("away").rename(root)
    assert store.get("a/b")[0] == b"old"


def test_directory_that_changes_during_a_change_leaves_its_outcome_unknown(
    root: Path, store: ObjectStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    link = os.link

    def link_then_move(source: Path, target: Path) -> None:
        link(source, target)
        root.rename(root.with_name("away"))

    monkeypatch.setattr(os, "link", link_then_move)
    with pytest.raises(OutcomeUnknownError, match="isn't the directory that was opened"):
        store.put("a/c", b"new", mode=CREATE)
    assert not root.exists()
