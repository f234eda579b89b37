"""``offloader rollback plan STREAM``."""

from __future__ import annotations

from pathlib import Path

import pytest

from formats.segment import Layout
from offloader.store import open_store
from tests.cli.reading_verbs import Offloader
from tests.support.streams import StreamWriter, batch_of


@pytest.fixture
def writer(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> StreamWriter:
    made = StreamWriter(open_store(f"file://{tmp_path}/store"), "orders")
    made.add([batch_of(2, 0, 5)], layout=Layout.V1, closes=[2])
    monkeypatch.setenv("OFFLOADER_STORE", made.store.url)
    return made


def test_ledgers_with_entries_in_v2_segments_are_listed(
    capsys: pytest.CaptureFixture[str], writer: StreamWriter
) -> None:
    writer.add([batch_of(3, 0, 10), batch_of(4, 0, 20)], closes=[3])
    writer.add([batch_of(4, 20, 5)], closes=[4])
    offloader = Offloader(capsys)
    assert offloader("rollback", "plan", "orders", "--json").rows == [
        {"ledger_id": 3, "segments": 1, "entries": 10, "payload_bytes": 200},
        {"ledger_id": 4, "segments": 2, "entries": 25, "payload_bytes": 500},
    ]
    assert offloader("rollback", "plan", "orders").out.split()[-5:] == ["4", "2", "25", "500", "B"]


@pytest.mark.usefixtures("writer")
def test_a_stream_of_v1_objects_needs_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    offloader = Offloader(capsys)
    done = offloader("rollback", "plan", "orders")
    assert (done.code, done.out) == (0, "an old reader can read all that is offloaded of orders\n")
    assert offloader.refuses("rollback", "guess", "orders")[0] == 2
