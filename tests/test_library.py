"""The objects of a program: a store and its streams."""

from __future__ import annotations

import itertools
import threading
from contextlib import closing
from pathlib import Path
from typing import cast
from uuid import uuid4

import pytest

import offloader
from formats.entries import Position
from formats.keys import data_key, record_key
from formats.manifest import Assign, Failed
from offloader.errors import InvalidCallError, NotFoundError, OffloaderError, UnsupportedError
from offloader.gc.orphans import Outcome
from offloader.inspect.verify import Damage
from offloader.ledgers.sqlite.embedded import EmbeddedLedgers
from offloader.manifest.log import load_manifest
from offloader.manifest.protection import DeletionStoppedError
from offloader.runtime.clock import SystemClock
from offloader.store.memory import MemoryStore
from tests.cli.test_doctor import Overwriting
from tests.support.streams import StreamWriter, batch_of

numbers = itertools.count()
ORDERS = "shop/eu/persistent/orders"


@pytest.fixture
def store() -> offloader.Store:
    return offloader.open_store(f"memory://library-{next(numbers)}")


def test_store_lists_its_streams_and_a_stream_need_not_exist(store: offloader.Store) -> None:
    assert store.list_streams() == []
    orders = store.stream("persistent://shop/eu/orders")
    assert (orders.name, repr(orders)) == (ORDERS, f"Stream({store.url!r}, {ORDERS!r})")
    with pytest.raises(NotFoundError):
        orders.partitions()
    for number in range(2):
        StreamWriter(store.objects, f"{ORDERS}-partition-{number}").add([batch_of(number, 0, 4)])
    assert store.list_streams() == orders.partitions() == [f"{ORDERS}-partition-{number}" for number in range(2)]
    assert store.stream(orders.partitions()[1]).partitions() == [f"{ORDERS}-partition-1"]
    with pytest.raises(InvalidCallError):
        store.stream("non-persistent://shop/eu/orders")


@pytest.mark.slow
def test_appended_entries_are_read_by_position_by_scan_and_by_reader(store: offloader.Store, tmp_path: Path) -> None:
    orders = store.stream("orders")
    with orders.open_ledger(f"sqlite:///{tmp_path}/ledgers.db") as ledger:
        positions = [ledger.append(payload) for payload in (b"pen", b"ink", b"paper")]
        ledger.offload()
    assert [each.payload for each in orders.read(positions[0], positions[2])] == [b"pen", b"ink"]
    assert orders.scan(start=positions[1]).to_table()["payload"].to_pylist() == [b"ink", b"paper"]
    with orders.open_reader() as reader:
        assert (reader.count(), reader.last_position) == (3, positions[2])
    [segment] = orders.segments()
    assert (segment.begin, segment.end) == (positions[0], positions[2])


def test_verify_names_a_missing_object(store: offloader.Store) -> None:
    writer = StreamWriter(store.objects, "orders")
    writer.add([batch_of(1, 0, 10)])
    assert list(store.stream("orders").verify(deep=True)) == []
    store.objects.delete([data_key("orders", writer.uuids[0])])
    assert Damage.MISSING in [each.problem for each in store.stream("orders").verify()]


def test_deep_verify_names_a_lost_record_behind_a_checkpoint(store: offloader.Store) -> None:
    writer = StreamWriter(store.objects, "orders")
    for ledger in (1, 2):
        writer.add([batch_of(ledger, 0, 10)], closes=[ledger])
    orders = store.stream("orders")
    orders.manifest.checkpoint()
    state = load_manifest(store.objects, "orders")
    store.objects.delete([record_key("orders", state.incarnation, state.record_id - 1)])
    assert list(orders.verify()) == []
    assert [each.problem for each in orders.verify(deep=True)] == [Damage.LOST_RECORDS]


def test_failed_segments_are_listed_with_the_reason(store: offloader.Store) -> None:
    writers = [StreamWriter(store.objects, f"{ORDERS}-partition-{number}") for number in range(2)]
    failed = [uuid4(), uuid4()]
    for writer, uuid in zip(writers, failed, strict=True):
        writer.log.commit([Assign(uuid, 2, Position(7, 0), None, 5, {}), Failed(uuid, f"reason of {uuid}")])
    found = store.stream(ORDERS).manifest.failed_segments()
    assert [(each.record.uuid, each.reason) for each in found] == [(uuid, f"reason of {uuid}") for uuid in failed]


