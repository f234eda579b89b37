"""A ledger database that changes behind living processes, over a real server: one draw of each class.

A longer run: ./dev chaos --database.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.proof.chaos.database_run import CLASSES, class_of, run

pytestmark = pytest.mark.process


@pytest.mark.parametrize("seed", range(len(CLASSES)), ids=class_of)
def test_changed_database_is_detected_and_no_acknowledged_entry_is_lost(
    seed: int, one_server: str, servers: Any, tmp_path: Path
) -> None:
    place = servers.place(one_server)
    outcome = run(seed, place.endpoint, tmp_path, bucket=place.bucket, root=place.root)
    assert not outcome.problems, "\n".join(outcome.said)
    assert outcome.acknowledged
