"""``store.checksum``: servers that refuse ``x-amz-checksum-*`` or ``Content-MD5``."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Callable

import pytest

from offloader.errors import InvalidCallError, StoreUnavailableError, UnsupportedError
from offloader.settings import StoreSettings
from offloader.store.base import CREATE, ByteRange
from offloader.store.open import open_store
from offloader.store.probe import require_conditional_puts
from tests.support.fake_s3 import FakeS3, Request, refused
from tests.support.misbehaving_servers import Answer
from tests.support.server_fixtures import Servers

PART_BYTES = 5 * 1024 * 1024
BODY = os.urandom(300_000)


def without(*headers: str) -> Callable[[Request], Answer | None]:
    """A server that refuses headers that begin so."""

    def refuse(request: Request) -> Answer | None:
        found = [name for name in request.headers if name.startswith(headers)]
        return refused(501, "NotImplemented", f"{found[0]} is not implemented") if found else None

    return refuse


NO_CHECKSUMS = without("x-amz-checksum-")
NO_DIGESTS = without("x-amz-checksum-", "content-md5")


def settings(checksum: str) -> StoreSettings:
    return StoreSettings(checksum=checksum, retries_max=0)


@pytest.mark.slow
@pytest.mark.parametrize(("refuse", "checksum"), [(NO_CHECKSUMS, "md5"), (NO_DIGESTS, "none")])
def test_probe_names_the_checksum_that_a_store_takes(refuse: Callable[[Request], Answer | None], checksum: str) -> None:
    with FakeS3(refuse) as server:
        with pytest.raises(UnsupportedError, match="x-amz-checksum-crc32c is not implemented") as caught:
            require_conditional_puts(server.open(), single_writer=True)
        assert caught.value.hint == f'set store.checksum = "{checksum}"'
        assert require_conditional_puts(server.open(settings=settings(checksum))).conditional
        assert server.objects == {}


@pytest.mark.slow
@pytest.mark.parametrize(("refuse", "checksum"), [(NO_CHECKSUMS, "md5"), (NO_DIGESTS, "none")])
def test_objects_and_uploads_are_written_and_read(refuse: Callable[[Request], Answer | None], checksum: str) -> None:
    with FakeS3(refuse) as server:
        store = server.open(settings=settings(checksum))
        store.put("small", b"bytes", mode=CREATE, metadata={"a": "b"})
        store.put("large", BODY)
        upload = store.begin_upload("parts")
        bodies = [os.urandom(PART_BYTES), b"end"]
        parts = [store.upload_part("parts", upload, number, body) for number, body in enumerate(bodies, 1)]
        assert store.complete_upload("parts", upload, parts).size_bytes == PART_BYTES + 3
        assert store.get("parts")[0] == b"".join(bodies)
        assert (store.get("small")[0], store.head("small").metadata) == (b"bytes", {"a": "b"})
        assert store.get("large", ByteRange(100, 200))[0] == BODY[100:200]
        assert list(store.delete(["small", "large"])) == []
        for request in [each for each in server.asked("PUT") if each.body]:
            is_signed = request.headers["x-amz-content-sha256"] == hashlib.sha256(request.body).hexdigest()
            assert is_signed is (checksum == "none")
            assert ("content-md5" in request.headers) is (checksum == "md5")


@pytest.mark.slow
@pytest.mark.parametrize("checksum", ["crc32c", "md5"])
def test_damaged_body_is_refused(checksum: str) -> None:
    with FakeS3() as server:
        store, server.damages = server.open(settings=settings(checksum)), True
        with pytest.raises(StoreUnavailableError, match="BadDigest"):
            store.put("k", b"bytes")


@pytest.mark.slow
def test_refusal_for_another_reason_names_no_checksum() -> None:
    with FakeS3(lambda request: refused(400, "InvalidArgument") if request.method == "PUT" else None) as server:
        with pytest.raises(InvalidCallError) as caught:
            require_conditional_puts(server.open())
        assert "store.checksum" not in str(caught.value)


def test_other_stores_refuse_the_setting() -> None:
    with pytest.raises(InvalidCallError, match=r"store\.checksum is supported for s3:// only"):
        open_store("memory://no-checksums", settings=settings("md5"))


@pytest.mark.parametrize("checksum", ["md5", "none"])
def test_real_server_takes_every_checksum(servers: Servers, checksum: str) -> None:
    store = servers.place("minio").open(settings=settings(checksum))
    store.put("large", BODY, mode=CREATE)
    upload = store.begin_upload("parts")
    store.complete_upload("parts", upload, [store.upload_part("parts", upload, 1, BODY)])
    assert store.get("large")[0] == store.get("parts")[0] == BODY
    assert list(store.delete(["large", "parts"])) == []
    store.close()
