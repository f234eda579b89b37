"""Storage class and encryption of new objects on S3."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from offloader.errors import InvalidCallError, UnsupportedError
from offloader.settings import Settings, StoreSettings
from offloader.store.base import CREATE, ObjectStore, StoreOptions
from offloader.store.open import open_store
from offloader.store.s3 import CLASS_BYTES_MIN, keeping_of
from offloader.store.s3_client import open_client
from offloader.store.s3_responses import meaning_of
from tests.support.server_fixtures import S3Place, Servers

PART_BYTES = 5 * 1024 * 1024


@pytest.fixture
def moto(servers: Servers) -> S3Place:
    return servers.place("moto")


def opened(place: S3Place, **settings: Any) -> ObjectStore:
    return place.open(settings=StoreSettings(**settings))


def described(place: S3Place, key: str) -> dict[str, Any]:
    """What the server says of an object, asked past the store."""
    client = open_client(StoreOptions(**place.options))
    try:
        return dict(client.head_object(Bucket=place.bucket, Key=f"{place.root}/{key}"))
    finally:
        client.close()


def test_large_objects_get_the_class_and_small_ones_stay(moto: S3Place) -> None:
    store = opened(moto, storage_class="STANDARD_IA")
    store.put("large", bytes(CLASS_BYTES_MIN))
    store.put("small", bytes(CLASS_BYTES_MIN - 1), mode=CREATE)
    upload = store.begin_upload("parts")
    store.complete_upload("parts", upload, [store.upload_part("parts", upload, 1, bytes(PART_BYTES))])
    assert described(moto, "large")["StorageClass"] == "STANDARD_IA"
    assert described(moto, "parts")["StorageClass"] == "STANDARD_IA"
    assert "StorageClass" not in described(moto, "small")
    assert store.get("large")[0] == bytes(CLASS_BYTES_MIN)
    store.close()


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"encryption": "AES256"}, ("AES256", None)),
        ({"encryption": "aws:kms", "kms_key": "alias/cold"}, ("aws:kms", "alias/cold")),
    ],
)
def test_every_object_is_encrypted_as_asked(
    moto: S3Place, settings: dict[str, str], expected: tuple[str, str | None]
) -> None:
    store = opened(moto, **settings)
    store.put("small", b"a few bytes")
    upload = store.begin_upload("parts")
    store.complete_upload("parts", upload, [store.upload_part("parts", upload, 1, bytes(PART_BYTES))])
    for key in ("small", "parts"):
        found = described(moto, key)
        assert (found["ServerSideEncryption"], found.get("SSEKMSKeyId")) == expected
    store.close()


def test_no_storage_class_or_encryption_is_requested_by_default() -> None:
    assert keeping_of(StoreSettings())(None) == keeping_of(StoreSettings())(1) == {}


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"storage_class": "GLACIER"}, "can't be read until they are restored"),
        ({"storage_class": "DEEP_ARCHIVE"}, "can't be read until they are restored"),
        ({"storage_class": "standard-ia"}, "isn't the name of a storage class"),
        ({"kms_key": "alias/cold"}, "store.encryption isn't aws:kms"),
        ({"kms_key": "alias/cold", "encryption": "AES256"}, "store.encryption isn't aws:kms"),
    ],
)
def test_invalid_storage_settings_are_refused_when_opening(settings: dict[str, Any], said: str) -> None:
    with pytest.raises(InvalidCallError, match=said) as caught:
        open_store("s3://bucket/root", settings=StoreSettings(**settings))
    assert caught.value.hint


@pytest.mark.parametrize("name", ["storage_class", "encryption", "kms_key"])
def test_other_stores_refuse_s3_only_settings(tmp_path: Path, name: str) -> None:
    value = "aws:kms" if name == "encryption" else "STANDARD_IA"
    settings = Settings.of({"store": {name: value}}).store
    with pytest.raises(InvalidCallError, match=rf"store\.{name} is supported for s3://.* only, not for file://"):
        open_store(f"file://{tmp_path}/store", settings=settings)
    assert not (tmp_path / "store").exists()
    open_store("memory://read-with-the-same-settings", settings=settings, read_only=True).close()


def test_unsupported_storage_class_is_an_error(servers: Servers) -> None:
    store = opened(servers.place("minio"), storage_class="STANDARD_IA")
    with pytest.raises(InvalidCallError, match="InvalidStorageClass") as caught:
        store.put("large", bytes(CLASS_BYTES_MIN))
    assert "store.storage_class" in caught.value.hint
    store.close()


def test_archived_object_error_has_a_hint_to_restore_it() -> None:
    kind, hint = meaning_of("InvalidObjectState", 403, writes=False)
    assert kind is UnsupportedError
    assert "restore it, then repeat" in hint
