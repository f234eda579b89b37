"""The four ways through the product: the files on the stack from the interface to the effect, few and as documented.

A file is crossed when one of its functions is on the stack at a moment of the way: where a value goes into the next
room, or out of the house. Small functions that such a function calls and that return before are not on the way.
"""

from __future__ import annotations

import re
import sys
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from types import FrameType

import pytest
from pyspark.sql.types import BinaryType, LongType, StructField, StructType

import offloader
from offloader.gc.sweep import cleanup_all
from offloader.managed_ledger import open_managed_ledger
from offloader.manifest.log import load_manifest
from offloader.read.partitions import open_reader
from offloader.retention.cycle import RetentionCycle
from offloader.retention.subscribers import open_retention
from offloader.runtime.clock import SystemClock
from offloader.settings import Settings
from offloader.spark.source import OffloaderDataSource
from offloader.store.open import open_store
from offloader.write.stream import Mode
from tests.support.streams import StreamWriter, batch_of
from tests.support.waiting import eventually
from tests.test_architecture import ROOT

ARCHITECTURE = ROOT / "docs" / "explanation" / "architecture.md"

#: Way -> how many files it may cross.
CROSSED_MAX = {"entry in": 13, "range out": 8, "deletion": 12, "Spark row": 8}
STREAM = "public/default/persistent/orders"


@dataclass(slots=True)
class Way:
    """Files on the stack at the moments of one way, in the order in which they were first met."""

    moments: Mapping[str, str]
    """Qualified name of a function of the product -> what happens there."""
    met: set[str] = field(default_factory=set)
    files: dict[str, None] = field(default_factory=dict)
    begun: bool = False
    passed_over: frozenset[str] = frozenset()
    """Moments that don't count for now."""
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def __call__(self, frame: FrameType, event: str, argument: object) -> None:
        name = frame.f_code.co_qualname
        counts = self.begun and name in self.moments and name not in self.passed_over
        if event == "call" and counts and _file_of(frame) is not None:
            with self._lock:
                self.met.add(name)
                self.files.update(dict.fromkeys(reversed(list(_files_on(frame)))))


def _file_of(frame: FrameType) -> str | None:
    path = frame.f_code.co_filename
    if not path.startswith(f"{ROOT}/"):
        return None
    name = path.removeprefix(f"{ROOT}/")
    return name if name.startswith(("offloader/", "formats/")) else None


def _files_on(frame: FrameType | None) -> Iterator[str]:
    while frame is not None:
        name = _file_of(frame)
        if name is not None:
            yield name
        frame = frame.f_back


@contextmanager
def traced(moments: Mapping[str, str]) -> Iterator[Way]:
    """Traces also threads that start within, from ``begun`` on. A moment that doesn't come is an error."""
    way = Way(moments)
    threading.setprofile(way)
    sys.setprofile(way)
    try:
        yield way
    finally:
        sys.setprofile(None)
        threading.setprofile(None)
    missing = {what for name, what in moments.items() if name not in way.met}
    assert not missing


def entry_in(tmp_path: Path) -> Way:
    """From ``append`` to the commit, over the embedded hot tier and a local store."""
    moments = {
        "EmbeddedStream.append": "the hot tier keeps the entry",
        "OffloadHandle.offer_batch": "the stream offers it to a segment",
        "_BlockBuilder.take": "it becomes part of a block",
        "LocalStore._put": "data, index and record go into the store",
    }
    store = open_store(f"file://{tmp_path}/store")
    with traced(moments) as way:
        ledgers = f"sqlite:///{tmp_path}/ledgers.db"
        with open_managed_ledger(STREAM, ledgers=ledgers, store=store) as topic:
            topic.append(b"first")
            topic.offload()  # takes the stream over
            # Before that, entries are read from the hot tier.
            eventually(lambda: (found := topic.status()) is not None and found.mode is Mode.LIVE)
            way.begun = True
            topic.append_batch([b"entry"] * 100)
            topic.offload()
            way.begun = False
    return way


