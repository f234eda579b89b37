"""``offloader read STREAM --messages``."""

from __future__ import annotations

import base64
from pathlib import Path

import pytest

from formats.entries import EntryBatch
from offloader.store.open import open_store
from tests.cli.reading_verbs import Offloader
from tests.formats.pulsar_entries import Sent, batch_entry, entry_of, metadata_of, recorded, single_entry
from tests.support.streams import BASE_MS, StreamWriter, batch_of

TIME = "2023-11-14T22:13:20.000Z"


@pytest.fixture
def writer(tmp_path: Path) -> StreamWriter:
    return StreamWriter(open_store(f"file://{tmp_path}/store"), "orders")


@pytest.fixture
def offloader(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, writer: StreamWriter) -> Offloader:
    monkeypatch.setenv("OFFLOADER_STORE", writer.store.url)
    return Offloader(capsys)


def test_a_line_per_message_with_id_time_key_and_value(offloader: Offloader, writer: StreamWriter) -> None:
    batch = batch_entry([Sent(value=b"pen", key="k1"), Sent(value="ümläut\n".encode(), key="\x1b[31m")], codec=1)
    writer.add([EntryBatch.build(7, 0, [single_entry(Sent(value=b"first")), batch])])
    assert offloader("read", "orders", "--messages").out.splitlines() == [
        f"7:0\t{TIME}\t-\tfirst",
        f"7:1:0\t{TIME}\tk1\tpen",
        f"7:1:1\t{TIME}\t\\x1b[31m\tümläut\\n",
    ]


def test_unusual_message_values_are_shown_in_brackets(offloader: Offloader, writer: StreamWriter) -> None:
    entries = [
        single_entry(Sent(null_value=True)),
        batch_entry([Sent(compacted_out=True)]),
        entry_of(metadata_of(marker=21), b""),
        entry_of(metadata_of(chunk=("u", 1, 3, 30)), b"0123456789"),
        entry_of(metadata_of(encryption=[("k", b"x", {})]), b"secret"),
        entry_of(metadata_of(message=Sent(null_value=True), encryption=[("k", b"x", {})]), b""),
        single_entry(Sent(value=b"")),
    ]
    writer.add([EntryBatch.build(7, 0, entries)])
    shown = [line.split("\t")[3] for line in offloader("read", "orders", "--messages").out.splitlines()]
    assert shown == [
        "(null)",
        "(compacted out)",
        "(marker 21)",
        "(chunk 2 of 3 of u, 10 bytes)",
        "(encrypted, 6 bytes)",
        "(null)",
        "",
    ]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("value", "shown"),
    [
        (b"a" * 200, "a" * 200),
        (b"a" * 201, "a" * 200 + "..."),
        ("✓".encode() * 200, "✓" * 200),
        ("✓".encode() * 5000, "✓" * 200 + "..."),
        (b"\xff\xfe", "base64://4="),
        (b"\xff" * 300, "base64:" + base64.b64encode(b"\xff" * 200).decode() + "..."),
        (b"a" * 799 + "✓".encode(), "a" * 200 + "..."),
        (b"a" * 900 + b"\xff", "a" * 200 + "..."),
    ],
)
def test_long_and_binary_values_are_cut(offloader: Offloader, writer: StreamWriter, value: bytes, shown: str) -> None:
    writer.add([EntryBatch.build(7, 0, [single_entry(Sent(value=value))])])
    assert offloader("read", "orders", "--messages").out == f"7:0\t{TIME}\t-\t{shown}\n"


def test_json_has_all_message_fields(offloader: Offloader, writer: StreamWriter) -> None:
    sent = Sent(
        value=b"\xff",
        key="/w==",
        key_is_base64=True,
        ordering_key=b"o",
        event_time=BASE_MS,
        sequence_id=None,
        properties={"a": "1"},
    )
    secret = entry_of(metadata_of(encryption=[("k1", b"x", {})], encryption_parameter=b"iv"), b"secret")
    writer.add([EntryBatch.build(7, 0, [single_entry(sent, broker=(BASE_MS, 4), txn=(1, 2)), secret])])
    first, second = offloader("read", "orders", "--messages", "--json").rows
    assert first == {
        "id": "7:0",
        "publish_time": TIME,
        "key": "/w==",
        "value_base64": "/w==",
        "properties": {"a": "1"},
        "producer_name": "p",
        "txn_most_bits": 1,
        "txn_least_bits": 2,
        "compression": "none",
        "broker_time": TIME,
        "broker_index": 4,
        "key_is_base64": True,
        "ordering_key_base64": "bw==",
        "event_time": TIME,
        "sequence_id": 0,
    }
    assert (second["value"], second["encryption_keys"]) == ("secret", ["k1"])
    assert second["encryption_parameter_base64"] == base64.b64encode(b"iv").decode()


def test_limits_and_counts_are_of_messages(offloader: Offloader, writer: StreamWriter) -> None:
    batches = [batch_entry([Sent(value=b"%d.%d" % (entry, n)) for n in range(10)]) for entry in range(5)]
    writer.add([EntryBatch.build(7, 0, batches)])
    done = offloader("read", "orders", "--messages", "--limit", "13", "--from", "7:1")
    assert [line.split("\t")[3] for line in done.out.splitlines()] == [f"{1 + n // 10}.{n % 10}" for n in range(13)]
    assert offloader("read", "orders", "--messages", "--count").out == "50\n"
    assert offloader("read", "orders", "--messages", "--count", "--limit", "13", "--json").rows == [{"count": 13}]
    assert offloader("read", "orders", "--count").out == "5\n"


@pytest.mark.slow
def test_every_recorded_entry_can_be_printed(offloader: Offloader, writer: StreamWriter) -> None:
    topics = list(recorded("plain").values())
    writer.add([EntryBatch.build(n, 0, [data for *_, data in topic.entries]) for n, topic in enumerate(topics)])
    lines = offloader("read", "orders", "--messages").out.splitlines()
    assert len(lines) == len(offloader("read", "orders", "--messages", "--json").rows)
    assert offloader("read", "orders", "--messages", "--count").out == f"{len(lines)}\n"
    assert all(line.count("\t") == 3 for line in lines)


def test_damage_is_an_error_or_a_line(offloader: Offloader, writer: StreamWriter) -> None:
    writer.add([EntryBatch.build(7, 0, [single_entry(Sent(value=b"a")), b"hello there", single_entry(Sent())])])
    done = offloader("read", "orders", "--messages")
    assert (done.code, done.out) == (6, f"7:0\t{TIME}\t-\ta\n")
    line, hint = done.err.splitlines()
    assert "message metadata in stream orders, entry 7:1 at byte 0: expected at most 7 bytes, found" in line
    assert "--on-bad-message null" in hint
    lines = offloader("read", "orders", "--messages", "--on-bad-message", "null").out.splitlines()
    assert lines[1].startswith("7:1\t-\t-\t(error: message metadata in stream orders, entry 7:1 at byte 0")
    [_, row, _] = offloader("read", "orders", "--messages", "--on-bad-message", "null", "--json").rows
    assert row["error"].startswith("message metadata in stream orders, entry 7:1")
    assert (row["value"], row["key"], row["publish_time"]) == (None, None, None)


def test_stream_of_other_entries_is_refused_with_messages_option(offloader: Offloader, writer: StreamWriter) -> None:
    writer.add([batch_of(3, 0, 10)])
    code, line, hint = offloader.refuses("read", "orders", "--messages")
    assert code == 6
    assert "entry 3:0" in line
    assert "are these entries that Pulsar wrote?" in hint
