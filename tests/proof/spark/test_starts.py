"""What a beginning costs: modules that Spark's Python processes load, the daemon, files in the cache folder."""

from __future__ import annotations

import json
import subprocess
import sys
import zipfile
from pathlib import Path

import pytest

from offloader.store.open import open_store
from tests.support.quick import needs
from tests.support.streams import StreamWriter, batch_of

#: What planning and reading entries of a local store do without.
NOT_FOR_ENTRIES = {
    "boto3",
    "botocore",
    "cryptography",
    "fastavro",
    "formats.pulsar.messages",
    "google.protobuf",
    "lz4",
    "offloader.inspect.verify",
    "offloader.retention",
    "offloader.spark.jobs",
    "offloader.spark.stream",
    "offloader.write",
    "prometheus_client",
    "pyarrow.compute",
    "pyarrow.parquet",
    "ssl",
    "zstandard",
}
#: Modules of ours that a process loads at most; each takes about 5 ms.
OWN_MODULES_MAX = 80

NAMES = "import pyspark_offloader\n"
LOAD = """
import pickle
import pyspark.sql.worker.create_data_source
from pyspark_offloader import DefaultSource
source = DefaultSource({"store": STORE, "stream": STREAM})
schema = source.schema()
source = pickle.loads(pickle.dumps(source))
"""
PLAN = """
import pyspark.sql.worker.plan_data_source_read
from pyspark.sql.types import BinaryType, LongType, StringType, StructType, TimestampType
schema = StructType().add("stream", StringType()).add("ledger_id", LongType()).add("entry_id", LongType())
schema = schema.add("publish_time", TimestampType()).add("payload", BinaryType())
reader = source.reader(schema)
partitions = reader.partitions()
reader = pickle.loads(pickle.dumps(reader))
"""
READ = """
import pyspark.worker
assert sum(batch.num_rows for each in partitions for batch in reader.read(each)) == 90
"""


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> StreamWriter:
    """A stream as the offloader writes it by default: 90 entries, not compressed."""
    writer = StreamWriter(open_store(f"file://{tmp_path_factory.mktemp('store')}"))
    writer.add([batch_of(3, 0, 90)], closes=[3])
    return writer


def loaded_by(code: str, writer: StreamWriter) -> set[str]:
    """Modules that ``code`` loads in a process of its own, and the packages around them."""
    given = f"STORE, STREAM = {writer.store.url!r}, {writer.stream!r}\n"
    command = [sys.executable, "-c", f"{given}{code}\nimport json, sys\nprint(json.dumps(sorted(sys.modules)))"]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stderr
    parts = [name.split(".") for name in json.loads(done.stdout)]
    return {".".join(each[:length]) for each in parts for length in range(1, len(each) + 1)}


def own(modules: set[str]) -> set[str]:
    return {name for name in modules if name.split(".")[0] in ("formats", "offloader")}


@pytest.mark.process
@pytest.mark.parametrize("step", ["load", "plan", "read"])
def test_spark_process_imports_only_what_its_step_needs(step: str, plain: StreamWriter) -> None:
    code = {"load": LOAD, "plan": LOAD + PLAN, "read": LOAD + PLAN + READ}[step]
    modules = loaded_by(code, plain)
    # An index holds the ledgers' metadata as protobuf, blocks are decoded with Arrow.
    needed = {"google.protobuf", "pyarrow.compute"} if step == "read" else set()
    assert NOT_FOR_ENTRIES & modules == needed
    assert len(own(modules)) <= OWN_MODULES_MAX


@pytest.mark.process
def test_listing_of_data_sources_loads_neither_the_package_nor_arrow(plain: StreamWriter) -> None:
    modules = loaded_by(NAMES, plain)
    assert not own(modules) - {"offloader"}
    assert not {"numpy", "pyarrow"} & modules


DAEMON = """
import pathlib, threading
import offloader.spark.daemon
assert threading.active_count() == 1
# jemalloc's thread: it isn't forked, and jemalloc expects that
threads = [each.read_text().strip() for each in pathlib.Path("/proc/self/task").glob("*/comm")]
assert sum(name != "jemalloc_bg_thd" for name in threads) == 1, threads
"""


