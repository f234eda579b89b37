"""Names that no store accepts are refused at the interface, before the first entry is taken."""

from __future__ import annotations

import itertools
from contextlib import closing
from pathlib import Path
from urllib.parse import quote

import pyarrow.flight as fl
import pytest

import offloader
from offloader.cli.main import main
from offloader.errors import InvalidCallError, OffloaderError
from offloader.ledgers.pushed import PushedLedgers, PushMemory
from offloader.ledgers.sqlite.embedded import EmbeddedLedgers
from offloader.managed_ledger import open_managed_ledger
from offloader.runtime.clock import SystemClock
from offloader.store.base import ObjectStore
from offloader.store.memory import MemoryStore
from offloader.store.open import open_store
from offloader.stream_names import is_place, is_segment, place_of
from offloader.testing.memory_ledgers import MemoryLedgers
from tests.support.flight_door import APPEND_SCHEMA, flight_door
from tests.support.http_process import ask, http_process
from tests.support.pulsar_cluster import S, fake_cluster, whats
from tests.support.streams import StreamWriter, batch_of
from tests.support.waiting import eventually

#: No store takes these.
BAD = ["a//b", "/a", "a/", "manifest", "x/leases", "a/retention/b", "_catalog", "_x/y", ".offloader", ".offloader/x"]
#: Nor these: a level, and a whole name, that is too long.
LONG = ["x" * 256, "/".join(["x" * 100] * 9), "é" * 50 + "/" + "é" * 50 + "/" + "é" * 50]
_names = itertools.count()


@pytest.fixture
def store() -> ObjectStore:
    return MemoryStore(f"names-{next(_names)}", "", SystemClock())


def append_once(stream: str, ledgers: str, store: ObjectStore) -> object:
    """What a program hears that appends one entry and goes away."""
    settings = offloader.Settings.of({"offload": {"drain_timeout": 1}})
    try:
        topic = open_managed_ledger(stream, ledgers=ledgers, store=store, settings=settings)
    except OffloaderError as error:
        return type(error)
    try:
        return topic.append(b"an entry")
    finally:
        topic.close(drain=False)


@pytest.mark.slow
@pytest.mark.parametrize("name", BAD + LONG, ids=lambda name: name[:20])
def test_managed_ledger_under_an_unstorable_name_is_not_opened(name: str, tmp_path: Path, store: ObjectStore) -> None:
    database = f"sqlite:///{tmp_path}/ledgers.db"
    assert append_once(name, database, store) is InvalidCallError
    assert EmbeddedLedgers(database).streams() == []
    assert [info.key for info in store.list("").objects] == []


@pytest.mark.slow
@pytest.mark.parametrize(("there", "new"), [("a/b", "a/b/c"), ("a/b/c", "a/b"), ("a/b/c/d", "a")])
@pytest.mark.parametrize("is_offloaded", [True, False], ids=["in the store", "in the database"])
def test_a_name_that_begins_with_another_streams_levels_is_refused(
    there: str, new: str, is_offloaded: bool, tmp_path: Path, store: ObjectStore
) -> None:
    mine, other = f"sqlite:///{tmp_path}/mine.db", f"sqlite:///{tmp_path}/other.db"
    if is_offloaded:
        StreamWriter(store, there).add([batch_of(1, 0, 5)])
    else:
        EmbeddedLedgers(mine).open_stream(there).append([b"not offloaded yet"])
    assert append_once(new, mine, store) is InvalidCallError
    assert new not in EmbeddedLedgers(mine).streams()
    beside = f"{there}2"
    assert append_once(beside, other, store) == (1, 0), "a name beside it is free"


