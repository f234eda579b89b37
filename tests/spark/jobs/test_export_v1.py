"""The job ``export`` with format v1: many streams, several tasks of a stream, the command."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING
from uuid import UUID

import pytest

from formats.keys import data_key
from formats.manifest import LedgersDeleted
from formats.metadata.messages import OffloadContext, PulsarLedger
from offloader.errors import CorruptError, NotFoundError, StoreUnavailableError
from offloader.manifest.log import load_manifest
from offloader.read.reader import read_offloaded
from offloader.spark.jobs import export_v1
from offloader.spark.jobs.export_v1 import _carry_out, plan_v1, run_v1
from offloader.store.base import ObjectStore
from offloader.store.open import open_store
from tests.cli.reading_verbs import Offloader
from tests.support.ledger_records import record_of
from tests.support.streams import StreamWriter, batch_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

FOLDER = "shop/eu/persistent"
ORDERS, PRICES = f"{FOLDER}/orders", f"{FOLDER}/prices-partition-0"
LEDGERS = (3, 4, 5)


class Topics:
    """Two topics of three ledgers in six segments, and a broker's records of them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.store = open_store(f"file://{folder}/store")
        self.writers = {name: StreamWriter(self.store, name) for name in (ORDERS, PRICES)}
        for number, (name, writer) in enumerate(self.writers.items()):
            for ledger in LEDGERS:
                writer.add([batch_of(ledger, 0, 40)])
                writer.add([batch_of(ledger, 40, 60)], closes=[ledger])
            self.save(name, [self.recorded(name, ledger, number) for ledger in LEDGERS])

    def recorded(self, stream: str, ledger: int, number: int = 0) -> PulsarLedger:
        sizes = [len(each.payload) for each in self.writers[stream].entries if each.ledger_id == ledger]
        context = OffloadContext(
            uuid=UUID(int=1000 * number + ledger), complete=True, driver_name="offloader", driver_metadata={}
        )
        return PulsarLedger(ledger_id=ledger, entries=100, size_bytes=sum(sizes), closed_ms=5, context=context)

    def save(self, stream: str, ledgers: list[PulsarLedger]) -> Path:
        path = self.records / stream
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(record_of(ledgers))
        return path

    @property
    def records(self) -> Path:
        return self.folder / "records"

    @property
    def options(self) -> Mapping[str, str]:
        """Each task has one ledger."""
        return {"store": self.store.url, "splitBytes": "100"}

    @property
    def url(self) -> str:
        return f"file://{self.folder}/bucket"

    @property
    def target(self) -> ObjectStore:
        return open_store(self.url)

    @property
    def objects(self) -> dict[str, bytes]:
        return objects_of(self.url)


def objects_of(url: str) -> dict[str, bytes]:
    store = open_store(url)
    return {info.key: store.get(info.key)[0] for info in store.list("").objects}


@pytest.fixture
def topics(tmp_path: Path) -> Topics:
    return Topics(tmp_path)


