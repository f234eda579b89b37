"""kill -9 at named points, in a separate process: the next process offloads every appended entry once."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from formats.keys import data_key
from offloader.managed_ledger import open_managed_ledger
from offloader.manifest.log import list_streams, load_manifest
from offloader.store.open import open_store
from tests.proof.kills.killed_compaction import RECORDS_BEFORE, compact, written_stream
from tests.proof.kills.killed_writer import HISTORY_SETTINGS, SETTINGS, STREAM, drawn_history, drawn_payloads
from tests.support.readback import stored_entries

pytestmark = pytest.mark.process

ROOT = Path(__file__).resolve().parents[3]
POINTS = [
    pytest.param("put", f"{1:020d}.json", id="open-epoch"),
    pytest.param("put", f"{2:020d}.json", id="assign"),
    pytest.param("put", r"killed/stream/[0-9a-f-]{36}$", id="data-object"),
    pytest.param("put", "-index", id="index"),
    pytest.param("put", f"{3:020d}.json", id="commit"),
    pytest.param("begin_upload", "", id="begin-upload"),
    pytest.param("upload_part", "", id="part"),
    pytest.param("complete_upload", "", id="complete"),
]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(("verb", "key_part"), POINTS)
def test_a_killed_writer_loses_and_repeats_nothing(tmp_path: Path, verb: str, key_part: str, when: str) -> None:
    command = [sys.executable, "-m", "tests.proof.kills.killed_writer", str(tmp_path), verb, key_part, when]
    killed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr[-3000:]
    # An entry is accepted only once the manifest knows of the start.
    segments = 0 if key_part == f"{1:020d}.json" else 2 if "upload" in verb else 1
    appended = [payload for payloads in drawn_payloads()[:segments] for payload in payloads]

    store = open_store(f"file://{tmp_path}/store")
    with open_managed_ledger(STREAM, ledgers=f"{tmp_path}/ledgers.db", store=store, settings=SETTINGS) as topic:
        topic.append(b"and on")
        topic.offload()

    stored = [payload for _, payload in stored_entries(store, STREAM)]
    assert stored == [*appended, b"and on"]
    assert store.list_uploads("") == []
    store.close()


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(
    "key_part",
    [
        pytest.param(f"{RECORDS_BEFORE + 1:020d}.json", id="promise"),
        pytest.param(r"killed/stream/[0-9a-f-]{36}$", id="data-object"),
        pytest.param("-index$", id="index"),
        pytest.param(f"{RECORDS_BEFORE + 2:020d}.json", id="replace"),
    ],
)
def test_killed_compaction_keeps_every_entry_readable_once_and_the_next_continues(
    tmp_path: Path, key_part: str, when: str
) -> None:
    writer = written_stream(tmp_path)
    assert writer.log.state.record_id == RECORDS_BEFORE
    command = [sys.executable, "-m", "tests.proof.kills.killed_compaction", str(tmp_path), "put", key_part, when]
    killed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr[-3000:]
    expected = [(entry.position, entry.payload) for entry in writer.entries]
    assert stored_entries(writer.store, STREAM) == expected

    compact(writer.store)

    assert stored_entries(writer.store, STREAM) == expected
    state = load_manifest(writer.store, STREAM)
    assert len(state.offloaded()) == 1


HISTORY_POINTS = [
    pytest.param("put", f"{1:020d}.json", id="open-epoch"),
    pytest.param("put", f"{2:020d}.json", id="assign-several"),
    pytest.param("put", r"killed/stream/[0-9a-f-]{36}$", id="data-object"),
    pytest.param("put", "-index", id="index"),
    pytest.param("put", f"{3:020d}.json", id="first-commit"),
    pytest.param("put", f"{5:020d}.json", id="later-commit"),
]


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize(("verb", "key_part"), HISTORY_POINTS)
def test_killed_backfill_continues_and_resends_no_offloaded_segment(
    tmp_path: Path, verb: str, key_part: str, when: str
) -> None:
    command = [sys.executable, "-m", "tests.proof.kills.killed_writer", str(tmp_path), verb, key_part, when, "history"]
    killed = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300, check=False)
    assert killed.returncode == -signal.SIGKILL, killed.stderr[-3000:]
    store = open_store(f"file://{tmp_path}/store")
    done = {}
    if STREAM in list_streams(store):
        for segment in load_manifest(store, STREAM).offloaded():
            done[segment.uuid] = store.head(data_key(STREAM, segment.uuid)).modified_ms

    with open_managed_ledger(STREAM, ledgers=f"{tmp_path}/ledgers.db", store=store, settings=HISTORY_SETTINGS) as topic:
        topic.append(b"and on")
        topic.offload()

    assert [payload for _, payload in stored_entries(store, STREAM)] == [*drawn_history(), b"and on"]
    assert {uuid: store.head(data_key(STREAM, uuid)).modified_ms for uuid in done} == done
    assert load_manifest(store, STREAM).assigned() == []
    store.close()
