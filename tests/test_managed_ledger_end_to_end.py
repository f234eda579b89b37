"""The whole path over every store: append, offload, restart, read back, read with independent code."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from random import Random
from typing import Any

import pytest

from formats.entries import Position
from formats.keys import data_key, index_key
from offloader.errors import FencedError, SourceMismatchError, UnsupportedError
from offloader.managed_ledger import ManagedLedger, open_managed_ledger
from offloader.read.partitions import open_reader
from offloader.settings import Settings
from offloader.store.base import ObjectStore
from offloader.store.open import open_store
from tests.independent_reader import read_segment
from tests.support.server_fixtures import S3Place
from tests.support.waiting import eventually

STREAM = "public/default/persistent/orders-partition-0"
MIB = 1024 * 1024
#: Segments of 6 MiB in parts of 5 MiB: multipart and single PUTs; ledgers of 4 MiB.
SETTINGS = Settings.of(
    {
        "offload": {"part_size": 5 * MIB, "segment_size_max": "6.0MiB", "block_size": 256 * 1024},
        "ledgers": {"ledger_size_max": 4 * MIB},
    }
)
Open = Callable[[], ObjectStore]


@pytest.fixture
def open_local(tmp_path: Path) -> Open:
    return lambda: open_store(f"file://{tmp_path}/store")


@pytest.fixture
def open_s3(s3_place: S3Place) -> Open:
    return s3_place.open


def run_whole_path(open_store: Open, ledgers: Path) -> None:
    random = Random(11)
    expected: list[tuple[Position, bytes]] = []
    store = open_store()

    for round_number in range(2):
        with open_managed_ledger(STREAM, ledgers=f"sqlite:///{ledgers}", store=store, settings=SETTINGS) as topic:
            for _ in range(8):
                payloads = [random.randbytes(random.randint(0, 20_000)) for _ in range(100)]
                for batch in topic.append_batch(payloads, 1_700_000_000_000 + round_number):
                    expected += [(entry.position, entry.payload) for entry in batch.entries()]
            topic.offload()
    store.close()

    store = open_store()
    with open_reader(store, STREAM) as reader:
        assert [(e.position, e.payload) for batch in reader.scan() for e in batch.entries()] == expected
        first, last = expected[310][0], expected[1200][0]
        assert [(e.position, e.payload) for e in reader.read(first, last)] == expected[310:1201]
        assert reader.position_at(1_700_000_000_001) == expected[800][0]
        segments = reader.segments()
    assert len(segments) >= 3
    assert any(segment.summary and segment.summary.data_bytes > 5 * MIB for segment in segments), "a multipart upload"

    # A reader made from the format description alone, which knows nothing of our extension.
    strangers: list[tuple[Position, bytes]] = []
    for segment in segments:
        data, _ = store.get(data_key(STREAM, segment.uuid))
        index, _ = store.get(index_key(STREAM, segment.uuid))
        strangers += [(Position(ledger, entry), payload) for ledger, entry, payload in read_segment(data, index)]
    assert strangers == expected
    assert list(store.list_uploads(data_key(STREAM, segments[0].uuid))) == []
    store.close()


@pytest.mark.slow
def test_whole_path_over_a_local_directory(open_local: Open, tmp_path: Path) -> None:
    run_whole_path(open_local, tmp_path / "ledgers.db")


def test_whole_path_over_s3(open_s3: Open, tmp_path: Path) -> None:
    run_whole_path(open_s3, tmp_path / "ledgers.db")


def test_a_second_owner_on_a_real_server_fences_the_first(open_s3: Open, tmp_path: Path) -> None:
    """Two processes' worth of clients and stores; one hot tier, one manifest: one of them appends and commits."""
    stores = [open_s3(), open_s3()]
    # However slow this machine is now, the fenced one doesn't take the stream back during the test.
    settings = Settings.of({"offload": {"takeover_after": 3600}})

    def opened(store: ObjectStore, name: str) -> ManagedLedger:
        ledgers = f"sqlite:///{tmp_path}/{name}.db"
        return open_managed_ledger(STREAM, ledgers=ledgers, store=store, settings=settings)

    first = opened(stores[0], "shared")
    payloads = [b"x" * 100] * 10
    first.append_batch(payloads)
    first.offload()
    first.append_batch(payloads)
    # A standby over the same file takes the stream, with what isn't offloaded yet.
    second = opened(stores[1], "shared")
    second.append_batch(payloads)
    second.append_batch(payloads)
    second.offload()

    with pytest.raises(FencedError):
        first.append_batch(payloads)
    with pytest.raises(FencedError):
        first.offload()
    # Another hot tier has other entries at the same positions: it is no owner at all, and fences nobody.
    with pytest.raises(SourceMismatchError, match="another database"):
        opened(stores[0], "other")
    second.append_batch(payloads)
    second.offload()
    with open_reader(stores[1], STREAM) as reader:
        assert reader.count() == 50
    topics = [first, second]
    for topic in topics:
        topic.close(drain=False)
    for store in stores:
        store.close()


def test_store_without_conditional_creates_is_refused_before_any_write(servers: Any, tmp_path: Path) -> None:
    """rclone's S3 server ignores If-None-Match."""
    store = servers.place("rclone").open()
    ledgers = f"sqlite:///{tmp_path}/ledgers.db"

    with pytest.raises(UnsupportedError, match="can't be written safely"):
        open_managed_ledger(STREAM, ledgers=ledgers, store=store)
    assert list(store.list("").objects) == []
    assert list(tmp_path.iterdir()) == []

    alone = Settings.of({"store": {"single_writer": True}})
    with open_managed_ledger(STREAM, ledgers=ledgers, store=store, settings=alone) as topic:
        topic.append(b"on one's own risk")
    with open_reader(store, STREAM) as reader:
        assert reader.count() == 1
    store.close()


@pytest.fixture(autouse=True)
def no_leftover_threads() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    eventually(lambda: not [t for t in set(threading.enumerate()) - before if t.name.startswith("offloader")])
