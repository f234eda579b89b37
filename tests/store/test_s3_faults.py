"""The S3 store over failing servers, on real sockets below the SDK."""

from __future__ import annotations

import json
import os
import re
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from offloader.errors import (
    AccessDeniedError,
    BucketMissingError,
    InvalidCallError,
    NotFoundError,
    OffloaderError,
    OutcomeUnknownError,
    OverloadedError,
    PreconditionFailedError,
    StoreUnavailableError,
    ThrottledError,
    UnsupportedError,
)
from offloader.settings import Duration, StoreSettings
from offloader.store.base import CREATE, ByteRange, IfMatch, ObjectStore, PartInfo
from offloader.store.open import open_store
from offloader.store.s3_responses import composite_crc32c, composite_etag, meaning_of
from offloader.store.wrappers import requests_of
from tests.support.misbehaving_servers import Answer, LosingProxy, ScriptedServer, slow_server

KEYS: dict[str, Any] = {"access_key": "offloader", "secret_key": "wJalrXUtnFEMI-very-secret"}
ONCE = StoreSettings(retries_max=0)


def opened(url: str, settings: StoreSettings = ONCE) -> ObjectStore:
    return open_store("s3://bucket/root", endpoint_url=url, region="us-east-1", settings=settings, **KEYS)


def error_body(code: str, message: str = "says the server") -> bytes:
    return f'<?xml version="1.0"?><Error><Code>{code}</Code><Message>{message}</Message></Error>'.encode()


PART = PartInfo(1, '"0123456789abcdef0123456789abcdef"', 5, 1234)
CALLS = {
    "head": lambda store: store.head("k"),
    "get": lambda store: store.get("k"),
    "list": lambda store: store.list(""),
    "put": lambda store: store.put("k", b"body"),
    "create": lambda store: store.put("k", b"body", mode=CREATE),
    "delete": lambda store: store.delete(["k"]),
    "begin": lambda store: store.begin_upload("k"),
    "part": lambda store: store.upload_part("k", "u", 1, b"body"),
    "complete": lambda store: store.complete_upload("k", "u", [PART]),
    "abort": lambda store: store.abort_upload("k", "u"),
    "uploads": lambda store: store.list_uploads("k"),
    "parts": lambda store: store.list_parts("k", "u"),
}
READS = ("head", "get", "list", "uploads", "parts")


@pytest.mark.slow
@pytest.mark.parametrize("name", CALLS)
@pytest.mark.parametrize("url", ["http://127.0.0.1:9", "http://no-such-host.invalid:9000"])
def test_request_never_sent_changed_nothing(name: str, url: str) -> None:
    store = opened(url)
    kind: type[OffloaderError] = OutcomeUnknownError if name == "complete" and "x" in url else StoreUnavailableError
    with pytest.raises(kind) as caught:
        CALLS[name](store)
    assert "--endpoint-url" in caught.value.hint
    assert "\n" not in str(caught.value)
    store.close()


TABLE: list[tuple[int, str, str, type[OffloaderError]]] = [
    (503, "SlowDown", "put", ThrottledError),
    (503, "ServiceUnavailable", "get", ThrottledError),
    (429, "TooManyRequests", "create", ThrottledError),
    (503, "", "part", OverloadedError),
    (503, "", "get", ThrottledError),
    (500, "InternalError", "put", OutcomeUnknownError),
    (500, "InternalError", "get", StoreUnavailableError),
    (502, "", "create", OutcomeUnknownError),
    (504, "", "begin", OutcomeUnknownError),
    (409, "ConditionalRequestConflict", "create", StoreUnavailableError),
    (409, "OperationAborted", "put", StoreUnavailableError),
    (412, "PreconditionFailed", "create", PreconditionFailedError),
    (404, "NoSuchKey", "get", NotFoundError),
    (404, "NoSuchBucket", "get", BucketMissingError),
    (404, "NoSuchBucket", "create", BucketMissingError),
    (404, "NoSuchUpload", "part", NotFoundError),
    (404, "NoSuchUpload", "parts", NotFoundError),
    (403, "AccessDenied", "list", AccessDeniedError),
    (403, "InvalidAccessKeyId", "put", AccessDeniedError),
    (403, "SignatureDoesNotMatch", "put", AccessDeniedError),
    (400, "ExpiredToken", "put", AccessDeniedError),
    (403, "RequestTimeTooSkewed", "put", AccessDeniedError),
    (400, "RequestTimeout", "put", StoreUnavailableError),
    (400, "BadDigest", "part", StoreUnavailableError),
    (400, "EntityTooSmall", "complete", InvalidCallError),
    (400, "InvalidPart", "complete", InvalidCallError),
    (301, "PermanentRedirect", "list", InvalidCallError),
    (501, "NotImplemented", "uploads", UnsupportedError),
    (507, "", "put", OutcomeUnknownError),
    (507, "", "get", StoreUnavailableError),
    (418, "Teapot", "put", InvalidCallError),
]


