"""``offloader cleanup plan | run | undo | audit`` and ``offloader stream delete``."""

from __future__ import annotations

from pathlib import Path

import pytest

from formats.entries import Position
from offloader.cli.main import main
from offloader.manifest.log import load_manifest
from offloader.manifest.protection import take_lease
from offloader.retention.subscribers import open_retention
from offloader.runtime.clock import SystemClock
from offloader.store.base import ObjectStore
from offloader.store.open import open_store
from tests.cli.reading_verbs import Offloader
from tests.support.streams import StreamWriter, batch_of


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ObjectStore:
    made = open_store(f"file://{tmp_path}/store")
    monkeypatch.setenv("OFFLOADER_STORE", made.url)
    (tmp_path / "soon.toml").write_text("[cleanup]\ngrace_period = '0s'\n")
    (tmp_path / "gone.toml").write_text("[manifest]\norphan_age_min = '0s'\n")
    return made


@pytest.fixture
def offloader(capsys: pytest.CaptureFixture[str]) -> Offloader:
    return Offloader(capsys)


def written(store: ObjectStore, stream: str = "orders") -> StreamWriter:
    writer = StreamWriter(store, stream)
    for ledger in (1, 2, 3, 4, 5):
        writer.add([batch_of(ledger, 0, 10)], closes=[ledger])
    return writer


@pytest.mark.slow
def test_plan_and_run_print_the_same_list(offloader: Offloader, store: ObjectStore) -> None:
    written(store)
    assert offloader("stream", "truncate", "--apply", "orders", "--before", "3:0").code == 0
    planned = offloader("cleanup", "plan", "orders", "--json").rows
    done = offloader("cleanup", "run", "--apply", "orders", "--json").rows
    assert planned[:-1] == done[:-1]
    assert [(row["action"], row["first"], row["rule"], row["when"]) for row in done[:-1]] == [
        ("retire", "1:0", "it lies before the stream's head 3:0", "now"),
        ("retire", "2:0", "it lies before the stream's head 3:0", "now"),
    ]
    assert (planned[-1]["retired"], done[-1]["retired"], done[-1]["dry_run"]) == (0, 2, False)
    waiting = offloader("cleanup", "plan", "orders", "--wide")
    assert waiting.out.count("waits for the grace period until ") == 2
    assert waiting.out.splitlines()[-1] == "orders: nothing done"


@pytest.mark.slow
def test_run_prints_sums_unless_the_list_is_asked_for(offloader: Offloader, store: ObjectStore) -> None:
    for stream in ("orders", "payments"):
        written(store, stream)
        assert offloader("stream", "truncate", "--apply", stream, "--before", "3:0").code == 0
    heading, row, done = offloader("cleanup", "run", "--apply", "orders", "--wide").out.splitlines()
    assert heading.split() == ["STREAM", "ACTION", "SEGMENTS", "FIRST", "LAST", "BYTES", "WHY", "WHEN"]
    assert row.split()[:5] == ["orders", "retire", "2", "1:0", "2:9"]
    assert done.startswith("orders: 2 segments retired")
    listed = offloader("cleanup", "run", "--apply", "payments", "--list").out.splitlines()
    assert [line.split()[:2] for line in listed if line.startswith("payments ")] == [["payments", "retire"]] * 2
    [heading, row, _] = offloader("cleanup", "run", "--apply", "orders", "--wide").out.splitlines()
    assert (row.split()[1:3], "waits for the grace period until" in row) == (["purge", "2"], True)


@pytest.mark.slow
def test_cleanup_of_more_than_half_needs_confirmation(offloader: Offloader, store: ObjectStore) -> None:
    written(store)
    offloader("stream", "truncate", "--apply", "orders", "--before", "4:0")
    assert offloader("cleanup", "plan", "orders").out.endswith(
        "orders: more than half would be retired: add --allow-large\n"
    )
    refused = offloader("cleanup", "run", "--apply", "orders")
    assert (refused.code, "--allow-large" in refused.err) == (2, True)
    assert offloader("cleanup", "run", "--apply").code == 2
    assert len(load_manifest(store, "orders").offloaded()) == 5
    assert (
        offloader("cleanup", "run", "--apply", "--allow-large")
        .out.splitlines()[-1]
        .startswith("orders: 3 segments retired, ")
    )


@pytest.mark.slow
def test_undo_restores_retired_segments_and_audit_lists_purged_ones(
    offloader: Offloader, store: ObjectStore, tmp_path: Path
) -> None:
    writer = written(store)
    offloader("stream", "truncate", "--apply", "orders", "--before", "3:0")
    offloader("cleanup", "run", "--apply", "orders")
    assert offloader("cleanup", "undo", "orders", "--dry-run").out == (
        "2 segments of orders would be restored; the stream would start at 1:0 again\n"
    )
    [undone] = offloader("cleanup", "undo", "orders", "--json").rows
    assert (undone["head"], undone["ledgers"], len(undone["segments"])) == ("1:0", [1, 2], 2)
    assert load_manifest(store, "orders").first_position() == Position(1, 0)
    assert offloader("cleanup", "undo", "orders").code == 2
    assert offloader("cleanup", "undo", "orders", "--segment", "nonsense").code == 2
    offloader("stream", "truncate", "--apply", "orders", "--before", "2:0")
    soon = ("--config", str(tmp_path / "soon.toml"))
    offloader("cleanup", "run", "--apply", "orders", *soon)
    assert offloader("cleanup", "audit").out == "no deletions are recorded\n"
    offloader("cleanup", "run", "--apply", "orders", *soon)
    [row] = offloader("cleanup", "audit", "orders", "--json").rows
    assert (row["action"], row["first"], row["last"], row["entries"]) == ("purge", "1:0", "1:9", 10)
    assert row["keys"] == list(writer.keys(writer.uuids[0]))
    assert row["done_ms"] >= row["planned_ms"] > 0
    assert "@" in row["by"]
    assert offloader("cleanup", "audit", "nobody").code == 3


