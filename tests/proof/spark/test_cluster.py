"""Two workers on this machine, MinIO, the package only as a wheel, credentials only in the workers' environment."""

from __future__ import annotations

import hashlib
import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from formats.entries import EntryBatch
from formats.manifest import Assign, Failed
from formats.segment import Codec
from offloader.store.base import ObjectStore
from offloader.store.open import open_store
from tests.formats.pulsar_entries import Sent, batch_entry, single_entry
from tests.proof.spark.cluster import Cluster, bare_python
from tests.proof.spark.on_cluster import MESSAGES, STREAM
from tests.spark.hot_tier import HotTier, edits_of
from tests.support.readback import stored_entries
from tests.support.streams import StreamWriter, batch_of
from tests.support.waiting import eventually
from tests.support.wheel import build_wheel

HERE = Path(__file__).resolve().parent
HOT = ("hot/a", "hot/b")
#: Of messages, by number.
CODECS = {0: "none", 1: "lz4", 2: "zlib", 3: "zstd", 4: "snappy"}

pytestmark = [pytest.mark.java, pytest.mark.timeout(900)]
#: For the whole program, on a machine that is busy.
PROGRAM_S = 480.0


@dataclass(frozen=True)
class Ran:
    """What the program found, and what there was to find."""

    found: dict[str, Any]
    bare: dict[str, Any]
    writer: StreamWriter
    hot: HotTier
    store: ObjectStore
    folder: Path
    secret: str


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory, servers: Any, one_server: str) -> Ran:
    """The program, submitted with the wheel to a cluster of which it and we kill parts."""
    folder = tmp_path_factory.mktemp("cluster")
    place = servers.place(one_server)
    store = place.open()
    writer, messages = StreamWriter(store, STREAM), StreamWriter(store, MESSAGES)
    for ledger_id in range(1, 7):
        writer.add([batch_of(ledger_id, 0, 200, size=100)], closes=[ledger_id])
    entries = [single_entry(Sent(value=b"one")), batch_entry([Sent(value=b"two"), Sent(value=b"three")])]
    messages.add([EntryBatch.build(1, 0, entries)])
    hot = HotTier(folder)
    for stream in HOT:
        hot.append(stream, 300)
    credentials = {"AWS_ACCESS_KEY_ID": place.endpoint.access_key, "AWS_SECRET_ACCESS_KEY": place.endpoint.secret_key}
    options = json.dumps({"store": place.url, "endpointUrl": place.endpoint.url, "region": "us-east-1"})
    python, core = bare_python(folder / "python", "s3"), bare_python(folder / "core")
    plain = StreamWriter(open_store(f"file://{folder}/store"), STREAM)
    plain.add([batch_of(1, 0, 500, size=100)], codec=Codec.ZSTD, closes=[1])
    plain.add([batch_of(2, 0, 700, size=100)], closes=[2])
    sent = [batch_entry([Sent(value=name.encode())], codec=codec) for codec, name in CODECS.items()]
    StreamWriter(plain.store, MESSAGES).add([EntryBatch.build(1, 0, sent)])
    (folder / "wheel").mkdir()
    # Spark puts archives on executors' paths by the end of their names, and knows no wheels.
    wheel = build_wheel(folder / "wheel").rename(folder / "wheel" / "offloader.zip")
    with Cluster(folder, credentials) as cluster:
        alone = subprocess.run([python, "-c", "import offloader"], cwd="/", env={}, capture_output=True, check=False)
        assert b"No module named 'offloader'" in alone.stderr, "else the wheel would prove nothing"
        program = cluster.submit(
            HERE / "on_cluster.py",
            options,
            hot.url,
            folder,
            python=python,
            py_files=[wheel],
            conf={
                "spark.eventLog.enabled": "true",
                "spark.eventLog.compress": "false",
                "spark.eventLog.dir": f"file://{folder}",
                "spark.ui.port": "0",
            },
        )
        commits = folder / "checkpoint" / "commits"

        def under_way() -> object:
            assert program.poll() is None, cluster.log_of("on_cluster.py")
            return (commits / "3").exists()

        eventually(under_way, within_s=PROGRAM_S)
        cluster.kill_worker(0)
        cluster.finish(program, "on_cluster.py")
        bare = cluster.submit(
            HERE / "on_bare_cluster.py",
            plain.store.url,
            folder,
            python=core,
            py_files=[wheel],
            conf={"spark.ui.enabled": "false"},
        )
        cluster.finish(bare, "on_bare_cluster.py")
    found, of_bare = (json.loads((folder / name).read_text()) for name in ("found.json", "bare.json"))
    assert of_bare["rows"] == rows_of(plain)
    return Ran(found, of_bare, writer, hot, store, folder, place.endpoint.secret_key)