@pytest.mark.slow
@pytest.mark.parametrize(("status", "code", "name", "kind"), TABLE)
def test_each_error_code_has_its_kind(status: int, code: str, name: str, kind: type[OffloaderError]) -> None:
    with ScriptedServer([Answer(status, error_body(code) if code else b"")]) as server:
        store = opened(server.url)
        with pytest.raises(kind) as caught:
            CALLS[name](store)
        assert type(caught.value) is kind
        assert "s3://bucket/root" in str(caught.value)
        assert caught.value.__cause__ is not None
        store.close()


def test_an_error_text_of_several_lines_stays_one_line() -> None:
    with ScriptedServer([Answer(403, error_body("AccessDenied", "line one\n  line two"))]) as server:
        store = opened(server.url)
        with pytest.raises(AccessDeniedError, match="line one line two"):
            store.get("k")
        store.close()


def test_if_match_on_a_missing_key_is_a_failed_condition() -> None:
    with ScriptedServer([Answer(404, error_body("NoSuchKey"))]) as server:
        store = opened(server.url)
        with pytest.raises(PreconditionFailedError):
            store.put("k", b"x", mode=IfMatch('"e"'))
        store.close()


def test_a_complete_that_ends_with_an_error_inside_a_200_is_unknown() -> None:
    with ScriptedServer([Answer(200, error_body("InternalError")), Answer(404)]) as server:
        store = opened(server.url)
        with pytest.raises(OutcomeUnknownError):
            store.complete_upload("k", "u", [PART])
        assert [line.split()[0] for line in server.requests][:2] == ["POST", "HEAD"]
        store.close()


def completed(etag: str, checksum: str = "") -> Answer:
    kept = f"<ChecksumCRC32C>{checksum}</ChecksumCRC32C>" if checksum else ""
    body = f"<CompleteMultipartUploadResult><ETag>{etag}</ETag>{kept}</CompleteMultipartUploadResult>"
    return Answer(200, b'<?xml version="1.0"?>' + body.encode())


def test_completion_with_the_checksum_over_its_parts_is_proven() -> None:
    with ScriptedServer([completed('"e-1"', f"{composite_crc32c([PART])}-1")]) as server:
        store = opened(server.url)
        info = store.complete_upload("k", "u", [PART])
        assert (info.key, info.size_bytes, info.etag) == ("k", 5, '"e-1"')
        assert [line.split()[0] for line in server.requests] == ["POST"]
        store.close()


@pytest.mark.slow
@pytest.mark.parametrize("checksum", ["", "AAAAAA==-1", "no checksum"])
def test_completion_is_not_proven_by_etag_or_another_checksum(checksum: str) -> None:
    """A response may be derived from the request; the object is verified, and is missing."""
    with ScriptedServer([completed(composite_etag([PART]), checksum), Answer(404)]) as server:
        store = opened(server.url)
        with pytest.raises(OutcomeUnknownError, match="succeeded, but the object differs"):
            store.complete_upload("k", "u", [PART])
        assert [line.split()[0] for line in server.requests][:2] == ["POST", "HEAD"]
        store.close()


