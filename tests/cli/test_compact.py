"""``offloader stream compact STREAM``."""

from __future__ import annotations

from pathlib import Path

import pytest

from formats.keys import data_key, index_key, new_segment_uuid
from formats.manifest import Adopt, LedgerClosed
from offloader.manifest.log import load_manifest
from offloader.store.open import open_store
from tests.cli.reading_verbs import Offloader
from tests.support.readback import stored_entries
from tests.support.streams import StreamWriter, batch_of


@pytest.fixture
def writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StreamWriter:
    made = StreamWriter(open_store(f"file://{tmp_path}/store"), "orders")
    made.add([batch_of(1, 0, 10)], closes=[1])
    made.add([batch_of(2, 0, 10)])
    made.add([batch_of(2, 10, 10)])
    monkeypatch.setenv("OFFLOADER_STORE", made.store.url)
    return made


@pytest.fixture
def offloader(capsys: pytest.CaptureFixture[str]) -> Offloader:
    return Offloader(capsys)


@pytest.mark.slow
def test_compact_lists_verified_objects(offloader: Offloader, writer: StreamWriter) -> None:
    done = offloader("stream", "compact", "orders", "--beside-owner")
    assert done.code == 0, done.err
    heading, row, sentence = done.out.splitlines()
    assert heading.split()[:3] == ["SEGMENT", "FIRST", "LAST"]
    assert row.split()[1:4] == ["1:0", "2:19", "30"]
    assert sentence.startswith(f"30 entries, 600 B, in 2 objects, each checked in {writer.store.url}; ")
    assert "3 segments await deletion after the grace period" in sentence
    assert stored_entries(writer.store, "orders") == [(e.position, e.payload) for e in writer.entries]
    again = offloader("stream", "compact", "orders", "--beside-owner")
    assert (again.code, again.out) == (0, "nothing to merge in orders\n")


def test_dry_run_prints_the_plan_and_changes_nothing(offloader: Offloader, writer: StreamWriter) -> None:
    record = load_manifest(writer.store, "orders").record_id
    [row] = offloader("stream", "compact", "orders", "--dry-run", "--json").rows
    [planned] = row["merges"]
    assert (planned["first"], planned["last"], planned["segments"], planned["entries"]) == ("1:0", "2:19", 3, 30)
    shown = offloader("stream", "compact", "orders", "--dry-run").out
    assert shown.endswith("\norders: 3 segments would become 1\n")
    assert load_manifest(writer.store, "orders").record_id == record


@pytest.mark.slow
def test_options_say_how_the_result_is_written(offloader: Offloader, writer: StreamWriter) -> None:
    options = ("--beside-owner", "--codec", "zstd", "--segment-size", "1KiB", "--block-size", "512", "--json")
    writer.add([batch_of(2, 20, 100)])
    done = offloader("stream", "compact", "orders", *options)
    assert done.code == 2, "a size below the least one"
    done = offloader("stream", "compact", "orders", *options[:4], "2KiB", *options[5:])
    [row] = done.rows
    [merged] = row["merged"]
    assert (merged["first"], merged["last"], row["replaced"]) == ("1:0", "2:19", 3)
    record = load_manifest(writer.store, "orders").offloaded()[0]
    assert (record.content.compressed, record.content.blocks > 1) == (True, True)


def test_stream_with_an_active_owner_is_refused(offloader: Offloader, writer: StreamWriter) -> None:
    record = load_manifest(writer.store, "orders").record_id
    done = offloader("stream", "compact", "orders")
    assert done.code == 5
    assert "is owned by" in done.err
    assert load_manifest(writer.store, "orders").record_id == record


@pytest.mark.slow
def test_adopted_segments_are_refused_by_name_and_the_others_merged(offloader: Offloader, writer: StreamWriter) -> None:
    """Another program owns the objects of the first one."""
    first = load_manifest(writer.store, "orders").offloaded()[0]
    others = StreamWriter(writer.store, "others")
    adopted = new_segment_uuid(others.log.state.incarnation, 77)
    for key in (data_key, index_key):
        writer.store.put(key("others", adopted), writer.store.get(key("orders", first.uuid))[0])
    others.log.commit([Adopt(adopted, first.content, {}, False), LedgerClosed(1, 9)])
    others.add([batch_of(2, 0, 10)])
    others.add([batch_of(2, 10, 10)])
    done = offloader("stream", "compact", "others", "--beside-owner")
    assert done.code == 2
    assert f"1 small segment is adopted and can't be merged: {adopted}" in done.err
    kept, merged = load_manifest(writer.store, "others").offloaded()
    assert (kept.uuid, merged.content.entries) == (adopted, 20)


def test_unknown_stream_is_named(offloader: Offloader, writer: StreamWriter) -> None:
    done = offloader("stream", "compact", "order", "--beside-owner")
    assert done.code == 3
    assert "order" in done.err
    assert writer.entries
