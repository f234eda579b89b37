"""Random draws of a lost, restored or duplicated ledger database: no acknowledged entry is lost silently."""

from __future__ import annotations

from collections import Counter
from pathlib import Path

import pytest

from offloader import managed_ledger
from offloader.ledgers.sqlite.embedded import EmbeddedLedgers, EmbeddedStream
from offloader.manifest import source_identity as source_check
from offloader.manifest.log import ManifestLog
from offloader.write import epoch as opening
from tests.proof.simulation.hot_tier_draws import CLASSES, class_of, play

pytestmark = pytest.mark.slow

#: 200 draws in blocks that run beside each other; every class has its share of each block.
BLOCKS, DRAWS = 10, 20


@pytest.mark.parametrize("block", range(BLOCKS))
def test_drawn_database_faults_lose_no_acknowledged_entry_silently(block: int, tmp_path: Path) -> None:
    drawn: Counter[str] = Counter()
    for seed in range(block * DRAWS, (block + 1) * DRAWS):
        folder = tmp_path / str(seed)
        folder.mkdir()
        draw = play(seed, folder)
        assert not draw.findings, f"seed {seed} ({class_of(seed)}): {draw.findings[:3]}; {'; '.join(draw.trace)}"
        drawn[class_of(seed)] += 1
    assert min(drawn[each] for each in CLASSES) * BLOCKS >= 20


#: Draws with the checks switched off: enough that each class loses something.
UNCHECKED = 48


def test_without_the_checks_every_class_of_draw_loses_entries(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The oracle sees what the checks prevent: a stream opened as a source that doesn't know which one it is."""

    def plain(database: EmbeddedLedgers, log: ManifestLog, **_: object) -> EmbeddedStream:
        return database.open_stream(log.stream)

    monkeypatch.setattr(managed_ledger, "open_source", plain)
    for module in (opening, source_check):
        monkeypatch.setattr(module, "identified", lambda _: None)
    broken: Counter[str] = Counter()
    for seed in range(UNCHECKED):
        folder = tmp_path / str(seed)
        folder.mkdir()
        draw = play(seed, folder)
        broken[class_of(seed)] += bool(draw.findings)
        assert class_of(seed) != "ordinary" or not draw.findings, f"seed {seed}: {draw.findings[:3]}; {draw.trace}"
    assert all(broken[each] for each in CLASSES if each != "ordinary"), broken
