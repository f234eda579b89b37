"""What pages assume: streams, servers, variables, and what they have otherwise than this machine.

A world is a function of a scratch folder and pytest's request that yields a ``World``. A page without one has a folder
and nothing in it.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from uuid import uuid4

import pyarrow.parquet as pq
import pytest

import offloader
from formats.entries import EntryBatch
from formats.metadata.messages import OffloadContext, PulsarLedger
from offloader.cli.main import main
from offloader.iceberg import export, open_table
from offloader.ledgers.sqlite.embedded import EmbeddedLedgers
from offloader.managed_ledger import open_managed_ledger
from offloader.spark import lag_of
from offloader.store.open import open_store
from services.pulsar.broker import start_broker
from services.servers import RunningServer, free_port, make_bucket, start
from tests.formats.pulsar_entries import Sent, batch_entry, recorded
from tests.ledgers.pulsar_bench import PulsarBench
from tests.support.flight_door import flight_door
from tests.support.golden_bucket import golden_cases, put_golden
from tests.support.http_process import http_process
from tests.support.ledger_records import record_of
from tests.support.pages import AGE, TIME, UUID, Block, Run, World, blocks_of, run_blocks
from tests.support.pulsar_broker import FakeBroker
from tests.support.pulsar_producers import FakeProducers
from tests.support.pulsar_topics import FakeTopic
from tests.support.replaying import entry_of
from tests.support.segmented_topic import SegmentedTopic
from tests.support.streams import StreamWriter, batch_of
from tests.support.waiting import eventually

__all__ = ["GATE", "PAGES", "WITH_SAMPLES", "Part", "parts_of", "run_part"]

ROOT = Path(__file__).resolve().parents[2]
#: Every page of the project that may have samples.
PAGES = ["README.md", *sorted(str(path.relative_to(ROOT)) for path in (ROOT / "docs").rglob("*.md"))]
#: Those that have some.
WITH_SAMPLES = [
    page
    for page in PAGES
    if any(block.is_run or block.kind == "toml" for block in blocks_of((ROOT / page).read_text(encoding="utf-8")))
]
#: Pages that newcomers read first, and whose samples run within seconds: each change is checked with them.
GATE = ["README.md", "docs/tutorials/beside-pulsar.md", "docs/how-to/replay.md", "docs/how-to/serve.md"]
_Made = Iterator[World]
_Make = Callable[[Path, pytest.FixtureRequest], _Made]
ORDERS = "public/default/persistent/orders"


@dataclass(frozen=True)
class Part:
    """A page, or what of it begins at a heading of the second level, and its world."""

    page: str
    begins: str
    needs: tuple[str, ...]
    make: _Make

    @property
    def name(self) -> str:
        return f"{self.page} {self.begins}".rstrip()


def _plain(folder: Path, request: pytest.FixtureRequest) -> _Made:
    yield World()


_PARTS: dict[str, list[Part]] = {}


def world(page: str, *needs: str, begins: str = "") -> Callable[[_Make], _Make]:
    """Registers the world of a page.

    Args:
        needs: markers of its test.
        begins: the heading of the part; the page's first world is that of what comes before.
    """

    assert page in WITH_SAMPLES, page

    def register(make: _Make) -> _Make:
        _PARTS.setdefault(page, []).append(Part(page, begins, needs, make))
        return make

    return register


def parts_of(page: str) -> Iterator[Any]:
    """Parameters for the parts of a page, with their markers."""
    for part in _PARTS.get(page, [Part(page, "", (), _plain)]):
        marks = [getattr(pytest.mark, name) for name in ("slow", *part.needs)]
        yield pytest.param(part, id=part.name, marks=marks)


def run_part(part: Part, folder: Path, request: pytest.FixtureRequest) -> Run:
    """Runs the samples of a part; fails if it has none that belong to it."""
    with contextlib.contextmanager(part.make)(folder, request) as made:
        return run_blocks(part.page, _blocks(part), made, folder)


def _blocks(part: Part) -> list[Block]:
    headings = {each.begins for each in _PARTS.get(part.page, ())} - {""}
    found, current = [], ""
    for block in blocks_of((ROOT / part.page).read_text(encoding="utf-8")):
        current = block.heading if block.heading in headings else current
        if current == part.begins:
            found.append(block)
    assert found or not part.begins, f"{part.page} has no part {part.begins}"
    return found


@world("README.md", "java")
def _readme(folder: Path, request: pytest.FixtureRequest) -> _Made:
    def check(run: Run) -> None:
        library, commands, spark = run.printed
        assert sum(int(line.split()[-1]) for line in library.splitlines()) == 3
        assert "the second order" in commands
        assert f"{ORDERS} " in commands
        assert spark.splitlines()[3].split("|")[2].strip() == "3"

    yield World(check=check)


@world("docs/how-to/replay.md", "process")
def _replay(folder: Path, request: pytest.FixtureRequest) -> _Made:
    store = open_store(f"file://{folder}/store")
    noon_ms = int(datetime(2026, 11, 1, 12, tzinfo=UTC).timestamp() * 1000)
    day_ms = 24 * 3_600_000
    batch = EntryBatch.build(7, 0, [entry_of(offloader.Position(7, n)) for n in range(10)], noon_ms)
    late = EntryBatch.build(7, 10, [entry_of(offloader.Position(7, 10))], noon_ms + day_ms)
    StreamWriter(store, ORDERS).add([batch, late], closes=[7])
    with FakeBroker() as broker:
        topic = FakeTopic(broker, "persistent://public/default/orders-again")
        FakeProducers(broker, topic)

        def check(_: Run) -> None:
            assert len(topic.entries) == 10, "what was published on that day"

        yield World(environment={"OFFLOADER_STORE": store.url, "OFFLOADER_PULSAR_URL": broker.url}, check=check)


@world("docs/how-to/serve.md", "process")
def _serve(folder: Path, request: pytest.FixtureRequest) -> _Made:
    # A person types the next command later: the stream is opened by then.
    yield World({"/srv/orders": str(folder)}, is_ready=lambda: any((folder / "store").rglob("*.json")))


def _orders_with_days(folder: Path, *commands: str) -> World:
    """Three segments of a hundred entries of 8, 5 and 1 days ago; then commands of ours are run."""
    store = open_store(f"file://{folder}/store")
    ledgers = f"sqlite:///{folder}/ledgers.db"
    settings = offloader.Settings.of({"ledgers": {"ledger_entries_max": 100}})
    now = datetime.now(UTC)
    with open_managed_ledger("orders", ledgers=ledgers, store=store, settings=settings) as topic:
        for first, days in ((0, 8), (100, 5), (200, 1)):
            published_ms = int((now - timedelta(days=days)).timestamp() * 1000)
            topic.append_batch([b"order %d" % number for number in range(first, first + 100)], published_ms)
            topic.offload()
    for command in commands:
        assert main([*command.split(), "--store", store.url]) == 0
    sizes = (r"\([\d.]+ \w+\) are needed", "(SIZE) are needed")
    return World({"/srv/orders": str(folder)}, (UUID, TIME, (r"\S+@\S+", "WHO"), AGE, sizes))


@world("docs/how-to/deleting.md")
@world("docs/how-to/deleting-streams.md")
@world("docs/how-to/keeping-by-size.md")
@world("docs/how-to/keeping-seven-days.md")
@world("docs/how-to/truncating.md")
def _orders(folder: Path, request: pytest.FixtureRequest) -> _Made:
    yield _orders_with_days(folder)


@world("docs/how-to/auditing.md")
@world("docs/how-to/holding.md")
def _truncated(folder: Path, request: pytest.FixtureRequest) -> _Made:
    yield _orders_with_days(folder, "stream truncate orders --before 2:50 --apply")


@world("docs/how-to/undoing.md")
def _retired(folder: Path, request: pytest.FixtureRequest) -> _Made:
    yield _orders_with_days(folder, "stream truncate orders --before 2:50 --apply", "cleanup run orders --apply")


@world("docs/how-to/orphans.md")
def _orphans(folder: Path, request: pytest.FixtureRequest) -> _Made:
    made = _orders_with_days(folder)
    open_store(f"file://{folder}/store").put("orders/notes.txt", b"somebody's notes")
    yield made


@world("docs/how-to/compacting.md")
def _compacting(folder: Path, request: pytest.FixtureRequest) -> _Made:
    writer = (r"is owned by \S+, which wrote its last record \d+ s ago", "is owned by WRITER")
    yield World({"/srv/compacting": str(folder)}, (UUID, writer))


@world("docs/how-to/extending.md", "process")
def _extending(folder: Path, request: pytest.FixtureRequest) -> _Made:
    def check(run: Run) -> None:
        assert int(run.printed[0].splitlines()[-1].split()[0]) > 60, run.printed[0]

    options = "-W error -p no:randomly -p no:cacheprovider"
    path = f"{folder}{os.pathsep}{ROOT}"
    yield World(environment={"PYTEST_ADDOPTS": options, "PYTHONPATH": path}, check=check)


@contextlib.contextmanager
def _s3_server(folder: Path, request: pytest.FixtureRequest) -> Iterator[RunningServer]:
    """An S3 server of this test alone: it is frozen."""
    server = start(request.getfixturevalue("one_server"), folder / "s3")
    try:
        for bucket in ("cold-tier", "backup"):
            make_bucket(server.endpoint, bucket)
        yield server
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.process.pid, signal.SIGCONT)
        server.stop()


def _first_day(folder: Path, server: RunningServer, **more: Any) -> World:
    keys = {"AWS_ACCESS_KEY_ID": server.endpoint.access_key, "AWS_SECRET_ACCESS_KEY": server.endpoint.secret_key}
    return World(
        {"/srv/first": str(folder), "http://127.0.0.1:9000": server.endpoint.url, **more.pop("replaces")},
        environment={**keys, **more.pop("environment", {})},
        **more,
    )


@world("docs/tutorials/first-day.md", "process")
def _morning(folder: Path, request: pytest.FixtureRequest) -> _Made:
    with _s3_server(folder, request) as server:
        ports = {"127.0.0.1:8750": f"127.0.0.1:{free_port()}"}
        yield _first_day(folder, server, replaces=ports, processes={"minio": server.process})


@world("docs/tutorials/first-day.md", "java", begins="With Pulsar")
def _afternoon(folder: Path, request: pytest.FixtureRequest) -> _Made:
    with _s3_server(folder, request) as server:
        broker = start_broker(folder / "broker", {})
        try:
            ports = {f"127.0.0.1:{port}": f"127.0.0.1:{free_port()}" for port in (8761, 8762)}
            urls = {"pulsar://127.0.0.1:6650": broker.service_url, "http://127.0.0.1:8080": broker.admin_url}
            # The morning's first lines.
            place = {"OFFLOADER_ENDPOINT_URL": server.endpoint.url, "OFFLOADER_REGION": "us-east-1"}
            processes = {"PulsarStandalone": broker.process}
            yield _first_day(folder, server, replaces={**ports, **urls}, environment=place, processes=processes)
        finally:
            os.kill(broker.process.pid, signal.SIGCONT)
            broker.end()


@world("docs/how-to/importing.md")
def _importing(folder: Path, request: pytest.FixtureRequest) -> _Made:
    """Whole ledgers, one without a name, half of an offload, somebody's notes."""
    bucket = open_store(f"file://{folder}/bucket")
    put_golden(bucket)
    put_golden(bucket, golden_cases("v2")[0]["segments"], layout="v2")
    bucket.put("11111111-1111-4111-8000-000000000bad-ledger-1009", b"half of an offload")
    bucket.put("notes.txt", b"somebody's")
    ledgers = [
        {"ledgerId": 2002, "entries": 20, "size": 200, "offloaded": True},
        {"ledgerId": 2005, "entries": 0, "size": 0, "offloaded": False},
    ]
    (folder / "small.json").write_text(json.dumps({"ledgers": ledgers, "cursors": {}}))
    yield World({"/srv/pulsar": str(folder)})


