"""Pages of entries of topics with hundreds of partitions: whole, in order, and in bounded memory."""

from __future__ import annotations

import base64
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from formats.entries import EntryBatch
from offloader.service.http.server import OffloadHttp
from offloader.service.view_documents import PARTITIONS_OPEN_MAX, entry_page
from offloader.store.base import ObjectStore
from offloader.store.open import open_store
from tests.service.test_view_documents_wide_topics import LEDGER, TOPIC
from tests.support.http_process import ask, http_process, quoted
from tests.support.streams import BASE_MS, StreamWriter

WIDE, EACH = 300, 3


def add_partitions(store: ObjectStore, count: int, *, each: int, size_bytes: int) -> list[tuple[int, int, bytes]]:
    """Time, partition and payload of all entries, as they have to come."""
    made = []
    for number in range(count):
        # Each partition has entries of all times, and the later ones are first at some.
        times = [BASE_MS + 1000 * entry + (number * 7) % count for entry in range(each)]
        payloads = [b"%d:%d " % (number, entry) for entry in range(each)]
        batch = EntryBatch.build(LEDGER + 13 * number, 0, [p.ljust(size_bytes, b".") for p in payloads], times)
        StreamWriter(store, f"{TOPIC}-partition-{number}", block_bytes=1 << 20).add([batch])
        made += [(time, number, payload) for time, payload in zip(times, payloads, strict=True)]
    return sorted(made)


@pytest.fixture
def http(tmp_path: Path) -> Iterator[tuple[OffloadHttp, ObjectStore]]:
    with http_process(tmp_path, streams=()) as (found, process):
        yield found, process.store


def test_entries_of_300_partitions_come_in_pages_by_publish_time(http: tuple[OffloadHttp, ObjectStore]) -> None:
    served, store = http
    expected = add_partitions(store, WIDE, each=EACH, size_bytes=20)
    at = f"{served.url}/v1/streams/{quoted(f'persistent://{TOPIC}'.replace('/persistent/', '/', 1))}/entries"
    rows: list[Any] = []
    query, pages = "?limit=400", 0
    while query:
        answer = ask(at + query)
        assert answer.status == 200, answer.body
        page = answer.json()
        rows += page["items"]
        pages += 1
        query = f"?limit=400&cursor={page['next_cursor']}" if page["next_cursor"] else ""
    found = [(row["publish_time_ms"], row["partition"], base64.b64decode(row["payload_base64"])) for row in rows]
    assert [(time, number, payload.rstrip(b".")) for time, number, payload in found] == [
        (time, number, payload) for time, number, payload in expected
    ]
    assert pages == -(-WIDE * EACH // 400)
    later = ask(f"{at}?limit=5&since={BASE_MS + 1000 * (EACH - 1)}").json()["items"]
    assert [row["publish_time_ms"] for row in later] == [time for time, _, _ in expected[-WIDE:][:5]]


def test_page_of_many_partitions_holds_the_entries_of_a_few(tmp_path: Path) -> None:
    store = open_store(f"file://{tmp_path}/store", create=True)
    size_bytes, count = 256 * 1024, 4 * PARTITIONS_OPEN_MAX
    expected = add_partitions(store, count, each=1, size_bytes=size_bytes)
    tracemalloc.start()
    try:
        rows, after = entry_page(store, TOPIC, lambda _: None, first=None, from_ms=None, to_ms=None, after="", limit=1)
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert [row["partition"] for row in rows] == [expected[0][1]]
    assert after is not None
    # Twice: an entry's block and the entry itself.
    assert peak_bytes < 2 * (PARTITIONS_OPEN_MAX + 16) * size_bytes < count * size_bytes
