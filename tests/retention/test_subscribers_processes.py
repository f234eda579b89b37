"""Two processes that publish to one stream at once, against real stores: no acknowledged publish is lost."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from formats.documents import Subscribers, document_key
from offloader.retention.subscribers import open_retention
from offloader.store.base import ObjectStore
from offloader.store.open import open_store
from tests.support.streams import StreamWriter, batch_of

pytestmark = pytest.mark.process

ROOT = Path(__file__).parents[2]
STREAM = "public/default/persistent/orders"
ENTRIES = 6
WAIT_S = 120.0


def race(store: ObjectStore, url: str, options: dict[str, Any]) -> None:
    StreamWriter(store, STREAM).add([batch_of(1, 0, 20)])
    publishers = [
        subprocess.Popen(
            [sys.executable, "-m", "tests.retention.publisher_process"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for _ in range(2)
    ]
    try:
        for number, publisher in enumerate(publishers):
            task = {"url": url, "options": options, "stream": STREAM, "entries": ENTRIES}
            assert publisher.stdin is not None
            publisher.stdin.write(json.dumps({**task, "names": [f"p{number} a", f"p{number} b"]}) + "\n")
            publisher.stdin.flush()
        for publisher in publishers:
            assert publisher.stdout is not None
            assert publisher.stdout.readline() == "ready\n", publisher.stderr and publisher.stderr.read()
        told: dict[str, str] = {}
        for publisher in publishers:
            assert publisher.stdin is not None
            publisher.stdin.write("go\n")
            publisher.stdin.flush()
        for publisher in publishers:
            out, err = publisher.communicate(timeout=WAIT_S)
            assert publisher.returncode == 0, err
            told |= json.loads(out)
    finally:
        for publisher in publishers:
            publisher.kill()
            publisher.wait()
    retention = open_retention(store, STREAM)
    found = retention.registry().subscribers
    assert {name: str(each.cut) for name, each in found.items()} == told
    assert set(told.values()) == {f"0.0=1:{ENTRIES - 1}"}
    place = retention.scope()
    assert place.incarnation is not None
    key = document_key(Subscribers, STREAM, place.incarnation)
    stored = retention.documents.read(key, Subscribers(name=STREAM, partitions=()))
    # 4 registrations and 4 publishes for each entry, each one revision: none was written over another.
    assert stored.document.version.revision == 4 + 4 * ENTRIES


def test_two_processes_publish_at_once_over_a_local_directory(tmp_path: Path) -> None:
    url = f"file://{tmp_path}/store"
    race(open_store(url), url, {})