@world("docs/how-to/verifying.md", "process")
def _verifying(folder: Path, request: pytest.FixtureRequest) -> _Made:
    yield World({"/srv/orders": str(folder)})


@world("docs/how-to/inspecting.md")
def _inspecting(folder: Path, request: pytest.FixtureRequest) -> _Made:
    def check(_: Run) -> None:
        assert (folder / "orders.svg").read_text().startswith("<?xml")

    yield World({"/srv/orders": str(folder)}, check=check)


@world("docs/how-to/messages.md", "java")
@world("docs/reference/messages.md", "java")
def _messages(folder: Path, request: pytest.FixtureRequest) -> _Made:
    topics = recorded("plain")
    parts = {
        "orders": [("json-schema", 1), ("transactions", 3), ("encrypted-batch", 1)],
        "chunks": [("chunked-lz4", 3)],
    }
    for stream, named in parts.items():
        writer = StreamWriter(open_store(f"file://{folder}/store"), stream)
        for name, count in named:
            entries = topics[name].entries[:count]
            writer.add([EntryBatch.build(entries[0][0], 0, [data for *_, data in entries])], closes=[entries[0][0]])
    yield World({"/data/store": f"{folder}/store"}, names={"spark": request.getfixturevalue("spark")})


@world("docs/how-to/migration.md")
def _migration(folder: Path, request: pytest.FixtureRequest) -> _Made:
    put_golden(open_store(f"file://{folder}/bucket"))

    def check(run: Run) -> None:
        owned = run.shell.run("offloader ls public/default/persistent/oracle --json").splitlines()
        assert [json.loads(line)["owned"] for line in owned] == [True] * 4, "what step 6 is for"

    yield World({"/srv/pulsar": str(folder)}, (UUID,), check=check)


