"""The store suite on every store. The raw hooks bypass the store under test, each in its own way."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Literal
from urllib.parse import unquote, urlsplit

import boto3
import pytest

from offloader.settings import Duration, StoreSettings
from offloader.store.base import ObjectStore
from offloader.store.memory import _buckets
from offloader.store.open import open_store
from offloader.testing.store_suite import StoreSuite
from services.servers import Endpoint

_FEW_RETRIES = StoreSettings(retries_max=2, retry_delay_first=Duration(0.01))


class TestMemory(StoreSuite):
    @pytest.fixture
    def store(self) -> ObjectStore:
        return open_store(f"memory://{uuid.uuid4().hex}")

    def raw_put(self, store: ObjectStore, key: str, body: bytes) -> None:
        other = open_store(store.url)
        other.put(key, body)

    def raw_get(self, store: ObjectStore, key: str) -> bytes | None:
        found = _buckets[urlsplit(store.url).netloc].objects.get(key)
        return None if found is None else found[1]


class TestLocal(StoreSuite):
    nested_keys = "refused"

    @pytest.fixture
    def store(self, tmp_path: Path) -> ObjectStore:
        return open_store(f"file://{tmp_path}/st%20ore")

    def raw_put(self, store: ObjectStore, key: str, body: bytes) -> None:
        path = Path(unquote(urlsplit(store.url).path)) / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body)

    def raw_get(self, store: ObjectStore, key: str) -> bytes | None:
        path = Path(unquote(urlsplit(store.url).path)) / key
        return path.read_bytes() if path.is_file() else None


@pytest.fixture(scope="module")
def raw_clients() -> Iterator[Callable[[Endpoint], Any]]:
    """A plain client of the SDK for each server, which knows nothing of the store under test."""
    clients: dict[Endpoint, Any] = {}

    def client(endpoint: Endpoint) -> Any:
        if endpoint not in clients:
            clients[endpoint] = boto3.client(
                "s3",
                endpoint_url=endpoint.url,
                region_name="us-east-1",
                aws_access_key_id=endpoint.access_key,
                aws_secret_access_key=endpoint.secret_key,
            )
        return clients[endpoint]

    yield client
    for one in clients.values():
        one.close()


class TestS3(StoreSuite):
    part_bytes_min = 5 * 1024 * 1024
    signs_urls = True

    @pytest.fixture
    def store(self, s3_place: Any, raw_clients: Any) -> Iterator[ObjectStore]:
        nested_keys: dict[str, Literal["kept", "refused", "unlisted"]] = {
            "versitygw": "refused",
            "minio": "unlisted",
            "moto": "kept",
        }
        self.nested_keys = nested_keys[s3_place.server]
        self.delete_conditions = "kept" if s3_place.server == "versitygw" else "ignored"
        self.uploads_by_prefix = s3_place.server != "minio"
        self.keeps_crc32c = s3_place.server != "moto"
        self.checks_signatures = s3_place.server != "moto"
        self.keeps_part_crc32c = s3_place.server != "moto"
        self._client = raw_clients(s3_place.endpoint)
        store = s3_place.open(settings=_FEW_RETRIES)
        yield store
        store.close()

    def _at(self, store: ObjectStore, key: str) -> dict[str, str]:
        bucket, _, root = store.url.removeprefix("s3://").partition("/")
        return {"Bucket": bucket, "Key": f"{root}/{key}"}

    def raw_put(self, store: ObjectStore, key: str, body: bytes) -> None:
        self._client.put_object(**self._at(store, key), Body=body)

    def raw_get(self, store: ObjectStore, key: str) -> bytes | None:
        try:
            answer = self._client.get_object(**self._at(store, key))
        except self._client.exceptions.NoSuchKey:
            return None
        body: bytes = answer["Body"].read()
        return body
