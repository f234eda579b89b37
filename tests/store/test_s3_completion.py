"""A completed upload whose object can't be verified has an unknown outcome."""

from __future__ import annotations

import re
import socket
from collections.abc import Callable, Iterator
from contextlib import closing
from typing import Any
from urllib.parse import urlsplit

import pytest

from formats.checksum import crc32c
from formats.entries import Pieces
from formats.segment import Part
from offloader.errors import OffloaderError, OutcomeUnknownError
from offloader.settings import Duration, StoreSettings
from offloader.store.base import ObjectStore, PartInfo
from offloader.store.open import open_store
from offloader.write.upload import SegmentUpload
from tests.support.holding_proxy import HoldingProxy
from tests.support.misbehaving_servers import Answer, ScriptedServer
from tests.support.server_fixtures import S3Place

ONCE = StoreSettings(retries_max=0)
FEW = StoreSettings(retries_max=2, retry_delay_first=Duration(0.001))
_REFUSED = b"HTTP/1.1 500 Internal Server Error\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"


class Blind(HoldingProxy):
    """Answers the next ``heads`` HEAD requests with 500, and loses the answers to the next ``losses`` completions."""

    heads = 0
    losses = 0

    def __init__(self, endpoint_url: str) -> None:
        super().__init__(endpoint_url)
        self._host = urlsplit(endpoint_url).netloc.encode()

    def _sent(self, request: bytes) -> bytes:
        # fake-gcs answers some paths only under its own name; neither stand-in's clients sign it.
        return super()._sent(re.sub(rb"(?i)\r\nHost: [^\r]*", b"\r\nHost: " + self._host, request, count=1))

    def _answer(self, client: socket.socket, request: bytes) -> None:
        line = request.split(b"\r\n")[0]
        if line.startswith(b"HEAD ") and self.heads:
            self.heads -= 1
            client.sendall(_REFUSED)
            return
        answer = self._sent(request)
        completes = b"/compose" in line or (b"comp=blocklist" in line and line.startswith(b"PUT "))
        if completes and self.losses:
            self.losses -= 1
            return
        client.sendall(answer)


@pytest.fixture
def blind(cloud_place: S3Place) -> Iterator[Blind]:
    with Blind(cloud_place.endpoint.url) as proxy:
        yield proxy


def through(proxy: Blind, place: S3Place, settings: StoreSettings) -> ObjectStore:
    url = urlsplit(place.options["endpoint_url"])._replace(netloc=urlsplit(proxy.url).netloc).geturl()
    return open_store(place.url, **{**place.options, "endpoint_url": url, "settings": settings})


def outcome_of(call: Callable[[], object]) -> OffloaderError | None:
    try:
        call()
    except OffloaderError as error:
        return error
    return None


def test_completion_whose_verification_fails_is_an_unknown_outcome(blind: Blind, cloud_place: S3Place) -> None:
    with closing(through(blind, cloud_place, ONCE)) as store:
        upload_id = store.begin_upload("k")
        part = store.upload_part("k", upload_id, 1, b"bytes")
        blind.heads = 1
        assert isinstance(outcome_of(lambda: store.complete_upload("k", upload_id, [part])), OutcomeUnknownError)
        assert store.get("k")[0] == b"bytes"


@pytest.mark.parametrize(("heads", "losses"), [(1, 0), (0, 1), (1, 1)])
def test_segment_whose_completion_cannot_be_verified_is_not_sent_again(
    blind: Blind, cloud_place: S3Place, heads: int, losses: int
) -> None:
    """Azure has no parts any more then: asking for the completion again isn't a fault of theirs."""
    with closing(through(blind, cloud_place, FEW)) as store:
        upload = SegmentUpload(store, "data", "index", {"role": "data"}, {"role": "index"})
        upload.send_part(Part(1, 0, Pieces([b"bytes"]), crc32c(b"bytes")))
        blind.heads, blind.losses = heads, losses
        assert outcome_of(upload.complete) is None
        assert upload.verify_length(5).size_bytes == 5
        assert store.get("data")[0] == b"bytes"


@pytest.mark.slow
def test_unproven_s3_completion_whose_head_fails_is_an_unknown_outcome() -> None:
    body = b"<CompleteMultipartUploadResult><ETag>e</ETag></CompleteMultipartUploadResult>"
    part = PartInfo(1, '"0123456789abcdef0123456789abcdef"', 5, 1234)
    options: dict[str, Any] = {"access_key": "offloader", "secret_key": "secret", "region": "us-east-1"}
    with (
        ScriptedServer([Answer(200, body), Answer(403)]) as server,
        closing(open_store("s3://bucket/root", endpoint_url=server.url, settings=ONCE, **options)) as store,
    ):
        error = outcome_of(lambda: store.complete_upload("k", "u", [part]))
        assert isinstance(error, OutcomeUnknownError)
        assert "head of k failed: 403" in error.message