def test_a_delete_that_answers_200_names_the_keys_that_failed() -> None:
    answer = b"""<?xml version="1.0"?><DeleteResult>
        <Error><Key>root/a</Key><Code>AccessDenied</Code><Message>no</Message></Error>
        <Error><Key>root/b</Key><Code>InternalError</Code><Message>later</Message></Error>
        <Error><Key>root/c</Key><Code>SlowDown</Code><Message>later</Message></Error>
        <Error><Key>root/d</Key><Code>NoSuchKey</Code><Message>gone</Message></Error></DeleteResult>"""
    with ScriptedServer([Answer(200, answer)]) as server:
        store = opened(server.url)
        found = {failure.key: failure for failure in store.delete(["a", "b", "c", "d", "e"])}
        assert {key: failure.retryable for key, failure in found.items()} == {"a": False, "b": True, "c": True}
        assert found["a"].reason == "AccessDenied: no"
        store.close()


def test_keys_that_failed_for_a_passing_reason_are_deleted_again() -> None:
    failing = b"""<?xml version="1.0"?><DeleteResult>
        <Error><Key>root/a</Key><Code>AccessDenied</Code><Message>no</Message></Error>
        <Error><Key>root/c</Key><Code>SlowDown</Code><Message>later</Message></Error></DeleteResult>"""
    with ScriptedServer([Answer(200, failing), Answer(200, b"<DeleteResult/>")]) as server:
        store = opened(server.url, StoreSettings(retries_max=3, retry_delay_first=Duration(0.001)))
        assert [failure.key for failure in store.delete(["a", "b", "c"])] == ["a"]
        assert len(server.requests) == 2
        store.close()


@pytest.mark.slow
def test_interrupted_multi_delete_names_the_remaining_keys() -> None:
    keys = [f"{number:04d}" for number in range(2500)]
    with ScriptedServer([Answer(200, b"<DeleteResult/>"), Answer(403, error_body("AccessDenied"))]) as server:
        store = opened(server.url)
        assert [failure.key for failure in store.delete(keys)] == keys[1000:]
        store.close()


@pytest.mark.slow
@pytest.mark.parametrize("body", [b"<html>welcome to the hotel</html>", b"", b"not even that"])
@pytest.mark.parametrize(
    "name", ["put", "create", "delete", "begin", "part", "complete", "get", "head", "list", "uploads", "parts"]
)
def test_success_status_from_a_non_s3_server_is_an_error(name: str, body: bytes) -> None:
    with ScriptedServer([Answer(200, body)] * 2) as server:
        store = opened(server.url)
        with pytest.raises(StoreUnavailableError if name in READS else OutcomeUnknownError):
            CALLS[name](store)
        store.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "body", "expected"),
    [
        ("delete", b"<DeleteResult><Error><Code>InternalError</Code></Error></DeleteResult>", OutcomeUnknownError),
        ("parts", b"<ListPartsResult><Part><PartNumber>1</PartNumber></Part></ListPartsResult>", StoreUnavailableError),
        (
            "uploads",
            b"<ListMultipartUploadsResult><Upload><Key>root/k</Key></Upload></ListMultipartUploadsResult>",
            StoreUnavailableError,
        ),
    ],
)
def test_answer_that_lacks_a_mandatory_element_is_an_error(
    name: str, body: bytes, expected: type[OffloaderError]
) -> None:
    with ScriptedServer([Answer(200, body)]) as server:
        store = opened(server.url)
        kind: object = "a success"
        try:
            CALLS[name](store)
        except Exception as error:  # whatever escapes
            kind = type(error)
        assert kind is expected
        store.close()


