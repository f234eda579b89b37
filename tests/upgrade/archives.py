"""The archives that earlier releases wrote, and how a test brings one of them into a store."""

from __future__ import annotations

import json
import os
import tarfile
import tempfile
from collections.abc import Iterator
from contextlib import closing
from functools import lru_cache
from pathlib import Path

from offloader import open_store
from offloader.store.base import ObjectStore
from tests.upgrade.place import STORE

__all__ = ["ARCHIVES", "EVERY_KIND", "into_memory", "objects", "unpacked"]

_ORDER = ("0.1.0-e2fab4b", "0.1.0-3364649")
#: The oldest first.
ARCHIVES = sorted(Path(__file__).parent.glob("*.tar.xz"), key=lambda path: _ORDER.index(path.name.split(".tar")[0]))
#: Has the streams of ``every_kind`` too.
EVERY_KIND = ARCHIVES[-1]


def unpacked(archive: Path, folder: Path, *, store: bool = True) -> Path:
    """The folder, with an archive's files in it, each of the time it had to the nanosecond.

    Args:
        store: the directory with the objects too, and not only the databases and what is said of them.
    """
    with tarfile.open(archive) as packed:
        packed.extractall(folder, [each for each in packed if store or "/" not in each.name], filter="data")
    for name, modified_ns in json.loads((folder / "modified.json").read_text()).items() if store else ():
        os.utime(folder / name, ns=(modified_ns, modified_ns))
    return folder


def into_memory(archive: Path) -> ObjectStore:
    """The store in memory whose name the manifests have, with an archive's objects and no others."""
    store = open_store(STORE)
    store.delete(list(objects(store)))
    for key, body, metadata in _contents(archive):
        store.put(key, body, metadata=metadata)
    return store


@lru_cache(maxsize=4)
def _contents(archive: Path) -> list[tuple[str, bytes, dict[str, str]]]:
    """Key, bytes and metadata of every object."""
    with (
        tempfile.TemporaryDirectory() as name,
        closing(open_store(f"file://{unpacked(archive, Path(name))}/store")) as local,
    ):
        found = ((key, *local.get(key)) for key in objects(local))
        return [(key, bytes(body), dict(info.metadata)) for key, body, info in found]


def objects(store: ObjectStore) -> Iterator[str]:
    """All keys."""
    after: str | None = ""
    while after is not None:
        page = store.list("", after=after)
        yield from (info.key for info in page.objects)
        after = page.next_after