def test_subscribers_and_groups_are_reached_from_stream_and_store(store: offloader.Store) -> None:
    StreamWriter(store.objects, "orders").add([batch_of(1, 0, 10)])
    retention = store.stream("orders").retention()
    retention.add("billing")
    retention.publish("billing", Position(1, 4))
    assert retention.registry().names() == ["billing"]
    groups = store.reader_groups()
    groups.create("readers", offloader.GroupConfig(["orders"]))
    assert list(groups.names()) == ["readers"]


@pytest.mark.slow
def test_stream_is_offloaded_paused_compacted_and_truncated_without_a_writer(
    store: offloader.Store, tmp_path: Path
) -> None:
    orders, url = store.stream("orders"), f"sqlite:///{tmp_path}/ledgers.db"
    unsent = offloader.Settings.of({"offload": {"method": "none"}, "ledgers": {"ledger_entries_max": 10}})
    with orders.open_ledger(url, settings=unsent) as ledger:
        positions = [ledger.append(b"entry") for _ in range(30)]
    assert orders.offload(url, stop=positions[15], take_over=True) == positions[14]
    assert (orders.pause("a test"), orders.pause()) == (True, False)
    with pytest.raises(OffloaderError, match="is paused"):
        orders.offload(url, take_over=True)
    assert (orders.resume(), orders.resume()) == (True, False)
    assert orders.offload(url, take_over=True) == positions[-1]
    assert len(orders.segments()) == 2
    assert orders.compact() == 2
    assert len(orders.segments()) == 1
    planned = orders.truncate(positions[12], ledgers=url, dry_run=True)
    assert (planned.head, orders.scan().count_rows()) == (positions[12], 30)
    assert orders.truncate(positions[12], ledgers=url).head == positions[12]
    assert orders.scan().count_rows() == 18
    with pytest.raises(NotFoundError):
        store.stream("nothing").pause()


@pytest.mark.slow
def test_a_store_that_ignores_conditions_is_not_written(tmp_path: Path) -> None:
    memory = MemoryStore("library-unconditional", "", SystemClock())
    writer = StreamWriter(memory, "orders")
    writer.add([batch_of(1, 0, 10), batch_of(2, 0, 10)], closes=[1])
    with closing(EmbeddedLedgers(f"{tmp_path}/ledgers.db")) as database:
        database.open_stream("orders")
    before = load_manifest(memory, "orders").record_id
    orders = offloader.Store(Overwriting(memory, [])).stream("orders")
    for change in (
        orders.pause,
        orders.resume,
        orders.compact,
        orders.undo_import,
        lambda: list(orders.orphans(delete=True)),
        lambda: orders.set_source(f"sqlite:///{tmp_path}/other.db"),
        lambda: orders.truncate(Position(2, 0)),
        lambda: orders.offload(f"sqlite:///{tmp_path}/ledgers.db"),
    ):
        with pytest.raises(UnsupportedError, match="can't be written safely"):
            change()
    assert load_manifest(memory, "orders").record_id == before
    assert not Path(f"{tmp_path}/other.db").exists()
    assert orders.truncate(Position(2, 0), dry_run=True).head == Position(2, 0)
    single = offloader.Settings.of({"store": {"single_writer": True}})
    assert orders.pause(settings=single)


@pytest.mark.slow
def test_cleanup_retires_a_truncated_segment_and_undo_restores_it(store: offloader.Store) -> None:
    writer = StreamWriter(store.objects, "orders")
    for ledger in (1, 2, 3):
        writer.add([batch_of(ledger, 0, 10)], closes=[ledger])
    orders = store.stream("orders")
    orders.truncate(Position(2, 0))
    [planned] = orders.cleanup(dry_run=True)
    assert planned.plan is not None
    assert (planned.plan.size()[0], planned.swept.retired) == (1, 0)
    assert (orders.hold("a test"), orders.hold()) == (True, False)
    [held] = orders.cleanup()
    assert (held.held, held.swept.retired) == (True, 0)
    assert (orders.release_hold(), orders.release_hold()) == (True, False)
    assert [each.swept.retired for each in orders.cleanup()] == [1]
    assert [len(each.segments) for each in orders.undo(dry_run=True)] == [1]
    [undone] = orders.undo()
    assert (undone.head_before, orders.scan().count()) == (Position(2, 0), 30)
    with pytest.raises(InvalidCallError, match="nothing is retired"):
        orders.undo()


