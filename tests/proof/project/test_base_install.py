"""The wheel without extras: pip installs it from the index of this machine, with what it needs and nothing more."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import subprocess
import sys
from pathlib import Path

import pyspark
import pytest
from pyspark.sql.pandas.types import from_arrow_schema

from formats.entries import EntryBatch
from formats.segment import Codec
from offloader.spark.options import arrow_schema
from offloader.spark.source import OffloaderDataSource
from offloader.store.open import open_store
from tests.formats.pulsar_entries import Sent, batch_entry
from tests.support.quick import needs
from tests.support.streams import StreamWriter, batch_of
from tests.support.wheel import as_installed, build_wheel, required

ROOT = Path(__file__).resolve().parents[3]
ENTRIES, MESSAGES = "shop/orders", "shop/messages"
#: What pip downloads, on a slow line.
INSTALL_S = 600.0
#: Reads what the driver pickled, as a worker of an executor does.
TASK = """
import hashlib, json, pickle, sys
with open(sys.argv[1], "rb") as file:
    reader, partitions = pickle.load(file)
for partition in partitions:
    for batch in reader.read(partition):
        for row in batch.to_pylist():
            print(json.dumps([row["ledger_id"], row["entry_id"], hashlib.sha256(row[sys.argv[2]]).hexdigest()]))
"""
#: Imports each module of the package; prints those that can't be imported, with the error.
IMPORTS = """
import importlib, json, sys
from pathlib import Path
import formats, offloader
found = {}
for package in (formats, offloader):
    root = Path(package.__file__).parent
    for path in sorted(root.rglob("*.py")):
        name = ".".join(path.relative_to(root.parent).with_suffix("").parts).removesuffix(".__init__")
        try:
            importlib.import_module(name)
        except Exception as error:
            found[name] = [type(error).__name__, str(error)]
print(json.dumps(found))
"""
#: Modules that are imported only after a check that their extra is installed, or by a command that names it.
BEHIND_A_CHECK = (
    "offloader.export.iceberg",
    "offloader.iceberg",
    "offloader.plot",
    "offloader.service.http.",
    "offloader.store.clouds.",
    "offloader.store.fsspec",
    "offloader.store.s3",
    "offloader.store.s3_bodies",
    "offloader.store.s3_client",
    "offloader.testing.",
)


class BaseInstall:
    """The environment's programs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.python = folder / "bin" / "python"

    def run(self, *words: object, spark: bool = False) -> subprocess.CompletedProcess[str]:
        """A program of the environment; ``spark``: with pyspark as an executor has it, from Spark's own folder."""
        kept = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "COV"))}
        if spark:
            zips = (Path(pyspark.__file__).parent / "python" / "lib").glob("*.zip")
            kept["PYTHONPATH"] = os.pathsep.join(map(str, zips))
        command = [str(word) for word in words]
        return subprocess.run(
            command, cwd=self.folder, env=kept, capture_output=True, text=True, check=False, timeout=240
        )

    def prints(self, *words: object, spark: bool = False) -> str:
        """What a program that succeeds prints."""
        done = self.run(*words, spark=spark)
        assert (done.returncode, done.stderr) == (0, ""), words
        return done.stdout


@pytest.fixture(scope="module")
@needs("process")
def base(tmp_path_factory: pytest.TempPathFactory) -> BaseInstall:
    folder = tmp_path_factory.mktemp("base")
    wheel = build_wheel(tmp_path_factory.mktemp("wheel"))
    constraints = folder / "constraints.txt"
    lines = (ROOT / "constraints.txt").read_text(encoding="utf-8").splitlines()
    constraints.write_text("\n".join(map(as_installed, lines)), encoding="utf-8")
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", folder / "env"], check=True, timeout=240)
    found = BaseInstall(folder / "env")
    pip = [sys.executable, "-m", "pip", "--python", str(found.python), "install", "--quiet", "-c", str(constraints)]
    subprocess.run([*pip, str(wheel)], check=True, timeout=INSTALL_S)
    return found


@pytest.fixture
def store_url(tmp_path: Path) -> str:
    """Blocks in zstd, and messages in each of the codecs that Pulsar's producers have."""
    store = open_store(f"file://{tmp_path}/store")
    writer = StreamWriter(store, ENTRIES)
    writer.add([batch_of(1, 0, 300, size=100)], codec=Codec.ZSTD, closes=[1])
    writer.add([batch_of(2, 0, 200)])
    sent = [Sent(value=b"message %d " % number * 20) for number in range(5)]
    StreamWriter(store, MESSAGES).add([EntryBatch.build(1, 0, [batch_entry(sent, codec=codec) for codec in range(5)])])
    return store.url