def range_out(tmp_path: Path) -> Way:
    """From ``read`` to the decoded blocks."""
    entry_in(tmp_path)
    store = open_store(f"file://{tmp_path}/store")
    reader = open_reader(store, STREAM)
    moments = {
        "LocalStore._get": "index and blocks are fetched",
        "decode_block": "a block is checked and decoded",
    }
    with traced(moments) as way:
        way.begun = True
        first, last = reader.first_position, reader.last_position
        assert first is not None
        assert last is not None
        assert len(reader.read(first, last)) == 101
    return way


def deletion(tmp_path: Path) -> Way:
    """From the retention cycle's decision to the deleted objects of a segment that all subscribers have read."""
    settings = Settings.of(
        {
            "retention": {"policy": "consumption"},
            "cleanup": {"delete": True, "grace_period": "0h", "allow_large_delete": True},
        }
    )
    store = open_store(f"file://{tmp_path}/store")
    writer = StreamWriter(store, STREAM)
    for ledger in (1, 2):
        writer.add([batch_of(ledger, 0, 10)], closes=[ledger])
    retention = open_retention(store, STREAM)
    retention.add("billing")
    retention.publish("billing", offloader.Position(2, 0))
    moments = {
        "decide": "the cut is chosen",
        "plan_cleanup": "what may go is planned",
        "LocalStore._put": "head and marks, then purged, are recorded",
        "LocalStore._delete": "objects are deleted",
    }
    clock = SystemClock()
    with traced(moments) as way:
        way.begun = True
        RetentionCycle(store, clock=clock, settings_of=lambda _: settings).run(STREAM)
        for _ in range(2):  # marked, then deleted
            list(cleanup_all(store, clock=clock, settings_of=lambda _: settings))
    assert len(load_manifest(store, STREAM).segments) == 1
    return way


def spark_row(tmp_path: Path) -> Way:
    """From the plan over a loaded manifest to an executor's Arrow batch; both in this process."""
    store = open_store(f"file://{tmp_path}/store")
    StreamWriter(store, STREAM).add([batch_of(1, 0, 10)])
    moments = {
        "plan_slices": "the driver plans slices",
        "LocalStore._get": "an executor fetches index and blocks",
        "decode_block": "a block is checked and decoded",
        "_entry_batches": "rows become columns",
    }
    with traced(moments) as way:
        way.begun, way.passed_over = True, frozenset({"LocalStore._get"})  # loading the manifest is no part of it
        source = OffloaderDataSource({"store": store.url, "stream": STREAM})
        reader = source.reader(StructType([StructField("entry_id", LongType()), StructField("payload", BinaryType())]))
        partitions = reader.partitions()
        way.passed_over = frozenset()
        rows = sum(batch.num_rows for part in partitions for batch in reader.read(part))
    assert rows == 10
    return way


WAYS: Mapping[str, Callable[[Path], Way]] = {
    "entry in": entry_in,
    "range out": range_out,
    "deletion": deletion,
    "Spark row": spark_row,
}


@pytest.mark.slow
@pytest.mark.parametrize("name", WAYS)
def test_documented_ways_through_the_code_cross_few_files(name: str, tmp_path: Path) -> None:
    crossed = list(WAYS[name](tmp_path).files)
    assert len(crossed) <= CROSSED_MAX[name]
    text = ARCHITECTURE.read_text(encoding="utf-8")
    section = re.search(
        rf"^### [^\n]*{re.escape(name)}[^\n]*\n(.*?)(?=^#|\Z)", text, re.MULTILINE | re.DOTALL | re.IGNORECASE
    )
    assert section is not None, f"{ARCHITECTURE.name} has no section about the way of {name}"
    assert f"At most {CROSSED_MAX[name]} files." in section[1]
    assert sorted(re.findall(r"`((?:formats|offloader)/[\w/]+\.py)`", section[1])) == sorted(crossed)
