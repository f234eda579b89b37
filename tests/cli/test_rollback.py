"""``offloader rollback plan | apply STREAM``."""

from __future__ import annotations

from pathlib import Path

import pytest

from formats.keys import data_key, parse_object_key
from formats.manifest import Hold
from formats.summary import Layout
from offloader.manifest.log import ManifestLog, load_manifest
from offloader.runtime.clock import SystemClock
from offloader.store.open import open_store
from tests.cli.reading_verbs import Offloader
from tests.support.readback import stored_entries
from tests.support.streams import StreamWriter, batch_of


@pytest.fixture
def writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StreamWriter:
    made = StreamWriter(open_store(f"file://{tmp_path}/store"), "orders")
    made.add([batch_of(2, 0, 5)], layout=Layout.V1, closes=[2])
    monkeypatch.setenv("OFFLOADER_STORE", made.store.url)
    return made


@pytest.fixture
def offloader(capsys: pytest.CaptureFixture[str]) -> Offloader:
    return Offloader(capsys)


def streamed(writer: StreamWriter) -> None:
    """Ledgers 3 and 4 share a segment, ledger 5 is open."""
    writer.add([batch_of(3, 0, 10), batch_of(4, 0, 20)], closes=[3])
    writer.add([batch_of(4, 20, 5), batch_of(5, 0, 3)], closes=[4])


def test_ledgers_with_entries_in_v2_segments_are_listed(offloader: Offloader, writer: StreamWriter) -> None:
    streamed(writer)
    assert offloader("rollback", "plan", "orders", "--json").rows == [
        {"ledger_id": 3, "segments": 1, "entries": 10, "payload_bytes": 200, "obstacle": "", "becomes": "V1"},
        {"ledger_id": 4, "segments": 2, "entries": 25, "payload_bytes": 500, "obstacle": "", "becomes": "V1"},
        {
            "ledger_id": 5,
            "segments": 1,
            "entries": 3,
            "payload_bytes": 60,
            "obstacle": "it isn't recorded as closed",
            "becomes": "as it is",
        },
    ]
    assert [line.split()[:7] for line in offloader("rollback", "plan", "orders").out.splitlines()] == [
        ["LEDGER", "SEGMENTS", "ENTRIES", "PAYLOAD", "BECOMES", "WHY"],
        ["3", "1", "10", "200", "B", "V1"],
        ["4", "2", "25", "500", "B", "V1"],
        ["5", "1", "3", "60", "B", "as", "it"],
    ]


@pytest.mark.usefixtures("writer")
def test_stream_of_v1_objects_needs_no_rollback(offloader: Offloader) -> None:
    done = offloader("rollback", "plan", "orders")
    assert (done.code, done.out) == (0, "a V1 reader can read all offloaded ledgers of orders\n")
    done = offloader("rollback", "apply", "orders")
    assert (done.code, done.out) == (0, "nothing to rewrite: a V1 reader can read all offloaded ledgers of orders\n")


@pytest.mark.slow
def test_apply_lists_verified_objects_and_ledgers_left_over(offloader: Offloader, writer: StreamWriter) -> None:
    streamed(writer)
    done = offloader("rollback", "apply", "orders", "--take-over")
    assert done.code == 2
    heading, three, four, sentence = done.out.splitlines()
    assert heading.split()[:3] == ["SEGMENT", "FIRST", "LAST"]
    assert (three.split()[1:4], four.split()[1:4]) == (["3:0", "3:9", "10"], ["4:0", "4:24", "25"])
    assert sentence == (
        f"35 entries, 700 B, in 4 objects, each checked in {writer.store.url}; "
        "2 segments await deletion after the grace period"
    )
    line, hint = done.err.splitlines()
    assert line == (
        "offloader: a V1 reader still can't read 1 of the ledgers of orders: 5 (it isn't recorded as closed)"
    )
    assert "and repeat" in hint
    assert [payload for _, payload in stored_entries(writer.store, "orders")] == [e.payload for e in writer.entries]

    again = offloader("rollback", "apply", "orders", "--json")
    assert again.code == 2
    (row,) = again.rows
    assert (row["rewritten"], row["replaced"]) == ([], 0)


