"""``offloader export pulsar`` onto the fake broker: its output, and that a killed process loses and repeats nothing."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from formats.entries import Position
from tests.cli.test_pulsar_replay import ALL, Told
from tests.cli.test_pulsar_replay import told as told
from tests.support.replaying import STREAM, TARGET
from tests.support.waiting import eventually


@pytest.mark.process
@pytest.mark.parametrize("begin", [[], ["--since", "-10000d"]], ids=["whole", "relative"])
def test_killed_replay_is_continued_without_loss_or_repeats(told: Told, tmp_path: Path, begin: list[str]) -> None:
    command = [
        sys.executable,
        "-m",
        "offloader.cli.main",
        "export",
        "pulsar",
        STREAM,
        "--dest",
        TARGET,
        *begin,
        *told.options,
    ]

    def has_arrived(upto: int) -> bool:
        return len(told.place.arrived) >= upto

    for upto in (15, 55):
        with subprocess.Popen([*command, "--rate", "150"], stdout=subprocess.DEVNULL, env=os.environ) as process:
            eventually(partial(has_arrived, upto))
            process.send_signal(signal.SIGKILL)
    done = subprocess.run([*command, "--json"], capture_output=True, check=True, text=True)
    assert told.place.arrived == ALL
    facts = json.loads(done.stdout)
    assert Position.parse(facts["resumed_after"]) >= ALL[54]
    assert (facts["twice"], facts["target_forgot"], facts["entries"] < 46) == (0, False, True)
