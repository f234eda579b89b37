"""``offloader export parquet``: its output, and what it refuses."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest

from offloader.store.open import open_store
from tests.cli.reading_verbs import Offloader
from tests.support.streams import StreamWriter, batch_of

pytestmark = pytest.mark.slow


@pytest.fixture
def words(tmp_path: Path) -> list[str]:
    StreamWriter(open_store(f"file://{tmp_path}/store"), "orders").add([batch_of(1, 0, 10)])
    return ["export", "parquet", "orders", "--store", f"file://{tmp_path}/store", "--dest", f"file://{tmp_path}/lake"]


def test_range_is_planned_exported_and_refused_the_second_time(
    words: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    offloader = Offloader(capsys)
    planned = offloader(*words, "--to", "1:3", "--dry-run")
    assert (planned.code, planned.out) == (0, "orders: would export 4 entries\n")
    assert not (tmp_path / "lake").exists()
    [done] = offloader(*words, "--to", "1:3", "--column", "payload", "--json").rows
    [path] = (tmp_path / "lake").rglob("*.parquet")
    size_bytes = path.stat().st_size
    assert done == {
        "stream": "orders",
        "dry_run": False,
        "entries": 4,
        "rows": 4,
        "first": "1:0",
        "last": "1:3",
        "bytes": size_bytes,
        "files": [path.relative_to(tmp_path / "lake").as_posix()],
    }
    assert pq.read_table(path).column_names == ["payload"]
    code, line, hint = offloader.refuses(*words)
    assert (code, "already has entries 1:0 to 1:3" in line, "start after 1:3" in hint) == (2, True, True)


def test_text_and_progress_name_the_rows_and_the_files(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    done = Offloader(capsys)(*words, "--progress")
    assert done.out.startswith("orders: 10 rows, 1:0..1:9, in 1 file of ")
    assert done.err.splitlines()[-1].startswith("10 of 10 entries, ")
    nothing = Offloader(capsys)(*words, "--since", "2199-01-01")
    assert (nothing.code, nothing.out) == (0, "orders: no entries in that range\n")


def test_failure_in_one_stream_does_not_stop_the_others(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    done = Offloader(capsys)(*words, "missing")
    assert (done.code, done.out.startswith("orders: 10 rows")) == (3, True)
    assert "stream missing: " in done.err