def test_torn_body_is_an_error() -> None:
    headers = {"ETag": '"e"', "Last-Modified": "Sat, 21 Nov 2026 00:00:00 GMT"}
    with ScriptedServer([Answer(200, b"half", headers, announced_bytes=8)]) as server:
        store = opened(server.url)
        with pytest.raises(StoreUnavailableError):
            store.get("k")
        store.close()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (Answer(206, b"2345", {"Content-Range": "bytes 2-5/10"}), b"2345"),
        (Answer(206, b"23", {"Content-Range": "bytes 2-3/4"}), b"23"),
        (Answer(206, b"23", {"Content-Range": "bytes 2-3/10"}), "received 2 bytes, expected 4"),
        (
            Answer(206, b"0123", {"Content-Range": "bytes 0-3/10"}),
            "the response has bytes 0-3/10, expected bytes from 2",
        ),
        (Answer(206, b"2345", {"Content-Range": "bytes 2-5/*"}), "invalid Content-Range"),
        (Answer(200, b"0123456789"), b"2345"),
    ],
)
def test_range_is_returned_whole_or_fails(answer: Answer, expected: bytes | str) -> None:
    """Also by servers that cut ranges short, send others or don't know them."""
    headers = {"ETag": '"e"', "Last-Modified": "Sat, 21 Nov 2026 00:00:00 GMT", **answer.headers}
    with ScriptedServer([Answer(answer.status, answer.body, headers)]) as server:
        store = opened(server.url)
        if isinstance(expected, str):
            with pytest.raises(StoreUnavailableError, match=re.escape(expected)):
                store.get("k", ByteRange(2, 6))
        else:
            assert store.get("k", ByteRange(2, 6))[0] == expected
        store.close()


def test_a_listing_from_a_server_that_ignores_where_to_begin_ends() -> None:
    page = b"""<?xml version="1.0"?><ListBucketResult><IsTruncated>true</IsTruncated><Contents><Key>root/k</Key>
        <Size>1</Size><ETag>"e"</ETag><LastModified>2026-11-21T00:00:00Z</LastModified></Contents></ListBucketResult>"""
    with ScriptedServer([Answer(200, page)] * 3) as server:
        store = opened(server.url)
        after: str | None = ""
        seen: list[str] = []
        error: object = None
        while after is not None and len(seen) < 3:
            try:
                found = store.list("", after=after)
            except OffloaderError as refused:
                error = refused
                break
            seen += [info.key for info in found.objects]
            after = found.next_after
        assert seen == ["k"]
        assert isinstance(error, StoreUnavailableError)
        store.close()


def test_a_listing_of_uploads_from_a_server_that_ignores_markers_ends() -> None:
    page = b"""<?xml version="1.0"?><ListMultipartUploadsResult><IsTruncated>true</IsTruncated>
        <NextKeyMarker>root/k</NextKeyMarker><NextUploadIdMarker>u</NextUploadIdMarker>
        <Upload><Key>root/k</Key><UploadId>u</UploadId><Initiated>2026-11-21T00:00:00Z</Initiated></Upload>
        </ListMultipartUploadsResult>"""
    with ScriptedServer([Answer(200, page)] * 5) as server:
        store = opened(server.url)
        assert [upload.upload_id for upload in store.list_uploads("k")] == ["u"]
        assert len(server.requests) == 2
        store.close()


@pytest.mark.slow
def test_large_body_may_take_longer_than_the_connect_timeout() -> None:
    """During a request its socket has the *connect* timeout for each send, so the body is sent in slices."""
    answer = b'HTTP/1.1 200 OK\r\nETag: "e"\r\nContent-Length: 0\r\nConnection: close\r\n\r\n'
    with slow_server(4 * 1024 * 1024, answer) as url:
        store = opened(url, StoreSettings(connect_timeout=Duration(0.5), read_timeout=Duration(5), retries_max=0))
        started = time.monotonic()
        assert store.put("k", bytearray(8 * 1024 * 1024)).etag == '"e"'
        assert time.monotonic() - started > 0.5
        store.close()


@pytest.fixture
def proxied(s3_place: Any) -> Iterator[tuple[LosingProxy, Any]]:
    target = urlsplit(s3_place.endpoint.url)
    proxy = LosingProxy(target.hostname or "", target.port or 0)
    yield proxy, s3_place
    proxy.close()