def test_json_names_each_object(offloader: Offloader, writer: StreamWriter) -> None:
    writer.add([batch_of(3, 0, 10)], closes=[3])
    done = offloader("rollback", "apply", "orders", "--take-over", "--json", "--progress")
    assert done.code == 0
    assert done.err == "1 of 1 ledgers, 200 B: 3:0..3:9\n"
    (row,) = done.rows
    assert (row["segments"], row["objects"], row["entries"], row["payload_bytes"]) == (1, 2, 10, 200)
    assert (row["replaced"], row["retired"], row["deleted"], row["left"]) == (1, 0, [], [])
    (written,) = row["rewritten"]
    assert writer.store.head(written["data"]).size_bytes > 0
    assert parse_object_key(written["index"], "orders") is not None


def test_a_dry_run_lists_and_changes_nothing(offloader: Offloader, writer: StreamWriter) -> None:
    streamed(writer)
    before = {info.key for info in writer.store.list("").objects}
    rows = offloader("rollback", "apply", "orders", "--dry-run", "--delete", "5", "--json").rows
    assert [(row["ledger_id"], row["becomes"]) for row in rows] == [(3, "V1"), (4, "V1"), (5, "deleted")]
    assert {info.key for info in writer.store.list("").objects} == before


@pytest.mark.slow
def test_rollback_deletes_only_named_ledgers_with_confirmation(offloader: Offloader, writer: StreamWriter) -> None:
    streamed(writer)
    code, line, hint = offloader.refuses("rollback", "apply", "orders", "--take-over", "--delete", "5")
    assert (code, line) == (2, "deleting ledger 5 from orders loses entries that only the store has")
    assert "--yes" in hint
    code, line, _ = offloader.refuses("rollback", "apply", "orders", "--take-over", "--delete", "2", "--yes")
    assert (code, line) == (2, "stream orders: an old reader reads ledger 2, or it isn't offloaded")
    assert load_manifest(writer.store, "orders").epoch == 1
    done = offloader("rollback", "apply", "orders", "--take-over", "--delete", "5", "--yes")
    assert done.code == 0
    assert done.out.splitlines()[0] == "deleted from the stream: ledger 5"
    assert set(load_manifest(writer.store, "orders").deleted_ledgers) == {5}


@pytest.mark.slow
def test_a_settings_file_that_compresses_does_not_compress_here(
    offloader: Offloader, writer: StreamWriter, tmp_path: Path
) -> None:
    writer.add([batch_of(3, 0, 100)], closes=[3])
    config = tmp_path / "offloader.toml"
    config.write_text('[offload]\ncodec = "zstd"\nblock_size = "512B"\n')
    done = offloader("rollback", "apply", "orders", "--take-over", "--config", str(config), "--json")
    assert done.code == 0
    [segment] = load_manifest(writer.store, "orders").offloaded()[1:]
    assert segment.summary is not None
    assert (segment.summary.compressed, segment.summary.blocks > 3) == (False, True)


@pytest.mark.slow
def test_impossible_rollbacks_are_refused_and_change_nothing(offloader: Offloader, writer: StreamWriter) -> None:
    streamed(writer)
    assert offloader.refuses("rollback", "guess", "orders")[0] == 2
    assert offloader.refuses("rollback", "plan", "orders", "--delete", "5")[0] == 2
    assert offloader.refuses("rollback", "apply", "nobody")[0] == 3
    code, line, hint = offloader.refuses("rollback", "apply", "orders")
    assert code == 5
    assert "is owned by" in line
    assert "--take-over" in hint
    log = ManifestLog(writer.store, "orders", clock=SystemClock())
    log.load()
    log.commit_as_maintainer([Hold(True, "court")])
    code, line, _ = offloader.refuses("rollback", "apply", "orders", "--take-over")
    assert code == 2
    assert "on hold" in line
    assert [s.layout for s in load_manifest(writer.store, "orders").offloaded()] == [1, 2, 2]


def test_a_damaged_segment_is_named_and_kept(offloader: Offloader, writer: StreamWriter) -> None:
    damaged = writer.add([batch_of(3, 0, 100)], closes=[3])
    key = data_key("orders", damaged)
    data = bytearray(writer.store.get(key)[0])
    data[200] ^= 1
    writer.store.put(key, bytes(data))
    done = offloader("rollback", "apply", "orders", "--take-over")
    assert done.code == 6
    assert key in done.err
    assert [s.layout for s in load_manifest(writer.store, "orders").offloaded()] == [1, 2]
