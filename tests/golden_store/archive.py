"""The archive of the golden store: packed by ``make``, unpacked by tests.

It contains the store as a local directory, the ledger databases beside it, ``readable.json`` (for each stream what a
reader gets) and ``modified.json`` (modification times of objects).
"""

from __future__ import annotations

import hashlib
import io
import itertools
import json
import lzma
import os
import struct
import tarfile
import tempfile
from collections.abc import Iterable, Iterator
from contextlib import closing
from functools import lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from offloader.read.partitions import open_reader
from offloader.store.open import open_store
from tests.golden_store.place import STORE

if TYPE_CHECKING:
    from formats.entries import Entry
    from offloader.store.base import ObjectStore

__all__ = ["ARCHIVE", "digest", "into_memory", "object_keys", "pack", "read_digest", "unpack", "unpack_databases"]

ARCHIVE = Path(__file__).with_name("0.1.tar.xz")


def object_keys(store: ObjectStore, prefix: str = "") -> Iterator[str]:
    """All keys with a prefix."""
    after: str | None = ""
    while after is not None:
        page = store.list(prefix, after=after)
        yield from (info.key for info in page.objects)
        after = page.next_after


def digest(entries: Iterable[Entry]) -> dict[str, object]:
    """Number of entries, the first and the last position, and a digest of all positions and payloads."""
    whole, count, ends = hashlib.sha256(), 0, ["", ""]
    for entry in entries:
        whole.update(struct.pack(">qqi", *entry.position, len(entry.payload)) + entry.payload)
        ends = [ends[0] or str(entry.position), str(entry.position)]
        count += 1
    return {"entries": count, "first": ends[0], "last": ends[1], "sha256": whole.hexdigest()}


def read_digest(store: ObjectStore, stream: str) -> dict[str, object]:
    """``digest`` of all that a reader gets from the store alone."""
    with open_reader(store, stream) as reader:
        return digest(entry for batch in reader.scan() for entry in batch.entries())


def pack(target: Path, folder: Path, store: ObjectStore, streams: Iterable[str], databases: Iterable[str]) -> None:
    """Writes the archive ``target``, which must not exist.

    Args:
        folder: has the databases.
        streams: to be described in ``readable.json``.
    """
    readable = {stream: read_digest(store, stream) for stream in sorted(streams)}
    (folder / "readable.json").write_text(json.dumps(readable, indent=1, sort_keys=True))
    with closing(open_store(f"file://{folder}/store")) as local:
        for key in object_keys(store):
            body, found = store.get(key)
            local.put(key, bytes(body), metadata=dict(found.metadata))
        # In nanoseconds, which a tar file doesn't keep: a local directory's store detects a changed object by them.
        times = {f"store/{key}": (folder / "store" / key).stat().st_mtime_ns for key in object_keys(local)}
    (folder / "modified.json").write_text(json.dumps(times, indent=0))
    # Beside a database is a file that says what was acknowledged.
    beside = sorted({path.name for name in databases for path in folder.glob(f"{name}*")})
    with (
        lzma.open(target, "xb", preset=9) as compressed,
        tarfile.open(fileobj=compressed, mode="w", format=tarfile.GNU_FORMAT) as packed,
    ):
        for path in ("readable.json", "modified.json", *beside, "store"):  # the store last: see ``unpack_databases``
            packed.add(folder / path, path, filter=_anonymous)


def _anonymous(info: tarfile.TarInfo) -> tarfile.TarInfo:
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    return info


def unpack(folder: Path) -> Path:
    """The folder, with all files of the archive in it and the modification times that they had."""
    with tarfile.open(fileobj=io.BytesIO(_decompressed())) as packed:
        packed.extractall(folder, filter="data")
    for name, modified_ns in json.loads((folder / "modified.json").read_text()).items():
        os.utime(folder / name, ns=(modified_ns, modified_ns))
    return folder


def unpack_databases(folder: Path) -> Path:
    """The folder, with all files of the archive in it except the store."""
    with tarfile.open(fileobj=io.BytesIO(_decompressed())) as packed:
        for each in itertools.takewhile(lambda member: member.name != "store", packed):
            packed.extract(each, folder, filter="data")
    return folder


def into_memory() -> ObjectStore:
    """The store in memory whose name the manifests have, with the objects of the archive and no others."""
    store = open_store(STORE)
    store.delete(list(object_keys(store)))
    for key, body, metadata in _objects():
        store.put(key, body, metadata=metadata)
    return store


@lru_cache(maxsize=1)
def _decompressed() -> bytes:
    with lzma.open(ARCHIVE) as file:
        return file.read()


@lru_cache(maxsize=1)
def _objects() -> list[tuple[str, bytes, dict[str, str]]]:
    """Key, bytes and metadata of every object."""
    with (
        tempfile.TemporaryDirectory() as name,
        closing(open_store(f"file://{unpack(Path(name))}/store")) as local,
    ):
        found = ((key, *local.get(key)) for key in object_keys(local))
        return [(key, bytes(body), dict(info.metadata)) for key, body, info in found]