def _through(proxy: LosingProxy, place: Any, settings: StoreSettings) -> ObjectStore:
    store: ObjectStore = open_store(place.url, **{**place.options, "endpoint_url": proxy.url, "settings": settings})
    return store


FAST = StoreSettings(retries_max=3, retry_delay_first=Duration(0.001))


@pytest.mark.parametrize("mode", [CREATE, None])
def test_lost_response_to_a_put_is_an_unknown_outcome_and_the_object_exists(proxied: Any, mode: Any) -> None:
    proxy, place = proxied
    store = _through(proxy, place, StoreSettings(retries_max=0))
    proxy.lose(b"PUT /")
    with pytest.raises(OutcomeUnknownError):
        store.put("k", b"body", **({"mode": mode} if mode else {}))
    assert store.get("k")[0] == b"body"
    assert len(proxy.lost) == 1
    store.close()


def test_create_recognises_its_own_earlier_put(proxied: Any) -> None:
    proxy, place = proxied
    store = _through(proxy, place, FAST)
    proxy.lose(b"PUT /", 2)
    info = store.put("k", b"body", mode=CREATE)
    assert (info.size_bytes, info.etag) == (4, store.head("k").etag)
    assert len(proxy.lost) == 2
    counts = requests_of(store)
    assert (counts["put"].requests, counts["put"].errors, counts["get"].requests) == (3, 3, 1)
    store.close()


def test_create_lost_to_another_writer_after_an_unknown_outcome_is_refused(proxied: Any) -> None:
    proxy, place = proxied
    direct = place.open()
    direct.put("k", b"another's")
    store = _through(proxy, place, FAST)
    proxy.lose(b"PUT /")
    with pytest.raises(PreconditionFailedError):
        store.put("k", b"body", mode=CREATE)
    assert direct.get("k")[0] == b"another's"
    direct.close()
    store.close()


def test_a_lost_completion_is_proven_by_the_object(proxied: Any) -> None:
    proxy, place = proxied
    store = _through(proxy, place, StoreSettings(retries_max=0))
    upload_id = store.begin_upload("k", metadata={"a": "b"})
    parts = [store.upload_part("k", upload_id, 1, bytearray(5 << 20)), store.upload_part("k", upload_id, 2, b"end")]
    proxy.lose(b"POST /")
    info = store.complete_upload("k", upload_id, parts)
    assert info.size_bytes == (5 << 20) + 3
    assert info.metadata == {"a": "b"}
    assert len(proxy.lost) == 1
    store.close()


def test_a_lost_completion_is_not_proven_by_another_object_of_that_size(proxied: Any) -> None:
    proxy, place = proxied
    store = _through(proxy, place, StoreSettings(retries_max=0))
    store.put("k", b"other")
    upload_id = store.begin_upload("k")
    parts = [store.upload_part("k", upload_id, 1, b"bytes")]
    store.abort_upload("k", upload_id)
    with pytest.raises(OffloaderError):
        store.complete_upload("k", upload_id, parts)
    assert store.get("k")[0] == b"other"
    store.close()


def test_part_whose_response_was_lost_is_sent_again(proxied: Any) -> None:
    proxy, place = proxied
    store = _through(proxy, place, FAST)
    upload_id = store.begin_upload("k")
    proxy.lose(b"PUT /")
    part = store.upload_part("k", upload_id, 1, b"bytes")
    assert store.complete_upload("k", upload_id, [part]).size_bytes == 5
    store.close()


@pytest.mark.slow
@pytest.mark.parametrize("name", CALLS)
def test_no_secret_is_in_an_error_or_a_repr(name: str) -> None:
    with ScriptedServer([Answer(403, error_body("SignatureDoesNotMatch"))] * 2) as server:
        store = opened(server.url)
        with pytest.raises(OffloaderError) as caught:
            CALLS[name](store)
        texts = [str(caught.value), repr(caught.value), repr(store), store.url, str(store.driver_metadata)]
        assert not any("wJalr" in text for text in texts)
        store.close()


