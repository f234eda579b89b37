"""``offloader export pulsar`` onto the fake broker: its output, and that a killed process loses and repeats nothing."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path

import pytest

from formats.entries import EntryBatch, Position
from offloader.cli.main import main
from offloader.runtime.clock import SystemClock
from offloader.store.base import ObjectStore
from offloader.store.open import open_store
from tests.formats.pulsar_entries import Sent, single_entry
from tests.support.pulsar_broker import FakeBroker
from tests.support.pulsar_producers import FakeProducers
from tests.support.pulsar_topics import FakeTopic
from tests.support.replaying import STREAM, TARGET, Place, entries_of, write_stream
from tests.support.streams import StreamWriter

COUNTS = {7: 40, 9: 60}
ALL = [Position(ledger, number) for ledger, count in COUNTS.items() for number in range(count)]


@dataclass
class Told:
    """A place, and the options that name it."""

    place: Place
    store: ObjectStore
    options: list[str]


@pytest.fixture
def told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Told]:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("OFFLOADER_PULSAR_TOKEN", "let-me-in")
    store = open_store(f"file://{tmp_path}/store")
    with FakeBroker({"persistent://t/n/parts": 2}, token="let-me-in") as broker:
        topic = FakeTopic(broker, TARGET)
        producers = FakeProducers(broker, topic)
        place = Place(store, write_stream(store, entries_of(COUNTS)), broker, topic, producers, tmp_path)
        yield Told(place, store, ["--store", store.url, "--service-url", broker.url])


def run(capsys: pytest.CaptureFixture[str], *words: str) -> tuple[int, str, str]:
    code = main(["export", "pulsar", *words])
    out, err = capsys.readouterr()
    return code, out, err


@pytest.mark.slow
def test_a_stream_is_sent_and_the_same_command_again_sends_nothing(
    told: Told, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [STREAM, "--dest", "t/n/target", *told.options]
    code, out, _ = run(capsys, *words, "--dry-run")
    assert (code, told.place.arrived) == (0, [])
    assert out == f"{STREAM} to {TARGET}: would send 7:0..9:59, 100 entries\n"

    code, out, err = run(capsys, *words, "--progress")
    assert (code, told.place.arrived) == (0, ALL)
    assert out.startswith(f"{STREAM} to {TARGET}: sent 166 messages in 100 of 100 entries, ")
    assert err.splitlines()[-1].startswith("100 of 100 entries, ")

    _, out, _ = run(capsys, *words)
    assert (
        out == f"{STREAM} to {TARGET}: nothing left to send, an earlier run sent up to 9:59 "
        "(--label sends the range again)\n"
    )
    _, out, _ = run(capsys, *words, "--label", "again", "--json")
    assert told.place.arrived == [*ALL, *ALL]
    facts = json.loads(out)
    assert {name: facts[name] for name in ("first", "last", "sent", "entries", "messages", "twice")} == {
        "first": "7:0",
        "last": "9:59",
        "sent": "9:59",
        "entries": 100,
        "messages": 166,
        "twice": 0,
    }


@pytest.mark.slow
def test_a_range_by_position_and_by_time(told: Told, capsys: pytest.CaptureFixture[str]) -> None:
    words = [STREAM, "--dest", TARGET, *told.options]
    assert run(capsys, *words, "--from", "7:38", "--to", "9:0")[0] == 0
    assert told.place.arrived == [Position(7, 38), Position(7, 39), Position(9, 0)]
    told.place.topic.entries.clear()
    begin = 1_700_000_000_000
    assert run(capsys, *words, "--since", str(begin + 2000), "--until", str(begin + 4000))[0] == 0
    assert told.place.arrived == [Position(7, 2), Position(7, 3)]
    code, out, _ = run(capsys, *words, "--since", "2199-01-01")
    assert (code, out) == (0, f"{STREAM} to {TARGET}: no entries in that range\n")


def recent_stream(told: Told, ages_s: list[int]) -> None:
    """Another stream, with an entry of each age."""
    now_ms = SystemClock().now_ms()
    payloads = [single_entry(Sent(value=b"%d" % age), publish_time=now_ms - 1000 * age) for age in ages_s]
    batch = EntryBatch.build(3, 0, payloads, [now_ms - 1000 * age for age in ages_s])
    StreamWriter(told.store, "t/n/persistent/recent").add([batch])


@pytest.mark.slow
def test_finished_replay_from_a_relative_time_is_not_begun_again_unless_told(
    told: Told, capsys: pytest.CaptureFixture[str]
) -> None:
    recent_stream(told, [7200, 1800, 60])
    words = ["t/n/persistent/recent", "--dest", TARGET, "--since", "-1h", *told.options]
    assert run(capsys, *words, "--to", "3:1")[0] == 0
    code, out, err = run(capsys, *words)
    assert (code, out) == (2, "")
    assert "--since -1h is the start of a finished replay" in err
    assert told.place.arrived == [Position(3, 1)]

    begun = re.search(r"hint: --since (\S+) sends newer messages", err)
    assert begun is not None
    code, out, _ = run(capsys, *(begun[1] if word == "-1h" else word for word in words))
    assert (code, told.place.arrived) == (0, [Position(3, 1), Position(3, 2)])
    assert "an earlier run sent up to 3:1" in out
    assert run(capsys, *words, "--label", "again")[0] == 0
    assert told.place.arrived[2:] == [Position(3, 1), Position(3, 2)]


@pytest.mark.slow
def test_relative_time_without_entries_is_not_remembered(told: Told, capsys: pytest.CaptureFixture[str]) -> None:
    recent_stream(told, [7200])
    words = ["t/n/persistent/recent", "--dest", TARGET, "--since", "-1h", *told.options]
    for _ in range(2):
        code, out, _ = run(capsys, *words)
        assert (code, "no entries in that range" in out) == (0, True)


@pytest.mark.slow
def test_progress_file_of_another_replay_says_nothing_of_a_relative_time(
    told: Told, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    recent_stream(told, [7200, 60])
    words = ["t/n/persistent/recent", "--dest", TARGET, *told.options, "--progress-file", f"{tmp_path}/progress"]
    assert run(capsys, *words, "--since", "-1h")[0] == 0
    code, _, err = run(capsys, *words, "--since", "-2m")
    assert (code, f"{tmp_path}/progress.begin belongs to another replay" in err) == (2, True)
    Path(f"{tmp_path}/progress.begin").write_text("")
    code, _, err = run(capsys, *words, "--since", "-1h")
    assert (code, "has no valid start of a replay" in err) == (6, True)
    assert told.place.arrived == [Position(3, 1)]


@pytest.mark.slow
def test_sent_entries_may_be_truncated_before_the_replay_continues(
    told: Told, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [STREAM, "--dest", TARGET, *told.options, "--from", "7:0"]
    assert run(capsys, *words, "--to", "7:19")[0] == 0
    assert main(["stream", "truncate", "--apply", STREAM, "--before", "7:15", "--store", told.store.url]) == 0
    code, out, err = run(capsys, *words)
    assert (code, err) == (0, "")
    assert "in 80 of 80 entries" in out
    assert told.place.arrived == ALL


@pytest.mark.slow
def test_replay_does_not_continue_silently_behind_entries_that_were_truncated_unsent(
    told: Told, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [STREAM, "--dest", TARGET, *told.options]
    assert run(capsys, *words, "--to", "7:19")[0] == 0
    assert main(["stream", "truncate", "--apply", STREAM, "--before", "7:30", "--store", told.store.url]) == 0
    capsys.readouterr()
    code, out, err = run(capsys, *words)
    assert (code, out, told.place.arrived) == (3, "", ALL[:20])
    assert "7:19" in err
    assert "--from 7:30" in err
    assert run(capsys, *words, "--from", "7:30")[0] == 0
    assert told.place.arrived == ALL[:20] + ALL[30:]


@pytest.mark.slow
def test_ledger_may_be_deleted_that_was_sent_to_its_end(told: Told, capsys: pytest.CaptureFixture[str]) -> None:
    words = [STREAM, "--dest", TARGET, *told.options, "--from", "7:0"]
    assert run(capsys, *words, "--to", "7:39")[0] == 0
    assert main(["stream", "truncate", "--apply", STREAM, "--before", "9:0", "--store", told.store.url]) == 0
    code, _, err = run(capsys, *words)
    assert (code, err, told.place.arrived) == (0, "", ALL)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        ([STREAM, "--dest", "orders"], 2, "orders is no persistent topic"),
        ([STREAM, "--dest", "t/n/parts"], 2, "has 2 partitions"),
        ([STREAM, "--dest", "t/n/none"], 3, "no such topic"),
        (["t/n/persistent/origim", "--dest", TARGET], 3, "did you mean t/n/persistent/origin"),
        ([STREAM, "--dest", TARGET, "--from", "7:0", "--since", "5"], 2, "exclude each other"),
        ([STREAM, "--dest", TARGET, "--to", "7:0", "--until", "5"], 2, "--to and --until exclude each other"),
        ([STREAM, "--dest", TARGET, "--from", "6:0"], 3, "6:0"),
        ([STREAM, "--dest", TARGET, "--token-file", "/nowhere"], 8, "no token in /nowhere"),
    ],
)
def test_invalid_replays_are_refused_and_send_nothing(
    told: Told, capsys: pytest.CaptureFixture[str], words: list[str], code: int, message: str
) -> None:
    found, out, err = run(capsys, *words, *told.options)
    assert (found, out) == (code, "")
    assert message in err
    assert "let-me-in" not in err
    assert told.place.arrived == []


def test_broker_that_is_dead_is_named_after_one_attempt(told: Told, capsys: pytest.CaptureFixture[str]) -> None:
    with closing(socket.socket()) as taken:  # bound, and nobody listens
        taken.bind(("127.0.0.1", 0))
        url = f"pulsar://127.0.0.1:{taken.getsockname()[1]}"
        code, out, err = run(capsys, STREAM, "--dest", TARGET, "--store", told.store.url, "--service-url", url)
    assert (code, out) == (4, "")
    line, hint = err.splitlines()
    assert line.startswith(f"offloader: no broker answers at {url}; nothing was sent: ")
    assert hint == "hint: check --service-url, and that the broker is running"


@pytest.mark.parametrize("more", [[], ["--dry-run"]])
def test_topic_that_is_not_there_is_named_with_how_to_create_it(
    told: Told, capsys: pytest.CaptureFixture[str], more: list[str]
) -> None:
    """A broker answers where a topic would be, whether or not there is one: only a reader is refused."""
    code, out, err = run(capsys, STREAM, "--dest", "t/n/none", *more, *told.options)
    assert (code, out) == (3, "")
    line, hint = err.splitlines()
    assert "topic persistent://t/n/none doesn't exist; nothing was sent: " in line
    assert hint == "hint: check --dest, or create the topic: pulsar-admin topics create persistent://t/n/none"


def test_replay_without_a_cluster_names_the_option(told: Told, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, STREAM, "--dest", TARGET, "--store", told.store.url)
    assert code == 2
    assert "--service-url" in err


@pytest.mark.slow
def test_the_cluster_of_the_settings_file_is_taken_unless_another_is_named(
    told: Told, capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("OFFLOADER_PULSAR_TOKEN")
    (tmp_path / "token").write_text("let-me-in\n")
    config = tmp_path / "offloader.toml"
    config.write_text(f'[pulsar]\nservice_url = "{told.place.broker.url}"\ntoken = "file:{tmp_path}/token"\n')
    words = [STREAM, "--dest", TARGET, "--store", told.store.url, "--config", str(config)]
    # The file's token is for the file's cluster.
    code, _, err = run(capsys, *words, "--service-url", told.place.broker.url)
    assert (code, "authentication failed" in err) == (8, True)
    assert run(capsys, *words)[0] == 0
    assert told.place.arrived == ALL


@pytest.mark.slow
def test_partitions_are_replayed_to_partitions_of_the_target(
    told: Told, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    store = open_store(f"file://{tmp_path}/parts")
    topic = FakeTopic(told.place.broker, "persistent://t/n/parts-partition-0")
    FakeProducers(told.place.broker, topic)
    write_stream(store, entries_of({3: 5}), stream="t/n/persistent/source-partition-0")
    words = [
        "t/n/persistent/source",
        "--dest",
        "t/n/parts",
        "--service-url",
        told.place.broker.url,
        "--store",
        store.url,
    ]
    assert run(capsys, *words)[0] == 0
    assert len(topic.entries) == 5
    assert "a position belongs to one" in run(capsys, *words, "--from", "3:0")[2]
    code, _, err = run(capsys, words[0], "--dest", TARGET, *words[3:])
    assert code == 3
    assert "has no partitions, but t/n/persistent/source has 1" in err