@pytest.mark.slow
@pytest.mark.parametrize("name", BAD + LONG, ids=lambda name: name[:20])
def test_sources_refuse_names_that_the_store_cannot_take(name: str, store: ObjectStore) -> None:
    with closing(EmbeddedLedgers("sqlite://:memory:")) as database:
        with pytest.raises(InvalidCallError):
            database.open_stream(name).append([b"an entry"])
        assert database.streams() == []
    with pytest.raises(InvalidCallError):
        PushedLedgers(
            name,
            committed=None,
            closed={},
            promised=None,
            window_bytes_max=1000,
            push_bytes_max=1000,
            memory=PushMemory(1000),
            clock=SystemClock(),
        )
    with closing(offloader.LedgerOffloader(store)) as engine, pytest.raises(InvalidCallError):
        engine.offload_stream(MemoryLedgers("orders", SystemClock()), name)


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["push", "append"])
def test_flight_refuses_a_name_before_it_takes_a_batch(mode: str, tmp_path: Path, store: ObjectStore) -> None:
    StreamWriter(store, "shop/orders").add([batch_of(1, 0, 5)])
    database = f"sqlite:///{tmp_path}/ledgers.db"
    clashing = ["shop/orders/eu", "shop"]
    with flight_door(store, flight__ledgers=database) as door:
        for name in [*BAD, *LONG, *clashing]:
            schema = {"schema": APPEND_SCHEMA} if mode == "append" else {}
            producer = door.put({"stream": name, "mode": mode}, **schema)
            with pytest.raises(fl.FlightServerError, match=r"invalid_request|stream"):
                producer.news()
    assert EmbeddedLedgers(database).streams() == []


@pytest.mark.slow
def test_http_refuses_a_name_that_no_stream_can_have(tmp_path: Path) -> None:
    with http_process(tmp_path) as (http, _):
        statuses = {name: ask(f"{http.url}/v1/streams/{quote(name, safe='')}").status for name in BAD + LONG}
        assert set(statuses.values()) == {400}, statuses


@pytest.mark.slow
def test_topic_with_an_unstorable_name_gets_no_subscription() -> None:
    with fake_cluster() as cluster:
        cluster.make("one", "leases")
        with cluster.serve() as assembled:
            eventually(lambda: cluster.is_offloaded("one"))
            eventually(lambda: "no level named leases" in whats(assembled))
            assert f"stream {S}leases" in whats(assembled)
        assert cluster.topics["one"].internals()["cursors"]
        assert not cluster.topics["leases"].internals()["cursors"], "what nobody reads would pile up there"


def test_stream_named_like_the_stores_own_folder_does_not_hide_others_from_ls(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = open_store(f"file://{tmp_path}/store")
    StreamWriter(made, "orders").add([batch_of(1, 0, 5)])
    # What a release left that took the name and could never offload an entry of it.
    entry = made.get("_catalog/orders")[0]
    made.put("_catalog/.offloader", entry.replace(b"orders", b".offloader"))
    assert main(["ls", "--store", made.url]) == 0
    printed = capsys.readouterr()
    assert [line.split()[0] for line in printed.out.splitlines()] == ["STREAM", "orders"]


@pytest.mark.parametrize(
    ("stream", "place"),
    [
        ("t/n/segment/orders/0000-7fff-1", "t/n/topic/orders"),
        ("t/n/persistent/orders", "t/n/topic/orders"),
        ("t/n/persistent/orders-partition-3", "t/n/topic/orders"),
        ("t/n/segment/orders-partition-3/0000-ffff-0", "t/n/topic/orders-partition-3"),
        ("t/n/persistent/new+orders%25-partition-3", "t/n/topic/new orders%"),
        ("t/n/segment/new orders%/0000-ffff-0", "t/n/topic/new orders%"),
        ("t/n/persistent/a%2Fb", None),
        ("t/n/persistent/retention-partition-0", None),
        ("t/n/topic/orders", None),
        ("t/n/segment/orders", None),
        ("orders", None),
    ],
)
def test_place_of_a_scalable_topic(stream: str, place: str | None) -> None:
    assert place_of(stream) == place
    assert is_segment(stream) == (stream.count("/") == 4)
    assert place is None or is_place(place)
    assert not is_place(stream) or place is None
