"""What Pulsar's own Java client sent to a real broker: pairs, primitive types, and data keys under EC keys."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from formats.entries import EntryBatch
from formats.pulsar.messages import messages
from offloader.read.values import MessageSchema, value_decoder
from offloader.store.open import open_store
from tests.cli.reading_verbs import Offloader
from tests.support.streams import StreamWriter

#: Entries of a real broker; `tests/formats/golden_messages/README.md` tells how they were recorded.
RECORDED = Path(__file__).resolve().parent / "java-client.jsonl"
TOPICS: dict[str, dict[str, Any]] = {
    found["topic"]: found for found in map(json.loads, RECORDED.read_text(encoding="utf-8").splitlines())
}
#: Topic -> what was sent there, as it is shown.
SENT: dict[str, list[Any]] = {
    "kv-inline": [
        {"key": {"id": 1, "name": "pen"}, "value": {"item": "blue", "total": 100}},
        {"key": {"id": 2, "name": None}, "value": {"item": "ink", "total": -1}},
    ],
    "kv-separated": [{"key": {"id": 3, "name": "cap"}, "value": {"item": "red", "total": 300}}],
    "kv-primitives": [
        {"key": 7, "value": "seven"},
        {"key": 8, "value": None},
        {"key": None, "value": "none"},
    ],
    "kv-strings": [{"key": "k", "value": "2026-11-27"}, {"key": "gone", "value": None}],
    "of-string": ["größe ✓", ""],
    "of-int8": [-7],
    "of-int16": [-700],
    "of-int32": [-70000],
    "of-int64": [-7000000000],
    "of-float": [1.5],
    "of-double": [-2.25],
    "of-boolean": [True, False],
    "of-date": ["2023-11-14T22:13:20.123000+00:00"],
    "of-time": ["22:13:20.123"],
    "of-timestamp": ["2023-11-14T22:13:20.123000+00:00", "1969-12-31T23:59:59.999000+00:00"],
    "of-instant": ["2023-11-14T22:13:20.123456789+00:00", "1969-12-31T23:59:59.000005+00:00"],
    "of-local-date": ["2023-11-14", "1969-12-31"],
    "of-local-time": ["22:13:20.123456789"],
    "of-local-date-time": ["2023-11-14T22:13:20.123456"],
}


class Recorded:
    """One topic of the client in a store, and its schema or key in files."""

    def __init__(self, folder: Path, offloader: Offloader, topic: str) -> None:
        self.folder, self.offloader, self.topic = folder, offloader, TOPICS[topic]
        self.store = open_store(f"file://{folder}/store", create=True)
        writer = StreamWriter(self.store, topic)
        ledgers = dict.fromkeys(ledger for ledger, _, _ in self.topic["entries"])
        for ledger in ledgers:
            entries = [base64.b64decode(data) for of, _, data in self.topic["entries"] if of == ledger]
            writer.add([EntryBatch.build(ledger, 0, entries)], closes=[ledger])

    def file(self, text: str) -> str:
        (self.folder / "given").write_text(text, encoding="utf-8")
        return str(self.folder / "given")

    def rows(self, *options: str) -> list[Any]:
        done = self.offloader("read", self.topic["topic"], "--store", self.store.url, "--messages", "--json", *options)
        assert (done.code, done.err) == (0, "")
        return done.rows


@pytest.fixture
def offloader(capsys: pytest.CaptureFixture[str]) -> Offloader:
    return Offloader(capsys)


def recorded_topics(prefix: str) -> Iterator[str]:
    return (topic for topic in TOPICS if topic.startswith(prefix))


@pytest.mark.slow
@pytest.mark.parametrize("topic", [*recorded_topics("kv-"), *recorded_topics("of-")])
def test_values_are_what_the_java_client_was_given(offloader: Offloader, tmp_path: Path, topic: str) -> None:
    found = Recorded(tmp_path, offloader, topic)
    if topic == "of-bytes":  # the registry has no schema of bytes
        assert [row["value_base64"] for row in found.rows()] == ["/wA="]
        found.topic["schema"] = {"type": "BYTES", "data": ""}
        SENT[topic] = ["/wA="]
    schema = found.file(json.dumps(found.topic["schema"]))
    assert [row["value"] for row in found.rows("--schema", schema)] == SENT[topic]
    lines = offloader("read", topic, "--store", found.store.url, "--messages", "--schema", schema).out.splitlines()
    assert [json.loads(line.split("\t")[3]) for line in lines] == SENT[topic]


@pytest.mark.slow
@pytest.mark.parametrize("topic", list(recorded_topics("encrypted-java-")))
def test_messages_under_an_ec_or_rsa_key_of_the_java_client_are_decrypted(
    offloader: Offloader, tmp_path: Path, topic: str
) -> None:
    found = Recorded(tmp_path, offloader, topic)
    name, key = found.topic["key"]
    expected = ["alone", "in a batch 0", "in a batch 1", "in a batch 2"]
    assert [row["value"] for row in found.rows("--private-key", found.file(key))] == expected
    assert [row["value"] for row in found.rows("--private-key", f"{name}={found.file(key)}")] == expected
    other = "encrypted-java-p521" if topic == "encrypted-java-p256" else "encrypted-java-p256"
    wrong = found.file(TOPICS[other]["key"][1])
    done = offloader("read", topic, "--store", found.store.url, "--messages", "--private-key", f"{name}={wrong}")
    assert (done.code, done.out) == (2, "")
    assert f"expected one for the given key '{name}', found one for another key" in done.err


@pytest.mark.parametrize("cut", [0, 1, 3, 5, 11, -1])
def test_pair_that_breaks_off_is_named(cut: int) -> None:
    (ledger, _, data), *_ = TOPICS["kv-primitives"]["entries"]
    [row] = messages(EntryBatch.build(ledger, 0, [base64.b64decode(data)])).to_pylist()
    schema = TOPICS["kv-primitives"]["schema"]
    decoder = value_decoder(MessageSchema(schema["type"], schema["data"], schema["properties"]), what="it")
    with pytest.raises(ValueError, match="isn't a pair of key and value"):
        decoder.decode(row["value"][:cut])


def test_schema_of_pairs_without_its_types_is_refused(offloader: Offloader, tmp_path: Path) -> None:
    found = Recorded(tmp_path, offloader, "kv-inline")
    schema = found.file(json.dumps({**found.topic["schema"], "properties": {}}))
    code, line, hint = offloader.refuses(
        "read", "kv-inline", "--store", found.store.url, "--messages", "--schema", schema
    )
    assert (code, "isn't a schema of pairs" in line, "properties" in hint) == (2, True, True)
