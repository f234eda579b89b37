"""Keys of new objects on Google Cloud Storage and Azure: what is asked of the service, for each stream."""

from __future__ import annotations

import os
import re
from urllib.parse import urlsplit

import pytest

from offloader.settings.layered import parse_settings
from tests.support.holding_proxy import HoldingProxy
from tests.support.server_fixtures import S3Place

pytestmark = pytest.mark.process

ORDERS = "public/default/persistent/orders"
SETTINGS = parse_settings(
    f'[store]\nkms_key = "of-all"\n[topics."{ORDERS}".store]\nkms_key = "of-orders"\n', "offloader.toml"
)
#: Where each service hears of the key.
_NAMED = re.compile(rb"kmsKeyName=([^& ]*)|(?i:x-ms-encryption-scope): ([^\r]*)")


class Recording(HoldingProxy):
    """Notes the key that each request names which makes an object."""

    def __init__(self, endpoint_url: str) -> None:
        super().__init__(endpoint_url)
        self.keys: list[str] = []
        self._host = endpoint_url.partition("://")[2].encode()

    def _sent(self, request: bytes) -> bytes:
        head, _, body = request.partition(b"\r\n\r\n")
        if head.startswith((b"POST ", b"PUT ")) and b"comp=batch" not in head:  # which deletes
            found = _NAMED.search(head)
            self.keys.append("" if found is None else (found[1] or found[2]).decode())
        # The stand-in for Google finds objects by it.
        head = re.sub(rb"(?i)\r\nhost: [^\r]*", b"\r\nHost: " + self._host, head)
        return super()._sent(head + b"\r\n\r\n" + body)

    def taken(self) -> list[str]:
        keys, self.keys = self.keys, []
        return keys


def _split(place: S3Place) -> tuple[str, str]:
    """Server and path of its address."""
    parts = urlsplit(place.options["endpoint_url"])
    return f"{parts.scheme}://{parts.netloc}", parts.path


def test_every_object_names_the_key_of_its_stream(cloud_place: S3Place) -> None:
    base, path = _split(cloud_place)
    body = os.urandom(300_000)
    with Recording(base) as proxy:
        store = cloud_place.open(endpoint_url=proxy.url + path, settings=SETTINGS.settings_of("").store)
        store.put("a/b/persistent/t/small", b"bytes")
        assert set(proxy.taken()) == {"of-all"}
        for key, sent in ((f"{ORDERS}/small", b"bytes"), (f"{ORDERS}/large", body)):
            store.put(key, sent)
            assert set(proxy.taken()) == {"of-orders"}
            assert store.get(key)[0] == sent
        upload = store.begin_upload(f"{ORDERS}/parts")
        proxy.taken()  # the upload's marker, which holds no entries
        parts = [store.upload_part(f"{ORDERS}/parts", upload, number, body) for number in (1, 2)]
        store.complete_upload(f"{ORDERS}/parts", upload, parts)
        assert set(proxy.taken()) == {"of-orders"}
        assert store.get(f"{ORDERS}/parts")[0] == body + body
        store.close()


def test_no_key_is_named_by_default(cloud_place: S3Place) -> None:
    base, path = _split(cloud_place)
    with Recording(base) as proxy:
        store = cloud_place.open(endpoint_url=proxy.url + path)
        store.put(f"{ORDERS}/small", b"bytes")
        assert set(proxy.taken()) == {""}
        store.close()
