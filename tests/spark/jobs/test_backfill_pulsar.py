"""The job ``backfill`` over Pulsar topics with a real Spark and a broker of ``tests.support``."""

from __future__ import annotations

import logging
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from formats.entries import Position
from formats.pulsar.commands import Command, CommandType, position_of
from offloader.coverage import GapReason
from offloader.errors import AccessDeniedError, ErrorKind, FencedError, InvalidCallError, NotFoundError
from offloader.ledgers.pulsar.topics import stream_of_topic
from offloader.manifest.log import list_streams, load_manifest
from offloader.settings.layered import SettingsFile
from offloader.spark.jobs import Backfilled, backfill
from offloader.store.base import ObjectStore
from offloader.store.open import open_store
from tests.cli.reading_verbs import Offloader
from tests.ledgers.pulsar_bench import NAME, PulsarBench
from tests.spark.hot_tier import settings_of
from tests.support.pulsar_broker import BrokerClient
from tests.support.readback import stored_entries, unaccounted_keys

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.java

P = "persistent://public/default/"
NAMES = ("clicks-partition-0", "clicks-partition-1", "orders", "quiet")
TOPICS = tuple(P + name for name in NAMES)
STREAMS = tuple(map(stream_of_topic, TOPICS))
TOKEN = "t0ken-of-the-cluster"


@pytest.fixture
def bench() -> Iterator[PulsarBench]:
    """Four topics of several ledgers, one of them with markers, one of them empty."""
    made = PulsarBench(*TOPICS, f"{P}__change_events")
    made.broker.is_prompt = True
    for number, name in enumerate(TOPICS[:3]):
        topic = made.topics[name]
        for entries in (600 if number == 0 else 150, 40, 7):
            made.fill(entries, topic)
            if name.endswith("orders"):
                topic.append_marker()
                made.fill(5, topic)
                topic.append_marker()
            topic.roll()
        made.fill(3, topic)
    yield made
    made.close()


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    (tmp_path / "store").mkdir()
    return open_store(f"file://{tmp_path}/store")


@pytest.fixture
def run(spark: SparkSession, bench: PulsarBench, store: ObjectStore) -> Any:
    """``run("persistent://a/b/*", take_over=True)``: the job, by streams' names."""

    def run(*streams: str, **more: Any) -> dict[str, Backfilled]:
        given = {"ledgers": bench.settings, "config": settings_of(), **more}
        done = backfill(spark, streams or [f"{P}*"], {"store": store.url}, **given)
        return {each.stream: each for each in done}

    return run


def require_whole(store: ObjectStore, bench: PulsarBench, *topics: str) -> None:
    """Every message once and in order, no unexplained object, and a broker that was told nothing."""
    for name in topics or TOPICS[:3]:
        stream = stream_of_topic(name)
        assert stored_entries(store, stream) == bench.stored(bench.topics[name])
        assert load_manifest(store, stream).assigned() == []
    assert set.intersection(*(unaccounted_keys(store, each) for each in list_streams(store))) == set()
    assert bench.broker.of(CommandType.ACK) == []


def test_topics_are_backfilled_once_and_the_broker_keeps_everything(
    run: Any, bench: PulsarBench, store: ObjectStore
) -> None:
    done = run()
    assert tuple(done) == STREAMS
    assert [each.error for each in done.values()] == [None] * 4
    require_whole(store, bench)
    orders = load_manifest(store, STREAMS[2])
    assert orders.committed_end() == done[STREAMS[2]].committed == bench.topics[TOPICS[2]].entries[-1][0]
    assert {gap.reason for gap in orders.gaps} == {GapReason.UNDELIVERED}
    assert len(done[STREAMS[0]].offloaded) > 1
    assert {each.durable for each in bench.broker.of(CommandType.SUBSCRIBE)} == {False}
    assert [topic.subscription_properties(NAME) for topic in bench.topics.values()] == [None] * 5
    keys = {info.key for info in store.list("").objects}
    again = run(take_over=True)
    assert [(each.offloaded, each.error) for each in again.values()] == [((), None)] * 4
    assert {info.key for info in store.list("").objects} == keys


def test_dry_run_lists_the_topics_segments_and_writes_nothing(run: Any, bench: PulsarBench, store: ObjectStore) -> None:
    done = run(f"{P}clicks", dry_run=True)
    assert tuple(done) == STREAMS[:2]
    for name, each in zip(TOPICS, done.values(), strict=False):
        entries = bench.stored(bench.topics[name])
        assert (each.planned[0].begin, each.planned[-1].end) == (entries[0][0], entries[-1][0])
    assert not store.list("").objects


def test_topic_of_a_connected_process_is_refused_unless_taken_over(
    run: Any, bench: PulsarBench, store: ObjectStore
) -> None:
    source = bench.open(TOPICS[0])
    done = run(f"{P}clicks")
    assert isinstance(done[STREAMS[0]].error, FencedError)
    assert f"{TOPICS[0]}: a process is connected to its subscription {NAME}" in done[STREAMS[0]].error.message
    assert done[STREAMS[1]].error is None
    assert list_streams(store) == [STREAMS[1]]
    assert source.active
    assert run(f"{P}clicks-partition-0", take_over=True)[STREAMS[0]].error is None
    require_whole(store, bench, *TOPICS[:2])
    assert source.active


