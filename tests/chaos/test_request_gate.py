"""The request gate before a server: it changes nothing and reports each request at three moments.

A refusal is a complete response; a request whose response is lost has taken effect."""

from __future__ import annotations

import base64
import contextlib
import http.client
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

import boto3
import google_crc32c
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError, HTTPClientError

from services.request_gate import Passing, RequestGate
from tests.support.waiting import PATIENCE_S, eventually

pytestmark = pytest.mark.process

BODY = bytes(range(256)) * 8192


class Listening:
    """What was told, in order; on a moment it may do something once."""

    def __init__(self) -> None:
        self.told: list[Passing] = []
        self.at: str = ""
        self.then: Any = None

    def __call__(self, passing: Passing) -> None:
        self.told.append(passing)
        if passing.moment == self.at and passing.method == "PUT":
            self.at = ""
            self.then()


@pytest.fixture
def listening() -> Listening:
    return Listening()


@pytest.fixture
def gate(s3_place: Any, listening: Listening) -> Iterator[RequestGate]:
    with RequestGate(s3_place.endpoint.url, listening, seed=1) as made:
        yield made


@pytest.fixture
def client(gate: RequestGate, s3_place: Any) -> Iterator[Any]:
    made = boto3.client(
        "s3",
        endpoint_url=gate.url,
        region_name="us-east-1",
        aws_access_key_id=s3_place.endpoint.access_key,
        aws_secret_access_key=s3_place.endpoint.secret_key,
        config=Config(
            retries={"total_max_attempts": 1, "mode": "standard"},
            read_timeout=PATIENCE_S,
            proxies={},
            signature_version="s3v4",
        ),
    )
    yield made
    made.close()


def test_request_gate_reports_each_request_before_at_half_and_once_answered(
    client: Any, s3_place: Any, listening: Listening
) -> None:
    key = {"Bucket": s3_place.bucket, "Key": f"{s3_place.root}/k"}
    client.put_object(**key, Body=BODY)
    assert client.get_object(**key)["Body"].read() == BODY
    told = [(each.method, each.moment) for each in listening.told]
    assert told == [
        *(("PUT", moment) for moment in ("before", "half", "answered")),
        ("GET", "before"),
        ("GET", "answered"),
    ]
    assert {each.target.partition("?")[0] for each in listening.told} == {f"/{s3_place.bucket}/{s3_place.root}/k"}


def test_gate_works_as_http_proxy_of_a_client(gate: RequestGate, s3_place: Any, listening: Listening) -> None:
    """Through a proxy, the client keeps the server's own address."""
    client = boto3.client(
        "s3",
        endpoint_url=s3_place.endpoint.url,
        region_name="us-east-1",
        aws_access_key_id=s3_place.endpoint.access_key,
        aws_secret_access_key=s3_place.endpoint.secret_key,
        config=Config(proxies={"http": gate.url}),
    )
    client.put_object(Bucket=s3_place.bucket, Key=f"{s3_place.root}/k", Body=b"x")
    client.close()
    assert {each.target for each in listening.told} == {f"/{s3_place.bucket}/{s3_place.root}/k"}


def test_refused_request_gets_a_response_and_stores_nothing(client: Any, s3_place: Any, gate: RequestGate) -> None:
    gate.refused_share = 1.0
    with pytest.raises(ClientError) as found:
        client.put_object(Bucket=s3_place.bucket, Key=f"{s3_place.root}/k", Body=BODY)
    assert found.value.response["Error"]["Code"] == "SlowDown"
    gate.refused_share = 0.0
    assert gate.refused == 1
    assert "Contents" not in client.list_objects_v2(Bucket=s3_place.bucket, Prefix=s3_place.root)
    client.put_object(Bucket=s3_place.bucket, Key=f"{s3_place.root}/k", Body=BODY)


def test_request_with_lost_response_takes_effect(client: Any, s3_place: Any, gate: RequestGate) -> None:
    key = {"Bucket": s3_place.bucket, "Key": f"{s3_place.root}/k"}
    gate.lost_share = 1.0
    with pytest.raises(HTTPClientError):
        client.put_object(**key, Body=BODY)
    gate.lost_share = 0.0
    assert client.get_object(**key)["Body"].read() == BODY
    assert (gate.requests, gate.lost, gate.refused, gate.cut) == (2, 1, 0, 0)


@pytest.mark.parametrize(("moment", "there"), [("before", False), ("half", False), ("answered", True)])
def test_listener_runs_at_the_moment_it_is_called_for(
    moment: str, there: bool, gate: RequestGate, s3_place: Any, listening: Listening, client: Any
) -> None:
    """A client that dies there has written nothing, nothing, and everything."""
    at = urlsplit(gate.url)
    key = f"{s3_place.root}/{moment}"
    body = 16 * BODY  # more than sockets hold
    # Without it versitygw may keep what it got of a body that ends too early. Everything of ours is sent with it.
    crc = base64.b64encode(google_crc32c.value(body).to_bytes(4, "big")).decode()
    wanted = {"Bucket": s3_place.bucket, "Key": key, "ChecksumCRC32C": crc}
    url = urlsplit(client.generate_presigned_url("put_object", Params=wanted))
    dying = http.client.HTTPConnection(str(at.hostname), at.port, timeout=PATIENCE_S)
    dying.connect()
    listening.at, listening.then = moment, lambda: dying.sock.shutdown(2)
    with contextlib.suppress(OSError, http.client.HTTPException):  # it dies on the way
        dying.request("PUT", f"{url.path}?{url.query}", body=body, headers={"x-amz-checksum-crc32c": crc})
        dying.getresponse()
    dying.close()
    assert listening.at == ""
    found = client.list_objects_v2(Bucket=s3_place.bucket, Prefix=key).get("Contents", [])
    assert [(item["Key"], item["Size"]) for item in found] == ([(key, len(body))] if there else [])
    eventually(lambda: gate.cut == (0 if there else 1))
