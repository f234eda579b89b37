"""Rotating credentials: a running process finds new keys, and the error names what is wrong with refused ones."""

from __future__ import annotations

import os
import re
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from offloader.errors import AccessDeniedError
from offloader.store.base import ObjectStore
from offloader.store.s3_client import RENEWAL_S_MIN
from offloader.testing.manual_clock import ManualClock
from tests.support.fake_s3 import FakeS3, Request, refused
from tests.support.misbehaving_servers import Answer


class Keys:
    """A server that takes one access key, and the SDK's file of keys."""

    def __init__(self, file: Path, code: str = "InvalidAccessKeyId") -> None:
        self.file, self.valid, self.code = file, "first", code

    def refuse(self, request: Request) -> Answer | None:
        found = re.search(r"Credential=([^/]*)/", request.headers["authorization"])
        return None if found is not None and found[1] == self.valid else refused(403, self.code)

    def write(self, key: str) -> None:
        self.file.write_text(f"[default]\naws_access_key_id = {key}\naws_secret_access_key = secret-of-{key}\n")

    def rotate(self, key: str) -> None:
        self.valid = key
        self.write(key)


@pytest.fixture
def keys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Keys:
    for name in [name for name in os.environ if name.startswith("AWS_")]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("AWS_SHARED_CREDENTIALS_FILE", str(tmp_path / "credentials"))
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    found = Keys(tmp_path / "credentials")
    found.rotate("first")
    return found


def opened(server: FakeS3, clock: ManualClock | None = None) -> ObjectStore:
    return server.open(access_key=None, secret_key=None, clock=clock or ManualClock())


@pytest.mark.slow
@pytest.mark.parametrize(
    "code", ["InvalidAccessKeyId", "ExpiredToken", "InvalidToken", "InvalidTokenId", "SignatureDoesNotMatch"]
)
def test_rotated_keys_are_read_from_the_file_without_a_restart(keys: Keys, code: str) -> None:
    keys.code = code
    with FakeS3(keys.refuse) as server:
        store = opened(server)
        store.put("k", b"1")
        keys.rotate("second")
        store.put("k", bytes(300_000))
        assert store.head("k").size_bytes == 300_000
        assert len(server.asked("PUT")) == 3, "the refused request was sent once more"


@pytest.mark.slow
def test_rotated_keys_are_found_by_a_request_whose_refusal_has_no_body(keys: Keys) -> None:
    with FakeS3(keys.refuse) as server:
        store = opened(server)
        store.put("k", b"1")
        keys.rotate("second")
        assert store.head("k").size_bytes == 1


@pytest.mark.slow
def test_requests_refused_together_are_all_sent_again(keys: Keys) -> None:
    with FakeS3(keys.refuse) as server:
        store = opened(server)
        store.put("k", b"1")
        keys.rotate("second")
        with ThreadPoolExecutor(8) as threads:
            assert list(threads.map(lambda _: store.get("k")[0], range(16))) == [b"1"] * 16


@pytest.mark.slow
def test_refused_keys_are_looked_for_at_most_once_a_second(keys: Keys) -> None:
    clock = ManualClock()
    with FakeS3(keys.refuse) as server:
        store = opened(server, clock)
        keys.valid = "second"
        for _ in range(2):
            with pytest.raises(AccessDeniedError, match="InvalidAccessKeyId"):
                store.put("k", b"1")
        keys.write("second")
        with pytest.raises(AccessDeniedError):
            store.put("k", b"1")
        clock.advance(RENEWAL_S_MIN)
        store.put("k", b"1")


@pytest.mark.slow
def test_damaged_file_of_keys_leaves_the_refusal(keys: Keys) -> None:
    with FakeS3(keys.refuse) as server:
        store = opened(server)
        keys.valid = "second"
        keys.file.write_text("no section\n")
        with pytest.raises(AccessDeniedError, match="InvalidAccessKeyId"):
            store.put("k", b"1")


@pytest.mark.slow
def test_given_keys_are_never_replaced_by_those_of_the_file(keys: Keys) -> None:
    with FakeS3(keys.refuse) as server:
        store = server.open(access_key="given", secret_key="a-secret")
        with pytest.raises(AccessDeniedError):
            store.put("k", b"1")
        assert len(server.requests) == 1


@pytest.mark.slow
def test_wrong_signature_is_explained(keys: Keys) -> None:
    keys.valid, keys.code = "second", "SignatureDoesNotMatch"
    with FakeS3(keys.refuse) as server, pytest.raises(AccessDeniedError, match="SignatureDoesNotMatch") as caught:
        opened(server).put("k", b"1")
    assert "the secret key" in caught.value.hint
    assert "clock" in caught.value.hint
    assert "secret-of" not in str(caught.value)
