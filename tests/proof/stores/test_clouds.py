"""The store suite over other clouds' stand-ins; the raw hooks speak to them without the store under test."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import urllib3
from azure.core.exceptions import ResourceNotFoundError
from azure.storage.blob import BlobServiceClient

from formats.checksum import crc32c
from offloader.errors import CorruptError, InvalidCallError, OffloaderError, OutcomeUnknownError, StoreUnavailableError
from offloader.settings import Duration, StoreSettings
from offloader.store.base import OVERWRITE, DeleteFailure, ObjectStore, StoreOptions
from offloader.store.clouds.base import UPLOADS_PREFIX, CloudStore
from offloader.store.open import open_raw, open_store
from offloader.store.probe import probe_conditional_puts
from offloader.testing.store_suite import StoreSuite, all_keys
from services.binaries import BINARIES
from tests.support.server_fixtures import S3Place
from tests.support.waiting import PATIENCE_S
from tests.test_managed_ledger_end_to_end import run_whole_path

pytestmark = pytest.mark.process

DOCUMENT = Path(__file__).resolve().parents[3] / "docs" / "reference" / "stores.md"
_FEW_RETRIES = StoreSettings(retries_max=2, retry_delay_first=Duration(0.01))


class TestClouds(StoreSuite):
    many_keys = 300

    @pytest.fixture
    def store(self, cloud_place: S3Place) -> Iterator[ObjectStore]:
        self._place = cloud_place
        self.uploads_side_by_side = cloud_place.server != "azurite"
        # The stand-in for Google is asked without credentials.
        self.signs_urls = cloud_place.server == "azurite"
        # The stand-in doesn't know the condition of a delete; the service does.
        self.delete_conditions = "ignored" if cloud_place.server == "fake-gcs" else "kept"
        store = cloud_place.open(settings=_FEW_RETRIES)
        yield store
        store.close()

    def _blob(self, key: str) -> Any:
        client = BlobServiceClient.from_connection_string(self._place.endpoint.connection)
        return client.get_blob_client(self._place.bucket, f"{self._place.root}/{key}")

    def raw_put(self, store: ObjectStore, key: str, body: bytes) -> None:
        if self._place.server == "azurite":
            self._blob(key).upload_blob(body, overwrite=True)
            return
        place = f"{self._place.endpoint.url}/upload/storage/v1/b/{self._place.bucket}/o"
        name = quote(f"{self._place.root}/{key}", safe="")
        answer = urllib3.request("POST", f"{place}?uploadType=media&name={name}", body=body, timeout=PATIENCE_S)
        assert answer.status == 200

    def raw_get(self, store: ObjectStore, key: str) -> bytes | None:
        if self._place.server == "azurite":
            try:
                return bytes(self._blob(key).download_blob().readall())
            except ResourceNotFoundError:
                return None
        path = quote(f"{self._place.bucket}/{self._place.root}/{key}")
        answer = urllib3.request("GET", f"{self._place.endpoint.url}/{path}", timeout=PATIENCE_S)
        assert answer.status in (200, 404)
        return answer.data if answer.status == 200 else None


def test_more_parts_than_one_request_joins_become_the_object(cloud_place: S3Place) -> None:
    with_parts = cloud_place.open(settings=_FEW_RETRIES)
    upload_id = with_parts.begin_upload("many", metadata={"kind": "data"})
    bodies = [f"part {number} ".encode() * 3 for number in range(1, 71)]
    parts = [with_parts.upload_part("many", upload_id, number, body) for number, body in enumerate(bodies, 1)]
    with_parts.complete_upload("many", upload_id, parts)
    assert with_parts.get("many")[0] == b"".join(bodies)
    assert with_parts.head("many").metadata == {"kind": "data"}
    assert all_keys(with_parts) == ["many"]
    assert list(with_parts.list_uploads("")) == []
    with_parts.close()


def test_another_process_takes_part_in_an_upload_and_ends_it(cloud_place: S3Place) -> None:
    first, second = cloud_place.open(), cloud_place.open()
    upload_id = first.begin_upload("k")
    part = second.upload_part("k", upload_id, 1, b"one")
    assert [each.upload_id for each in second.list_uploads("")] == [upload_id]
    second.abort_upload("k", upload_id)
    assert list(first.list_uploads("")) == []
    assert all_keys(first) == []
    with pytest.raises(OutcomeUnknownError, match="no upload"):
        first.complete_upload("k", upload_id, [part])


class Untidy(CloudStore):
    """A service that joins, and then doesn't delete."""

    def _delete(self, keys: Sequence[str]) -> Sequence[DeleteFailure]:
        raise StoreUnavailableError("no deletes now")


