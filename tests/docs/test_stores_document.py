"""docs/reference/stores.md: the permissions it names are sufficient and each is needed."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import boto3
import pytest

import offloader
from offloader.errors import AccessDenied
from offloader.settings import Settings
from offloader.store.base import CREATE, IfMatch, ObjectStore
from tests.conftest import S3Place, Servers

TEXT = (Path(__file__).resolve().parents[2] / "docs" / "reference" / "stores.md").read_text(encoding="utf-8")
POLICY = TEXT.partition("```json\n")[2].partition("```")[0]
STREAM = "public/default/persistent/permitted"
PART_BYTES = 5 * 1024 * 1024

#: What each permission is for.
VERBS: dict[str, Callable[[ObjectStore, str], Any]] = {
    "s3:ListBucket": lambda store, _: store.list(""),
    "s3:ListBucketMultipartUploads": lambda store, _: store.list_uploads("begun"),
    "s3:GetObject": lambda store, _: store.get("there"),
    "s3:PutObject": lambda store, _: store.put("made", b"bytes", mode=CREATE),
    "s3:DeleteObject": lambda store, _: _all_deleted(store),
    "s3:AbortMultipartUpload": lambda store, upload: store.abort_upload("begun", upload),
    "s3:ListMultipartUploadParts": lambda store, upload: store.list_parts("begun", upload),
}


def _all_deleted(store: ObjectStore) -> None:
    for failure in store.delete(["there"]):
        raise AccessDenied(failure.reason)


@pytest.fixture
def place(servers: Servers, exercises: Any) -> S3Place:
    exercises("minio")
    return servers.place("minio")


def permitted(place: S3Place, without: str = "") -> ObjectStore:
    """The store with credentials that have what the document says, and nothing else."""
    policy = json.loads(POLICY.replace("BUCKET", place.bucket).replace("ROOT", place.root))
    for statement in policy["Statement"]:
        statement["Action"] = [action for action in statement["Action"] if action != without]
    sts = boto3.client(
        "sts",
        endpoint_url=place.endpoint.url,
        region_name="us-east-1",
        aws_access_key_id=place.endpoint.access_key,
        aws_secret_access_key=place.endpoint.secret_key,
    )
    given = sts.assume_role(RoleArn="arn:aws:iam::0:role/any", RoleSessionName="test", Policy=json.dumps(policy))
    sts.close()
    keys = given["Credentials"]
    return place.open(
        access_key=keys["AccessKeyId"], secret_key=keys["SecretAccessKey"], session_token=keys["SessionToken"]
    )


def test_documented_permissions_are_sufficient(place: S3Place, tmp_path: Path) -> None:
    settings = Settings.of({"offload": {"max_size_per_offload_segment_mbytes": 8.0, "part_bytes": PART_BYTES}})
    store = permitted(place)
    ledgers = f"sqlite:///{tmp_path}/ledgers.db"
    payloads = [bytes([number]) * 1_000_000 for number in range(12)]
    with offloader.open_managed_ledger(STREAM, ledgers=ledgers, store=store, settings=settings) as topic:
        topic.append_batch(payloads)
        topic.offload()
    with offloader.open_reader(store, STREAM) as reader:
        assert [entry.payload for batch in reader.scan() for entry in batch.entries()] == payloads
        assert any(segment.summary and segment.summary.data_bytes > PART_BYTES for segment in reader.segments())
    changed = store.put("changing", b"one", mode=CREATE)
    store.put("changing", b"two", mode=IfMatch(changed.etag))
    assert store.delete(["changing"]) == []
    store.close()


@pytest.mark.parametrize("action", VERBS)
def test_each_permission_is_needed(place: S3Place, action: str) -> None:
    whole = permitted(place)
    whole.put("there", b"bytes")
    upload = whole.begin_upload("begun")
    whole.upload_part("begun", upload, 1, b"a part")
    less = permitted(place, without=action)
    with pytest.raises(AccessDenied, match=r"(?i)denied"):
        VERBS[action](less, upload)
    VERBS[action](whole, upload)
    less.close()
    whole.close()


def test_the_document_names_no_other_permission() -> None:
    assert {action for each in json.loads(POLICY)["Statement"] for action in each["Action"]} == set(VERBS)
