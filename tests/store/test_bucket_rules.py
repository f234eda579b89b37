"""What lifecycle rules, versioning and object lock of a bucket do to the data, as ``doctor`` reports it."""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from typing import Any

import boto3
import pytest

from offloader.cli.main import main
from offloader.doctor import CheckResult, Outcome, check_bucket
from offloader.errors import AccessDeniedError, ErrorKind, OffloaderError, StoreUnavailableError, UnsupportedError
from offloader.store.bucket_rules import (
    PERMISSIONS,
    BucketFinding,
    lifecycle_findings,
    lock_findings,
    versioning_findings,
)
from offloader.store.open import open_store
from offloader.store.wrappers import bucket_of
from tests.support.server_fixtures import S3Place, Servers

ROOT = "pulsar/"


def rule(action: Mapping[str, Any], **more: Any) -> dict[str, Any]:
    return {"ID": "r1", "Status": "Enabled", "Filter": {"Prefix": ""}, **action, **more}


EXPIRE = {"Expiration": {"Days": 30}}
ABORT = {"AbortIncompleteMultipartUpload": {"DaysAfterInitiation": 7}}
NONCURRENT = {"NoncurrentVersionExpiration": {"NoncurrentDays": 14}}


def lifecycle(*rules: Mapping[str, Any], root: str = ROOT) -> dict[str, BucketFinding]:
    return {each.check: each for each in lifecycle_findings({"Rules": list(rules)}, root)}


def test_rule_that_expires_only_scratch_objects_of_probes_is_no_problem() -> None:
    """A writer that may not delete leaves them."""
    found = lifecycle(rule(EXPIRE, Filter={"Prefix": "pulsar/_probe/"}))
    assert not any(each.is_problem for each in found.values())
    assert lifecycle(rule(EXPIRE, Filter={"Prefix": "pulsar/_"}))["bucket lifecycle"].is_problem


@pytest.mark.parametrize(
    "harmful",
    [
        rule(EXPIRE),
        rule({"Expiration": {"Date": "2031-01-01T00:00:00Z"}}),
        rule(EXPIRE, Filter={"Prefix": "pul"}),
        rule(EXPIRE, Filter={"Prefix": "pulsar/"}),
        rule(EXPIRE, Filter={"Prefix": "pulsar/public/"}),
        rule(EXPIRE, Filter={"ObjectSizeGreaterThan": 500}),
        rule(EXPIRE, Filter={"And": {"Prefix": "pulsar/", "ObjectSizeLessThan": 500}}),
        {"Status": "Enabled", "Prefix": "", **EXPIRE},
        rule({"Transitions": [{"Days": 5, "StorageClass": "GLACIER"}]}),
        rule(
            {"Transitions": [{"Days": 5, "StorageClass": "STANDARD_IA"}, {"Days": 9, "StorageClass": "DEEP_ARCHIVE"}]}
        ),
    ],
)
def test_rule_that_deletes_or_archives_objects_of_the_store_is_a_problem(harmful: dict[str, Any]) -> None:
    found = lifecycle(harmful)["bucket lifecycle"]
    assert found.is_problem
    assert found.hint
    assert found.what.startswith("rule r1 " if "ID" in harmful else "rule 1 ")


@pytest.mark.parametrize(
    "harmless",
    [
        rule(EXPIRE, Status="Disabled"),
        rule(EXPIRE, Filter={"Prefix": "logs/"}),
        rule(EXPIRE, Filter={"Prefix": "pulsar-old/"}),
        rule(EXPIRE, Filter={"Tag": {"Key": "temporary", "Value": "yes"}}),
        rule(EXPIRE, Filter={"And": {"Prefix": "", "Tags": [{"Key": "temporary", "Value": "yes"}]}}),
        rule({"Expiration": {"ExpiredObjectDeleteMarker": True}}),
        rule({"Transitions": [{"Days": 5, "StorageClass": "GLACIER_IR"}]}),
        rule(ABORT),
        rule(NONCURRENT),
    ],
)
def test_rule_that_keeps_objects_of_the_store_readable_is_no_problem(harmless: dict[str, Any]) -> None:
    found = lifecycle(harmless)["bucket lifecycle"]
    assert (found.is_problem, found.hint) == (False, "")


