"""``offloader ls TOPIC --graph``: how the segments of a scalable topic split and merge."""

from __future__ import annotations

import json
import os
import random
from pathlib import Path

import pytest

from formats.topic_layout import TopicLayout
from offloader.cli.graph import WIDTH, picture
from offloader.ledgers.pulsar.scalable import layout_of_json
from offloader.manifest.topic_layouts import record_layout
from offloader.store.base import ObjectStore
from offloader.store.open import open_store
from tests.cli.reading_verbs import Offloader
from tests.manifest.test_topic_layouts import lived
from tests.read.test_partitions_segments import PLACE, TOPIC, end, layout_of, write

RECORDED = Path(__file__).parents[1] / "ledgers" / "pulsar" / "scalable_layouts"


@pytest.fixture
def offloader(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Offloader:
    for name in [name for name in os.environ if name.startswith(("OFFLOADER_", "AWS_"))]:
        monkeypatch.delenv(name)
    return Offloader(capsys)


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    store = open_store(f"file://{tmp_path}/store")
    record_layout(store, PLACE, layout_of(3))
    for number in (0, 1, 3):
        write(store, number)
    end(store, 0, 2)
    return store


def test_picture_and_rows(offloader: Offloader, store: ObjectStore) -> None:
    done = offloader("ls", TOPIC, "--graph", "--store", store.url)
    assert done.code == 0
    title, _, scale, *segments = done.out.splitlines()[:6]
    assert title == "topic://shop/eu/orders: 4 segments, epoch 3"
    assert scale.split() == ["0000", "8000", "ffff"]
    assert segments == [
        f"|{' 0 '.center(71, '-')}|",
        f"|{' 1 '.center(35, '-')}|{' 2 '.center(35, '-')}|",
        f"|{' 3 '.center(71, '=')}|",
    ]
    assert [line.split() for line in done.out.splitlines()[8:]] == [
        ["0", "0000-ffff", "-", "complete", "2", "0:1"],
        ["1", "0000-7fff", "0", "sealed,", "end", "unknown", "2", "1:1"],
        ["2", "8000-ffff", "0", "sealed,", "offloading", "until", "2:1", "0", "-"],
        ["3", "0000-ffff", "1,2", "active", "2", "3:1"],
    ]


def test_rows_for_machines(offloader: Offloader, store: ObjectStore) -> None:
    first, *_, last = offloader("ls", TOPIC, "--graph", "--json", "--store", store.url).rows
    assert first == {
        "segment": 0,
        "hashes": "0000-ffff",
        "after": [],
        "state": "complete",
        "entries": 2,
        "last": "0:1",
        "stream": "shop/eu/segment/orders/0000-ffff-0",
    }
    assert last["after"] == [1, 2]


@pytest.mark.parametrize("more", [["--limit", "3"], ["--all"], ["--prefix", "a"], ["--plot", "x.svg"]])
def test_other_options_are_refused(offloader: Offloader, store: ObjectStore, more: list[str]) -> None:
    done = offloader("ls", TOPIC, "--graph", *more, "--store", store.url)
    assert done.code == 2
    assert "--graph needs the name of a scalable topic, and no other option" in done.err


@pytest.mark.parametrize("name", ["orders", "topic://shop/eu/absent", "shop/eu/segment/orders/0000-ffff-0"])
def test_other_names_are_refused(offloader: Offloader, store: ObjectStore, name: str) -> None:
    done = offloader("ls", name, "--graph", "--store", store.url)
    assert done.code == 2
    assert "is none with a recorded layout" in done.err


def recorded(name: str) -> TopicLayout:
    return layout_of_json(json.loads((RECORDED / f"layout-{name}.json").read_text()), "topic://t/n/x")


def test_partitions_of_a_migrated_topic_have_lines_of_their_own() -> None:
    lines = picture(recorded("migrated-parts-split"))[1:]
    assert [line.strip("|-= ").split()[0] for line in lines] == ["0", "1", "2", "4"]
    assert {len(line) for line in lines[:3]} == {WIDTH + 1}


@pytest.mark.parametrize("seed", range(10))
def test_every_segment_is_drawn_once_and_within_the_width(seed: int) -> None:
    layout = lived(random.Random(seed), 12).told[-1]
    lines = picture(layout)
    assert all(len(line) <= WIDTH + 1 for line in lines)
    assert sum(line.count("|") for line in lines[1:]) >= len(layout.segments)