def test_undo_of_a_segment_needs_one_partition(store: offloader.Store) -> None:
    for number in range(2):
        StreamWriter(store.objects, f"{ORDERS}-partition-{number}").add([batch_of(number, 0, 4)])
    with pytest.raises(InvalidCallError, match="a segment or a position belongs to one"):
        store.stream(ORDERS).undo(start=Position(0, 0))


def test_deleted_stream_leaves_no_segment(store: offloader.Store) -> None:
    StreamWriter(store.objects, "orders").add([batch_of(1, 0, 10)])
    orders = store.stream("orders")
    [planned] = orders.delete(dry_run=True)
    assert (planned.objects, planned.deletion, orders.scan().count()) == (2, None, 10)
    [done] = orders.delete()
    assert (done.objects, done.deletion is None) == (2, False)
    with pytest.raises(NotFoundError):
        orders.scan()
    with pytest.raises(NotFoundError):
        store.stream("nothing").delete()


@pytest.mark.slow
def test_follow_yields_present_and_later_entries_until_it_is_stopped(store: offloader.Store, tmp_path: Path) -> None:
    orders, url, stopping = store.stream("orders"), f"sqlite:///{tmp_path}/ledgers.db", threading.Event()
    with orders.open_ledger(url) as ledger:
        sent = [b"pen", b"ink", b"paper"]
        ledger.append(sent[0])
        ledger.offload()
        found: list[bytes] = []
        for name, batch in orders.follow(ledgers=url, stopping=stopping):
            assert name == "orders"
            found += batch.payloads.to_pylist()
            if len(found) < len(sent):
                ledger.append(sent[len(found)])
            else:
                stopping.set()
        assert found == sent
    with pytest.raises(NotFoundError):
        next(store.stream("nothing").follow())


@pytest.mark.slow
def test_retention_is_planned_explained_and_run(store: offloader.Store, tmp_path: Path) -> None:
    orders, url = store.stream("orders"), f"sqlite:///{tmp_path}/ledgers.db"
    small = offloader.Settings.of({"ledgers": {"ledger_entries_max": 10}})
    keep = offloader.Settings.of({"retention": {"keep_size": "100B"}})
    for _ in range(3):
        with orders.open_ledger(url, settings=small) as ledger:
            ledger.append_batch([b"0123456789"] * 10)
            ledger.offload()
        planned = orders.plan_retention(settings=keep, ledgers=url)
        done = orders.run_retention(settings=keep, ledgers=url)
        assert planned.decision is not None
        assert done.decision is not None
        assert (planned.why, planned.decision.cut) == (done.why, done.decision.cut)
        assert planned.truncations == {}
    assert "beyond the newest 100 B" in orders.explain_retention(settings=keep, ledgers=url)
    assert orders.scan().count() == 10
    with closing(EmbeddedLedgers(url, create=False)) as database:
        assert len(database.view_stream("orders").ledgers()) == 1, "hot ledgers before the start are deleted too"
    with pytest.raises(NotFoundError):
        store.stream("nothing").run_retention()
    asking = offloader.Settings.of({"pulsar": {"broker_plugin": True}})
    for method in (orders.plan_retention, orders.run_retention, orders.explain_retention):
        with pytest.raises(InvalidCallError, match="must ask the brokers"):
            method(settings=asking)


def test_deletions_and_orphans_are_listed(store: offloader.Store) -> None:
    writer = StreamWriter(store.objects, "orders")
    for ledger in (1, 2, 3):
        writer.add([batch_of(ledger, 0, 10)], closes=[ledger])
    orders = store.stream("orders")
    orders.truncate(Position(2, 0))
    now = offloader.Settings.of({"cleanup": {"grace_period": "0h"}})
    orders.cleanup(settings=now)
    orders.cleanup(settings=now)
    assert [segment.uuid for batch in orders.deletions() for segment in batch.segments] == [writer.uuids[0]]
    key = data_key("orders", uuid4())
    store.objects.put(key, b"left behind")
    assert [each.key for each in orders.orphans()] == [key]
    assert key in [each.key for each in store.orphans()]
    assert [each.outcome for each in orders.orphans(delete=True) if each.key == key] == [Outcome.KEPT]  # too young