@pytest.mark.timeout(1200)  # pip downloads Arrow
def test_base_install_brings_what_executors_need_and_nothing_more(base: BaseInstall) -> None:
    listing = "import importlib.metadata as m, json; print(json.dumps([d.name for d in m.distributions()]))"
    names = {name.replace("_", "-") for name in json.loads(base.prints(base.python, "-c", listing))}
    assert names == {"offloader", "google-crc32c", "numpy", "protobuf", "pyarrow"}
    assert names - {"offloader"} == required()


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("content", "stream", "column"), [("entries", ENTRIES, "payload"), ("messages", MESSAGES, "value")]
)
def test_base_install_reads_a_stream_as_an_executor_does(
    base: BaseInstall, store_url: str, tmp_path: Path, content: str, stream: str, column: str
) -> None:
    source = OffloaderDataSource({"store": store_url, "stream": stream, "content": content, "splitBytes": "20000"})
    reader = source.reader(from_arrow_schema(arrow_schema(content)))
    task = tmp_path / "task"
    task.write_bytes(pickle.dumps((reader, reader.partitions())))
    rows = [json.loads(line) for line in base.prints(base.python, "-c", TASK, task, column, spark=True).splitlines()]
    if content == "entries":
        payloads = [(1, n, f"1:{n} ".encode().ljust(100, b".")) for n in range(300)]
        payloads += [(2, n, f"2:{n} ".encode().ljust(20, b".")) for n in range(200)]
    else:
        payloads = [(1, codec, b"message %d " % number * 20) for codec in range(5) for number in range(5)]
    assert sorted(rows) == sorted(
        [ledger, entry, hashlib.sha256(payload).hexdigest()] for ledger, entry, payload in payloads
    )


@pytest.mark.timeout(1200)
def test_base_install_appends_offloads_and_reads_without_spark(base: BaseInstall) -> None:
    program = f"""
import offloader
store = offloader.open_store("file://{base.folder}/store")
topic = store.stream("a/b").open_ledger("sqlite:///{base.folder}/ledgers.db")
topic.append_batch([b"one", b"two"])
topic.offload()
topic.close()
print([batch.column("payload").to_pylist() for batch in store.stream("a/b").scan().to_batches()])
"""
    assert base.prints(base.python, "-c", program).strip() == "[[b'one', b'two']]"


@pytest.mark.timeout(1200)
def test_every_module_is_imported_by_the_base_install_or_names_its_extra(base: BaseInstall) -> None:
    found: dict[str, list[str]] = json.loads(base.prints(base.python, "-c", IMPORTS, spark=True))
    others = {name: error for name, error in found.items() if not name.startswith(BEHIND_A_CHECK)}
    unnamed = {
        name: error for name, (kind, error) in others.items() if kind != "UnsupportedError" or "'.[cli]'" not in error
    }
    assert unnamed == {}
    assert {"offloader.cli.main", "offloader.owner_client", "offloader.telemetry.prometheus"} <= set(others)
    layers = ("formats", "offloader.manifest", "offloader.read", "offloader.spark", "offloader.write", "offloader.gc")
    below = {name: error for name, error in others.items() if name.startswith(layers)}
    assert below == {}


@pytest.mark.timeout(1200)
@pytest.mark.parametrize(
    ("url", "extra"),
    [
        ("s3://bucket/root", "s3"),
        ("gs://bucket/root", "gcs"),
        ("az://bucket/root", "azure"),
        ("ftp://host/root", "fsspec"),
    ],
)
def test_a_store_that_needs_an_extra_names_it(base: BaseInstall, url: str, extra: str) -> None:
    program = f"""
import offloader
try:
    offloader.open_store({url!r})
except offloader.errors.UnsupportedError as error:
    print(error)
"""
    printed = base.prints(base.python, "-c", program)
    assert f"a store at {url.partition('/')[0]}// needs the package " in printed
    assert f"pip install -c constraints.txt '.[{extra}]'" in printed


@pytest.mark.timeout(1200)
def test_command_without_its_extra_names_it(base: BaseInstall) -> None:
    for command in ([base.folder / "bin" / "offloader"], [base.python, "-m", "offloader"]):
        done = base.run(*command, "ls", "--store", "file:///nowhere")
        assert (done.returncode, done.stdout) == (2, "")
        assert done.stderr.splitlines() == [
            "offloader: the command line needs the package typer, which isn't installed",
            "hint: in a checkout of offloader: pip install -c constraints.txt '.[cli]'",
        ]