def test_missing_rule_for_unfinished_uploads_is_wanted_unless_one_covers_the_whole_store() -> None:
    check = "bucket unfinished uploads"
    assert "AbortIncompleteMultipartUpload after 7 days" in lifecycle()[check].hint
    assert lifecycle(rule(ABORT, Filter={"Prefix": "pulsar/public/"}))[check].hint
    assert (
        lifecycle(rule(ABORT, Filter={"Prefix": "pulsar/"}))[check].what
        == "a rule aborts unfinished uploads after 7 days"
    )


def test_versions_without_a_rule_for_old_ones_are_paid_for_without_end() -> None:
    def found(status: str | None, *rules: Mapping[str, Any]) -> BucketFinding:
        answer = {} if status is None else {"Status": status}
        (one,) = versioning_findings(answer, {"Rules": list(rules)}, ROOT)
        return one

    assert found(None).hint == ""
    assert "kept, and billed, forever" in found("Enabled").what
    assert "NoncurrentVersionExpiration" in found("Enabled").hint
    assert "suspended" in found("Suspended").what
    assert found("Enabled", rule(NONCURRENT, Filter={"Prefix": "pulsar/public/"})).hint, "not for the whole store"
    ended = found("Enabled", rule(NONCURRENT))
    assert (ended.hint, "for 14 days" in ended.what) == ("", True)


def test_default_retention_of_an_object_lock_is_named_with_its_days() -> None:
    def found(retention: Mapping[str, Any] | None) -> BucketFinding:
        rule = {} if retention is None else {"Rule": {"DefaultRetention": retention}}
        (one,) = lock_findings({"ObjectLockConfiguration": {"ObjectLockEnabled": "Enabled", **rule}})
        return one

    assert "locked for 30 days (COMPLIANCE)" in found({"Mode": "COMPLIANCE", "Days": 30}).what
    assert "locked for 730 days (GOVERNANCE)" in found({"Mode": "GOVERNANCE", "Years": 2}).what
    assert found({"Mode": "GOVERNANCE", "Years": 2}).hint
    assert found(None).hint == ""
    assert [each.hint for each in lock_findings(None)] == [""]


class Refusing:
    """A bucket whose configuration can't be read."""

    root = ROOT

    def __init__(self, error: OffloaderError) -> None:
        self._error = error

    def bucket_configuration(self, what: str) -> Mapping[str, Any] | None:
        raise self._error


def test_denied_permission_is_reported_by_its_name_and_is_no_problem() -> None:
    found = list(check_bucket(Refusing(AccessDeniedError("s3://b/pulsar: failed: AccessDenied"))))
    assert [each.outcome for each in found] == [Outcome.WARNING] * 3
    assert [each.hint.partition(",")[0] for each in found] == [f"allow {name}" for name in PERMISSIONS.values()]


def test_configuration_that_a_server_does_not_offer_is_no_warning() -> None:
    found = list(check_bucket(Refusing(UnsupportedError("501"))))
    assert {(each.outcome, each.what) for each in found} == {(Outcome.OK, "the server doesn't offer it")}
    assert {each.outcome for each in check_bucket(Refusing(StoreUnavailableError("timeout")))} == {Outcome.WARNING}


def test_only_stores_in_a_bucket_of_s3_are_asked() -> None:
    assert bucket_of(open_store("memory://no-bucket")) is None


# --- real servers ----------------------------------------------------------------------------------------------------