@world("docs/how-to/rate-limits.md")
def _rate_limits(folder: Path, request: pytest.FixtureRequest) -> _Made:
    keys = dict.fromkeys(("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"), "any")
    yield World(environment={**keys, "AWS_REGION": "us-east-1"})


@world("docs/how-to/existing-ledgers.md")
@world("docs/how-to/offloading.md")
def _offloading(folder: Path, request: pytest.FixtureRequest) -> _Made:
    writer = (r"is owned by \S+, which wrote its last record \d+ s ago", "is owned by WRITER")
    yield World({"/srv/orders": str(folder)}, (UUID, writer))


@world("docs/how-to/pausing.md")
def _pausing(folder: Path, request: pytest.FixtureRequest) -> _Made:
    """A thousand committed entries, then five hundred that aren't."""
    store, ledgers = open_store(f"file://{folder}/store"), f"sqlite:///{folder}/ledgers.db"
    for method, numbers in (("streaming", range(1000)), ("none", range(1000, 1500))):
        settings = offloader.Settings.of({"ledgers": {"ledger_entries_max": 400}, "offload": {"method": method}})
        with open_managed_ledger("shop/eu/persistent/orders", ledgers=ledgers, store=store, settings=settings) as topic:
            topic.append_batch([b"order %d" % number for number in numbers])
    yield World({"/srv/orders": str(folder)}, (UUID,))


