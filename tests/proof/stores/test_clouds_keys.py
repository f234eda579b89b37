"""Keys of new objects on Google Cloud Storage and Azure: what is asked of the service, for each stream."""

from __future__ import annotations

import json
import os
import re
from urllib.parse import urlsplit

import pytest

from offloader.errors import UnsupportedError
from offloader.settings import StoreSettings
from offloader.settings.layered import parse_settings
from offloader.store.base import Adjustable, StoreOptions
from offloader.store.open import open_raw
from offloader.store.probe import require_conditional_puts
from tests.support.holding_proxy import HoldingProxy
from tests.support.misbehaving_servers import Answer, ScriptedServer
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


def test_service_that_names_no_key_is_refused_by_the_probe(cloud_place: S3Place) -> None:
    """The stand-ins encrypt nothing, and say so."""
    store = cloud_place.open(settings=StoreSettings(kms_key="of-all"))
    with pytest.raises(UnsupportedError, match=r"store\.kms_key = 'of-all' has no effect"):
        require_conditional_puts(store)
    store.close()


def test_version_of_a_key_of_google_is_that_key() -> None:
    body = json.dumps({"kmsKeyName": "projects/p/keys/of-all/cryptoKeyVersions/3"}).encode()
    for name, problem in (("projects/p/keys/of-all", ""), ("projects/p/keys/of", "has no effect")):
        with ScriptedServer([Answer(200, body)]) as server:
            options = StoreOptions(endpoint_url=server.url, settings=StoreSettings(kms_key=name))
            store = open_raw("gs://bucket/root", options)
            assert isinstance(store, Adjustable)
            found = store.encryption_problem("k")
            assert (problem in found, bool(problem)) == (True, bool(found))
            store.close()


def test_no_key_is_named_by_default(cloud_place: S3Place) -> None:
    base, path = _split(cloud_place)
    with Recording(base) as proxy:
        store = cloud_place.open(endpoint_url=proxy.url + path)
        store.put(f"{ORDERS}/small", b"bytes")
        assert set(proxy.taken()) == {""}
        store.close()
