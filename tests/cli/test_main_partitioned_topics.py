"""Every verb that takes a stream, given the name of a topic with partitions."""

from __future__ import annotations

import inspect
import json
from collections.abc import Iterator, Mapping
from contextlib import closing
from importlib import import_module
from pathlib import Path
from uuid import UUID

import pytest

from formats.keys import data_key
from formats.metadata.messages import OffloadContext, PulsarLedger
from offloader.cli.tree import leaves
from offloader.ledgers.sqlite.embedded import EmbeddedLedgers
from offloader.manifest.log import list_streams, load_manifest
from offloader.store.open import open_store
from tests.cli.reading_verbs import Offloader
from tests.support.ledger_records import record_of
from tests.support.readback import stored_entries
from tests.support.streams import StreamWriter, batch_of

TOPIC = "persistent://shop/eu/orders"
STREAM = "shop/eu/persistent/orders"
PARTITIONS = [f"{STREAM}-partition-{number}" for number in (0, 1)]
PLAIN = "shop/eu/persistent/plain"
NAMED = f"{PARTITIONS[0]}, {PARTITIONS[1]}"


class Topic:
    """A topic with two partitions: ledgers 3 and 4 offloaded, and in the ledger database one that isn't."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.store = folder, open_store(f"file://{folder}/store", create=True)
        self.ledgers = f"sqlite:///{folder}/ledgers.db"
        self.writers = [StreamWriter(self.store, name) for name in (*PARTITIONS, PLAIN)]
        for number, writer in enumerate(self.writers):
            writer.add([batch_of(3 + number, 0, 10)], closes=[3 + number])

    def record(self, number: int) -> str:
        context = OffloadContext(uuid=UUID(int=77 + number), complete=True, driver_name="x")
        sizes = [len(entry.payload) for entry in self.writers[number].entries]
        ledger = PulsarLedger(
            ledger_id=3 + number, entries=len(sizes), size_bytes=sum(sizes), closed_ms=5, context=context
        )
        path = self.folder / f"record-{number}"
        path.write_bytes(record_of([ledger]))
        return str(path)


@pytest.fixture
def topic(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Topic:
    made = Topic(tmp_path)
    monkeypatch.setenv("OFFLOADER_STORE", made.store.url)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.delenv("OFFLOADER_LEDGERS", raising=False)
    return made


@pytest.fixture
def offloader(capsys: pytest.CaptureFixture[str], topic: Topic) -> Offloader:
    assert topic
    return Offloader(capsys)


def streams_of(rows: list[Mapping[str, object]]) -> list[object]:
    """The streams of the rows, each once."""
    return list(dict.fromkeys(row["stream"] for row in rows if "stream" in row))


#: Verb -> what it needs besides the name. Each does its work for each partition, a row with ``stream`` for each.
EACH = {
    "ls": [],
    "stream pause": [],
    "stream resume": [],
    "verify": [],
    "status": [],
    "manifest show": [],
    "manifest show ": ["--records", "1"],
    "manifest checkpoint": [],
    "manifest checkpoint ": ["--dry-run"],
    "manifest expire": [],
    "stream compact": ["--beside-owner"],
    "stream compact ": ["--dry-run"],
    "cleanup plan": [],
    "cleanup run": ["--apply"],
    "cleanup orphans": [],
    "cleanup hold": [],
    "stream truncate": ["--before", "0=4:0", "--before", "1=5:0", "--apply"],
    "stream truncate ": ["--before-time", "-1h"],
    "stream delete": [],
}


@pytest.mark.slow
@pytest.mark.parametrize("verb", EACH)
@pytest.mark.parametrize("name", [TOPIC, STREAM])
def test_verb_is_about_each_partition(offloader: Offloader, verb: str, name: str) -> None:
    done = offloader(*verb.split(), name, *EACH[verb], "--json")
    assert (done.code, done.err) == (0, "")
    assert streams_of(done.rows) == PARTITIONS
    text = offloader(*verb.split(), name, *EACH[verb])
    assert text.code == 0
    assert all(partition in text.out for partition in PARTITIONS)
    assert PLAIN not in text.out


#: Verb -> what it needs besides the name. It is about the topic as one.
WHOLE = {
    "read": ["--count"],
    "retention explain": [],
    "retention plan": [],
    "retention run": ["--apply"],
    "subscriber list": [],
    "config explain": [],
}


@pytest.mark.slow
@pytest.mark.parametrize("verb", WHOLE)
def test_verb_is_about_the_topic_as_one(offloader: Offloader, verb: str) -> None:
    done = offloader(*verb.split(), TOPIC, *WHOLE[verb])
    assert done.code == 0
    assert "offloader: " not in done.err


@pytest.mark.slow
def test_subscribers_and_reader_groups_take_a_topic(offloader: Offloader) -> None:
    assert offloader("subscriber", "add", TOPIC, "audit").code == 0
    assert offloader("subscriber", "ack", TOPIC, "audit", "--at", "0=3:5", "--at", "1=4:5").code == 0
    [row] = offloader("subscriber", "list", TOPIC, "--json").rows
    assert row["subscriber"] == "audit"
    assert offloader("subscriber", "remove", TOPIC, "audit", "--apply").code == 0
    assert offloader("group", "set", "team", "--stream", TOPIC).code == 0
    assert offloader("group", "join", "team", "one", "--stream", TOPIC, "--limit", "1").code == 0


#: Verb -> what it needs besides the name; why it is of one partition.
REFUSED = {
    "manifest rebuild": (["--head", "first"], "a rebuild needs one stream"),
    "stream set-source": (["--ledgers", "sqlite:///ledgers.db"], "this command needs one stream"),
    "stream accept-loss": (["--ledgers", "sqlite:///ledgers.db"], "this command needs one stream"),
    "stream offload": (["--to", "3:5"], "a position belongs to one"),
    "cleanup undo": (["--head", "3:0"], "a position belongs to one"),
    "cleanup undo ": (["--segment", "00000000-0000-0000-0000-000000000001"], "a segment belongs to one stream"),
    "read": (["--from", "3:0"], "a position belongs to one"),
    "ls": (["--plot", "x.svg"], "--plot draws one stream"),
}


@pytest.mark.slow
@pytest.mark.parametrize("verb", REFUSED)
def test_what_is_of_one_stream_is_refused_and_names_the_partitions(
    offloader: Offloader, topic: Topic, verb: str
) -> None:
    before = {info.key for info in topic.store.list("").objects}
    more, why = REFUSED[verb]
    code, line, hint = offloader.refuses(*verb.split(), TOPIC, *more)
    assert (code, why in line, PARTITIONS[0] in hint) == (2, True, True), (line, hint)
    assert {info.key for info in topic.store.list("").objects} == before
    assert not Path("ledgers.db").exists()


def test_every_verb_that_takes_a_stream_is_in_a_table() -> None:
    """A verb with an argument for streams is listed above, or in the tests below."""
    tested = {each.strip() for table in (EACH, WHOLE, REFUSED) for each in table}
    # `export` and `spark` have theirs in tests/export, tests/iceberg and tests/spark.
    below = {
        "export iceberg",
        "export parquet",
        "stream offload",
        "export pulsar",
        "import",
        "cleanup audit",
        "export v1",
        "cleanup undo",
    }
    below |= {f"spark {job}" for job in ("backfill", "compact", "export", "rebuild", "verify")}
    # `manifest context` takes one stream, and is in tests/cli/test_manifest.py.
    below |= {"group set", "group join", "manifest context"}
    below |= {f"subscriber {action}" for action in ("add", "ack", "remove", "accept-loss")}
    assert set(verbs_with_streams()) - tested - below == set()


def verbs_with_streams() -> Iterator[str]:
    for words, place in leaves():
        module, _, function = place.partition(":")
        run = getattr(import_module(f"offloader.cli.{module}"), function)
        if {"stream", "streams", "topic"} & set(inspect.signature(run).parameters):
            yield words


@pytest.mark.slow
def test_offload_completes_each_partition_and_names_the_one_that_fails(
    offloader: Offloader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A topic that only the ledger database has yet; then one whose manifest of a partition is damaged."""
    ledgers, store = f"sqlite:///{tmp_path}/new.db", f"file://{tmp_path}/new"
    monkeypatch.setenv("OFFLOADER_STORE", store)
    monkeypatch.setenv("OFFLOADER_LEDGERS", ledgers)
    database = EmbeddedLedgers(ledgers)
    sources = [database.open_stream(name) for name in PARTITIONS]
    for source in sources:
        source.append([b"a", b"b"], 0)
    done = offloader("stream", "offload", TOPIC, "--json")
    assert (done.code, [(row["stream"], row["entries"]) for row in done.rows]) == (
        0,
        [(each, 2) for each in PARTITIONS],
    )
    opened = open_store(store)
    assert [len(stored_entries(opened, each)) for each in PARTITIONS] == [2, 2]
    for source in sources:
        source.append([b"c"], 0)
    planned = offloader("stream", "offload", TOPIC, "--dry-run", "--json")
    assert (planned.code, [row["stream"] for row in planned.rows]) == (0, PARTITIONS)
    broken = next(info.key for info in opened.list(f"{PARTITIONS[0]}/manifest/").objects if info.size_bytes)
    opened.put(broken, b"damaged")
    done = offloader("stream", "offload", TOPIC, "--take-over", "--json")
    failed, whole = done.rows
    assert (done.code, failed["stream"], failed["error"]["exit_code"]) == (6, PARTITIONS[0], 6)
    assert (whole["stream"], whole["entries"]) == (PARTITIONS[1], 1)
    assert done.err.startswith(f"offloader: stream {PARTITIONS[0]}: ")
    database.close()