def test_lost_entries_follow_the_policy_of_the_cluster(run: Any, bench: PulsarBench, store: ObjectStore) -> None:
    """As of a served topic: ``pulsar.on_gap``, not ``offload.on_gap``, whose default is another one."""
    lost = Position(2, 20)
    bench.topics[TOPICS[0]].lost.add(lost)
    blocked = run(TOPICS[0], ledgers=replace(bench.settings, on_gap="block"))
    assert "entries 2:20 up to 2:20 are missing" in str(blocked[STREAMS[0]].error)
    assert blocked[STREAMS[0]].committed == Position(2, 19)
    assert run(TOPICS[0], take_over=True)[STREAMS[0]].error is None
    entries = bench.stored(bench.topics[TOPICS[0]])
    assert stored_entries(store, STREAMS[0]) == [each for each in entries if each[0] != lost]


def test_ledger_that_the_broker_deletes_during_its_upload_becomes_a_gap(
    run: Any, bench: PulsarBench, store: ObjectStore
) -> None:
    """A task finds it gone after the driver has listed it."""
    topic, answer = bench.topics[TOPICS[1]], bench.broker.answer

    def expire_first(client: BrokerClient, command: Command) -> bool:
        if command.type is CommandType.SUBSCRIBE and position_of(command.body.start_message_id) == Position(1, 0):
            topic.expire(2)
        return answer(client, command)

    bench.broker.answer = expire_first
    done = run(TOPICS[1])
    assert done[STREAMS[1]].error is None
    assert [each.begin for each in done[STREAMS[1]].trimmed] == [Position(1, 0)]
    assert stored_entries(store, STREAMS[1]) == bench.stored(topic)
    [gap] = load_manifest(store, STREAMS[1]).gaps
    assert (gap.first, gap.last) == (Position(1, 0), Position(2, -1))


def test_token_reaches_executors_as_its_place_only(
    run: Any,
    bench: PulsarBench,
    store: ObjectStore,
    tmp_path: Path,
    caplog: pytest.LogCaptureFixture,
    capfd: pytest.CaptureFixture[str],
) -> None:
    (tmp_path / "token").write_text(TOKEN)
    bench.broker.token = bench.admin.token = TOKEN
    settings = replace(bench.settings, token=f"file:{tmp_path}/token")
    with caplog.at_level(logging.DEBUG):
        done = run(f"{P}clicks-partition-1", ledgers=settings)
    assert done[STREAMS[1]].error is None
    require_whole(store, bench, TOPICS[1])
    processes = [path.read_bytes() for path in Path("/proc").glob("[0-9]*/cmdline") if path.exists()]
    output = capfd.readouterr()
    assert TOKEN not in caplog.text + output.out + output.err + repr(done)
    assert not any(TOKEN.encode() in each for each in processes)
    (tmp_path / "token").write_text("another")
    with pytest.raises(AccessDeniedError) as refused:
        run(f"{P}clicks-partition-1", ledgers=settings)
    assert "another" not in str(refused.value)


@pytest.mark.parametrize(
    ("streams", "kind", "expected"),
    [
        ([f"{P}nope"], NotFoundError, f"no stream {P}nope in pulsar://"),
        ([f"{P}orders", "other/namespace"], NotFoundError, "no stream other/namespace"),
        (["orders"], InvalidCallError, "'orders' is not a topic name or pattern"),
    ],
)
def test_names_without_a_topic_are_refused_before_anything_is_done(
    run: Any, store: ObjectStore, streams: list[str], kind: type[Exception], expected: str
) -> None:
    with pytest.raises(kind, match=expected.replace("(", r"\(")):
        run(*streams)
    assert not store.list("").objects


# The command


@pytest.fixture
def command(spark: SparkSession, store: ObjectStore, capsys: pytest.CaptureFixture[str]) -> Offloader:
    return Offloader(capsys)


def file_of(tmp_path: Path, bench: PulsarBench, store: ObjectStore, more: str = "") -> str:
    path = tmp_path / "offloader.toml"
    path.write_text(
        f'[serve]\nstore = "{store.url}"\n{more}\n[offload]\nmethod = "streaming"\n'
        f'[pulsar]\nservice_url = "{bench.broker.url}"\nadmin_url = "{bench.admin.url}"\n'
        'exclude = ["public/default/quiet"]\n'
    )
    return str(path)


def test_command_backfills_the_topics_of_its_settings_file(
    command: Offloader, bench: PulsarBench, store: ObjectStore, tmp_path: Path
) -> None:
    done = command("spark", "backfill", f"{P}*", "--config", file_of(tmp_path, bench, store), "--json")
    assert done.code == 0
    assert [(row["stream"], row["error"]) for row in done.rows] == [(each, None) for each in STREAMS[:3]]
    assert [row["entries"] for row in done.rows] == [len(bench.stored(bench.topics[each])) for each in TOPICS[:3]]
    require_whole(store, bench)


def test_command_refuses_a_file_with_two_hot_tiers(
    command: Offloader, bench: PulsarBench, store: ObjectStore, tmp_path: Path
) -> None:
    file = file_of(tmp_path, bench, store, 'ledgers = "sqlite:///ledgers.db"')
    code, line, hint = command.refuses("spark", "backfill", f"{P}*", "--config", file)
    assert code == ErrorKind.INVALID_REQUEST.value
    assert line == f"the settings file {file} has a ledger database and a Pulsar cluster"
    assert "--ledgers sqlite:///ledgers.db" in hint


def test_topic_with_method_none_is_skipped_by_patterns(run: Any, store: ObjectStore) -> None:
    file = SettingsFile("test", {"": {"offload.method": "none"}})
    done = run("public/default/orders*", config=file)
    assert "its method is none" in done[STREAMS[2]].skipped
    assert isinstance(run(f"{P}orders", config=file)[STREAMS[2]].error, InvalidCallError)
    assert list_streams(store) == []