@pytest.mark.slow
def test_cleanup_purges_rewritten_segments_and_stream_stays_readable(
    offloader: Offloader, store: ObjectStore, tmp_path: Path
) -> None:
    writer = written(store)
    before = offloader("read", "orders", "--json").rows
    old = {key for uuid in writer.uuids for key in writer.keys(uuid)}
    assert offloader("stream", "compact", "orders", "--beside-owner").code == 0
    soon = ("--config", str(tmp_path / "soon.toml"))
    planned = offloader("cleanup", "plan", "orders", *soon, "--json").rows[:-1]
    assert {(row["action"], row["first"], row["when"]) for row in planned} == {("purge", None, "now")}
    assert {row["segment"] for row in planned} == {str(uuid) for uuid in writer.uuids}
    refused = offloader("cleanup", "undo", "orders")
    assert (refused.code, "nothing is retired" in refused.err) == (2, True)
    [summary] = offloader("cleanup", "run", "--apply", "orders", *soon, "--json").rows[-1:]
    assert (summary["purged"], summary["deleted_objects"]) == (5, 10)
    assert not old & {info.key for info in store.list("").objects}
    assert offloader("read", "orders", "--json").rows == before
    rules = {row["rule"] for row in offloader("cleanup", "audit", "--json").rows}
    assert all(rule.startswith("its entries are in other segments since record ") for rule in rules)


@pytest.mark.slow
def test_deleting_a_stream_needs_confirmation(offloader: Offloader, store: ObjectStore, tmp_path: Path) -> None:
    written(store)
    planned = offloader("stream", "delete", "orders")
    assert planned.out.startswith("orders: would delete 10 objects, ")
    assert planned.err == "nothing was changed; repeat the command with --apply to carry out this plan\n"
    lease = take_lease(store, "orders", 3600, clock=SystemClock(), reader="ana")
    assert "read by ana" in offloader("stream", "delete", "--apply", "orders").err
    lease.end()
    assert len(load_manifest(store, "orders").offloaded()) == 5
    done = offloader("stream", "delete", "--apply", "orders")
    assert done.out.startswith("orders: deleted 10 objects, ")
    assert "tombstone" in done.out
    [again] = offloader("stream", "delete", "--apply", "orders", "--json", "--config", str(tmp_path / "gone.toml")).rows
    assert again["finished"]
    assert list(store.list("").objects) == []
    assert offloader("stream", "delete", "--apply", "orders").code == 3


@pytest.mark.slow
def test_deleting_a_topic_deletes_all_its_partitions(offloader: Offloader, store: ObjectStore, tmp_path: Path) -> None:
    for number in (0, 1):
        written(store, f"orders-partition-{number}")
    written(store, "orders-partition-extra")
    offloader("stream", "truncate", "--apply", "orders", "--before", "0=2:0", "--before", "1=2:0")
    gone = str(tmp_path / "gone.toml")
    rows = offloader("stream", "delete", "--apply", "orders", "--json", "--config", gone).rows
    assert [(row["stream"], row["finished"]) for row in rows] == [
        ("orders-partition-0", True),
        ("orders-partition-1", True),
    ]
    left = [info.key for info in store.list("").objects if info.size_bytes]
    assert all("orders-partition-extra" in key for key in left)
    assert len(load_manifest(store, "orders-partition-extra").offloaded()) == 5


@pytest.mark.slow
def test_deleting_a_partition_keeps_subscribers_of_one_that_came_after_them(
    offloader: Offloader, store: ObjectStore, tmp_path: Path
) -> None:
    written(store, "orders-partition-1")
    open_retention(store, "orders").add("billing")
    written(store, "orders-partition-0")
    gone = str(tmp_path / "gone.toml")
    [row] = offloader("stream", "delete", "--apply", "orders-partition-1", "--json", "--config", gone).rows
    assert row["finished"]
    assert open_retention(store, "orders").registry().names() == ["billing"]


@pytest.mark.slow
@pytest.mark.parametrize("action", ["plan", "run", "undo", "hold", "audit"])
def test_every_action_has_help(offloader: Offloader, action: str) -> None:
    done = offloader("cleanup", action, "--help")
    assert done.code == 0
    assert "--store" in done.out
    assert offloader("cleanup").code in (0, 2)


@pytest.mark.slow
@pytest.mark.parametrize(
    "words", [["cleanup", "run", "--apply"], ["cleanup", "undo"], ["cleanup", "audit"], ["stream", "delete", "--apply"]]
)
def test_unknown_stream_is_an_error_with_a_hint_to_ls(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    StreamWriter(open_store(f"file://{tmp_path}/store"), "orders").add([batch_of(1, 0, 5)])
    assert main([*words, "nobody", "--store", f"file://{tmp_path}/store"]) == 3
    error = capsys.readouterr().err
    assert "stream nobody isn't in" in error
    assert "`offloader ls`" in error