def test_offload_of_a_stream_leaves_what_only_looks_like_its_partition(
    offloader: Offloader, topic: Topic, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OFFLOADER_LEDGERS", topic.ledgers)
    with closing(EmbeddedLedgers(topic.ledgers)) as database:
        database.open_stream(f"{PLAIN}-partition-0").append([b"a"], 0)
    code, line, _ = offloader.refuses("stream", "offload", PLAIN, "--take-over")
    assert (code, f"stream '{PLAIN}' isn't in ledger database" in line) == (3, True)
    assert f"{PLAIN}-partition-0" not in list_streams(topic.store)


@pytest.mark.slow
def test_export_takes_a_record_of_each_partition(offloader: Offloader, topic: Topic, tmp_path: Path) -> None:
    target = f"file://{tmp_path}/bucket"
    records = [topic.record(number) for number in (0, 1)]
    wrong = {
        (records[0],): "a broker's record belongs to one",
        (f"0={records[0]}",): "missing --broker-record for partition 1",
        (f"0={records[0]}", f"2={records[1]}"): "partition 2",
        (f"0={records[0]}", f"0={records[1]}"): "partition 0 twice",
    }
    for given, said in wrong.items():
        options = [part for each in given for part in ("--broker-record", each)]
        code, line, hint = offloader.refuses("export", "v1", TOPIC, "--dest", target, *options)
        assert (code in (2, 3), said in line, bool(hint)) == (True, True, True), (line, hint)
    assert not (tmp_path / "bucket").exists()
    absent = ("--broker-record", f"0={records[0]}", "--broker-record", f"1={tmp_path}/absent")
    code, line, _ = offloader.refuses("export", "v1", TOPIC, "--dest", target, *absent)
    assert (code, "can't be read" in line, list((tmp_path / "bucket").glob("*"))) == (3, True, [])
    both = [part for number in (0, 1) for part in ("--broker-record", f"{number}={records[number]}")]
    done = offloader("export", "v1", TOPIC, "--dest", target, *both, "--json")
    assert [(row["stream"], row["ledger_id"], row["state"]) for row in done.rows] == [
        (PARTITIONS[0], 3, "written"),
        (PARTITIONS[1], 4, "written"),
    ]
    assert done.code == 0


@pytest.mark.slow
def test_undo_brings_back_what_a_truncation_of_the_topic_took(offloader: Offloader) -> None:
    assert offloader("stream", "truncate", "--apply", TOPIC, "--before", "0=4:0", "--before", "1=5:0").code == 0
    assert offloader("cleanup", "run", "--apply", TOPIC, "--allow-large").code == 0
    done = offloader("cleanup", "undo", TOPIC, "--json")
    assert (done.code, [(row["stream"], len(row["segments"])) for row in done.rows]) == (
        0,
        [(p, 1) for p in PARTITIONS],
    )


@pytest.mark.slow
def test_hold_and_audit_are_of_all_partitions(offloader: Offloader, topic: Topic) -> None:
    assert offloader("cleanup", "hold", TOPIC, "--reason", "court").code == 0
    assert [load_manifest(topic.store, each).held for each in (*PARTITIONS, PLAIN)] == [True, True, False]
    assert offloader("cleanup", "audit", TOPIC).code == 0
    assert offloader("cleanup", "audit", "persistent://shop/eu/nothing").code == 3


@pytest.mark.slow
def test_compaction_of_one_damaged_partition_leaves_the_other_compacted(offloader: Offloader, topic: Topic) -> None:
    [segment] = load_manifest(topic.store, PARTITIONS[0]).offloaded()
    key = data_key(PARTITIONS[0], segment.uuid)
    data = bytearray(topic.store.get(key)[0])
    data[200] ^= 1
    topic.store.put(key, bytes(data))
    done = offloader("stream", "compact", TOPIC, "--beside-owner", "--recode", "--codec", "zstd")
    assert done.code == 6
    assert f"stream {PARTITIONS[0]}: " in done.err
    compressed = [load_manifest(topic.store, each).offloaded()[0].content.compressed for each in PARTITIONS]
    assert compressed == [False, True]


def test_a_status_file_alone_knows_a_topics_partitions(
    offloader: Offloader, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = tmp_path / "status.json"
    rows = [{"stream": name, "segments": {}, "buffer": {"bytes": 0, "bytes_max": 1}} for name in (*PARTITIONS, PLAIN)]
    file.write_text(json.dumps({"version": 1, "written_ms": 1, "streams": rows}))
    monkeypatch.delenv("OFFLOADER_STORE")
    done = offloader("status", TOPIC, "--status-file", str(file), "--json")
    assert [row["stream"] for row in done.rows] == PARTITIONS


def test_release_of_adopted_ledgers_takes_a_topic(offloader: Offloader) -> None:
    done = offloader("import", TOPIC, "--undo", "--json")
    assert (done.code, [(row["stream"], row["released"]) for row in done.rows]) == (
        0,
        [(each, 0) for each in PARTITIONS],
    )
