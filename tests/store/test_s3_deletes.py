"""Deleting from stores that differ from Amazon's: ``Content-MD5`` demanded, no multi-delete."""

from __future__ import annotations

import pytest

from offloader.errors import InvalidCallError, StoreUnavailableError
from offloader.store.probe import require_conditional_puts
from tests.support.fake_s3 import FakeS3, Request, refused
from tests.support.misbehaving_servers import Answer


def wants_content_md5(request: Request) -> Answer | None:
    if request.is_multi_delete and "content-md5" not in request.headers:
        return refused(400, "MissingContentMD5", "Missing required header for this request: Content-MD5")
    return None


def test_multi_delete_sends_content_md5_and_no_other_checksum() -> None:
    with FakeS3(wants_content_md5) as server:
        store = server.open()
        store.put("a", b"1")
        store.put("b", b"2")
        assert list(store.delete(["a", "b"])) == []
        assert server.objects == {}
        [sent] = server.asked("POST")
        assert not [name for name in sent.headers if "checksum" in name]
        assert not server.asked("DELETE")


@pytest.mark.slow
def test_store_that_demands_content_md5_passes_the_start_up_probe() -> None:
    with FakeS3(wants_content_md5) as server:
        assert require_conditional_puts(server.open()).conditional
        assert server.objects == {}


@pytest.mark.slow
@pytest.mark.parametrize("answer", [refused(501, "NotImplemented"), Answer(405), refused(400, "InvalidRequest")])
def test_store_without_multi_delete_gets_single_deletes_and_is_remembered(answer: Answer) -> None:
    with FakeS3(lambda request: answer if request.is_multi_delete else None) as server:
        store = server.open()
        for key in ("a", "b", "c"):
            store.put(key, b"1")
        assert list(store.delete(["a", "b", "absent"])) == []
        assert list(store.delete(["c"])) == []
        assert server.objects == {}
        assert len(server.asked("POST")) == 1


@pytest.mark.slow
def test_single_deletes_name_the_keys_that_stay() -> None:
    def refuse(request: Request) -> Answer | None:
        if request.is_multi_delete:
            return refused(501, "NotImplemented")
        denied = {"root/denied": refused(403, "AccessDenied"), "root/failed": refused(500, "InternalError")}
        return denied.get(request.key) if request.method == "DELETE" else None

    with FakeS3(refuse) as server:
        failures = {each.key: each.retryable for each in server.open().delete(["denied", "gone", "failed"])}
        assert failures == {"denied": False, "failed": True}


@pytest.mark.slow
def test_delete_that_is_refused_alone_too_raises_the_first_refusal() -> None:
    def refuse(request: Request) -> Answer | None:
        if request.is_multi_delete:
            return refused(400, "InvalidRequest", "no such thing")
        return refused(400, "InvalidArgument", "nor this") if request.method == "DELETE" else None

    with FakeS3(refuse) as server:
        store = server.open()
        for _ in range(2):
            with pytest.raises(InvalidCallError, match="no such thing"):
                store.delete(["a"])
        assert len(server.asked("POST")) == 2, "it isn't taken for a server without multi-deletes"


def test_unavailable_store_is_no_store_without_multi_deletes() -> None:
    with FakeS3(lambda request: refused(503, "SlowDown") if request.is_multi_delete else None) as server:
        with pytest.raises(StoreUnavailableError):
            server.open().delete(["a"])
        assert not server.asked("DELETE")
