"""One side of a rolling upgrade: a process that runs whatever release is first on its path, and answers in JSON lines.

    PYTHONPATH=RELEASE:CHECKOUT python -P tests/upgrade/beside.py read STORE STREAM...

Uses nothing but public names that each release since the first archive has. Verbs:

* ``read STORE STREAM...``: number, first, last and a digest of each stream's entries
* ``own STORE LEDGERS STREAM``: opens the stream as its owner; then for each line ``FIRST COUNT`` of the standard input
  it appends so many entries and offloads them, until the input ends
* ``cli WORD...``: a command; its exit code is the process's
* ``spark STORE STREAM``: as ``read``, with a Spark of its own
* ``archive FILE``: as ``read``, of each stream in what ``make_previous_store.py`` wrote
* ``fields``: kinds of edits and objects in manifests, and the fields of each
* ``fork``: for each line of the standard input, which is a JSON list of these verbs' words, a process of its own that
  begins with the release's modules loaded, as they take most of the time of a short command; its exit code and output
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import os
import sys
import tempfile
import traceback
from collections.abc import Iterable
from pathlib import Path
from typing import Any

__all__ = ["digest", "entries", "known_fields"]


def entries(stream: str, first: int, count: int) -> list[bytes]:
    """Of 0 to 180 bytes that say where they belong."""
    return [(f"{stream} {number} " * 9).encode()[: number * 37 % 181] for number in range(first, first + count)]


def digest(found: Iterable[tuple[tuple[int, int], bytes]]) -> dict[str, Any]:
    """Number of entries, the first and the last position, and a digest of all payloads."""
    whole, count, ends = hashlib.sha256(), 0, ["", ""]
    for (ledger_id, entry_id), payload in found:
        whole.update(len(payload).to_bytes(4, "big") + payload)
        ends = [ends[0] or f"{ledger_id}:{entry_id}", f"{ledger_id}:{entry_id}"]
        count += 1
    return {"entries": count, "first": ends[0], "last": ends[1], "sha256": whole.hexdigest()}


def known_fields() -> dict[str, list[str]]:
    """Kind of edit, or class of an object in a manifest -> names of its fields."""
    from formats import manifest

    kinds: dict[str, Any] = {f"edit {name}": kind for name, kind in manifest.EDIT_KINDS.items()}
    kinds |= {name: getattr(manifest, name) for name in ("Record", "Boundary", "CatalogEntry", "Writer", "Totals")}
    return {name: sorted(each.name for each in dataclasses.fields(kind)) for name, kind in kinds.items()}


def _read(store_url: str, *streams: str) -> None:
    from offloader import open_reader, open_store

    store = open_store(store_url, read_only=True)
    for stream in streams:
        with open_reader(store, stream) as reader:
            every = (entry for batch in reader.scan() for entry in batch.entries())
            _say(digest((entry.position, bytes(entry.payload)) for entry in every))


def _own(store_url: str, ledgers: str, stream: str) -> None:
    from offloader import Settings, open_managed_ledger, open_store

    settings = Settings.of(
        {
            "offload": {"block_bytes": 4096, "max_size_per_offload_segment_mbytes": 1 / 64},
            "ledgers": {"ledger_bytes_max": 20_000},
            "manifest": {"checkpoint_records": 12},
        }
    )
    topic = open_managed_ledger(stream, ledgers=ledgers, store=open_store(store_url), settings=settings)
    try:
        _say({"owner": stream})
        for line in sys.stdin:
            first, count = map(int, line.split())
            topic.append_batch(entries(stream, first, count), 1_700_000_000_000 + first)
            topic.offload()
            _say({"offloaded": count})
    finally:
        topic.close(drain=False)


def _spark(store_url: str, stream: str) -> None:
    from offloader.spark import local_session

    session = local_session("upgrade", cores=2)
    try:
        rows = session.read.format("offloader").option("store", store_url).option("stream", stream).load()
        ordered = rows.select("ledger_id", "entry_id", "payload").orderBy("ledger_id", "entry_id").toLocalIterator()
        _say(digest(((row.ledger_id, row.entry_id), bytes(row.payload)) for row in ordered))
    finally:
        session.stop()


def _archive(file: str) -> None:
    from offloader import open_reader
    from tests.upgrade.archives import into_memory, unpacked

    with tempfile.TemporaryDirectory() as folder:
        streams = json.loads((unpacked(Path(file), Path(folder), store=False) / "readable.json").read_text())
    store = into_memory(Path(file))
    for stream in sorted(streams):
        with open_reader(store, stream) as reader:
            every = (entry for batch in reader.scan() for entry in batch.entries())
            _say({"stream": stream, **digest((entry.position, bytes(entry.payload)) for entry in every)})
    _say({"streams": len(streams)})


def _cli(*words: str) -> None:
    from offloader.cli.main import main

    sys.exit(main(list(words)))


def _fork() -> None:
    import offloader.cli.main  # noqa: F401 - the forks have it
    from offloader import Settings, open_managed_ledger, open_reader, open_store  # noqa: F401

    for line in sys.stdin:
        with tempfile.TemporaryFile("w+", encoding="utf-8") as printed:
            child = os.fork()
            if child == 0:
                os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
                os.dup2(printed.fileno(), 1)
                os._exit(_code_of(*json.loads(line)))
            _, status = os.waitpid(child, 0)
            printed.seek(0)
            _say({"code": os.waitstatus_to_exitcode(status), "printed": printed.read()})


def _code_of(verb: str, *words: str) -> int:
    """Does what a verb does; the exit code that its process would have."""
    code = 1
    try:
        _do(verb, *words)
        code = 0
    except SystemExit as ended:
        code = ended.code if isinstance(ended.code, int) else int(ended.code is not None)
    except BaseException:
        traceback.print_exc()
    sys.stdout.flush()
    sys.stderr.flush()
    return code


def _say(document: dict[str, Any]) -> None:
    print(json.dumps(document), flush=True)


def _do(verb: str, *words: str) -> None:
    from offloader.errors import OffloaderError

    verbs: dict[str, Any] = {"read": _read, "own": _own, "spark": _spark, "archive": _archive, "cli": _cli}
    try:
        if verb == "fields":
            _say(known_fields())
        else:
            verbs[verb](*words)
    except OffloaderError as error:
        _say({"error": type(error).__name__, "message": str(error)})


if __name__ == "__main__":
    if sys.argv[1:] == ["fork"]:
        _fork()
    else:
        _do(*sys.argv[1:])
