"""Topics' names, and topics with partitions, on the command line."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from formats.entries import EntryBatch
from offloader.runtime.clock import SystemClock
from offloader.store.open import open_store
from tests.cli.reading_verbs import Offloader
from tests.formats.pulsar_entries import Sent, single_entry
from tests.support.streams import StreamWriter

TOPIC = "persistent://shop/eu/orders"
STREAM = "shop/eu/persistent/orders"


def batch(ledger_id: int, times_ms: list[int]) -> EntryBatch:
    payloads = [b"%d:%d" % (ledger_id, number) for number in range(len(times_ms))]
    return EntryBatch.build(ledger_id, 0, payloads, np.array(times_ms, dtype=np.int64))


@pytest.fixture
def url(tmp_path: Path) -> str:
    store = open_store(f"file://{tmp_path}/store")
    StreamWriter(store, f"{STREAM}-partition-0").add([batch(1, [1000, 4000])])
    StreamWriter(store, f"{STREAM}-partition-1").add([batch(2, [2000, 3000])])
    StreamWriter(store, "shop/eu/persistent/plain").add([batch(3, [1000])])
    return store.url


@pytest.fixture
def offloader(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, url: str) -> Offloader:
    monkeypatch.setenv("OFFLOADER_STORE", url)
    return Offloader(capsys)


@pytest.mark.slow
@pytest.mark.parametrize("name", [TOPIC, STREAM])
def test_topic_with_partitions_is_read_by_publish_time(offloader: Offloader, name: str) -> None:
    assert offloader("read", name).out.splitlines() == ["1:0", "2:0", "2:1", "1:1"]
    assert offloader("read", name, "--limit", "2").out.splitlines() == ["1:0", "2:0"]
    assert offloader("read", name, "--count").out == "4\n"
    rows = offloader("read", name, "--json").rows
    assert [(row["partition"], row["position"]) for row in rows] == [(0, "1:0"), (1, "2:0"), (1, "2:1"), (0, "1:1")]
    middle = ("--since", "1970-01-01T00:00:02", "--until", "1970-01-01T00:00:04Z")
    assert offloader("read", name, *middle).out.splitlines() == ["2:0", "2:1"]
    assert offloader("read", name, *middle, "--count").out == "2\n"


def test_position_in_a_topic_with_partitions_is_refused(offloader: Offloader) -> None:
    code, line, hint = offloader.refuses("read", TOPIC, "--from", "1:0")
    assert (code, line) == (2, f"{STREAM} has 2 partitions, but a position belongs to one")
    assert hint == f"use --since and --until, or read one partition: {STREAM}-partition-0"
    assert offloader("read", f"{TOPIC}-partition-1", "--from", "2:1").out == "2:1\n"


def test_topic_without_partitions_is_its_stream(offloader: Offloader) -> None:
    plain = offloader("read", "persistent://shop/eu/plain", "--json")
    assert [row.get("partition", "none") for row in plain.rows] == ["none"]
    code, line, hint = offloader.refuses("read", "persistent://shop/eu/plane")
    assert (code, hint.startswith("did you mean shop/eu/persistent/plain")) == (3, True)
    assert "stream shop/eu/persistent/plane isn't in" in line
    assert offloader.refuses("read", "persistent://plain")[0] == 2


@pytest.mark.parametrize(
    "command",
    [
        ["ls", "persistent://plain"],  # one name, several, and those of a repeated option
        ["retention", "plan", STREAM, "persistent://plain"],
        ["group", "set", "readers", "--stream", STREAM, "--stream", "persistent://plain"],
    ],
)
def test_wrong_topic_is_refused_in_its_own_words(offloader: Offloader, command: list[str]) -> None:
    assert offloader.refuses(*command) == (
        2,
        "persistent://plain is no persistent topic",
        "names look like persistent://tenant/namespace/topic",
    )


@pytest.mark.slow
def test_other_verbs_take_topics_and_their_partitions(offloader: Offloader) -> None:
    segments = offloader("ls", TOPIC, "--json").rows
    assert [row["stream"] for row in segments] == [f"{STREAM}-partition-0", f"{STREAM}-partition-1"]
    assert "STREAM" in offloader("ls", TOPIC).out
    assert offloader.refuses("ls", TOPIC, "--plot", "x.svg")[0] == 2
    assert [row["stream"] for row in offloader("verify", TOPIC, "--json").rows] == [
        f"{STREAM}-partition-0",
        f"{STREAM}-partition-1",
    ]
    for change in ("pause", "resume"):
        rows = offloader("stream", change, TOPIC, "--json").rows
        assert [(row["stream"], row["changed"]) for row in rows] == [
            (f"{STREAM}-partition-0", True),
            (f"{STREAM}-partition-1", True),
        ]
    for verb in (
        ["stream", "pause"],
        ["stream", "resume"],
        ["manifest", "show"],
        ["stream", "truncate"],
        ["status"],
    ):
        more = ["--before", "3:0"] if verb == ["stream", "truncate"] else []
        done = offloader(*verb, "persistent://shop/eu/plain", *more)
        assert (done.code, "shop/eu/persistent/plain" in done.out) == (0, True), (verb, done)


def test_relative_time_counts_back_from_now(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    now_ms = SystemClock().now_ms()
    writer = StreamWriter(open_store(f"file://{tmp_path}/recent"), "orders")
    writer.add([batch(3, [now_ms - 3 * 3_600_000, now_ms - 5_400_000, now_ms - 60_000])])
    monkeypatch.setenv("OFFLOADER_STORE", writer.store.url)
    offloader = Offloader(capsys)
    assert offloader("read", "orders", "--since", "-2h").out.splitlines() == ["3:1", "3:2"]
    assert offloader("read", "orders", "--since", "-1d", "--until", "-30m").out.splitlines() == ["3:0", "3:1"]
    code, line, hint = offloader.refuses("read", "orders", "--since", "1h")
    assert (code, line) == (2, "--since: '1h' is not a time")
    assert "-1h (an hour ago)" in hint


def test_messages_of_partitions_have_their_partition(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    store = open_store(f"file://{tmp_path}/messages")
    for number in (0, 1):
        entry = single_entry(Sent(value=b"value %d" % number), publish_time=1000 - number)
        StreamWriter(store, f"{STREAM}-partition-{number}").add([EntryBatch.build(7 + number, 0, [entry])])
    monkeypatch.setenv("OFFLOADER_STORE", store.url)
    offloader = Offloader(capsys)
    rows = offloader("read", TOPIC, "--messages", "--json").rows
    assert [(row["partition"], row["id"], row["value"]) for row in rows] == [
        (1, "8:0", "value 1"),
        (0, "7:0", "value 0"),
    ]
    assert offloader("read", TOPIC, "--messages", "--count").out == "2\n"
