"""``offloader cleanup orphans``."""

from __future__ import annotations

import os
from pathlib import Path
from uuid import UUID, uuid4

import pytest

from formats.keys import data_key, index_key, manifest_prefix, new_segment_uuid
from offloader.manifest.protection import set_global_hold
from offloader.store.base import OVERWRITE, ObjectStore
from offloader.store.open import open_store
from tests.cli.reading_verbs import Offloader
from tests.support.streams import StreamWriter, batch_of

STREAM = "public/default/persistent/orders"
DAY_S = 24 * 3600


class Place:
    """A directory with a stream, two orphans of two days, a young one, and somebody else's file."""

    def __init__(self, tmp_path: Path) -> None:
        self.root = tmp_path / "store"
        self.store: ObjectStore = open_store(f"file://{self.root}")
        self.writer = StreamWriter(self.store, STREAM)
        self.writer.add([batch_of(1, 0, 50)])
        old = self.uuid()
        self.orphans = [data_key(STREAM, old), index_key(STREAM, old)]
        self.young = data_key(STREAM, self.uuid())
        self.foreign = data_key(STREAM, uuid4())
        for key in (*self.orphans, self.young, self.foreign):
            self.store.put(key, b"some bytes")
        for key in (*self.orphans, self.foreign):
            self.make_old(key)

    def uuid(self) -> UUID:
        return new_segment_uuid(self.writer.log.state.incarnation, int.from_bytes(os.urandom(8), "big"))

    def make_old(self, key: str) -> None:
        then_s = (self.root / key).stat().st_mtime - 2 * DAY_S
        os.utime(self.root / key, (then_s, then_s))

    def listed(self) -> list[str]:
        return [info.key for info in self.store.list("").objects]


@pytest.fixture
def place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Place:
    for name in [name for name in os.environ if name.startswith(("OFFLOADER_", "AWS_"))]:
        monkeypatch.delenv(name)
    place = Place(tmp_path)
    monkeypatch.setenv("OFFLOADER_STORE", place.store.url)
    return place


@pytest.fixture
def offloader(capsys: pytest.CaptureFixture[str]) -> Offloader:
    return Offloader(capsys)


@pytest.mark.slow
@pytest.mark.parametrize("stream", [[STREAM], []])
def test_dry_run_lists_what_delete_then_removes(offloader: Offloader, place: Place, stream: list[str]) -> None:
    before = place.listed()
    looked = offloader("cleanup", "orphans", *stream, "--json")
    assert (looked.code, looked.err) == (0, "")
    assert place.listed() == before

    done = offloader("cleanup", "orphans", *stream, "--apply", "--json")

    *rows, summary = done.rows
    assert done.code == 0
    assert {row["key"]: (row["ours"], row["outcome"]) for row in rows} == {
        **dict.fromkeys(place.orphans, (True, "deleted")),
        place.young: (True, "kept"),
        place.foreign: (False, "kept"),
    }
    assert [{**row, "age_s": 0, "outcome": ""} for row in looked.rows[:-1]] == [
        {**row, "age_s": 0, "outcome": ""} for row in rows
    ]
    assert all(2 * DAY_S <= row["age_s"] < 2 * DAY_S + 600 for row in rows if row["key"] != place.young)
    assert (summary["deleted"], summary["deleted_bytes"], summary["kept"], summary["foreign"]) == (2, 20, 1, 1)
    assert summary["needed"]["segment"]["objects"] == 2
    assert set(place.listed()) == set(before) - set(place.orphans)
    again = offloader("cleanup", "orphans", *stream, "--apply", "--json").rows[-1]
    assert "deleted" not in again


def test_people_get_a_table_and_sums(offloader: Offloader, place: Place) -> None:
    done = offloader("cleanup", "orphans", STREAM, "--wide")

    heading, *rows = done.out.splitlines()
    assert heading.split() == ["STREAM", "KEY", "WHAT", "AGE", "BYTES", "OURS", "WHY", "OUTCOME"]
    line = next(row for row in rows if place.orphans[0] in row.split())
    said = " ".join(line.split())
    assert said == f"{STREAM} {place.orphans[0]} segment 2.0 d 10 B yes no manifest names it deletable"
    assert rows[-4].endswith("are needed")
    assert rows[-3:] == [
        "2 (20 B) can be deleted with --apply",
        "1 (10 B) foreign, never deleted",
        "1 (10 B) kept for now",
    ]
    ours = offloader("cleanup", "orphans", STREAM, "--ours").out
    assert place.foreign not in ours
    assert "1 (10 B) foreign, never deleted" in ours


def test_invalid_calls_are_refused_with_a_hint(offloader: Offloader, place: Place) -> None:
    code, line, _ = offloader.refuses("cleanup", "orphans", "public/default/persistent/nothing")
    assert code == 3
    assert "has no catalogue entry" in line
    assert offloader("cleanup", "orphans", "a//b").code == 2
    assert place.orphans[0] in place.listed()


def test_global_hold_keeps_orphans(offloader: Offloader, place: Place) -> None:
    set_global_hold(place.store, by="me", reason="a test", now_ms=5)
    before = place.listed()
    done = offloader("cleanup", "orphans", "--apply", "--json")
    assert done.code == 0
    assert {row["outcome"] for row in done.rows[:-1]} == {"kept"}
    assert place.listed() == before


def test_unreadable_stream_is_reported_and_the_rest_is_reconciled(offloader: Offloader, place: Place) -> None:
    broken = StreamWriter(place.store, "public/default/persistent/broken")
    key = f"{manifest_prefix(broken.stream, broken.log.state.incarnation)}{1:020d}.json"
    place.store.put(key, b"{}", mode=OVERWRITE)

    done = offloader("cleanup", "orphans", "--apply", "--json")

    assert done.code == 6
    assert done.err.startswith(f"offloader: stream {broken.stream}: ")
    assert done.rows[-1]["failed_streams"] == 1
    assert not set(place.orphans) & set(place.listed())
