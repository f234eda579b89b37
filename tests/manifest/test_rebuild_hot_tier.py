"""A rebuild that knows the stream's hot tier: what that has isn't lost, and its writer offloads it again."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from formats.keys import data_key
from offloader.cli.main import main
from offloader.managed_ledger import open_managed_ledger
from offloader.manifest.load import load_manifest
from offloader.read.partitions import open_reader
from offloader.settings import Settings
from offloader.store.base import ObjectStore
from offloader.store.open import open_store

STREAM = "public/default/persistent/orders"
SETTINGS = Settings.of({"offload": {"deletion_lag": "0m"}})
WORDS = ("first", "second", "third")


class Place:
    def __init__(self, folder: Path) -> None:
        self.url, self.database = f"file://{folder}/store", f"sqlite:///{folder}/ledgers.db"

    @property
    def store(self) -> ObjectStore:
        return open_store(self.url)

    def offload(self, word: str) -> None:
        """Ten entries in a ledger of their own; the first word's leave the hot tier."""
        with open_managed_ledger(STREAM, ledgers=self.database, store=self.store, settings=SETTINGS) as topic:
            topic.append_batch([f"{word} {number}".encode() for number in range(10)])
            topic.offload()
            topic.close_ledger()
            if word == "first":
                assert topic.release_hot()

    def lose(self, word: str) -> None:
        """Loses a word's segment, whose index says what it had, and every record of the manifest."""
        state = load_manifest(self.store, STREAM)
        segments = state.segments.in_order()
        lost = segments[WORDS.index(word)].uuid
        self.store.delete([data_key(STREAM, lost, None)])
        self.store.delete([info.key for info in self.store.list(f"{STREAM}/manifest/").objects])

    def rebuild(self, capsys: pytest.CaptureFixture[str], *options: str) -> tuple[int, Any]:
        capsys.readouterr()
        code = main(["manifest", "rebuild", STREAM, "--head", "first", "--store", self.url, "--json", *options])
        return code, json.loads(capsys.readouterr().out.splitlines()[-1])

    def read(self) -> list[str]:
        """What the cold tier has."""
        with open_reader(self.store, STREAM) as reader:
            return [entry.decode() for batch in reader.scan() for entry in batch.payloads.to_pylist()]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    made = Place(tmp_path)
    for word in WORDS:
        made.offload(word)
    return made


@pytest.mark.slow
@pytest.mark.parametrize("word", ["second", "third"])
def test_what_the_hot_tier_has_is_not_missing_and_is_offloaded_again(
    word: str, place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    place.lose(word)
    code, planned = place.rebuild(capsys, "--ledgers", place.database, "--dry-run")
    assert (code, planned["missing"]) == (0, [])
    assert planned["ledgers_without_proven_end"] == ["1:9"], "the hot tier has only the later ones"
    code, done = place.rebuild(capsys, "--ledgers", place.database, "--closed", "1:9")
    assert (code, done["missing"]) == (0, [])
    place.offload("later")
    assert place.read() == [f"{each} {number}" for each in (*WORDS, "later") for number in range(10)]
    assert not load_manifest(place.store, STREAM).gaps


@pytest.mark.slow
def test_what_no_tier_has_is_missing(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    place.lose("first")
    code, done = place.rebuild(capsys, "--ledgers", place.database)
    assert code == 6
    assert len(done["missing"]) == 1


@pytest.mark.slow
@pytest.mark.parametrize("word", ["second", "third"])
@pytest.mark.parametrize("method", ["start", "streaming", "ledger"])
def test_gap_that_the_hot_tier_can_fill_is_filled_by_the_next_start(
    word: str, method: str, place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    place.lose(word)
    code, done = place.rebuild(capsys, "--closed", "1:9", "--closed", "1001:9")  # no hot tier
    assert (code, len(done["missing"])) == (6, 1)
    assert len(place.read()) == 20
    if method == "start":
        place.offload("later")
    else:
        settings = Path(place.database.removeprefix("sqlite:///")).parent / "offloader.toml"
        settings.write_text(f'[offload]\nmethod = "{method}"\n')
        options = ["--store", place.url, "--ledgers", place.database, "--config", str(settings), "--take-over"]
        assert main(["stream", "offload", STREAM, *options]) == 0
    words = (*WORDS, "later") if method == "start" else WORDS
    assert place.read() == [f"{each} {number}" for each in words for number in range(10)]
    state = load_manifest(place.store, STREAM)
    assert (state.gaps, state.rewrites) == ((), ())
    assert main(["verify", STREAM, "--deep", "--store", place.url]) == 0
    # Another rebuild finds the segment, and no gap.
    place.store.delete([info.key for info in place.store.list(f"{STREAM}/manifest/").objects])
    assert place.rebuild(capsys, "--ledgers", place.database)[1]["missing"] == []