@pytest.fixture
def offloader(topics: Topics, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Offloader:
    monkeypatch.setenv("OFFLOADER_STORE", topics.store.url)
    return Offloader(capsys)


def job(topics: Topics, *more: str) -> tuple[str, ...]:
    return "spark", "export", f"{FOLDER}/*", "--format", "v1", "--dest", topics.url, *more


def test_objects_are_those_of_the_command_for_one_stream(
    spark: SparkSession, topics: Topics, offloader: Offloader, tmp_path: Path
) -> None:
    before = {name: load_manifest(topics.store, name).record_id for name in topics.writers}
    plan = plan_v1([f"{FOLDER}/*"], topics.options, to=topics.url, broker_record=str(topics.records))
    assert [[each.ledger_id for each in task.ledgers] for task in plan.tasks] == [[3], [4], [5]] * 2
    done = run_v1(spark, plan)
    assert [(each.stream, each.error) for each in done] == [(ORDERS, None), (PRICES, None)]
    assert all([each.ledger.ledger_id for each in one.ledgers] == list(LEDGERS) for one in done)
    assert all(each.written and each.payload_bytes == 2000 for one in done for each in one.ledgers)
    for name in topics.writers:
        words = "export", "v1", name, "--dest", f"file://{tmp_path}/one"
        assert offloader(*words, "--broker-record", str(topics.records / name)).code == 0
    assert len(topics.objects) == 12
    assert topics.objects == objects_of(f"file://{tmp_path}/one")
    assert {name: load_manifest(topics.store, name).record_id for name in topics.writers} == before
    again = export_v1(
        spark, [ORDERS, PRICES], topics.options, to=topics.url, broker_record=str(topics.records), dry_run=True
    )
    assert [[each.written for each in one.ledgers] for one in again] == [[False] * 3] * 2
    ledger = topics.recorded(ORDERS, 4)
    assert ledger.context is not None
    read = read_offloaded(topics.target, 4, ledger.context, {}).read(0, 99)
    assert [each.payload for each in read] == [e.payload for e in topics.writers[ORDERS].entries if e.ledger_id == 4]


@pytest.mark.slow
def test_task_that_runs_twice_writes_once(topics: Topics) -> None:
    [task] = plan_v1([ORDERS], {"store": topics.store.url}, to=topics.url, broker_record=str(topics.records)).tasks
    [(stream, first)] = _carry_out([task])
    etags = [info.etag for info in topics.target.list("").objects]
    [(_, second)] = _carry_out([task])
    assert (stream, [each.written for each in first], [each.written for each in second]) == (
        ORDERS,
        [True] * 3,
        [False] * 3,
    )
    assert [info.etag for info in topics.target.list("").objects] == etags
    assert [each.payload_bytes for each in second] == [2000] * 3


@pytest.mark.slow
def test_attempt_without_an_index_is_written_by_the_next_one(topics: Topics) -> None:
    """An executor was lost between the two objects of a ledger."""
    [task] = plan_v1([ORDERS], {"store": topics.store.url}, to=topics.url, broker_record=str(topics.records)).tasks
    list(_carry_out([task]))
    whole = topics.objects
    key = task.ledgers[0].objects().index_key
    topics.target.delete([key])
    [(_, again)] = _carry_out([task])
    assert [each.written for each in again] == [True, False, False]
    assert topics.objects == whole


def test_failed_ledger_keeps_no_other_from_being_exported(spark: SparkSession, topics: Topics) -> None:
    writer = topics.writers[ORDERS]
    writer.log.commit([LedgersDeleted((4,))])
    path = topics.folder / "store" / data_key(PRICES, topics.writers[PRICES].uuids[5])
    body = bytearray(path.read_bytes())
    body[300] ^= 1
    path.write_bytes(body)
    orders, prices = export_v1(spark, [f"{FOLDER}/*"], topics.options, to=topics.url, broker_record=str(topics.records))
    errors = [each.error for one in (orders, prices) for each in one.ledgers]
    assert [None if error is None else error.kind for error in errors] == [
        *(None, NotFoundError.kind, None),
        *(None, None, CorruptError.kind),
    ]
    assert isinstance(orders.error, NotFoundError)
    assert orders.error.message.startswith(f"stream {ORDERS}: 1 of 3 ledgers aren't exported: 4 (")
    assert len(topics.objects) == 8


@pytest.mark.slow
def test_error_of_the_store_ends_a_task_and_is_that_of_its_stream(
    topics: Topics, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan = plan_v1([ORDERS], {"store": topics.store.url}, to=topics.url, broker_record=str(topics.records))
    calls = 0

    def unavailable(*_: object) -> None:
        nonlocal calls
        calls += 1
        raise StoreUnavailableError("the bucket doesn't answer")

    monkeypatch.setattr("offloader.write.export_v1.LedgerExport._length_there", unavailable)
    [(_, ledgers)] = _carry_out(plan.tasks)
    assert ([type(each.error) for each in ledgers], calls) == ([StoreUnavailableError] * 3, 1)


def test_command_prints_a_row_for_each_ledger(spark: SparkSession, topics: Topics, offloader: Offloader) -> None:
    topics.save(PRICES, [replace(topics.recorded(PRICES, 3), context=None), PulsarLedger(ledger_id=6)])
    records = "--broker-record", str(topics.records)
    topics.folder.joinpath("bucket").mkdir()
    planned = offloader(*job(topics), *records, "--dry-run", "--json")
    assert [(each["stream"], each["ledger_id"], each["state"]) for each in planned.rows] == [
        *((ORDERS, ledger, "to be written") for ledger in LEDGERS),
        (PRICES, None, "nothing to export"),
    ]
    assert planned.rows[3]["why"] == f"the broker's record has no offloaded ledger: {topics.records}/{PRICES}"
    assert topics.objects == {}
    done = offloader(*job(topics), *records)
    assert done.code == 0
    assert [line.split()[:2] for line in done.out.splitlines()[1:5]] == [
        *([ORDERS, str(ledger)] for ledger in LEDGERS),
        [PRICES, "-"],
    ]
    assert len(topics.objects) == 6
    topics.save(ORDERS, [replace(topics.recorded(ORDERS, 3), size_bytes=1)])
    refused = offloader(*job(topics), *records, "--json")
    assert (refused.code, refused.rows[0]["state"]) == (6, "left")
    assert f"stream {ORDERS}: 1 of 1 ledgers aren't exported: 3 (" in refused.err
