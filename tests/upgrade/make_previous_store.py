"""Writes a store, its ledger database and what must be read from them, with the release whose packages are on the path.

Run by hand, once for each release, in a checkout of it; what is there is never written again:

    git worktree add /tmp/previous REVISION
    PYTHONPATH=/tmp/previous python tests/upgrade/make_previous_store.py tests/upgrade/NAME.tar.xz

Uses nothing but the release's public names and its command line. The streams, each with what may be lost in an upgrade:

* ``a/streamed``: ledgers cut by segments, zstd, a checkpoint with records behind it, a subscriber, a lease, entries
  that are in the database only
* ``a/by-ledger``: V1 objects by the ledger method, and a closed ledger that isn't offloaded yet
* ``a/truncated``: begins inside a ledger, whole ledgers are gone, their segments retired and not yet deleted
* ``a/rolled``: V2 segments that V1 objects took the place of
* ``a/paused``: paused and held
* ``a/left``: its writer ended without completing what it had
* ``a/topic``: two partitions, truncated as one stream by retention
* the golden stream of Pulsar's own objects, adopted
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import struct
import sys
import tarfile
import tempfile
from collections.abc import Iterator
from pathlib import Path

from offloader import Position, open_reader, open_store
from tests.upgrade.every_kind import TOMBSTONES, write_every_kind
from tests.upgrade.place import DATABASES, Place, entries

GOLDEN = Path(__file__).parents[1] / "formats" / "golden" / "v1"
#: Pulsar's objects that are adopted: ledgers in the golden folder.
ADOPTED = ("1001", "1004", "1007")


def write(place: Place) -> None:
    with place.topic("a/streamed", codec="zstd") as topic:
        for number in range(12):
            topic.append_batch(entries("a/streamed", 100 * number, 100), 1_700_000_000_000 + number)
            topic.offload()
        place.run("subscribers", "add", "a/streamed", "reader")
        place.run("subscribers", "ack", "a/streamed", "reader", "--at", f"{topic.ledgers()[1].ledger_id}:3")
    with place.topic("a/streamed", method="none") as topic:
        topic.append_batch(entries("a/streamed", 1200, 50))
    open_reader(place.store, "a/streamed", lease_seconds=3600)  # its lease stays, as after a crash

    with place.topic("a/by-ledger", method="ledger") as topic:
        topic.append_batch(entries("a/by-ledger", 0, 600))
        topic.close_ledger()
        topic.offload()
    with place.topic("a/by-ledger", method="none") as topic:
        topic.append_batch(entries("a/by-ledger", 600, 40))
        topic.close_ledger()

    with place.topic("a/truncated") as topic:
        topic.append_batch(entries("a/truncated", 0, 900))
        topic.offload()
        topic.truncate(Position(topic.ledgers()[2].ledger_id, 7))
    place.run("cleanup", "run", "a/truncated", "--yes")

    with place.topic("a/rolled") as topic:
        topic.append_batch(entries("a/rolled", 0, 500))
        topic.close_ledger()
        topic.offload()
    place.run("rollback", "apply", "a/rolled", "--take-over", code=2)  # the last ledger is open

    with place.topic("a/paused") as topic:
        topic.append_batch(entries("a/paused", 0, 300))
        topic.offload()
        topic.pause("maintenance")
        topic.append_batch(entries("a/paused", 300, 30))
    place.run("cleanup", "hold", "a/paused", "--reason", "case 7")

    topic = place.topic("a/left", part_bytes=5 * 1024 * 1024)
    topic.append_batch(entries("a/left", 0, 250))
    topic.offload()
    topic.append_batch(entries("a/left", 250, 60))
    topic.close(drain=False)

    begins = []
    for number in range(2):
        with place.topic(f"a/topic-partition-{number}") as topic:
            topic.append_batch(entries(f"a/topic {number}", 0, 700))
            topic.offload()
            begins += ["--at", f"{number}={topic.ledgers()[1 + number].ledger_id}:5"]
    place.run("subscribers", "add", "a/topic", "billing")
    place.run("subscribers", "ack", "a/topic", "billing", *begins)
    place.run("retention", "run", "a/topic", "--config", str(place.config))
    place.run("reader-groups", "set", "group", "--stream", "a/streamed", "--stream", "a/by-ledger")

    for key, body, metadata in pulsars():
        place.store.put(key, body, metadata=metadata)
    place.run("adopt")


def pulsars() -> Iterator[tuple[str, bytes, dict[str, str]]]:
    """Objects that Pulsar wrote."""
    for path in sorted(GOLDEN.glob("*.meta.json")):
        key = path.name.removesuffix(".meta.json")
        if key.removesuffix("-index").endswith(ADOPTED):
            yield key, (GOLDEN / key).read_bytes(), json.loads(path.read_text())["userMetadata"]


def digest(found: Iterator[tuple[Position, bytes]]) -> dict[str, object]:
    """How many entries, the first, the last, and a digest of all with their positions."""
    whole, count, ends = hashlib.sha256(), 0, ["", ""]
    for position, payload in found:
        whole.update(struct.pack(">qqi", *position, len(payload)) + payload)
        ends = [ends[0] or str(position), str(position)]
        count += 1
    return {"entries": count, "first": ends[0], "last": ends[1], "sha256": whole.hexdigest()}


def readable(place: Place) -> dict[str, dict[str, object]]:
    """What each stream gives out of the store alone."""
    found = {}
    for stream in sorted({*streams(place)} - TOMBSTONES):
        with open_reader(place.store, stream) as reader:
            every = (entry for batch in reader.scan() for entry in batch.entries())
            found[stream] = digest((entry.position, bytes(entry.payload)) for entry in every)
    return found


def streams(place: Place) -> list[str]:
    names = list[str]()
    after: str | None = ""
    while after is not None:
        page = place.store.list("_catalog/", after=after)
        names += [json.loads(bytes(place.store.get(each.key)[0]))["stream"] for each in page.objects]
        after = page.next_after
    return names


def copy_to_directory(place: Place, folder: Path) -> None:
    """The same objects as a local directory's store keeps them."""
    local = open_store(f"file://{folder}")
    after: str | None = ""
    while after is not None:
        page = place.store.list("", after=after)
        for info in page.objects:
            body, found = place.store.get(info.key)
            local.put(info.key, bytes(body), metadata=dict(found.metadata))
        after = page.next_after
    local.close()


