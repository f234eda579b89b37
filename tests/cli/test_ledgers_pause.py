"""``offloader stream pause STREAM`` and ``offloader stream resume STREAM``."""

from __future__ import annotations

from pathlib import Path

import pytest

from formats.entries import Position
from formats.keys import new_segment_uuid
from formats.manifest import Assign, Pause, StreamDeleted
from offloader.manifest.load import kept_records
from offloader.manifest.log import load_manifest
from offloader.store.open import open_store
from tests.cli.reading_verbs import Offloader
from tests.support.streams import StreamWriter, batch_of


@pytest.fixture
def writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StreamWriter:
    made = StreamWriter(open_store(f"file://{tmp_path}/store"), "orders")
    made.add([batch_of(2, 0, 5)])
    monkeypatch.setenv("OFFLOADER_STORE", made.store.url)
    return made


@pytest.fixture
def offloader(capsys: pytest.CaptureFixture[str]) -> Offloader:
    return Offloader(capsys)


@pytest.mark.slow
def test_pausing_and_resuming_are_recorded_once_and_reported(offloader: Offloader, writer: StreamWriter) -> None:
    facts = {"stream": "orders", "paused": True, "changed": True, "assigned": 0, "committed": "2:4"}
    assert offloader("stream", "pause", "orders", "--reason", "moved", "--json").rows == [facts]
    state = load_manifest(writer.store, "orders")
    assert state.paused
    assert [edit for r in kept_records(writer.store, state) for edit in r.edits if isinstance(edit, Pause)] == [
        Pause("moved")
    ]
    assert offloader("stream", "pause", "orders").out == "orders was already paused: committed end 2:4\n"
    assert offloader("status", "orders", "--json").rows[0]["mode"] == "paused"
    assert offloader("stream", "resume", "orders").out == "orders resumed: committed end 2:4\n"
    assert offloader("stream", "resume", "orders").out == "orders wasn't paused: committed end 2:4\n"
    after = load_manifest(writer.store, "orders")
    assert (after.paused, after.record_id) == (False, state.record_id + 1)


def test_pause_reports_assigned_segments(offloader: Offloader, writer: StreamWriter) -> None:
    uuid = new_segment_uuid(writer.log.state.incarnation, 1)
    writer.log.commit([Assign(uuid, 2, Position(2, 5), None, 5, {})])
    assert (
        offloader("stream", "pause", "orders").out == "orders paused: committed end 2:4; 1 assigned segment completes\n"
    )


@pytest.mark.parametrize("verb", ["pause", "resume"])
def test_bad_input_changes_nothing(offloader: Offloader, writer: StreamWriter, verb: str) -> None:
    before = keys(writer)
    code, line, _ = offloader.refuses("stream", verb, "nobody")
    assert (code, "nobody" in line) == (3, True)
    done = offloader("stream", verb, "a//b")
    assert (done.code, done.out) == (2, "")
    assert "a//b" in done.err
    assert keys(writer) == before
    writer.log.commit_as_maintainer([StreamDeleted()])
    done = offloader("stream", verb, "orders")
    assert (done.code, done.out) != (0, "")
    assert "deleted" in done.err


def keys(writer: StreamWriter) -> list[str]:
    return [info.key for info in writer.store.list("").objects]