@world("docs/how-to/backups.md")
@world("docs/how-to/lost-entries.md")
@world("docs/how-to/restoring.md")
@world("docs/how-to/wrong-store.md")
def _restoring(folder: Path, request: pytest.FixtureRequest) -> _Made:
    yield World({"/srv/orders": str(folder)}, (UUID,))


@world("docs/how-to/spark.md", "java")
@world("docs/how-to/spark-backfill.md", "java")
@world("docs/how-to/spark-bounds.md", "java")
@world("docs/how-to/spark-compact.md", "java")
@world("docs/how-to/spark-export.md", "java")
@world("docs/how-to/spark-export-values.md", "java")
@world("docs/how-to/spark-verify.md", "java")
def _spark(folder: Path, request: pytest.FixtureRequest) -> _Made:
    store = open_store(f"file://{folder}/store")

    def day(ledger_id: int, count: int, number: int) -> EntryBatch:
        noon_ms = int(datetime(2026, 3, number, 12, tzinfo=UTC).timestamp() * 1000)
        return EntryBatch.build(ledger_id, 0, [b"{}"] * count, [noon_ms + each for each in range(count)])

    orders = StreamWriter(store, "shop/orders")
    for ledger_id in (1, 2):
        orders.add([day(ledger_id, 500, ledger_id)], closes=[ledger_id])
    StreamWriter(store, "shop/prices").add([day(1, 300, 3)], closes=[1])
    with closing(EmbeddedLedgers(f"sqlite:///{folder}/ledgers.db")) as database:
        for stream, count in (("shop/orders", 1000), ("shop/prices", 300)):
            database.open_stream(stream).append([b"{}"] * count, 0)
    (folder / "archive").mkdir()
    (folder / "records" / "shop").mkdir(parents=True)
    for stream, count in (("orders", 500), ("prices", 300)):
        context = OffloadContext(uuid=uuid4(), complete=True)
        ledger = PulsarLedger(ledger_id=1, entries=count, size_bytes=2 * count, closed_ms=5, context=context)
        (folder / "records" / "shop" / stream).write_bytes(record_of([ledger]))
    clicks = [b'{"id": 1, "page": "home"}', b'{"id": 2, "page": "cart"}', b'{"id": 3}', b"oops"]
    entries = [batch_entry([Sent(value=value) for value in part]) for part in (clicks[:2], clicks[2:])]
    StreamWriter(store, "web/clicks").add([EntryBatch.build(1, 0, entries)])
    spark = request.getfixturevalue("spark")
    try:
        yield World({"/srv/orders": str(folder)})
    finally:  # other tests have this session too
        for kind, name in (("VIEW", "orders"), ("VIEW", "prices"), ("TABLE", "offloader")):
            spark.sql(f"DROP {kind} IF EXISTS {name}")