class Made:
    """A new bucket of a server, its client, and what ``doctor`` says of a store in it."""

    def __init__(self, place: S3Place, capsys: pytest.CaptureFixture[str], **options: Any) -> None:
        self.name = f"rules-{uuid.uuid4().hex[:12]}"
        self._place, self._capsys = place, capsys
        endpoint = place.endpoint
        self.client = boto3.client(
            "s3",
            endpoint_url=endpoint.url,
            aws_access_key_id=endpoint.access_key,
            aws_secret_access_key=endpoint.secret_key,
            region_name="us-east-1",
        )
        self.client.create_bucket(Bucket=self.name, **options)

    def rules(self, *rules: Mapping[str, Any]) -> None:
        self.client.put_bucket_lifecycle_configuration(Bucket=self.name, LifecycleConfiguration={"Rules": list(rules)})

    def found(self) -> dict[str, CheckResult]:
        store = bucket_of(open_store(f"s3://{self.name}/pulsar", **self._place.options))
        assert store is not None
        return {each.check: each for each in check_bucket(store)}

    def doctor(self, monkeypatch: pytest.MonkeyPatch) -> tuple[int, dict[str, Any]]:
        endpoint = self._place.endpoint
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", endpoint.access_key)
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", endpoint.secret_key)
        code = main(["doctor", "--json", "--store", f"s3://{self.name}/pulsar", "--endpoint-url", endpoint.url])
        rows = map(json.loads, self._capsys.readouterr().out.splitlines())
        return code, {row["check"]: row for row in rows}


@pytest.fixture
def minio(servers: Servers) -> S3Place:
    return servers.place("minio")


@pytest.mark.slow
def test_doctor_names_a_rule_of_a_real_bucket_that_would_delete_segments(
    minio: S3Place, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = Made(minio, capsys)
    code, before = bucket.doctor(monkeypatch)
    assert (code, before["bucket lifecycle"]["outcome"]) == (0, "ok")
    assert before["bucket unfinished uploads"]["outcome"] == "warning"
    assert (
        before["bucket versions"]["what"] == "versioning is off: deletions free space immediately and can't be undone"
    )
    assert before["bucket object lock"]["outcome"] == "ok"
    bucket.rules({**rule(EXPIRE), "ID": "logs", "Filter": {"Prefix": "logs/"}}, {**rule(EXPIRE), "ID": "all"})
    code, after = bucket.doctor(monkeypatch)
    assert code == ErrorKind.INVALID_REQUEST.value
    assert after["bucket lifecycle"]["outcome"] == "problem"
    assert "rule all deletes objects after 30 days" in after["bucket lifecycle"]["what"]


@pytest.mark.slow
def test_doctor_reads_versions_and_object_lock_of_a_real_bucket(
    minio: S3Place, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = Made(minio, capsys, ObjectLockEnabledForBucket=True)
    found = bucket.found()
    assert found["bucket versions"].outcome is Outcome.WARNING
    assert found["bucket object lock"].outcome is Outcome.OK
    bucket.rules(rule(NONCURRENT))
    retention = {"ObjectLockEnabled": "Enabled", "Rule": {"DefaultRetention": {"Mode": "GOVERNANCE", "Days": 3}}}
    bucket.client.put_object_lock_configuration(Bucket=bucket.name, ObjectLockConfiguration=retention)
    code, rows = bucket.doctor(monkeypatch)
    assert code == 0, "the store works: a deletion puts a marker there"
    assert (rows["bucket versions"]["outcome"], "for 14 days" in rows["bucket versions"]["what"]) == ("ok", True)
    assert "locked for 3 days (GOVERNANCE)" in rows["bucket object lock"]["what"]
    assert rows["store delete"]["outcome"] == "ok"


@pytest.mark.slow
def test_each_server_answers_or_is_said_not_to_offer_it(s3_place: S3Place, capsys: pytest.CaptureFixture[str]) -> None:
    found = Made(s3_place, capsys).found()
    assert not [each for each in found.values() if each.outcome is Outcome.PROBLEM]
    assert not [each for each in found.values() if "can't be read" in each.what], found
