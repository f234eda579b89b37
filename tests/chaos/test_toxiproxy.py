"""The fault-injecting proxy between boto3 and real S3 servers: effect of each fault on object and client."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ConnectionClosedError, EndpointConnectionError, HTTPClientError, ReadTimeoutError

from services.toxiproxy import FaultyProxy, Toxiproxy
from tests.support.waiting import PATIENCE_S, eventually

pytestmark = pytest.mark.process

#: Many times what sockets between client, proxy and server hold.
BODY = bytes(range(256)) * (64 * 1024)


class Way:
    """To one server's bucket, around the proxy and through it; nothing is tried twice."""

    def __init__(self, place: Any, faults: Toxiproxy) -> None:
        self.bucket, self.root = place.bucket, place.root
        self.proxy: FaultyProxy = faults.proxy(place.root, place.endpoint.url)
        self.endpoint = place.endpoint
        self.straight = self._client(place.endpoint.url, PATIENCE_S)
        self.through = self._client(self.proxy.url, PATIENCE_S)
        #: For what never comes.
        self.with_short_retries = self._client(self.proxy.url, 4.0)

    def _client(self, url: str, timeout_s: float) -> Any:
        return boto3.client(
            "s3",
            endpoint_url=url,
            region_name="us-east-1",
            aws_access_key_id=self.endpoint.access_key,
            aws_secret_access_key=self.endpoint.secret_key,
            config=Config(
                retries={"total_max_attempts": 1, "mode": "standard"},
                connect_timeout=timeout_s,
                read_timeout=timeout_s,
                request_checksum_calculation="when_required",
                response_checksum_validation="when_required",
                proxies={},
            ),
        )

    def put(self, name: str, body: bytes = b"x", client: Any = None) -> None:
        (client or self.through).put_object(Bucket=self.bucket, Key=f"{self.root}/{name}", Body=body)

    def get(self, name: str) -> bytes:
        found: bytes = self.through.get_object(Bucket=self.bucket, Key=f"{self.root}/{name}")["Body"].read()
        return found

    def names(self) -> list[str]:
        found = self.straight.list_objects_v2(Bucket=self.bucket, Prefix=f"{self.root}/").get("Contents", [])
        return [item["Key"].removeprefix(f"{self.root}/") for item in found]

    def close(self) -> None:
        self.proxy.remove()
        for client in (self.straight, self.through, self.with_short_retries):
            client.close()


@pytest.fixture
def way(s3_place: Any, toxiproxy: Toxiproxy) -> Iterator[Way]:
    with contextlib.closing(Way(s3_place, toxiproxy)) as made:
        yield made


def test_proxy_without_faults_passes_bytes_unchanged(way: Way) -> None:
    way.put("k", BODY)
    assert way.get("k") == BODY


def test_a_lost_acknowledgement_leaves_the_object_behind(way: Way) -> None:
    """The commit's outcome is unknown to its client, which waits a second for "100 Continue"."""
    with way.proxy.toxic("timeout", timeout=0), pytest.raises((ConnectionClosedError, ReadTimeoutError)):
        way.put("k", b"there", way.with_short_retries)
    eventually(lambda: way.names() == ["k"])  # nobody was told when
    assert way.get("k") == b"there"


def test_cut_request_stores_nothing(way: Way) -> None:
    with way.proxy.toxic("limit_data", "upstream", bytes=100_000), pytest.raises(HTTPClientError):
        way.put("k", BODY)
    assert way.names() == []
    with way.proxy.toxic("reset_peer", "upstream", timeout=0), pytest.raises(HTTPClientError):
        way.put("k", BODY)
    assert way.names() == []


def test_cut_response_is_not_taken_for_a_whole_one(way: Way) -> None:
    way.put("k", BODY)
    with way.proxy.toxic("limit_data", bytes=1_000_000), pytest.raises(Exception, match=r"IncompleteRead|Connection"):
        way.get("k")


def test_slowness_and_little_bandwidth_change_no_byte(way: Way) -> None:
    with (
        way.proxy.toxic("latency", latency=30, jitter=10),
        way.proxy.toxic("bandwidth", "upstream", rate=50_000),
        way.proxy.toxic("slicer", average_size=10_000, size_variation=5_000, delay=10),
    ):
        way.put("k", BODY[:500_000])
        assert way.get("k") == BODY[:500_000]


def test_healed_proxy_keeps_its_address_and_drops_old_faults(way: Way) -> None:
    way.put("k")
    way.proxy.add("latency", latency=int(2000 * PATIENCE_S))  # it would be seen if it were still there
    way.proxy.cut_off()
    with pytest.raises((EndpointConnectionError, ConnectionClosedError)):
        way.get("k")
    way.proxy.heal()
    assert way.get("k") == b"x"


def test_toxiproxy_refusal_is_reported_in_its_words(way: Way) -> None:
    with pytest.raises(RuntimeError, match="invalid toxic type"):
        way.proxy.add("magic")