@world("docs/how-to/spark-backfill.md", "java", begins="Backfill Pulsar topics")
def _backfill_topics(folder: Path, request: pytest.FixtureRequest) -> _Made:
    (folder / "topics").mkdir()
    counts = {"clicks-partition-0": (100, 50), "clicks-partition-1": (100, 50), "orders": (700, 300)}
    bench = PulsarBench(*(f"persistent://public/default/{name}" for name in counts))
    try:
        for topic, (first, second) in zip(bench.topics.values(), counts.values(), strict=True):
            bench.fill(first, topic)
            topic.roll()
            bench.fill(second, topic)
        urls = {"pulsar://127.0.0.1:6650": bench.broker.url, "http://127.0.0.1:8080": bench.admin.url}
        request.getfixturevalue("spark")
        yield World({"/srv/orders": str(folder), **urls})
    finally:
        bench.close()


def _split_topic(folder: Path) -> SegmentedTopic:
    topic = SegmentedTopic(open_store(f"file://{folder}/store"))
    topic.send(0, 100)
    for child in topic.split(0):
        topic.send(child, 50)
    topic.finish()
    return topic


@world("docs/how-to/scalable-retention.md")
def _scalable_retention(folder: Path, request: pytest.FixtureRequest) -> _Made:
    _split_topic(folder)
    yield World({"s3://bucket/prefix": f"file://{folder}/store", "0=7:12": "0=0:12"})


@world("docs/how-to/scalable-topics.md")
def _scalable_topics(folder: Path, request: pytest.FixtureRequest) -> _Made:
    _split_topic(folder)

    def check(run: Run) -> None:
        assert "200" in run.printed[0]

    yield World({"s3://bucket/prefix": f"file://{folder}/store"}, check=check)


@world("docs/how-to/streaming-queries.md", "java")
def _streaming_queries(folder: Path, request: pytest.FixtureRequest) -> _Made:
    StreamWriter(open_store(f"file://{folder}/store"), "orders").add([batch_of(1, 0, 300)])
    topic = _split_topic(folder)
    spark = request.getfixturevalue("spark")

    def written(out: str) -> list[tuple[int, int]]:
        files = [path for path in (folder / out).glob("part-*") if path.stat().st_size]
        rows = [row for path in files for row in pq.read_table(path, columns=["ledger_id", "entry_id"]).to_pylist()]
        return sorted((row["ledger_id"], row["entry_id"]) for row in rows)

    def check(run: Run) -> None:
        spark.streams.removeListener(run.names["listener"])
        assert written("out") == [(1, entry_id) for entry_id in range(300)]
        assert written("orders-out") == sorted(topic.entries)
        assert str(lag_of(run.names["query"].lastProgress)) == "{'orders': StreamLag(entries=0, bytes=0)}"

    yield World({"file:///data/": f"file://{folder}/"}, names={"spark": spark}, check=check)


@world("docs/how-to/subscribers.md")
def _subscribers(folder: Path, request: pytest.FixtureRequest) -> _Made:
    writer = StreamWriter(open_store(f"file://{folder}/store"), "orders")
    writer.add([batch_of(1, 0, 100), batch_of(2, 0, 100), batch_of(3, 0, 50)], closes=[1, 2])
    yield World(environment={"OFFLOADER_STORE": writer.store.url})


@world("docs/how-to/reader-groups.md")
def _reader_groups(folder: Path, request: pytest.FixtureRequest) -> _Made:
    writer = StreamWriter(open_store(f"file://{folder}/store"), "orders")
    writer.add([EntryBatch.build(1, 0, [b"order %d" % number for number in range(1, 11)])])
    yield World(environment={"OFFLOADER_STORE": writer.store.url})


def _three_orders(folder: Path) -> None:
    """A stream of three entries, 20 hours apart."""
    hour_ms = 3_600_000
    times = [1_785_000_000_000 + 20 * hour_ms * each for each in range(3)]
    StreamWriter(open_store(f"file://{folder}/store"), "shop/eu/persistent/orders").add(
        [EntryBatch.build(1, 0, [b"pen", b"ink", b"paper"], times)]
    )


