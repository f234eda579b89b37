"""docs/reference/stores.md: its permissions are sufficient, each is needed; docs/how-to/backups.md: its copies."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import boto3
import pytest

from offloader.cli.main import main
from offloader.errors import AccessDeniedError
from offloader.managed_ledger import open_managed_ledger
from offloader.manifest.boundary import listed
from offloader.read.partitions import open_reader
from offloader.settings import Settings
from offloader.store.base import CREATE, IfMatch, ObjectStore
from offloader.store.open import open_store
from services.servers import make_bucket
from tests.support.pages import fences
from tests.support.server_fixtures import S3Place, Servers
from tests.support.streams import StreamWriter, batch_of

DOCS = Path(__file__).resolve().parents[3] / "docs"
((_, POLICY),) = [
    each for each in fences((DOCS / "reference" / "stores.md").read_text(encoding="utf-8")) if each[0] == "json"
]
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
        raise AccessDeniedError(failure.reason)


@pytest.fixture
def place(servers: Servers) -> S3Place:
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
    settings = Settings.of({"offload": {"segment_size_max": "8.0MiB", "part_size": PART_BYTES}})
    store = permitted(place)
    ledgers = f"sqlite:///{tmp_path}/ledgers.db"
    payloads = [bytes([number]) * 1_000_000 for number in range(12)]
    with open_managed_ledger(STREAM, ledgers=ledgers, store=store, settings=settings) as topic:
        topic.append_batch(payloads)
        topic.offload()
    with open_reader(store, STREAM) as reader:
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
    with pytest.raises(AccessDeniedError, match=r"(?i)denied"):
        VERBS[action](less, upload)
    VERBS[action](whole, upload)
    less.close()
    whole.close()


def test_policy_has_no_other_permission() -> None:
    assert {action for each in json.loads(POLICY)["Statement"] for action in each["Action"]} == set(VERBS)


@pytest.mark.process
def test_restoring_commands_copy_a_bucket_and_bring_it_back_whole(
    s3_place: S3Place, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A bucket is copied, emptied and filled from the copy; then every byte is as the manifests say."""
    bucket, backup = f"restore-{s3_place.root[-12:]}", f"backup-{s3_place.root[-12:]}"
    for name in (bucket, backup):
        make_bucket(s3_place.endpoint, name)
    url = f"s3://{bucket}/production"
    store, copy = (open_store(each, **s3_place.options) for each in (url, f"s3://{backup}/x"))
    streams = ("orders", "shop/eu/persistent/clicks")
    for name in streams:
        StreamWriter(store, name).add([batch_of(1, 0, 300)], closes=[1])
    before = keys_below(store)
    remote = {
        "TYPE": "s3",
        "PROVIDER": "Other",
        "ENDPOINT": s3_place.endpoint.url,
        "ACCESS_KEY_ID": s3_place.endpoint.access_key,
        "SECRET_ACCESS_KEY": s3_place.endpoint.secret_key,
    }
    environment = {**os.environ, **{f"RCLONE_CONFIG_S3_{name}": value for name, value in remote.items()}}

    def rclone(line: str) -> None:
        words = shlex.split(line.replace("BUCKET/ROOT", f"{bucket}/production").replace("BACKUP/ROOT", f"{backup}/x"))
        command = [str(Path(sys.executable).parent / words[0]), *words[1:], "--config", str(tmp_path / "none.conf")]
        subprocess.run(command, env=environment, check=True, timeout=280)

    page = (DOCS / "how-to" / "backups.md").read_text(encoding="utf-8")
    manifests, segments, back = [line for _, body in fences(page) for line in body.splitlines() if "rclone" in line]
    rclone(manifests)
    assert keys_below(copy) == {key for key in before if key.startswith("_") or "/manifest/" in key}
    rclone(segments)
    store.delete(sorted(before))
    assert keys_below(store) == set()
    rclone(back)

    assert keys_below(store) == before
    for name, value in s3_place.endpoint.environment.items():
        monkeypatch.setenv(name, value)
    for name in streams:
        assert main(["verify", name, "--deep", "--store", url, "--endpoint-url", s3_place.endpoint.url]) == 0
        assert "300 entries" in capsys.readouterr().out


def keys_below(store: ObjectStore) -> set[str]:
    return {info.key for info in listed(store, "")}
