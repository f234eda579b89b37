"""One owner per stream, across threads and processes, and what a killed process leaves."""

from __future__ import annotations

import subprocess
import sys

import pytest

from offloader.ledgers.sqlite.embedded import EmbeddedLedgers
from tests.ledgers.ledger_cases import read_all
from tests.ledgers.sqlite.test_embedded_ownership import ledgers as ledgers
from tests.ledgers.sqlite.test_embedded_ownership import path as path

_APPEND_FOR_EVER = """
import sys
from offloader.ledgers.sqlite.embedded import EmbeddedLedgers
from offloader.settings import LedgerSettings
stream = EmbeddedLedgers(sys.argv[1], settings=LedgerSettings(ledger_entries_max=700)).open_stream("s")
number = int(stream.get_note("next") or 0)
sizes = [1, 3, 1000, 17, 5000]
call = 0
while True:
    size = sizes[call % len(sizes)]
    call += 1
    payloads = [b"%08d" % n * 40 for n in range(number, number + size)]
    number += size
    stream.append(payloads, notes={"next": b"%d" % number})
    print(number, flush=True)
"""


@pytest.mark.process
def test_kill_9_leaves_the_acknowledged_entries_and_at_most_one_more_call(path: str) -> None:
    acknowledged = 0
    for lines in (3, 9, 14):
        child = subprocess.Popen([sys.executable, "-c", _APPEND_FOR_EVER, path], stdout=subprocess.PIPE)
        assert child.stdout is not None
        for _ in range(lines):
            acknowledged = int(child.stdout.readline())
        child.kill()
        rest = child.stdout.read().split()
        child.wait()
        child.stdout.close()
        acknowledged = int(rest[-1]) if rest else acknowledged
        ledgers = EmbeddedLedgers(path)
        stream = ledgers.open_stream("s")
        found = read_all(stream)
        count = int(stream.get_note("next") or 0)
        ledgers.close()
        assert [payload for _, payload, _ in found] == [b"%08d" % n * 40 for n in range(count)]
        assert count - acknowledged in (0, 1, 3, 1000, 17, 5000)
        assert [p for p, _, _ in found] == sorted({p for p, _, _ in found})