@world("docs/how-to/read-python.md", "process")
@world("docs/how-to/operate-python.md")
@world("docs/how-to/duckdb.md")
@world("docs/how-to/iceberg.md")
@world("docs/how-to/iceberg-values.md")
@world("docs/how-to/parquet.md", "process")
def _tables(folder: Path, request: pytest.FixtureRequest) -> _Made:
    _three_orders(folder)
    yield World({"/data": str(folder)})


@world("docs/how-to/iceberg-maintenance.md")
def _exported_table(folder: Path, request: pytest.FixtureRequest) -> _Made:
    _three_orders(folder)
    catalog, warehouse = f"sqlite:///{folder}/catalog.db", f"file://{folder}/warehouse"
    table = open_table("lake.entries", catalog=catalog, warehouse=warehouse)
    export(open_store(f"file://{folder}/store"), "shop/eu/persistent/orders", table)
    yield World({"/data": str(folder)})


@world("docs/reference/flight.md")
def _flight(folder: Path, request: pytest.FixtureRequest) -> _Made:
    store = open_store(f"file://{folder}/store")
    with flight_door(store, ledgers__ledger_entries_max=5) as door:

        def check(_: Run) -> None:
            assert door.act("status", stream="shop/eu/persistent/orders")["durable"] == "2:0"

        yield World({"grpc://127.0.0.1:8815": door.location}, check=check)


@world("docs/reference/http.md")
def _http(folder: Path, request: pytest.FixtureRequest) -> _Made:
    with http_process(folder) as (http, _):
        yield World({"http://127.0.0.1:8750": http.url})


@world("docs/how-to/consumers.md", "java")
def _consumers(folder: Path, request: pytest.FixtureRequest) -> _Made:
    ports = {port: free_port() for port in (6650, 8080, 8750)}
    options = ["--port", f"{ports[6650]}", "--admin-port", f"{ports[8080]}", "--sidecar"]
    command = [sys.executable, "-m", "services.pulsar", "--plugin", *options, f"http://127.0.0.1:{ports[8750]}"]
    pipes: dict[str, Any] = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    process: subprocess.Popen[str]
    with subprocess.Popen(command, cwd=ROOT, **pipes) as process:

        def begin(_: str) -> str:
            """Its lines; a person pastes those that begin with ``export``."""
            assert process.stdout is not None
            lines = [process.stdout.readline() for _ in range(5)]
            for line in lines[:4]:
                name, _, value = line.strip().removeprefix("export ").partition("=")
                request.getfixturevalue("monkeypatch").setenv(name, value)
            return "".join(lines)

        def typed(line: str) -> str:
            assert process.stdin is not None
            assert process.stdout is not None
            process.stdin.write(f"{line}\n")
            process.stdin.flush()
            return str(process.stdout.readline())

        def check(run: Run) -> None:
            [counted] = json.loads(typed("beans offloader:*")).values()
            assert counted["ReadBytes"] > 0
            assert counted.keys() >= {"ReadBytes", "PresignedBytes", "MissingEntries"}

        commands: dict[str, Callable[[str], str]] = {
            "./dev plugin": lambda _: "",
            "./dev services run": begin,
            "ledger ": _GoneLedger(typed, ports[8080]),
        }
        replaces = {f"127.0.0.1:{port}": f"127.0.0.1:{own}" for port, own in ports.items()}
        ids = (r"(?m)^\d+ (?=\d+ (True|False)$)", "LEDGER ")
        try:
            yield World(replaces, (ids,), commands=commands, check=check)
        finally:
            process.terminate()


@dataclass
class _GoneLedger:
    """``ledger NUMBER``, with the topic's first ledger, until the bookie has it no more."""

    typed: Callable[[str], str]
    admin_port: int

    def __call__(self, _: str) -> str:
        topic = f"http://127.0.0.1:{self.admin_port}/admin/v2/persistent/public/default/orders"
        with urllib.request.urlopen(f"{topic}/internalStats") as answer:
            ledger_id = json.load(answer)["ledgers"][0]["ledgerId"]
        answered = ""

        def is_gone() -> bool:
            nonlocal answered
            for method, action in (("POST", "trim"), ("PUT", "unload")):
                urllib.request.urlopen(urllib.request.Request(f"{topic}/{action}", b"", method=method)).close()
            answered = self.typed(f"ledger {ledger_id}")
            return "NoSuchLedger" in answered

        eventually(is_gone)
        return answered