def rows_of(writer: StreamWriter) -> list[list[Any]]:
    return [[e.ledger_id, e.entry_id, hashlib.sha256(e.payload).hexdigest()] for e in writer.entries]


def test_the_executors_have_the_package_from_the_wheel_alone(ran: Ran) -> None:
    assert ran.found["executors"] == 2
    assert len(ran.found["package"]) == 2, "each has its own copy"
    assert all("/offloader.zip/offloader/" in path and str(ran.folder) in path for path in ran.found["package"])


def test_zip_over_the_core_packages_alone_reads_and_streams(ran: Ran) -> None:
    """What ``--py-files`` needs of the executors' Python: no extra, and so no store but a directory."""
    where, others = ran.bare["executor"]
    assert ("/offloader.zip/offloader/" in where, others) == (True, [])
    assert ran.bare["streamed"] == ran.bare["rows"]
    assert (len(ran.bare["rows"]), ran.bare["count"]) == (1200, 700)
    assert ran.bare["messages"] == sorted([name, name] for name in CODECS.values())


def test_every_content_of_a_stream_is_readable_on_a_cluster(ran: Ran) -> None:
    found, state = ran.found, ran.writer.log.state
    assert found["rows"] == rows_of(ran.writer)
    assert found["partitions"] > 2
    assert found["positions"] == [[e.ledger_id, e.entry_id] for e in ran.writer.entries]
    assert found["message_values"] == ["one", "two", "three"]
    counts = {name: found[name] for name in ("segments", "ledgers", "manifest", "anomalies")}
    assert counts == {"segments": 6, "ledgers": 6, "manifest": state.record_id, "anomalies": 0}


def test_jobs_do_their_work_though_an_executor_is_killed(ran: Ran) -> None:
    found = ran.found
    assert (ran.folder / "killed").exists()
    assert found["backfilled"] == {stream: [300, "None"] for stream in HOT}
    for stream in HOT:
        assert stored_entries(ran.store, stream) == ran.hot.expected[stream]
    assert found["verified"] == {STREAM: 1200, MESSAGES: 2, **dict.fromkeys(HOT, 300)}
    assert found["findings"] == []
    assert found["exported"] == {STREAM: 1200, MESSAGES: 2}
    assert (found["exported_again"], found["in_files"]) == (0, 1202)


def test_executor_error_is_reported_and_not_retried_by_spark(ran: Ran) -> None:
    refused = ran.found["refused"]
    assert refused.startswith("NotFoundError: on executor ")
    assert "ledgers.db.elsewhere doesn't exist" in refused


def test_spark_task_retry_writes_nothing(ran: Ran) -> None:
    """It would have had the uuid of the one that was killed after its upload."""
    edits = [edit for stream in HOT for edit in edits_of(ran.store, stream)]
    failed = [edit.reason.partition(": ")[2].partition(" (")[0] for edit in edits if isinstance(edit, Failed)]
    assert failed.count("the first attempt was lost") == 1
    assigned = [edit.uuid for edit in edits if isinstance(edit, Assign)]
    assert len(assigned) == len(set(assigned)) == len(HOT) + len(failed)


def test_query_continues_exactly_once_when_a_worker_is_killed(ran: Ran) -> None:
    assert ran.found["streamed"] == rows_of(ran.writer)


def test_secret_appears_only_in_the_environment(ran: Ran) -> None:
    """Not in plans, partitions, logs of driver and executors, what the event log and the web interface show."""
    seen = {path.relative_to(ran.folder): path.read_bytes() for path in ran.folder.rglob("*") if is_ours(path)}
    names = {path.name for path in seen}
    assert {"on_cluster.py.log", "pickles", "environment.html", "master.log", "worker-1.log", "stderr"} <= names
    assert any(b"SparkListenerEnvironmentUpdate" in content for content in seen.values()), "the event log"
    assert any(b"== Physical Plan ==" in content for content in seen.values())
    assert ran.folder.name.encode() in seen[Path("environment.html")]
    assert [path for path, content in seen.items() if ran.secret.encode() in content] == []


def is_ours(path: Path) -> bool:
    return path.is_file() and not {"python", "core", "wheel"} & set(path.parts)