@pytest.mark.process
def test_daemon_loads_what_a_task_reads_with_and_can_be_forked(
    plain: StreamWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # as Spark sets it
    daemon = loaded_by(DAEMON, plain)
    lacking = loaded_by(LOAD + PLAN + READ, plain) - daemon
    heavy = {"formats", "google", "numpy", "offloader", "pandas", "pyarrow"}
    assert {name for name in lacking if name.split(".")[0] in heavy} <= {
        "offloader.store.checks",
        "offloader.store.local",
    }


S3_WORKER = """
import offloader.spark.daemon
from botocore.loaders import JSONFileLoader
from offloader.store.open import open_store
before, read, original = set(sys.modules), [], JSONFileLoader.load_file
JSONFileLoader.load_file = lambda self, path: read.append(path) or original(self, path)
open_store("s3://bucket/root", endpoint_url="http://127.0.0.1:9", region="eu-west-1", access_key="a", secret_key="b")
assert not read, read
assert not set(sys.modules) - before, set(sys.modules) - before
"""


@pytest.mark.process
def test_forked_worker_opens_an_s3_store_without_loading_the_sdk(
    plain: StreamWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OMP_NUM_THREADS", "1")  # as Spark sets it
    assert "botocore.client" in loaded_by("import sys\n" + DAEMON + S3_WORKER, plain)


@pytest.mark.process
@pytest.mark.parametrize("variables", [{"AWS_PROFILE": "a profile that nobody has"}, {"AWS_CONFIG_FILE": "/dev/full"}])
def test_daemon_starts_where_the_sdk_refuses_the_environment(
    variables: dict[str, str], plain: StreamWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {"OMP_NUM_THREADS": "1", **variables}.items():
        monkeypatch.setenv(name, value)
    assert "offloader.spark.source" in loaded_by(DAEMON, plain)


FORKED = """
import os
import numpy
import offloader.spark.daemon
numpy.random.seed(1)
reading, writing = os.pipe()
for _ in range(2):
    if os.fork() == 0:
        os.write(writing, b"%d " % numpy.random.randint(1 << 60))
        os._exit(0)
for _ in range(2):
    os.wait()
first, second = os.read(reading, 100).split()
assert first != second
"""


@pytest.mark.process
def test_forked_workers_draw_different_random_numbers(plain: StreamWriter) -> None:
    assert "numpy.random" in loaded_by(FORKED, plain)


FEW_ROWS = """
import pathlib
from offloader.spark import local_session
spark = local_session(cores=2, config=CONFIG)
frame = spark.read.format("offloader").option("store", STORE).option("stream", STREAM).load()
assert len(frame.take(3)) == 3
assert not frame.isEmpty()
assert frame.limit(5).count() == 5
frame.show(2)
daemons = {each.read_bytes().split(b"\\0")[2] for each in pathlib.Path("/proc").glob("[0-9]*/cmdline") if runs(each)}
assert spark.conf.get("spark.python.daemon.module").encode() in daemons, daemons
spark.stop()
"""
RUNS = """
def runs(cmdline):
    try:
        return b"pyspark.worker" in cmdline.read_bytes().split(b"\\0")
    except OSError:
        return False
"""


@pytest.mark.process
@needs("java")
@pytest.mark.parametrize("daemon", ["offloader.spark.daemon", "pyspark.daemon"])
def test_take_and_show_print_no_error_of_a_closed_pipe(
    daemon: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    writer = StreamWriter(open_store(f"file://{tmp_path}/store"))
    writer.add([batch_of(3, 0, 60_000)], closes=[3])
    given = f"STORE, STREAM = {writer.store.url!r}, {writer.stream!r}\n"
    config = f"CONFIG = {{'spark.python.daemon.module': {daemon!r}}}\n"
    command = [sys.executable, "-c", given + config + RUNS + FEW_ROWS]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=280)
    assert done.returncode == 0, done.stderr
    assert "only showing top 2 rows" in done.stdout
    assert "BrokenPipeError" not in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.process
def test_daemon_takes_sparks_jar_off_the_module_search_path(plain: StreamWriter, tmp_path: Path) -> None:
    for name in ("spark-core_2.13-4.3.0.jar", "users-own.jar"):
        with zipfile.ZipFile(tmp_path / name, "w") as jar:
            jar.writestr("org/apache/spark/Nothing.class", b"")
    code = f"""
import importlib, sys
jar, own = {str(tmp_path)!r} + "/spark-core_2.13-4.3.0.jar", {str(tmp_path)!r} + "/users-own.jar"
sys.path[1:1] = [jar, own]
importlib.import_module("offloader")
assert jar in sys.path_importer_cache and own in sys.path_importer_cache
import offloader.spark.daemon
assert jar not in sys.path and jar not in sys.path_importer_cache
assert own in sys.path and own in sys.path_importer_cache
"""
    assert "offloader.spark.source" in loaded_by(code, plain)
