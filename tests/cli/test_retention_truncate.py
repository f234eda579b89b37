"""``offloader stream truncate STREAM`` and ``offloader cleanup hold``."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from formats.entries import TIME_UNKNOWN_MS, Position
from offloader.ledgers.sqlite.embedded import EmbeddedLedgers
from offloader.managed_ledger import open_managed_ledger
from offloader.manifest.log import load_manifest
from offloader.settings import Settings
from offloader.store.base import ObjectStore
from offloader.store.open import open_store
from offloader.times import time_text
from tests.cli.reading_verbs import Offloader
from tests.support.streams import BASE_MS, StreamWriter, batch_of


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ObjectStore:
    made = open_store(f"file://{tmp_path}/store")
    monkeypatch.setenv("OFFLOADER_STORE", made.url)
    return made


@pytest.fixture
def offloader(capsys: pytest.CaptureFixture[str]) -> Offloader:
    return Offloader(capsys)


def written(store: ObjectStore, stream: str) -> None:
    writer = StreamWriter(store, stream)
    writer.add([batch_of(1, 0, 10)], closes=[1])
    writer.add([batch_of(2, 0, 10)])


@pytest.mark.slow
def test_truncate_reports_the_new_beginning(offloader: Offloader, store: ObjectStore) -> None:
    written(store, "orders")
    planned = offloader("stream", "truncate", "orders", "--before", "2:3")
    assert planned.code == 0
    assert planned.out.startswith("orders would start at 2:3; before it: 1 segment, 10 entries, ")
    assert load_manifest(store, "orders").head is None
    [row] = offloader("stream", "truncate", "--apply", "orders", "--before", "2:3", "--json").rows
    assert (row["head"], row["ledgers"], row["dry_run"], row["gaps"]) == ("2:3", [1], False, [])
    assert load_manifest(store, "orders").head == Position(2, 3)
    again = offloader("stream", "truncate", "--apply", "orders", "--before", "1:0")
    assert (again.code, again.out) == (0, "orders already starts at 2:3: nothing to do\n")
    read = offloader("read", "orders", "--from", "1:0")
    assert read.code == 3
    assert "begins at 2:3" in read.err


@pytest.mark.slow
def test_entries_not_offloaded_are_given_up_only_with_force(
    offloader: Offloader, store: ObjectStore, tmp_path: Path
) -> None:
    ledgers = f"sqlite:///{tmp_path}/ledgers.db"
    settings = Settings.of({"ledgers": {"ledger_entries_max": 10}})
    with open_managed_ledger("orders", ledgers=ledgers, store=store, settings=settings) as topic:
        places = [topic.append(b"entry") for _ in range(35)]
        topic.offload(places[9])
    with closing(EmbeddedLedgers(ledgers)) as database:  # appended while nobody offloads
        source = database.open_stream("orders")
        places += [batch.first for _ in range(15) for batch in source.append([b"more"], None)]
    refused = offloader("stream", "truncate", "--apply", "orders", "--before", str(places[47]), "--ledgers", ledgers)
    assert (refused.code, "--force" in refused.err) == (2, True)
    done = offloader(
        "stream",
        "truncate",
        "--apply",
        "orders",
        "--before",
        str(places[47]),
        "--ledgers",
        ledgers,
        "--force",
        "--take-over",
    )
    assert done.code == 0, done.err
    assert "dropped without offload: " in done.out
    assert "hot ledgers deleted: " in done.out
    assert load_manifest(store, "orders").head == places[47]


@pytest.mark.slow
def test_a_partitioned_topic_takes_a_position_for_each_partition(offloader: Offloader, store: ObjectStore) -> None:
    for number in (0, 1, 2):
        written(store, f"orders-partition-{number}")
    rows = offloader("stream", "truncate", "--apply", "orders", "--before", "0=2:0", "--before", "2=1:4", "--json").rows
    assert [(row["stream"][-1], row["head"]) for row in rows] == [("0", "2:0"), ("2", "1:4")]
    assert load_manifest(store, "orders-partition-1").head is None
    for wrong in (["7=1:0"], ["1:0", "1=1:0"], ["one=1:0"], ["0=1"]):
        done = offloader(
            "stream", "truncate", "--apply", "orders", *[word for each in wrong for word in ("--before", each)]
        )
        assert done.code == 2, done.err


@pytest.mark.slow
def test_held_stream_and_global_hold_refuse_truncation(offloader: Offloader, store: ObjectStore) -> None:
    written(store, "orders")
    assert offloader("cleanup", "hold", "orders", "--reason", "court").code == 0
    assert load_manifest(store, "orders").held
    assert "on hold" in offloader("stream", "truncate", "--apply", "orders", "--before", "2:0").err
    assert offloader("cleanup", "hold", "orders", "--off", "--json").rows == [
        {"stream": "orders", "held": False, "changed": True}
    ]
    assert offloader("cleanup", "hold", "orders", "--off").out == "stream orders had no hold\n"
    assert offloader("cleanup", "hold", "--all", "--reason", "restore").code == 0
    assert "is stopped by" in offloader("stream", "truncate", "--apply", "orders", "--before", "2:0").err
    assert offloader("cleanup", "hold", "--all", "--off").code == 0
    assert offloader("stream", "truncate", "--apply", "orders", "--before", "2:0").code == 0
    for wrong in ([], ["orders", "--all"]):
        assert offloader("cleanup", "hold", *wrong).code == 2
    assert offloader("cleanup", "hold", "nobody").code == 3


@pytest.mark.slow
def test_before_time_cuts_in_front_of_the_first_entry_published_then_or_later(
    offloader: Offloader, store: ObjectStore
) -> None:
    written(store, "orders")
    # Entry 3 of ledger 2 is published 2,003 s after the base.
    when = time_text(BASE_MS + 2_003_000)
    [planned] = offloader("stream", "truncate", "orders", "--before-time", when, "--json").rows
    assert (planned["head"], planned["dry_run"]) == ("2:3", True)
    [row] = offloader(
        "stream", "truncate", "--apply", "orders", "--before-time", str(BASE_MS + 2_002_001), "--json"
    ).rows
    assert row["head"] == "2:3"
    assert offloader("stream", "truncate", "--apply", "orders", "--before-time", "2013-07-04").out.endswith(
        ": nothing to do\n"
    )
    [row] = offloader("stream", "truncate", "--apply", "orders", "--before-time", "-0s", "--json").rows
    assert row["head"] == "2:10"


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("--force",)])
def test_before_time_in_the_future_is_refused_and_changes_nothing(
    offloader: Offloader, store: ObjectStore, options: tuple[str, ...]
) -> None:
    written(store, "orders")
    code, line, hint = offloader.refuses(
        "stream", "truncate", "--apply", "orders", "--before-time", "2100-01-01", *options
    )
    assert code == 2
    assert line == (
        "--before-time: 2100-01-01T00:00:00.000Z is in the future and would remove every entry; nothing was changed"
    )
    assert "give --before-time -0s" in hint
    assert load_manifest(store, "orders").head is None


@pytest.mark.slow
def test_before_time_cuts_each_partition(offloader: Offloader, store: ObjectStore) -> None:
    for number in (0, 1):
        writer = StreamWriter(store, f"orders-partition-{number}")
        writer.add([batch_of(1 + number, 0, 10)], closes=[1 + number])
        writer.add([batch_of(3, 0, 10)])
    rows = offloader(
        "stream", "truncate", "--apply", "orders", "--before-time", str(BASE_MS + 2_004_000), "--json"
    ).rows
    assert [(row["stream"][-1], row["head"]) for row in rows] == [("0", "3:0"), ("1", "2:4")]


def test_before_time_is_refused_where_publish_times_are_unknown(offloader: Offloader, store: ObjectStore) -> None:
    writer = StreamWriter(store, "orders")
    writer.add([batch_of(1, 0, 10, times=TIME_UNKNOWN_MS)], closes=[1])
    writer.add([batch_of(2, 0, 10)])
    code, line, hint = offloader.refuses("stream", "truncate", "--apply", "orders", "--before-time", "-1h")
    assert (code, "without a publish time" in line, "--before LEDGER:ENTRY" in hint) == (2, True, True)
    assert load_manifest(store, "orders").head is None


@pytest.mark.slow
@pytest.mark.parametrize("options", [[], ["--before", "1:0", "--before-time", "2013-07-04"]])
def test_either_a_position_or_a_time_is_needed(offloader: Offloader, store: ObjectStore, options: list[str]) -> None:
    written(store, "orders")
    assert (
        offloader.refuses("stream", "truncate", "--apply", "orders", *options)[1]
        == "truncate needs either --before or --before-time"
    )
    assert offloader.refuses("stream", "truncate", "--apply", "orders", "--before-time", "soon")[0] == 2
