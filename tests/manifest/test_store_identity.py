"""A store's identity is created once, noted by hot tiers, and never stops a stream by itself."""

from __future__ import annotations

import itertools
import json
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import TypeVar
from uuid import UUID

import pytest

from formats.documents import STORE_IDENTITY_KEY
from offloader.cli.main import main
from offloader.errors import AccessDeniedError, CorruptError
from offloader.ledgers.sqlite.embedded import EmbeddedLedgers
from offloader.managed_ledger import open_managed_ledger
from offloader.manifest.store_identity import identify, other_identity, read_identity
from offloader.settings import Settings
from offloader.store.base import ObjectStore
from offloader.store.open import open_store
from offloader.store.wrappers import ReadOnlyStore, Request, StoreWrapper
from tests.support.readback import stored_entries

STREAM = "public/default/persistent/orders"
ONE, OTHER = UUID(int=1), UUID(int=2)
_names = itertools.count()
_Answer = TypeVar("_Answer")


@pytest.fixture
def store() -> ObjectStore:
    return open_store(f"memory://store-identity-{next(_names)}")


def test_identity_is_created_once_and_read_by_later_processes(store: ObjectStore) -> None:
    assert read_identity(store) is None
    created = identify(store)
    assert created is not None
    assert identify(store) == identify(store, noted=ONE) == read_identity(store) == created


def test_of_two_creators_both_know_the_identity_of_the_first(store: ObjectStore) -> None:
    class Late(StoreWrapper):
        """Another process creates the identity before this one's request arrives."""

        def around(self, request: Request, call: Callable[[], _Answer]) -> _Answer:
            if request.verb == "put":
                identify(self.inner)
            return call()

    assert identify(Late(store)) == read_identity(store) is not None


def test_lost_identity_is_created_again_as_it_was_noted(store: ObjectStore) -> None:
    assert identify(store, noted=ONE) == read_identity(store) == ONE


def test_store_that_may_only_be_read_has_the_identity_that_is_there(store: ObjectStore) -> None:
    class Refusing(StoreWrapper):
        """Answers 403 instead of 404, as S3 does without the permission to list."""

        def around(self, request: Request, call: Callable[[], _Answer]) -> _Answer:
            raise AccessDeniedError("403")

    assert read_identity(ReadOnlyStore(store)) is None
    created = identify(store)
    assert read_identity(ReadOnlyStore(store)) == created
    assert read_identity(Refusing(store)) is None


def test_damaged_identity_is_named(store: ObjectStore) -> None:
    store.put(STORE_IDENTITY_KEY, b"{}")
    with pytest.raises(CorruptError, match=f"the identity of store memory://.*, {STORE_IDENTITY_KEY}"):
        read_identity(store)


@pytest.mark.parametrize(("found", "noted", "differs"), [(ONE, ONE, False), (ONE, None, False), (None, None, False)])
def test_same_identity_or_no_note_is_no_difference(found: UUID | None, noted: UUID | None, *, differs: bool) -> None:
    assert bool(other_identity(found, noted)) is differs


def test_other_and_lost_identities_are_named() -> None:
    assert other_identity(OTHER, ONE) == f"its identity is {OTHER}, and {ONE} is known"
    assert other_identity(None, ONE) == f"its identity is gone, and {ONE} is known"


class Place:
    """A ledger database and a local store."""

    def __init__(self, folder: Path) -> None:
        self.url, self.database = f"file://{folder / 'store'}", str(folder / "ledgers.db")
        self.object = folder / "store" / STORE_IDENTITY_KEY

    def offload(self) -> None:
        settings = Settings.of({"offload": {"block_size": 1024}})
        with open_managed_ledger(STREAM, ledgers=self.database, store=open_store(self.url), settings=settings) as topic:
            topic.append_batch([b"entry"] * 3)
            assert topic.offload() is not None

    def noted(self) -> UUID | None:
        with closing(EmbeddedLedgers(self.database, create=False)) as ledgers:
            return ledgers.view_stream(STREAM).noted_store()

    def run(self, *verb: str) -> int:
        return main([*verb, "--store", self.url, "--ledgers", self.database])

    def entries(self) -> int:
        return len(stored_entries(open_store(self.url), STREAM))


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


@pytest.mark.slow
def test_first_start_of_a_stream_creates_and_notes_the_identity(place: Place) -> None:
    place.offload()
    store = open_store(place.url)
    assert place.noted() == read_identity(store) is not None
    # A store of an earlier release: the stream is older than the identity.
    place.object.unlink()
    place.offload()
    assert place.noted() == read_identity(store)
    assert place.entries() == 6


@pytest.mark.slow
def test_damaged_identity_stops_no_stream(place: Place) -> None:
    place.offload()
    place.object.write_bytes(b"{}")
    place.offload()
    assert place.entries() == 6


@pytest.mark.slow
def test_other_identity_is_named_by_doctor_until_it_is_accepted(
    place: Place, capsys: pytest.CaptureFixture[str]
) -> None:
    place.offload()
    noted = place.noted()
    assert place.run("doctor") == 0
    assert "store identity" not in capsys.readouterr().out
    place.object.unlink()
    other = identify(open_store(place.url))
    place.offload()  # the manifest is the stream's, so nothing is refused
    assert place.noted() == noted
    assert place.run("doctor") == 0
    assert f"store identity: its identity is {other}, and {noted} is known to the hot tier" in " ".join(
        capsys.readouterr().out.split()
    )
    assert place.run("stream", "set-source", STREAM, "--apply") == 0
    assert place.noted() == other
    capsys.readouterr()
    assert place.run("doctor") == 0
    assert "store identity" not in capsys.readouterr().out
    place.offload()
    assert place.entries() == 9


def test_identity_is_neither_an_orphan_nor_foreign(place: Place, capsys: pytest.CaptureFixture[str]) -> None:
    place.offload()
    assert main(["cleanup", "orphans", "--store", place.url, "--json"]) == 0
    assert main(["import", "--store", place.url, "--dry-run", "--json"]) == 0
    orphans, adopted = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert orphans["needed"]["store"]["objects"] == 1
    assert adopted["foreign"] == 0
