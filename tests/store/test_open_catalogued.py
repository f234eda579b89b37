"""``catalogue:///directory``: notes in a directory, foreign objects that are only read."""

from __future__ import annotations

from pathlib import Path

import pytest

from offloader.errors import BucketMissingError, CorruptError, InvalidCallError, NotFoundError, UnsupportedError
from offloader.manifest.protection import global_hold, lift_global_hold, set_global_hold
from offloader.store.base import CREATE, ObjectStore, StoreOptions
from offloader.store.open import ObjectsPlace, create_catalogue, open_store


@pytest.fixture
def objects(tmp_path: Path) -> ObjectStore:
    store = open_store(f"file://{tmp_path}/bucket")
    store.put("somebodys", b"data", metadata={"role": "data"})
    return store


@pytest.fixture
def url(tmp_path: Path, objects: ObjectStore) -> str:
    url = f"catalogue://{tmp_path}/notes"
    create_catalogue(url, ObjectsPlace(objects.url), StoreOptions())
    return url


def test_keys_below_a_folder_are_notes_and_others_objects(url: str, objects: ObjectStore) -> None:
    store = open_store(url)
    store.put("_catalog/orders", b"note", mode=CREATE)

    assert store.get("somebodys")[0] == b"data"
    assert store.head("somebodys").metadata == {"role": "data"}
    assert [info.key for info in store.list("").objects] == ["somebodys"]
    assert [info.key for info in store.list("_catalog/").objects] == ["_catalog/orders"]
    assert [info.key for info in objects.list("").objects] == ["somebodys"]
    assert store.driver_metadata == objects.driver_metadata
    assert store.url == url


def test_hold_on_everything_is_a_note(url: str, objects: ObjectStore) -> None:
    store = open_store(url)
    refused = []
    try:
        set_global_hold(store, by="me", reason="wait", now_ms=1)
    except UnsupportedError as error:
        refused.append(error)
    assert refused == []
    assert global_hold(objects) is None
    found = global_hold(open_store(url))
    assert found is not None
    assert found.reason == "wait"
    lift_global_hold(store)
    assert global_hold(store) is None


def test_hold_in_the_bucket_is_of_its_owner(url: str, objects: ObjectStore) -> None:
    set_global_hold(objects, by="its owner", reason="theirs", now_ms=1)
    assert global_hold(open_store(url)) is None
    lift_global_hold(open_store(url))
    assert global_hold(objects) is not None


def test_the_objects_are_never_written(url: str, objects: ObjectStore) -> None:
    store = open_store(url)
    for write in (
        lambda: store.put("somebodys", b"x"),
        lambda: store.put("new", b"x", mode=CREATE),
        lambda: store.delete(["somebodys", "_catalog/orders"]),
        lambda: store.begin_upload("new"),
    ):
        with pytest.raises(UnsupportedError, match="belong to another program"):
            write()
    assert objects.get("somebodys")[0] == b"data"


def test_catalogue_refuses_entries_of_its_own(url: str) -> None:
    store = open_store(url)
    for write in (lambda: store.put("orders/uuid", b"x"), lambda: store.begin_upload("orders/uuid")):
        with pytest.raises(UnsupportedError, match="a catalogue can't hold entries"):
            write()
    for key in ("orders/manifest/i/1.json", "orders/leases/l", "orders/retention/set", "_catalog/orders"):
        store.put(key, b"note")


def test_opened_for_reading_the_notes_are_not_written_either(url: str) -> None:
    with pytest.raises(UnsupportedError, match="opened for reading"):
        open_store(url, read_only=True).put("_catalog/orders", b"x")


def test_catalogue_may_be_recreated_only_for_the_same_objects(url: str, objects: ObjectStore, tmp_path: Path) -> None:
    create_catalogue(url, ObjectsPlace(objects.url), StoreOptions())
    with pytest.raises(InvalidCallError, match=r"is a catalogue of file://.*/bucket, not of s3://other at http://x"):
        create_catalogue(url, ObjectsPlace("s3://other", "http://x"), StoreOptions())
    with pytest.raises(InvalidCallError, match="is a catalogue; a catalogue can't describe another one"):
        create_catalogue(f"catalogue://{tmp_path}/more", ObjectsPlace(url), StoreOptions())


def test_invalid_catalogue_is_an_error(url: str, tmp_path: Path) -> None:
    with pytest.raises(BucketMissingError):
        open_store(f"catalogue://{tmp_path}/nothing", read_only=True)
    (tmp_path / "empty").mkdir()
    with pytest.raises(NotFoundError, match="is not a catalogue"):
        open_store(f"catalogue://{tmp_path}/empty", read_only=True)
    with pytest.raises(InvalidCallError, match="three slashes"):
        open_store("catalogue://notes")
    (tmp_path / "notes" / "_objects" / "place.json").write_bytes(b"{}")
    with pytest.raises(CorruptError, match="is damaged"):
        open_store(url, read_only=True)
