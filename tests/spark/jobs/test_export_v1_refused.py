"""Calls of the job ``export`` with format v1 that are refused before a session begins."""

from __future__ import annotations

from pathlib import Path

import pytest

from offloader.errors import BucketMissingError, InvalidCallError, NotFoundError
from offloader.spark.jobs.export_v1 import plan_v1
from tests.cli.reading_verbs import Offloader
from tests.spark.jobs.test_export_v1 import FOLDER, ORDERS, PRICES, Topics, job
from tests.spark.jobs.test_export_v1 import offloader as offloader
from tests.spark.jobs.test_export_v1 import topics as topics

pytestmark = pytest.mark.slow


@pytest.fixture(autouse=True)
def no_session(monkeypatch: pytest.MonkeyPatch) -> None:
    def begin(*_: object, **__: object) -> None:
        raise AssertionError("a session begins")

    monkeypatch.setattr("offloader.spark.session.command_session", begin)


@pytest.mark.parametrize(
    ("more", "said"),
    [
        ((), "--format v1 requires --broker-record"),
        (("--broker-record", "x", "--content", "messages"), "--format v1 doesn't accept --content"),
        (("--broker-record", "x", "--dead-letter"), "--format v1 doesn't accept --dead-letter"),
        (("--broker-record", "x", "--skip-lost"), "--format v1 doesn't accept --skip-lost"),
        (("--broker-record", "x", "--json-values", "a INT"), "--format v1 doesn't accept --json-values and"),
        (("--broker-record", "x", "--option", "markers=false"), "export doesn't accept option markers"),
        (("--broker-record", "x"), "x is one broker record at most, but 2 streams were named"),
    ],
)
def test_option_that_does_not_fit_is_refused(
    topics: Topics, offloader: Offloader, more: tuple[str, ...], said: str
) -> None:
    code, line, _ = offloader.refuses(*job(topics, *more))
    assert code == 2
    assert line.startswith(said)
    assert not (topics.folder / "bucket").exists()


@pytest.mark.parametrize(("name", "more"), [("--broker-record", ("x",)), ("--dry-run", ())])
def test_option_of_v1_is_refused_for_parquet(offloader: Offloader, name: str, more: tuple[str, ...]) -> None:
    code, line, _ = offloader.refuses("spark", "export", ORDERS, "--dest", "file:///x", name, *more)
    assert (code, line) == (2, f"--format parquet doesn't accept {name}")


def test_missing_records_are_named_before_the_target_is_created(topics: Topics) -> None:
    (topics.records / PRICES).unlink()
    with pytest.raises(NotFoundError, match=f"records of 1 of 2 streams are missing: {topics.records}/{PRICES}"):
        plan_v1([f"{FOLDER}/*"], topics.options, to=topics.url, broker_record=str(topics.records))
    with pytest.raises(NotFoundError, match="nowhere can't be read"):
        plan_v1([ORDERS], topics.options, to=topics.url, broker_record=f"{topics.folder}/nowhere")
    (topics.records / ORDERS).write_bytes(b"[]")
    with pytest.raises(InvalidCallError, match="isn't a broker's record of a topic"):
        plan_v1([ORDERS], topics.options, to=topics.url, broker_record=str(topics.records))
    assert not (topics.folder / "bucket").exists()


def test_wrong_targets_are_refused(topics: Topics, tmp_path: Path) -> None:
    records = str(topics.records)
    with pytest.raises(InvalidCallError, match="no target was given"):
        plan_v1([ORDERS], topics.options, to="", broker_record=records)
    with pytest.raises(InvalidCallError, match="exists in one process only"):
        plan_v1([ORDERS], topics.options, to="memory://bucket", broker_record=records)
    with pytest.raises(InvalidCallError, match="is a folder of a bucket"):
        plan_v1([ORDERS], topics.options, to="s3://bucket/folder", broker_record=records)
    with pytest.raises(BucketMissingError, match="no such directory"):
        plan_v1([ORDERS], topics.options, to=f"file://{tmp_path}/new", broker_record=records, dry_run=True)


def test_unknown_stream_is_refused(topics: Topics) -> None:
    with pytest.raises(NotFoundError, match="nothing"):
        plan_v1(["nothing/*"], topics.options, to=topics.url, broker_record=str(topics.records))


def test_record_of_one_stream_may_be_a_file(topics: Topics) -> None:
    plan = plan_v1([ORDERS], topics.options, to=topics.url, broker_record=str(topics.records / ORDERS))
    assert [len(task.ledgers) for task in plan.tasks] == [1, 1, 1]
