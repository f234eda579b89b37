"""The load of a long run, for a moment: it starts, appends, reads back, and reports."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from offloader.store.open import open_store
from tests.proof.soak.soak_load import BATCH_ENTRIES, Order
from tests.support.flight_door import flight_door
from tests.support.waiting import PATIENCE_S, eventually

pytestmark = pytest.mark.process

ROOT = Path(__file__).resolve().parents[3]
STREAM = "soak/moment/persistent/one"
MIB = 1024 * 1024


def test_soak_load_starts_and_reports_what_it_did(tmp_path: Path) -> None:
    store = open_store(f"file://{tmp_path}/store")
    with flight_door(store, flight__ledgers=f"sqlite:///{tmp_path}/ledgers.db") as door:
        order = Order(flight=door.location, store=(store.url, {}), streams=(STREAM,), window_bytes=8 * MIB, readers=1)
        load = subprocess.Popen(
            [sys.executable, "-m", "tests.proof.soak.soak_load", json.dumps(asdict(order))],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        with load:
            try:
                # What is offloaded was appended, whatever comes of the rest.
                eventually(
                    lambda: (
                        load.poll() is not None
                        or any(info.key.endswith("-index") for info in store.list(f"{STREAM}/").objects)
                    )
                )
                said, _ = load.communicate(timeout=PATIENCE_S)
            finally:
                load.kill()
    store.close()
    assert load.returncode == 0
    totals = json.loads(said)
    assert totals["errors"] == []
    assert totals["appended_entries"] >= BATCH_ENTRIES
    assert totals["last"][STREAM][1] == totals["appended_entries"]