def test_failed_tidying_after_a_completion_is_no_failure(cloud_place: S3Place, monkeypatch: pytest.MonkeyPatch) -> None:
    raw = open_raw(cloud_place.url, StoreOptions(**cloud_place.options))
    upload_id = raw.begin_upload("k")
    part = raw.upload_part("k", upload_id, 1, b"one")
    monkeypatch.setattr(raw, "_delete", Untidy._delete.__get__(raw))
    assert raw.complete_upload("k", upload_id, [part]).size_bytes == 3
    monkeypatch.undo()
    assert [each.upload_id for each in raw.list_uploads("k")] == [upload_id]
    raw.abort_upload("k", upload_id)
    assert list(raw.list_uploads("k")) == []
    assert raw.get("k")[0] == b"one"


@pytest.mark.parametrize("body", [b"", b"[" * 5000, b"[]", b'{"key": "k", "metadata": 7}'])
def test_foreign_upload_mark_is_an_error(cloud_place: S3Place, body: bytes) -> None:
    raw: Any = open_raw(cloud_place.url, StoreOptions(**cloud_place.options))
    upload_id = raw.begin_upload("k")
    [mark] = raw._marks()
    raw._put(mark.key, body, OVERWRITE, {}, crc32c(body))
    calls: list[Callable[[], object]] = [lambda: raw.list_uploads(""), lambda: raw.list_parts("k", upload_id)]
    for call in calls:
        with pytest.raises(CorruptError, match="isn't a valid upload marker"):
            call()


def test_marks_of_uploads_are_no_objects(cloud_place: S3Place) -> None:
    store = cloud_place.open()
    store.begin_upload("k")
    store.put("a", b"1")
    store.put("z", b"2")
    assert all_keys(store, limit=1) == ["a", "z"]
    assert all_keys(store, UPLOADS_PREFIX) == []


def test_missing_bucket_and_wrong_urls_are_errors(cloud_place: S3Place) -> None:
    absent = open_store(cloud_place.url.replace(cloud_place.bucket, "absent-bucket"), **cloud_place.options)
    with pytest.raises(OffloaderError, match="absent-bucket"):
        absent.put("k", b"x")
    scheme = cloud_place.url.partition("://")[0]
    with pytest.raises(InvalidCallError, match=r"no (bucket|container)"):
        open_store(f"{scheme}:///root", **cloud_place.options)
    nobody = {**cloud_place.options, "endpoint_url": "http://127.0.0.1:9/devstoreaccount1"}
    gone = open_store(cloud_place.url, **nobody, settings=StoreSettings(retries_max=0, connect_timeout=Duration(1)))
    with pytest.raises(StoreUnavailableError):
        gone.get("k")


def test_documented_conditional_puts_match_the_probe(cloud_place: S3Place) -> None:
    rows = [
        [cell.strip() for cell in line.split("|")[1:-1]] for line in DOCUMENT.read_text().splitlines() if "|" in line
    ]
    found = {row[0]: row for row in rows if len(row) == 4}
    version, conditions = found[cloud_place.server][1:3]
    assert version == BINARIES[cloud_place.server].version
    assert conditions == ("honoured" if probe_conditional_puts(cloud_place.open()).conditional else "refused")
    for name in ("MinIO", "versitygw"):
        assert found[name][1] == BINARIES[name.lower()].version


def test_whole_path_over_other_clouds(cloud_place: S3Place, tmp_path: Path) -> None:
    run_whole_path(cloud_place.open, tmp_path / "ledgers.db")
