"""``offloader group join`` as a process that is interrupted."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from offloader.groups.group_service import open_reader_groups
from offloader.groups.reader_groups import GroupConfig
from offloader.store.open import open_store
from tests.support.ctrl_c import heed_ctrl_c
from tests.support.streams import StreamWriter, batch_of

pytestmark = pytest.mark.process


@pytest.mark.parametrize(("how", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 130)])
def test_interrupted_reader_leaves_behind_what_it_printed(tmp_path: Path, how: signal.Signals, code: int) -> None:
    store = open_store(f"file://{tmp_path}/store")
    StreamWriter(store, "orders").add([batch_of(1, 0, 20)])
    groups = open_reader_groups(store)
    groups.create("rg", GroupConfig(["orders"], automatic_checkpoint_ms=0))
    command = [sys.executable, "-m", "offloader", "group", "join", "rg", "one", "--store", store.url]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, preexec_fn=heed_ctrl_c) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(20)]
        process.send_signal(how)
        assert process.wait(30) == code
    assert lines[-1].startswith("1:19 ")
    group = groups.get("rg")
    assert group.readers == ()
    assert [str(row.position) for row in group.assignments] == ["1:20"]
