"""``offloader retention plan | run | explain``: the plan equals the run."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from formats.entries import Position
from offloader.ledgers.sqlite.embedded import EmbeddedLedgers
from offloader.library import Store
from offloader.manifest.log import load_manifest
from offloader.runtime.clock import SystemClock
from offloader.settings import Settings
from offloader.store.base import ObjectStore
from offloader.store.open import open_store
from tests.cli.reading_verbs import Offloader
from tests.support.streams import StreamWriter, batch_of

POLICIES = """
[retention]
policy = "consumption"
[topics."a/b/persistent/aged".retention]
policy = "time"
min_age = "1h"
"""


def hot_ledgers(url: str) -> list[int]:
    with closing(EmbeddedLedgers(url, create=False)) as database:
        return [each.ledger_id for each in database.view_stream("hot").ledgers()]


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ObjectStore:
    made = open_store(f"file://{tmp_path}/store")
    settings = tmp_path / "offloader.toml"
    settings.write_text(POLICIES)
    monkeypatch.setenv("OFFLOADER_STORE", made.url)
    monkeypatch.setenv("OFFLOADER_CONFIG", str(settings))
    return made


@pytest.fixture
def offloader(capsys: pytest.CaptureFixture[str], store: ObjectStore) -> Offloader:
    for name in ("a/b/persistent/orders", "a/b/persistent/aged", "a/b/persistent/t-partition-0"):
        writer = StreamWriter(store, name)
        writer.add([batch_of(1, 0, 50)], closes=[1])
        writer.add([batch_of(2, 0, 50)])
    return Offloader(capsys)


@pytest.mark.slow
def test_plan_matches_the_run_and_only_the_run_truncates(offloader: Offloader, store: ObjectStore) -> None:
    orders = "a/b/persistent/orders"
    offloader("subscriber", "add", orders, "audit")
    offloader("subscriber", "ack", orders, "audit", "--at", "2:5")
    before = {info.key: info.etag for info in store.list("").objects}
    planned = {row["stream"]: row for row in offloader("retention", "plan", "--json").rows}
    dry = {row["stream"]: row["new_head"] for row in offloader("retention", "run", "--json").rows}
    assert dry == {name: row["new_head"] for name, row in planned.items()}
    assert {info.key: info.etag for info in store.list("").objects} == before
    assert set(planned) == {orders, "a/b/persistent/aged", "a/b/persistent/t"}
    assert (planned[orders]["new_head"], planned[orders]["entries"]) == ("2:5", 55)
    assert planned["a/b/persistent/aged"]["policy"].startswith("by time: keeps at least 1 h")
    [done] = offloader("retention", "run", "--apply", orders, "--json").rows
    assert done["truncated"] == [orders]
    assert done["rule"] == planned[orders]["rule"]
    assert load_manifest(store, orders).head == Position(2, 5)
    table = offloader("retention", "run", "--apply", "--wide").out.splitlines()
    assert table[0].split() == ["STREAM", "BEGINS", "AT", "ENTRIES", "GO", "BYTES", "GO", "LOSES", "BOUNDARY", "RULE"]
    assert len(table) == 4


@pytest.mark.slow
def test_run_deletes_hot_ledgers_before_the_new_start(offloader: Offloader, tmp_path: Path) -> None:
    url, small = f"sqlite:///{tmp_path}/ledgers.db", Settings.of({"ledgers": {"ledger_entries_max": 10}})
    opened = Store(open_store(f"file://{tmp_path}/store")).stream("hot")
    for _ in range(3):
        with opened.open_ledger(url, settings=small) as ledger:
            ledger.append_batch([b"0123456789"] * 10)
            ledger.offload()
        how = ("retention", "run", "hot", "--keep-size", "100", "--ledgers", url)
        before = hot_ledgers(url)
        offloader(*how)
        assert hot_ledgers(url) == before
        offloader(*how, "--apply")
    assert len(hot_ledgers(url)) == 1


@pytest.mark.slow
def test_explaining_shows_the_stream_its_readers_and_past_decisions(offloader: Offloader) -> None:
    orders = "a/b/persistent/orders"
    offloader("subscriber", "add", orders, "audit")
    offloader("subscriber", "ack", orders, "audit", "--at", "2:5")
    lines = offloader("retention", "explain", orders).out.splitlines()
    assert lines[0] == f"stream   {orders}"
    assert [line for line in lines if line.startswith("result   entries before 2:5 would be deleted: 55 entries, ")]
    assert max(map(len, lines)) < 80
    assert offloader("retention", "explain", orders, "--decisions").out == f"no decisions on stream {orders} yet\n"
    offloader("retention", "run", "--apply", orders)
    offloader("retention", "run", "--apply", orders)
    offloader("retention", "run", "--apply", orders)
    rows = offloader("retention", "explain", orders, "--decisions", "--json").rows
    # The one that truncated, and one of those after which nothing went.
    assert [row["cut"] for row in rows] == [None, {"0.0": "2:5"}]
    [row] = offloader("retention", "explain", orders, "--json").rows
    assert row["decision"]["lags"][0]["unread_entries"] == 45


def test_past_decisions_are_not_explained_by_another_policy(offloader: Offloader) -> None:
    refused = offloader("retention", "explain", "a/b/persistent/orders", "--decisions", "--keep", "1h")
    assert (refused.code, "--decisions and --keep exclude each other" in refused.err) == (2, True)


def test_explain_names_why_a_new_policy_deletes_nothing(offloader: Offloader, tmp_path: Path) -> None:
    small = tmp_path / "small.toml"
    small.write_text('[retention]\npolicy = "size"\nmin_size = "1500B"\n')
    lines = offloader("retention", "explain", "a/b/persistent/aged", "--config", str(small)).out.splitlines()
    [at] = [number for number, line in enumerate(lines) if line == "result   nothing is deleted"]
    assert lines[at + 1].startswith("later    a limit cuts at ends of segments and at recorded places")


@pytest.mark.slow
def test_failing_stream_is_reported_and_others_are_truncated(offloader: Offloader, store: ObjectStore) -> None:
    offloader("subscriber", "add", "a/b/persistent/orders", "audit")
    key = next(info.key for info in store.list("").objects if info.key.endswith("/subscribers"))
    store.put(key, b"{}")
    done = offloader("retention", "run", "--apply", "--wide")
    assert done.code == 6
    assert len(done.out.splitlines()) == 4
    assert "persistent/orders" in done.err
    assert "retention deletes nothing of the stream" in done.err


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "code", "words"), [("a/b/persistent/nowhere", 3, "isn't in"), ("a//b", 2, "stream name 'a//b'")]
)
def test_named_stream_that_does_not_exist_keeps_no_other_from_its_turn(
    offloader: Offloader, store: ObjectStore, name: str, code: int, words: str
) -> None:
    orders = "a/b/persistent/orders"
    offloader("subscriber", "add", orders, "audit")
    offloader("subscriber", "ack", orders, "audit", "--at", "2:5")
    done = offloader("retention", "run", "--apply", name, orders)
    assert (done.code, words in done.err) == (code, True)
    assert load_manifest(store, orders).head == Position(2, 5)


def test_bad_calls_change_nothing(offloader: Offloader, store: ObjectStore, tmp_path: Path) -> None:
    before = {info.key: info.etag for info in store.list("").objects}
    unknown = offloader("retention", "run", "--apply", "a/b/persistent/nowhere")
    assert (unknown.code, "isn't in" in unknown.err) == (3, True)
    wrong = tmp_path / "wrong.toml"
    wrong.write_text(
        '[retention]\npolicy = "size"\nmin_size = "10MiB"\nmax_size = "5MiB"\n'
        '[namespaces."a/b".retention]\npolicy = "time"\nmin_age = "never"\n'
        '[topics."a/b/persistent/orders".retention]\nfallback_min_size = "3MiB"\n'
    )
    found = offloader("retention", "plan", "--config", str(wrong))
    assert found.code == 2
    for text in (
        "retention.min_size = 10MiB is above max_size = 5MiB",
        """namespaces."a/b".retention.min_age: 'never' is not a duration like""",
        'topics."a/b/persistent/orders".retention.fallback_min_*: has no effect',
    ):
        assert text in found.err
    assert {info.key: info.etag for info in store.list("").objects} == before


AGED_H = [72, 60, 48, 30, 25, 20, 1]


@pytest.fixture
def aged(capsys: pytest.CaptureFixture[str], store: ObjectStore) -> Offloader:
    """A stream whose segments, one an entry of 1 KiB each, are up to three days old."""
    writer, now_ms = StreamWriter(store, "orders"), SystemClock().now_ms()
    for number, age_h in enumerate(AGED_H, start=1):
        writer.add([batch_of(number, 0, 1, size=1024, times=now_ms - age_h * 3_600_000)], closes=[number])
    return Offloader(capsys)


@pytest.mark.slow
def test_plan_by_keep_names_the_boundary_and_why(aged: Offloader, store: ObjectStore) -> None:
    [row] = aged("retention", "plan", "orders", "--keep", "1d", "--json").rows
    assert row["new_head"] == "6:0"
    assert row["boundary"] == "a segment's end, all before it is 1.04 d old"
    assert row["rule"] == "entries older than keep are deleted"
    assert row["policy"] == "keep: entries older than 1 d are deleted"
    [chosen] = [each for each in row["decision"]["candidates"] if each["role"] == "chosen"]
    assert chosen["is_boundary"]
    assert "a segment's end" in aged("retention", "plan", "orders", "--keep", "1d", "--wide").out
    lines = aged("retention", "explain", "orders", "--keep", "1d", "--keep-size", "1KiB").out
    assert "limit    the limit by size was reached first" in lines
    assert "boundary a segment's end" in lines
    assert load_manifest(store, "orders").head is None


@pytest.mark.slow
def test_run_by_keep_is_for_streams_that_are_named(aged: Offloader, store: ObjectStore) -> None:
    refused = aged("retention", "run", "--apply", "--keep", "1d")
    assert (refused.code, "require STREAM" in refused.err) == (2, True)
    assert aged("retention", "run", "--apply", "orders", "--keep", "1d", "--keep-at-least-size", "5KiB").code == 0
    assert load_manifest(store, "orders").head == Position(3, 0)
    refused = aged("retention", "run", "--apply", "orders", "--keep-at-least", "1d")
    assert (refused.code, "no effect" in refused.err) == (2, True)


@pytest.mark.slow
def test_keep_option_takes_nothing_of_what_the_settings_keep_at_least(aged: Offloader, tmp_path: Path) -> None:
    settings = tmp_path / "least.toml"
    settings.write_text('[retention]\nkeep = "7d"\nkeep_at_least_size = "5KiB"\n')
    given = ("retention", "plan", "orders", "--config", str(settings), "--json")
    assert aged(*given, "--keep", "1d").rows[0]["new_head"] == "3:0"
    assert aged(*given, "--keep", "1d", "--keep-at-least-size", "1KiB").rows[0]["new_head"] == "6:0"
    settings.write_text('[retention]\nkeep = "7d"\nkeep_at_least = "2d"\n')
    refused = aged(*given, "--keep", "1d")
    assert (refused.code, "keep_at_least = 2d is above keep = 1d" in refused.err) == (2, True)


@pytest.mark.slow
def test_more_than_half_needs_approval_since_the_first_decision_that_let_it_go(
    aged: Offloader, store: ObjectStore
) -> None:
    aged("retention", "run", "--apply", "orders", "--keep", "65h")
    assert aged("cleanup", "plan", "orders", "--json").rows[-1]["awaiting_approval"] is None
    aged("retention", "run", "--apply", "orders", "--keep", "1d")
    aged("retention", "run", "--apply", "orders", "--keep", "15h")
    decisions = aged("retention", "explain", "orders", "--decisions", "--json").rows
    since_ms = [row["at_ms"] for row in decisions][1]
    awaited = aged("cleanup", "plan", "orders", "--json").rows[-1]["awaiting_approval"]
    sums = load_manifest(store, "orders").sums
    assert (awaited["segments"], awaited["bytes_stored"], awaited["since_ms"]) == (6, sums.object_bytes, since_ms)
    assert 2 * awaited["bytes"] > sums.object_bytes
    text = aged("cleanup", "plan", "orders").out
    assert "more than half would be retired, since 20" in text
    assert aged("cleanup", "run", "orders", "--apply").code != 0
    assert load_manifest(store, "orders").sums.segments == 7
    assert aged("cleanup", "run", "orders", "--allow-large", "--apply").code == 0
    assert load_manifest(store, "orders").sums.segments == 1