def test_holds_on_the_store_stop_cleanup(store: offloader.Store) -> None:
    assert (store.hold("a test"), store.hold()) == (True, False)
    writer = StreamWriter(store.objects, "orders")
    writer.add([batch_of(1, 0, 10)])
    with pytest.raises(DeletionStoppedError):
        store.stream("orders").cleanup()
    assert (store.release_hold(), store.release_hold()) == (True, False)
    assert [each.swept.retired for each in store.stream("orders").cleanup()] == [0]


def test_manifest_is_shown_checkpointed_expired_and_rebuilt(store: offloader.Store) -> None:
    writer = StreamWriter(store.objects, "orders")
    for ledger in (1, 2):
        writer.add([batch_of(ledger, 0, 10)], closes=[ledger])
    orders = store.stream("orders")
    [facts] = orders.manifest.show()
    assert (facts["segments"], facts["entries"], facts["checkpoint"]) == (2, 20, None)
    [status] = orders.status()
    assert (status["stream"], status["segments"]["offloaded"]) == ("orders", 2)
    assert [each.record_id for each in orders.manifest.records(2)] == [
        facts["record"],
        cast("int", facts["record"]) - 1,
    ]
    assert str(orders.manifest.context(1).segments[0].uuid) == str(writer.uuids[0])
    with pytest.raises(NotFoundError, match="no segment has entries of ledger 7"):
        orders.manifest.context(7)
    orders.manifest.checkpoint()
    assert orders.manifest.show()[0]["checkpoint"] == facts["record"]
    assert [each.objects for each in orders.manifest.expire(dry_run=True)] == [0]
    with pytest.raises(InvalidCallError):
        orders.manifest.rebuild(start=None, dry_run=True)  # it is readable
    assert store.inspect(data_key("orders", writer.uuids[0])).kind == "data object"


def test_rebuild_restores_a_stream_without_records(store: offloader.Store) -> None:
    writer = StreamWriter(store.objects, "orders")
    writer.add([batch_of(1, 0, 10)], closes=[1])
    lost = [each.key for each in store.objects.list("").objects if "manifest" in each.key]
    store.objects.delete(lost)
    orders = store.stream("orders")
    with pytest.raises(OffloaderError):
        orders.scan()
    assert orders.manifest.rebuild(start=None, dry_run=True).state is None
    rebuilt = orders.manifest.rebuild(start=None)
    assert (len(rebuilt.chosen.recorded), orders.scan().count()) == (1, 10)


@pytest.mark.slow
def test_another_database_and_a_loss_are_accepted(store: offloader.Store, tmp_path: Path) -> None:
    orders = store.stream("orders")
    with orders.open_ledger(f"sqlite:///{tmp_path}/first.db") as ledger:
        ledger.append(b"pen")
        ledger.offload()
    other = f"sqlite:///{tmp_path}/other.db"
    with pytest.raises(NotFoundError):
        orders.set_source(other, dry_run=True)
    with pytest.raises(NotFoundError):
        store.stream("nothing").set_source(other)
    assert not Path(f"{tmp_path}/other.db").exists(), "bad input changes nothing"
    done = orders.set_source(other)
    assert (bool(done.why), done.record_id is not None) == (True, True)
    assert orders.set_source(other).why == ""
    accepted = orders.accept_loss(other, dry_run=True)
    assert (list(accepted.lost), accepted.recorded) == ([], None)
    assert orders.accept_loss(other).recorded is not None


def test_check_reports_the_store_and_imports_find_nothing(store: offloader.Store) -> None:
    StreamWriter(store.objects, "orders").add([batch_of(1, 0, 10)])
    found = list(store.check())
    assert [each.check for each in found][:1] == ["store reachable"]
    assert not [each for each in found if each.kind is not None]
    before = {each.key for each in store.objects.list("").objects}
    done = store.import_ledgers(dry_run=True)
    assert (done.streams, done.problems_count, {e.key for e in store.objects.list("").objects}) == ([], 0, before)
    assert store.stream("orders").undo_import(dry_run=True) == 0