def test_wrong_credentials_are_denied_by_real_servers(s3_place: Any) -> None:
    if s3_place.server == "moto":
        assert s3_place.open(secret_key="wrong").list("").objects == ()  # it takes any: why moto alone proves little
        return
    store = s3_place.open(secret_key="wrong-secret")
    with pytest.raises(AccessDeniedError) as caught:
        store.put("k", b"x")
    assert "credentials" in caught.value.hint
    store.close()


def test_missing_bucket_is_reported(s3_place: Any) -> None:
    store = open_store("s3://no-such-bucket-here/root", **s3_place.options)
    for call in (lambda: store.get("k"), lambda: store.put("k", b""), lambda: store.list("")):
        with pytest.raises(BucketMissingError, match="no-such-bucket-here"):
            call()
    store.close()


def test_the_table_never_calls_a_sent_write_harmless_by_accident() -> None:
    for status in range(500, 600):
        kind, _ = meaning_of("", status, writes=True)
        assert issubclass(kind, OutcomeUnknownError) or (kind is UnsupportedError and status == 501)


def _environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, **values: str) -> None:
    """An environment with these AWS settings and no others."""
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    nowhere = {"AWS_EC2_METADATA_DISABLED": "true", "AWS_SHARED_CREDENTIALS_FILE": str(tmp_path / "credentials")}
    for name, value in {**nowhere, "AWS_CONFIG_FILE": str(tmp_path / "config"), **values}.items():
        monkeypatch.setenv(name, value)


def test_endpoint_and_keys_are_taken_from_the_environment(
    s3_place: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _environment(monkeypatch, tmp_path, **s3_place.endpoint.environment)
    store = open_store(s3_place.url)
    store.put("k", b"x")
    assert store.driver_metadata["serviceEndpoint"] == s3_place.endpoint.url
    store.close()


def test_keys_are_taken_from_a_profile(s3_place: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    endpoint = s3_place.endpoint
    (tmp_path / "credentials").write_text(
        f"[other]\naws_access_key_id={endpoint.access_key}\naws_secret_access_key={endpoint.secret_key}\n"
    )
    (tmp_path / "config").write_text(f"[profile other]\nendpoint_url={endpoint.url}\nregion=us-east-1\n")
    _environment(monkeypatch, tmp_path, AWS_PROFILE="other")
    store = open_store(s3_place.url)
    store.put("k", b"x")
    assert store.driver_metadata["region"] == "us-east-1"
    store.close()


def test_credential_process_is_run_again_before_keys_expire(
    s3_place: Any, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The SDK's own chain is used, not a copy of its keys: it is called again before every request near expiry."""
    endpoint = s3_place.endpoint
    answer = {
        "Version": 1,
        "AccessKeyId": endpoint.access_key,
        "SecretAccessKey": endpoint.secret_key,
        "Expiration": (datetime.now(UTC) + timedelta(minutes=1)).isoformat(),
    }
    (tmp_path / "answer").write_text(json.dumps(answer))
    (tmp_path / "config").write_text(
        f"[default]\nendpoint_url={endpoint.url}\nregion=us-east-1\n"
        f"credential_process=sh -c 'echo asked >>{tmp_path}/asked; cat {tmp_path}/answer'\n"
    )
    _environment(monkeypatch, tmp_path)
    store = open_store(s3_place.url)
    store.put("k", b"x")
    before = (tmp_path / "asked").read_text().count("asked")
    store.put("k", b"y")
    assert (tmp_path / "asked").read_text().count("asked") > before
    store.close()


def test_missing_credentials_and_unknown_profile_are_one_line_errors(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    _environment(monkeypatch, tmp_path)
    store = open_store("s3://bucket/root", endpoint_url="http://127.0.0.1:9")
    with pytest.raises(AccessDeniedError, match="credentials") as caught:
        store.get("k")
    assert "AWS_ACCESS_KEY_ID" in caught.value.hint
    store.close()
    _environment(monkeypatch, tmp_path, AWS_PROFILE="nobody")
    with pytest.raises(AccessDeniedError, match="nobody"):
        open_store("s3://bucket/root", endpoint_url="http://127.0.0.1:9")
