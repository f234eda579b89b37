"""``python -m tests.golden_store.make FILE``: writes the archive of the golden store with the code of this checkout.

The archive in the repository is written once for each version of the format, so that later code is tested with what
earlier code wrote. Beside those of ``every_kind``, the store has these streams:

* ``a/streamed``: ledgers cut by segments, zstd, a checkpoint with records behind it, a subscriber, a lease, entries
  that are in the database only
* ``a/by-ledger``: V1 objects by the ledger method, and a closed ledger that isn't offloaded yet
* ``a/truncated``: begins inside a ledger, whole ledgers are gone, their segments are retired and not yet deleted
* ``a/rolled``: small segments that were replaced by larger ones
* ``a/paused``: paused and held
* ``a/left``: its writer ended without completing what it had
* ``a/topic``: two partitions, truncated as one stream by retention
* the golden stream of Pulsar's own objects, adopted
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import sys
import tempfile
from pathlib import Path

from offloader import Position
from offloader.manifest.catalog import list_streams
from offloader.read.partitions import open_reader
from tests.golden_store.archive import pack
from tests.golden_store.every_kind import TOMBSTONE, write_every_kind
from tests.golden_store.place import DATABASES, Place, entries

_PULSARS = Path(__file__).parents[1] / "formats" / "golden" / "v1"
#: Pulsar's objects that are adopted: ledgers in that folder.
_ADOPTED = ("1001", "1004", "1007")


def _write(place: Place) -> None:
    _streamed(place)
    _by_ledger(place)
    _truncated(place)
    _rolled(place)
    _paused(place)
    _left(place)
    _topic(place)
    place.run("group", "set", "group", "--stream", "a/streamed", "--stream", "a/by-ledger")
    _pulsars(place)


def _streamed(place: Place) -> None:
    with place.topic("a/streamed", codec="zstd") as topic:
        for number in range(12):
            topic.append_batch(entries("a/streamed", 100 * number, 100), 1_700_000_000_000 + number)
            topic.offload()
        place.run("subscriber", "add", "a/streamed", "reader")
        place.run("subscriber", "ack", "a/streamed", "reader", "--at", f"{topic.ledgers()[1].ledger_id}:3")
    with place.topic("a/streamed", method="none") as topic:
        topic.append_batch(entries("a/streamed", 1200, 50))
    open_reader(place.store, "a/streamed", lease_seconds=3600)  # its lease stays, as after a crash


def _by_ledger(place: Place) -> None:
    with place.topic("a/by-ledger", method="ledger") as topic:
        topic.append_batch(entries("a/by-ledger", 0, 600))
        topic.close_ledger()
        topic.offload()
    with place.topic("a/by-ledger", method="none") as topic:
        topic.append_batch(entries("a/by-ledger", 600, 40))
        topic.close_ledger()


def _truncated(place: Place) -> None:
    with place.topic("a/truncated") as topic:
        topic.append_batch(entries("a/truncated", 0, 900))
        topic.offload()
        topic.truncate(Position(topic.ledgers()[2].ledger_id, 7))
    place.run("cleanup", "run", "--apply", "a/truncated", "--allow-large")


def _rolled(place: Place) -> None:
    with place.topic("a/rolled") as topic:
        topic.append_batch(entries("a/rolled", 0, 500))
        topic.close_ledger()
        topic.offload()
    place.run("stream", "compact", "a/rolled", "--beside-owner")


def _paused(place: Place) -> None:
    with place.topic("a/paused") as topic:
        topic.append_batch(entries("a/paused", 0, 300))
        topic.offload()
        topic.pause("maintenance")
        topic.append_batch(entries("a/paused", 300, 30))
    place.run("cleanup", "hold", "a/paused", "--reason", "case 7")


def _left(place: Place) -> None:
    topic = place.topic("a/left", part_size=5 * 1024 * 1024)
    topic.append_batch(entries("a/left", 0, 250))
    topic.offload()
    topic.append_batch(entries("a/left", 250, 60))
    topic.close(drain=False)


def _topic(place: Place) -> None:
    begins = []
    for number in range(2):
        with place.topic(f"a/topic-partition-{number}") as topic:
            topic.append_batch(entries(f"a/topic {number}", 0, 700))
            topic.offload()
            begins += ["--at", f"{number}={topic.ledgers()[1 + number].ledger_id}:5"]
    place.run("subscriber", "add", "a/topic", "billing")
    place.run("subscriber", "ack", "a/topic", "billing", *begins)
    place.run("retention", "run", "--apply", "a/topic", "--config", str(place.config))


def _pulsars(place: Place) -> None:
    """Adopts objects that Pulsar wrote."""
    for path in sorted(_PULSARS.glob("*.meta.json")):
        key = path.name.removesuffix(".meta.json")
        if key.removesuffix("-index").endswith(_ADOPTED):
            metadata = json.loads(path.read_text())["userMetadata"]
            place.store.put(key, (_PULSARS / key).read_bytes(), metadata=metadata)
    place.run("import")


def main(words: list[str]) -> None:
    if len(words) != 1:
        raise SystemExit("usage: python -m tests.golden_store.make FILE")
    target = Path(words[0])
    if target.exists():
        raise SystemExit(f"{target} exists and isn't overwritten: it shows what earlier code wrote")
    os.environ.pop("OFFLOADER_STORE", None)
    with tempfile.TemporaryDirectory() as name, contextlib.redirect_stdout(io.StringIO()):
        place = Place(Path(name))
        _write(place)
        write_every_kind(place)
        streams = set(list_streams(place.store)) - {TOMBSTONE}
        pack(target, place.folder, place.store, streams, ["ledgers.db", *DATABASES.values()])
    print(f"{target}: {target.stat().st_size:,} bytes")


if __name__ == "__main__":
    main(sys.argv[1:])
