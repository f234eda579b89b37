"""A command that deletes asks at a terminal: only ``y`` carries out its plan."""

from __future__ import annotations

import os
import pty
import subprocess
import sys
from pathlib import Path

import pytest

from formats.entries import Position
from offloader.manifest.log import load_manifest
from offloader.store.open import open_store
from tests.support.streams import StreamWriter, batch_of
from tests.support.waiting import PATIENCE_S


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.parametrize(("answer", "head"), [("y", Position(2, 5)), ("n", None)])
def test_plan_is_carried_out_after_a_yes_at_the_terminal(tmp_path: Path, answer: str, head: Position | None) -> None:
    store = open_store(f"file://{tmp_path}/store")
    StreamWriter(store, "orders").add([batch_of(1, 0, 10), batch_of(2, 0, 10)], closes=[1, 2])
    words = ["stream", "truncate", "orders", "--before", "2:5", "--store", store.url]
    terminal, end = pty.openpty()
    os.write(terminal, f"{answer}\n".encode())
    command = [sys.executable, "-m", "offloader.cli.main", *words]
    done = subprocess.run(
        command, stdin=end, stdout=end, stderr=subprocess.PIPE, text=True, timeout=PATIENCE_S, check=False
    )
    os.close(end)
    os.close(terminal)
    assert done.returncode == 0
    assert "Carry out this plan?" in done.stderr
    assert ("nothing was changed" in done.stderr) is (head is None)
    assert load_manifest(store, "orders").head == head
