"""The search for streams without a catalogue entry: what it finds, and how many listings it takes."""

from __future__ import annotations

from itertools import count

import pytest

from formats.entries import EntryBatch
from formats.keys import catalog_key, data_key, index_key, stream_prefix
from offloader.manifest.catalog import list_streams
from offloader.manifest.log import ManifestLog
from offloader.manifest.unlisted import PAGE, unlisted_streams
from offloader.runtime.clock import SystemClock
from offloader.store.base import ListPage, ObjectStore
from offloader.store.memory import MemoryStore
from offloader.testing.manual_clock import ManualClock
from tests.support.streams import StreamWriter

_names = count()


class CountingStore(MemoryStore):
    """Counts listings of a beginning of keys."""

    lists = 0

    def _list(self, prefix: str, after: str, limit: int) -> ListPage:
        self.lists += 1
        return super()._list(prefix, after, limit)


@pytest.fixture
def store() -> CountingStore:
    return CountingStore(f"unlisted-{next(_names)}", "", SystemClock())


def create(store: ObjectStore, *names: str) -> None:
    for name in names:
        ManifestLog(store, name, clock=ManualClock()).open_epoch()


def found(store: ObjectStore, prefix: str = "") -> dict[str, str]:
    known = list_streams(store, released=True)
    return {name: str(error) for name, error in unlisted_streams(store, known, prefix=prefix)}


def test_streams_whose_entry_is_missing_are_found_with_the_remedy(store: CountingStore) -> None:
    create(store, "a", "b/c/d", "b/c/e", "tenant/ü", "z")
    assert found(store) == {}
    store.delete([catalog_key(name) for name in ("a", "b/c/d", "tenant/ü")])
    assert set(found(store)) == {"a", "b/c/d", "tenant/ü"}
    assert set(found(store, "b/c/")) == set(found(store, "b/c/d")) == {"b/c/d"}
    for error in found(store).values():
        assert "no catalogue entry" in error
        assert "manifest rebuild" in error


def test_segments_without_manifest_and_entry_are_found(store: CountingStore) -> None:
    create(store, "a")
    uuid = StreamWriter(store, "b/c").add([EntryBatch.build(1, 0, [b"x"], [1_000])])
    manifest = [info.key for info in store.list(f"{stream_prefix('b/c')}manifest/").objects]
    store.delete([catalog_key("b/c"), *manifest])
    assert "neither a catalogue entry nor a manifest" in found(store)["b/c"]
    store.delete([index_key("b/c", uuid)])
    assert found(store) == {}, "a failed attempt left it"
    assert store.head(data_key("b/c", uuid))


def test_objects_of_others_are_no_streams(store: CountingStore) -> None:
    create(store, "b")
    for key in ("a/file", "a/manifest", "b0", "c/manifest/x", "readme.txt", "x/y/00000000-0000-4000-8000-000000000000"):
        store.put(key, b"x")
    assert found(store) == {}


def test_search_takes_a_listing_a_stream_however_many_objects_it_has(store: CountingStore) -> None:
    names = [f"t/s-{number:02d}" for number in range(20)]
    create(store, *names)
    for number in range(PAGE // 10):
        store.put(f"t/s-03/{number}", b"x")
    known = list_streams(store, released=True)
    store.lists = 0
    assert list(unlisted_streams(store, known)) == []
    assert store.lists <= len(names) + 2
