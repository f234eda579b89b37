"""The previous release and this one on one store, as processes: take-over, reading, the way back, unknown records."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from formats.checked_json import opened, sealed
from formats.keys import record_number
from formats.manifest import RECORD_FORMAT
from offloader.store.base import ObjectStore
from offloader.store.open import open_store
from tests.upgrade.archives import objects
from tests.upgrade.beside import digest, entries, known_fields
from tests.upgrade.previous import ARCHIVED, PREVIOUS, ROOT, Forks, MissingRelease, Side, previous_release

pytestmark = pytest.mark.slow

STREAM = "public/default/persistent/orders"
DOCUMENT = ROOT / "docs" / "how-to" / "upgrading.md"
#: Not about one place of a digest: positions differ with who owned the stream.
CONTENT = ("entries", "sha256")


@dataclass(frozen=True)
class Place:
    """A store, a ledger database, and the two releases that use them."""

    release: Path
    folder: Path
    forks: Forks

    @property
    def url(self) -> str:
        return f"file://{self.folder}/store"

    def store(self) -> ObjectStore:
        return open_store(self.url)

    @property
    def ledgers(self) -> str:
        return f"sqlite:///{self.folder}/ledgers.db"

    def own(self, release: Path) -> Side:
        return Side(release, "own", self.url, self.ledgers, STREAM)

    def try_to_own(self, release: Path) -> dict[str, Any]:
        """The answer of a process that opens the stream and ends at once."""
        [said] = self.forks.said(release, "own", self.url, self.ledgers, STREAM)
        return said

    def read(self, release: Path) -> dict[str, Any]:
        [said] = self.forks.said(release, "read", self.url, STREAM)
        return said

    def run(self, release: Path, *words: str) -> int:
        return self.forks.code(release, "cli", *words, "--store", self.url)


def wanted(count: int) -> dict[str, Any]:
    found = digest(((0, number), payload) for number, payload in enumerate(entries(STREAM, 0, count)))
    return {name: found[name] for name in CONTENT}


def content(said: dict[str, Any]) -> dict[str, Any]:
    assert "error" not in said, said
    return {name: said[name] for name in CONTENT}


@pytest.fixture(scope="module")
def previous(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return previous_release(PREVIOUS, tmp_path_factory.mktemp("previous"))


@pytest.fixture(scope="module")
def archived(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return previous_release(ARCHIVED, tmp_path_factory.mktemp("archived"))


@pytest.fixture(scope="module")
def forks() -> Iterator[Forks]:
    with Forks() as made:
        yield made


@pytest.fixture(params=["previous", "archived"])
def place(request: pytest.FixtureRequest, forks: Forks, tmp_path: Path) -> Place:
    return Place(request.getfixturevalue(request.param), tmp_path, forks)


def test_stream_moves_to_this_release_and_back_without_losing_an_entry(place: Place) -> None:
    with place.own(place.release) as old:
        assert old.said() == {"owner": STREAM}
        with place.own(ROOT) as new:
            assert new.said() == {"owner": STREAM}
    with place.own(place.release) as old:
        old.said()
        assert old.append(0, 300) == {"offloaded": 300}
        with place.own(ROOT) as new:  # a standby of this release takes over
            new.said()
            assert new.append(300, 300) == {"offloaded": 300}
            assert old.append(9_000, 10)["error"] == "Fenced"
            for release in (place.release, ROOT):
                assert content(place.read(release)) == wanted(600)
                assert place.run(release, "verify", STREAM, "--deep") == 0
            with place.own(place.release) as downgraded:  # and the way back
                downgraded.said()
                assert downgraded.append(600, 300) == {"offloaded": 300}
                assert new.append(9_000, 10)["error"] == "Fenced"
    with place.own(ROOT) as again:
        again.said()
        assert again.append(900, 100) == {"offloaded": 100}
    for release in (place.release, ROOT):
        assert content(place.read(release)) == wanted(1_000)
        assert place.run(release, "verify", STREAM, "--deep") == 0


def test_owner_that_is_killed_is_followed_by_the_other_release(place: Place) -> None:
    for number, release in enumerate([place.release, ROOT, place.release, ROOT]):
        with place.own(release) as owner:  # killed at the end
            owner.said()
            assert owner.append(number * 100, 100) == {"offloaded": 100}
    assert content(place.read(place.release)) == content(place.read(ROOT)) == wanted(400)


def test_previous_release_reads_every_kind_of_record_that_this_one_writes(
    previous: Path, forks: Forks, tmp_path: Path
) -> None:
    file = tmp_path / "written.tar.xz"
    command = [sys.executable, "-P", str(ROOT / "tests" / "upgrade" / "make_previous_store.py"), str(file)]
    subprocess.run(command, check=True, cwd=ROOT, env={"PYTHONPATH": str(ROOT)}, capture_output=True)

    def read(release: Path) -> list[dict[str, Any]]:
        *found, last = forks.said(release, "archive", str(file))
        assert last == {"streams": len(found)}
        return found

    written = read(ROOT)
    assert len(written) >= 15
    assert read(previous) == written


# --- records that a release doesn't know ------------------------------------------------------------------------------

FUTURE: list[tuple[dict[str, Any], str]] = [
    ({"edits": [{"edit": "from_the_future", "at": 5}]}, "from_the_future"),
    ({"edits": [{"edit": "hold", "on": True, "reason": "", "until_ms": 5}]}, "until_ms"),
    ({"edits": [{"edit": "resume"}], "priority": 1}, "priority"),
]


def add_record(store: ObjectStore, changes: dict[str, Any]) -> str:
    """Creates the next record of the stream, as a later release would; returns its key."""
    key = max(key for key in objects(store) if "/manifest/" in key and record_number(key) is not None)
    body = opened(bytes(store.get(key)[0]), RECORD_FORMAT)
    number = body["record_id"] + 1
    later = {**body, "format": RECORD_FORMAT, "record_id": number, **changes}
    later["previous_nonce"] = body["writer"]["nonce"]
    later["writer"] = {**body["writer"], "nonce": "0" * 32}
    found = f"{key.rpartition('/')[0]}/{number:020}.json"
    store.put(found, sealed(later))
    return found


@pytest.mark.parametrize("reader", ["this", "previous"])
def test_unknown_record_is_refused_by_name_and_nothing_is_changed(
    reader: str, forks: Forks, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    release: Path = ROOT if reader == "this" else request.getfixturevalue("previous")
    place = Place(release, tmp_path, forks)
    with place.own(ROOT) as owner:
        owner.said()
        owner.append(0, 100)
    with closing(place.store()) as store:
        for changes, name in FUTURE:
            key = add_record(store, changes)
            before = set(objects(store))
            for said in (place.try_to_own(release), place.read(release)):
                assert said["error"] == "Unsupported", (name, said)
                assert name in said["message"], said
                assert key.rpartition("/")[2] in said["message"], (name, said)
            for words in (
                ("cleanup", "run", STREAM, "--yes"),
                ("cleanup", "orphans", STREAM, "--delete"),
                ("verify", STREAM),
            ):
                assert place.run(release, *words) != 0, (name, words)
            assert set(objects(store)) == before, name
            store.delete([key])  # its writer takes it back
            assert content(place.read(release)) == wanted(100), name


@pytest.mark.java
@pytest.mark.timeout(600)
def test_executors_of_the_previous_release_read_what_this_one_wrote(
    previous: Path, forks: Forks, tmp_path: Path
) -> None:
    place = Place(previous, tmp_path, forks)
    with place.own(ROOT) as owner:
        owner.said()
        owner.append(0, 500)
    with Side(previous, "spark", place.url, STREAM) as side:
        assert content(side.said()) == wanted(500)


def test_documented_fields_are_those_that_the_previous_release_does_not_know(previous: Path, forks: Forks) -> None:
    """Where this fails: list the field or edit in the table of docs/how-to/upgrading.md, with what writes it."""
    [before] = forks.said(previous, "fields")
    now = known_fields()
    assert set(before) <= set(now)
    assert {name: set(before[name]) - set(now[name]) for name in before} == {name: set() for name in before}
    new = {f"{name}.{each}" for name, fields in now.items() for each in set(fields) - set(before.get(name, ()))}
    assert {f"{name.replace('.', ' ')}" for name in documented()} == {each.replace(".", " ") for each in new}


def documented() -> list[str]:
    """Kinds and fields in the table of the page, ``edit hold.until_ms``."""
    table = DOCUMENT.read_text().partition("| new in this release | what writes it |\n| --- | --- |\n")[2]
    rows = re.match(r"(?:\|.*\n)*", table)
    assert rows is not None
    found = re.findall(r"^\| `([^`]+)` \|", rows[0], re.M)
    assert found or rows[0].startswith("| nothing |")
    return found


def test_release_that_is_not_packed_is_named(tmp_path: Path) -> None:
    with pytest.raises(MissingRelease, match="lacks release 0000: pack it by"):
        previous_release("0000", tmp_path)
