"""What signs a URL, for how long, and what doesn't: no request is sent for any of it."""

from __future__ import annotations

import hashlib
import json
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest
from botocore.credentials import RefreshableCredentials
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import padding, rsa

from offloader.errors import OffloaderError
from offloader.store.base import ObjectStore
from offloader.store.open import open_store
from offloader.store.wrappers import layer_of
from offloader.testing.faulty_store import FaultyStore
from offloader.testing.manual_clock import ManualClock

KEYS: dict[str, Any] = {"access_key": "AKIDEXAMPLE", "secret_key": "not-so-secret"}


@pytest.fixture(autouse=True)
def nobody(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """No credentials of this machine."""
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
    for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
        monkeypatch.setenv(name, str(tmp_path / "absent"))


def query_of(url: str | None) -> dict[str, str]:
    assert url is not None
    return {name: values[0] for name, values in parse_qs(urlsplit(url).query).items()}


def s3_client(store: ObjectStore) -> Any:
    """The SDK's client below all layers."""
    inner: Any = store
    while hasattr(inner, "inner"):
        inner = inner.inner
    return inner._client


@pytest.mark.parametrize(
    ("region", "host"),
    [("us-east-1", "bucket.s3.amazonaws.com"), ("eu-central-1", "bucket.s3.eu-central-1.amazonaws.com")],
)
def test_amazons_urls_are_signed_for_the_buckets_own_host_by_version_4(region: str, host: str) -> None:
    with_keys = open_store("s3://bucket/cold", region=region, read_only=True, **KEYS)
    url = with_keys.signed_url("a/b c", 300)
    assert urlsplit(url or "").netloc == host
    assert urlsplit(url or "").path == "/cold/a/b%20c"
    query = query_of(url)
    assert (query["X-Amz-Algorithm"], query["X-Amz-Expires"]) == ("AWS4-HMAC-SHA256", "300")
    assert query["X-Amz-SignedHeaders"] == "host", "a range is asked for by a header that isn't signed"
    assert f"/{region}/s3/" in query["X-Amz-Credential"]
    assert KEYS["secret_key"] not in (url or "")


def test_a_session_token_is_part_of_the_url() -> None:
    with_token = open_store("s3://bucket/cold", region="eu-1", session_token="TOKEN", read_only=True, **KEYS)
    assert query_of(with_token.signed_url("k", 300))["X-Amz-Security-Token"] == "TOKEN"


def test_nobody_signs_without_credentials_or_for_a_directory_bucket() -> None:
    assert open_store("s3://bucket/cold", region="eu-1", read_only=True).signed_url("k", 300) is None
    directory = open_store("s3://orders--euc1-az1--x-s3/cold", region="eu-central-1", read_only=True, **KEYS)
    assert directory.signed_url("k", 300) is None


def temporary(left_s: float) -> RefreshableCredentials:
    """Credentials that end soon, and whose renewal would be a request."""

    def renewed() -> dict[str, str]:
        raise AssertionError("a request for new credentials")

    ends = datetime.now(UTC) + timedelta(seconds=left_s)
    return RefreshableCredentials("AK", "SK", "TOKEN", ends, renewed, "test", time_fetcher=lambda: datetime.now(UTC))


@pytest.mark.slow
def test_a_url_ends_with_the_credentials_that_signed_it() -> None:
    store = open_store("s3://bucket/cold", region="eu-central-1", read_only=True, **KEYS)
    signer = s3_client(store)._request_signer
    signer._credentials = temporary(3600)
    assert 3500 < int(query_of(store.signed_url("k", 7200))["X-Amz-Expires"]) <= 3600
    assert query_of(store.signed_url("k", 60))["X-Amz-Expires"] == "60"
    signer._credentials = temporary(600)  # the next request renews them
    assert store.signed_url("k", 60) is None


def test_layers_pass_the_url_on_and_count_no_request() -> None:
    plain = open_store("s3://bucket/cold", region="eu-central-1", read_only=True, **KEYS)
    faulty = FaultyStore(plain)
    assert query_of(faulty.signed_url("k", 60))["X-Amz-Expires"] == "60"
    assert layer_of(faulty, FaultyStore) is faulty


def test_local_and_other_file_systems_have_no_urls(tmp_path: Path) -> None:
    for url in ("memory://signed", f"file://{tmp_path}/store"):
        assert open_store(url).signed_url("k", 60) is None


@pytest.fixture(scope="module")
def account() -> tuple[rsa.RSAPrivateKey, dict[str, str]]:
    """A service account of Google's, as in its key file."""
    key = rsa.generate_private_key(public_exponent=65537, key_size=2048)
    text = key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    ).decode()
    return key, {
        "type": "service_account",
        "project_id": "p",
        "private_key_id": "1",
        "private_key": text,
        "client_email": "reader@p.iam.gserviceaccount.com",
        "token_uri": "http://127.0.0.1:9/token",
    }


def test_a_google_url_is_signed_as_version_4_says(account: tuple[rsa.RSAPrivateKey, dict[str, str]]) -> None:
    from google.oauth2 import service_account

    key, named = account
    clock = ManualClock(1_700_000_000_000)
    store = open_store("gs://bucket/cold", endpoint_url="http://127.0.0.1:9", clock=clock, read_only=True)
    assert store.signed_url("k", 60) is None, "nobody's"
    inner: Any = store
    while hasattr(inner, "inner"):
        inner = inner.inner
    made: Any = service_account.Credentials
    inner._files.credentials.credentials = made.from_service_account_info(named)

    url = store.signed_url("a/b c+d", 60)

    place, _, signature = (url or "").rpartition("&X-Goog-Signature=")
    path, _, query = place.removeprefix("http://127.0.0.1:9").partition("?")
    assert path == "/bucket/cold/a/b%20c%2Bd"
    assert query == (
        "X-Goog-Algorithm=GOOG4-RSA-SHA256"
        "&X-Goog-Credential=reader%40p.iam.gserviceaccount.com%2F20231114%2Fauto%2Fstorage%2Fgoog4_request"
        "&X-Goog-Date=20231114T221320Z&X-Goog-Expires=60&X-Goog-SignedHeaders=host"
    )
    request = f"GET\n{path}\n{query}\nhost:127.0.0.1:9\n\nhost\nUNSIGNED-PAYLOAD"
    signed = "\n".join(
        [
            "GOOG4-RSA-SHA256",
            "20231114T221320Z",
            "20231114/auto/storage/goog4_request",
            hashlib.sha256(request.encode()).hexdigest(),
        ]
    )
    key.public_key().verify(bytes.fromhex(signature), signed.encode(), padding.PKCS1v15(), hashes.SHA256())
    assert json.dumps(named["private_key"])[1:50] not in repr(store)


@pytest.mark.slow
def test_an_azure_url_is_signed_with_the_accounts_key_only() -> None:
    clock = ManualClock(1_700_000_000_000)
    with_key = open_store(
        "az://container/cold",
        endpoint_url="http://127.0.0.1:9/account",
        access_key="account",
        secret_key="a2V5a2V5",
        clock=clock,
        read_only=True,
    )
    query = query_of(with_key.signed_url("a/b c", 60))
    assert (query["sp"], query["sr"], query["se"]) == ("r", "b", "2023-11-14T22:14:20Z")
    with pytest.raises(OffloaderError):
        with_key.signed_url("a//b", 60)
