"""Encryption that is asked for and not done."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from offloader.errors import AccessDeniedError, UnsupportedError
from offloader.settings import StoreSettings
from offloader.store.probe import probe_conditional_puts, require_conditional_puts
from tests.support.fake_s3 import FakeS3, Request, refused
from tests.support.misbehaving_servers import Answer

KMS = {"encryption": "aws:kms", "kms_key": "1234-key"}


def settings(**given: Any) -> StoreSettings:
    return StoreSettings(retries_max=0, **given)


@pytest.mark.slow
@pytest.mark.parametrize("given", [KMS, {"encryption": "AES256"}])
def test_store_that_ignores_the_encryption_is_refused(given: dict[str, str]) -> None:
    with FakeS3(encrypts=False) as server:
        store = server.open(settings=settings(**given))
        with pytest.raises(UnsupportedError, match=r"store\.encryption = .* has no effect") as caught:
            require_conditional_puts(store, single_writer=True)
        assert "store.encryption" in caught.value.hint
        assert server.objects == {}


@pytest.mark.slow
@pytest.mark.parametrize("given", [KMS, {**KMS, "kms_key": "alias/cold"}, {"encryption": "AES256"}])
def test_store_that_encrypts_passes(given: dict[str, str]) -> None:
    with FakeS3() as server:
        assert probe_conditional_puts(server.open(settings=settings(**given)), thorough=False).conditional
        assert server.objects == {}


@pytest.mark.slow
def test_store_that_encrypts_no_uploads_is_refused() -> None:
    def forget(request: Request) -> None:
        if "uploads" in request.query:
            request.headers.pop("x-amz-server-side-encryption")

    with (
        FakeS3(forget) as server,
        pytest.raises(UnsupportedError, match=r"store\.encryption = 'aws:kms' has no effect"),
    ):
        require_conditional_puts(server.open(settings=settings(**KMS)))


@pytest.mark.slow
def test_store_that_uses_another_key_is_refused() -> None:
    name = "x-amz-server-side-encryption-aws-kms-key-id"

    def change(request: Request) -> None:
        if name in request.headers:
            request.headers[name] = "arn:aws:kms:us-east-1:1:key/another"

    with FakeS3(change) as server, pytest.raises(UnsupportedError, match=r"'1234-key' has no effect: .*key/another"):
        require_conditional_puts(server.open(settings=settings(**KMS)))


@pytest.mark.slow
def test_bucket_that_encrypts_itself_is_not_asked() -> None:
    with FakeS3(encrypts=False) as server:
        probe_conditional_puts(server.open(), thorough=False)
        assert not server.asked("PUT", "x-amz-server-side-encryption")


@pytest.mark.slow
@pytest.mark.parametrize("answer", [refused(403, "AccessDenied"), Answer(403)])
def test_denied_write_without_encryption_names_the_setting(answer: Answer) -> None:
    """A bucket's policy may demand encryption."""
    with FakeS3(lambda _: answer) as server:
        store, encrypting = server.open(), server.open(settings=settings(encryption="AES256"))
        for call in (lambda: store.put("k", b"bytes"), lambda: store.begin_upload("k")):
            with pytest.raises(AccessDeniedError) as caught:
                call()
            assert "store.encryption" in caught.value.hint
        others: list[Callable[[], object]] = [
            lambda: encrypting.put("k", b"bytes"),
            lambda: encrypting.begin_upload("k"),
            lambda: store.get("k"),
            lambda: store.list(""),
            lambda: store.delete(["k"]),
        ]
        for other in others:
            with pytest.raises(AccessDeniedError) as caught:
                other()
            assert "store.encryption" not in caught.value.hint
