"""Recent views of manifests: how old they may be, how many are kept, and streams that are deleted and created again."""

from __future__ import annotations

import itertools
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from formats.keys import record_key
from formats.manifest import StreamDeleted
from offloader.errors import CorruptError, NotFoundError
from offloader.gc.delete_stream import remove_stream
from offloader.service.answers import ManifestViews
from offloader.store.base import ObjectStore
from offloader.store.memory import MemoryStore
from offloader.store.open import open_store
from offloader.store.wrappers import requests_of
from offloader.testing.manual_clock import ManualClock
from tests.support.streams import StreamWriter, batch_of
from tests.support.waiting import PATIENCE_S, eventually

_names = itertools.count()


@pytest.fixture
def store() -> ObjectStore:
    return open_store(f"memory://views-{next(_names)}")


def gets(store: ObjectStore) -> int:
    return requests_of(store)["get"].requests


def test_view_is_read_anew_when_it_is_too_old(store: ObjectStore) -> None:
    clock = ManualClock()
    views, writer = ManifestViews(store, clock), StreamWriter(store, "a")
    writer.add([batch_of(7, 0, 10)])
    first = views.get("a", age_s_max=5)
    before = gets(store)
    clock.advance(4)
    assert views.get("a", age_s_max=5) is first
    assert gets(store) == before
    writer.add([batch_of(7, 10, 10)])
    assert views.get("a", age_s_max=5).state.committed_end() == (7, 9)
    assert views.get("a").state.committed_end() == (7, 19)
    clock.advance(6)
    writer.add([batch_of(7, 20, 10)])
    assert views.get("a", age_s_max=5).state.committed_end() == (7, 29)


def test_stale_view_is_used_while_it_is_read_anew(store: ObjectStore) -> None:
    clock = ManualClock()
    views, writer = ManifestViews(store, clock), StreamWriter(store, "a")
    writer.add([batch_of(7, 0, 10)])
    first = views.get("a", age_s_max=5, stale_s_max=60)
    writer.add([batch_of(7, 10, 10)])
    clock.advance(50)
    assert views.get("a", age_s_max=5, stale_s_max=60) is first
    eventually(lambda: views.get("a", age_s_max=5, stale_s_max=60).state.committed_end() == (7, 19))
    writer.add([batch_of(7, 20, 10)])
    clock.advance(61)
    assert views.get("a", age_s_max=5, stale_s_max=60).state.committed_end() == (7, 29)
    views.close()


def test_stale_view_of_a_stream_that_is_gone_is_not_used_again() -> None:
    clock = ManualClock()
    store = MemoryStore(f"views-{next(_names)}", "", clock)
    views, writer = ManifestViews(store, clock), StreamWriter(store, "a", clock=clock)
    writer.add([batch_of(7, 0, 10)])
    views.get("a")
    writer.log.commit([StreamDeleted()])
    clock.advance(50)
    assert not views.get("a", age_s_max=5, stale_s_max=60).state.stream_deleted
    eventually(lambda: views.get("a", age_s_max=5, stale_s_max=60).state.stream_deleted)
    views.close()


def test_stale_view_that_cannot_be_read_anew_is_not_used_again(store: ObjectStore) -> None:
    clock = ManualClock()
    views = ManifestViews(store, clock)
    StreamWriter(store, "a").add([batch_of(7, 0, 10)])
    first = views.get("a")
    state = first.state
    store.put(record_key("a", state.incarnation, state.record_id + 1), b"no record")
    clock.advance(50)
    assert views.get("a", age_s_max=5, stale_s_max=60) is first
    with pytest.raises(CorruptError):
        eventually(lambda: views.get("a", age_s_max=5, stale_s_max=60) is None)
    views.close()


def test_one_of_many_requests_loads(store: ObjectStore) -> None:
    clock = ManualClock()
    views, writer = ManifestViews(store, clock), StreamWriter(store, "a")
    writer.add([batch_of(7, 0, 10)])
    alone = ManifestViews(store, clock)
    before = gets(store)
    alone.get("a")
    one = gets(store) - before
    begun = threading.Barrier(8)

    def get(_: int) -> int:
        begun.wait(PATIENCE_S)
        return views.get("a", age_s_max=5).state.record_id

    with ThreadPoolExecutor(8) as threads:
        assert len(set(threads.map(get, range(8)))) == 1
    assert gets(store) - before == 2 * one


def test_views_are_bounded_and_the_oldest_goes_first(store: ObjectStore) -> None:
    clock = ManualClock()
    for name in ("a", "b", "c"):
        StreamWriter(store, name).add([batch_of(7, 0, 10)])
    views = ManifestViews(store, clock, bytes_max=9000)
    for name in ("a", "b", "a", "c"):
        views.get(name, age_s_max=5)
    before = gets(store)
    views.get("a", age_s_max=5)
    views.get("c", age_s_max=5)
    assert gets(store) == before
    views.get("b", age_s_max=5)
    assert gets(store) > before
    small = ManifestViews(store, clock, bytes_max=1)
    assert small.get("a", age_s_max=5) is not small.get("a", age_s_max=5)


def test_stream_that_was_deleted_and_created_again_is_the_new_one() -> None:
    clock = ManualClock()
    store = MemoryStore(f"views-{next(_names)}", "", clock)
    views, writer = ManifestViews(store, clock), StreamWriter(store, "a", clock=clock)
    writer.add([batch_of(7, 0, 10)])
    old = views.get("a").state
    writer.log.commit([StreamDeleted()])
    assert views.get("a").state.stream_deleted
    remove_stream(store, "a", clock=clock)
    clock.advance(100 * 24 * 3600)
    remove_stream(store, "a", clock=clock)
    StreamWriter(store, "a", clock=clock).add([batch_of(1, 0, 5)])
    new = views.get("a").state
    assert (new.incarnation != old.incarnation, new.committed_end()) == (True, (1, 4))


def test_unknown_stream_is_not_found(store: ObjectStore) -> None:
    with pytest.raises(NotFoundError):
        ManifestViews(store, ManualClock()).get("nothing")