def main() -> None:
    target = Path(sys.argv[1])
    if target.exists():
        raise SystemExit(f"{target} exists: what a release wrote is never written again")
    os.environ.pop("OFFLOADER_STORE", None)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        place = Place(folder)
        write(place)
        write_every_kind(place)
        (folder / "readable.json").write_text(json.dumps(readable(place), indent=1, sort_keys=True))
        copy_to_directory(place, folder / "store")
        # To the nanosecond, which a tar file doesn't keep: a local directory's store knows an object's version by it.
        files = [path for path in (folder / "store").rglob("*") if path.is_file()]
        times = {str(path.relative_to(folder)): path.stat().st_mtime_ns for path in files}
        (folder / "modified.json").write_text(json.dumps(times, indent=0))
        with tarfile.open(target, "w:xz") as packed:
            # Beside a database is the file that says what it acknowledged.
            databases = sorted(
                path.name for name in {"ledgers.db", *DATABASES.values()} for path in folder.glob(f"{name}*")
            )
            for path in ("readable.json", "modified.json", *databases, "store"):
                packed.add(folder / path, path, filter=_anonymous)
    print(f"{target}: {target.stat().st_size:,} bytes")


def _anonymous(info: tarfile.TarInfo) -> tarfile.TarInfo:
    info.uid = info.gid = 0
    info.uname = info.gname = ""
    return info


if __name__ == "__main__":
    sys.stdout = io.TextIOWrapper(sys.stdout.buffer, line_buffering=True)
    main()
