"""Listings with pages without keys: such a page isn't the end unless it says so."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager, suppress
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any
from urllib.parse import parse_qs, urlsplit

import pytest

from offloader.errors import StoreUnavailableError
from offloader.settings import StoreSettings
from offloader.store.base import ObjectStore
from offloader.store.open import open_store
from offloader.testing.store_suite import all_keys

ONCE = StoreSettings(retries_max=0)
TIME = "2026-11-21T00:00:00.000Z"
Pages = Sequence[Sequence[str]]
Query = dict[str, str]


@contextmanager
def paging_server(page: Callable[[Query], bytes]) -> Iterator[str]:
    """Answers every GET with what ``page`` makes of its query."""

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_GET(self) -> None:
            query = {name: values[0] for name, values in parse_qs(urlsplit(self.path).query).items()}
            body = page(query)
            self.send_response(200)
            self.send_header("Content-Length", str(len(body)))
            self.send_header("Content-Type", "application/json" if body.startswith(b"{") else "application/xml")
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, *_: object) -> None:
            """Says nothing."""

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        server.daemon_threads = True
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            yield f"http://127.0.0.1:{server.server_address[1]}"
        finally:
            server.shutdown()
            thread.join()


def _s3_page(pages: Pages, query: Query) -> bytes:
    """Which page is the token's; a listing that begins after a key begins at the page behind it."""
    after = query.get("start-after", "")
    behind = next((number for number, keys in enumerate(pages) if keys and keys[-1] == after), -1) + 1
    number = int(query.get("continuation-token", behind))
    keys = pages[number] if number < len(pages) else []
    last = number >= len(pages) - 1
    contents = "".join(
        f"<Contents><Key>{key}</Key><Size>1</Size><ETag>e</ETag><LastModified>{TIME}</LastModified></Contents>"
        for key in keys
    )
    token = "" if last else f"<NextContinuationToken>{number + 1}</NextContinuationToken>"
    return (
        f"<ListBucketResult><IsTruncated>{str(not last).lower()}</IsTruncated>{token}{contents}</ListBucketResult>"
    ).encode()


def _azure_page(pages: Pages, query: Query) -> bytes:
    number = int(query.get("marker", 0))
    blobs = "".join(
        f"<Blob><Name>{key}</Name><Properties><Last-Modified>Sat, 21 Nov 2026 00:00:00 GMT</Last-Modified>"
        "<Etag>e</Etag><Content-Length>1</Content-Length><BlobType>BlockBlob</BlobType></Properties></Blob>"
        for key in pages[number]
    )
    following = "" if number == len(pages) - 1 else str(number + 1)
    return (
        '<?xml version="1.0"?><EnumerationResults ServiceEndpoint="http://x" ContainerName="bucket">'
        f"<Blobs>{blobs}</Blobs><NextMarker>{following}</NextMarker></EnumerationResults>"
    ).encode()


def _gcs_page(pages: Pages, query: Query) -> bytes:
    number = int(query.get("pageToken", 0))
    start = query.get("startOffset", "")
    items = [{"name": key, "size": "1", "generation": "1", "updated": TIME} for key in pages[number] if key >= start]
    page: dict[str, Any] = {"items": items} if items else {}
    if number < len(pages) - 1:
        page["nextPageToken"] = str(number + 1)
    return json.dumps(page).encode()


def _open(scheme: str, url: str) -> ObjectStore:
    keys: dict[str, Any] = {"access_key": "account", "secret_key": base64.b64encode(b"secret").decode()}
    if scheme == "az":
        return open_store("az://bucket/root", endpoint_url=f"{url}/account", settings=ONCE, **keys)
    if scheme == "gs":
        return open_store("gs://bucket/root", endpoint_url=url, settings=ONCE)
    return open_store("s3://bucket/root", endpoint_url=url, region="us-east-1", settings=ONCE, **keys)


_PAGE = {"s3": _s3_page, "az": _azure_page, "gs": _gcs_page}
PAGES: list[Pages] = [
    [["root/a"], [], ["root/b"]],
    [[], [], [], ["root/a", "root/b"]],
    [["root/a"], ["root/b"], [], []],
    [[], ["root/a"], [], [], ["root/b"], []],
]


@pytest.mark.slow
@pytest.mark.parametrize("pages", PAGES, ids=["middle", "beginning", "end", "everywhere"])
@pytest.mark.parametrize("scheme", _PAGE)
def test_pages_without_keys_do_not_end_a_listing(scheme: str, pages: Pages) -> None:
    with (
        paging_server(lambda query: _PAGE[scheme](pages, query)) as url,
        closing(_open(scheme, url)) as store,
    ):
        assert all_keys(store) == ["a", "b"]


@pytest.mark.slow
def test_pages_without_uploads_do_not_end_a_listing_of_uploads() -> None:
    def page(query: Query) -> bytes:
        number = int(query.get("key-marker", 0))
        upload = f"<Upload><Key>root/k</Key><UploadId>u</UploadId><Initiated>{TIME}</Initiated></Upload>"
        found, truncated = (upload, "false") if number == 3 else ("", "true")
        return (
            f"<ListMultipartUploadsResult><IsTruncated>{truncated}</IsTruncated>"
            f"<NextKeyMarker>{number + 1}</NextKeyMarker>{found}</ListMultipartUploadsResult>"
        ).encode()

    with paging_server(page) as url, closing(_open("s3", url)) as store:
        assert [upload.upload_id for upload in store.list_uploads("")] == ["u"]


@pytest.mark.slow
def test_keys_of_uploads_may_have_letters_that_no_xml_has() -> None:
    asked: list[Query] = []

    def page(query: Query) -> bytes:
        asked.append(query)
        number = len(asked)
        is_encoded = query.get("encoding-type") == "url"
        key = f"root/a%01b%25+{number}" if is_encoded else f"root/a&#1;b% {number}"
        return (
            f"<ListMultipartUploadsResult><IsTruncated>{str(number < 2).lower()}</IsTruncated>"
            f"<NextKeyMarker>{key}</NextKeyMarker>{'<EncodingType>url</EncodingType>' if is_encoded else ''}"
            f"<Upload><Key>{key}</Key><UploadId>u</UploadId><Initiated>{TIME}</Initiated></Upload>"
            "</ListMultipartUploadsResult>"
        ).encode()

    found: list[str] = []
    with paging_server(page) as url, closing(_open("s3", url)) as store, suppress(StoreUnavailableError):
        found = [upload.key for upload in store.list_uploads("")]
    assert found == ["a\x01b% 1", "a\x01b% 2"]
    assert asked[1]["key-marker"] == "root/a\x01b% 1"


def test_listing_that_begins_before_the_asked_key_is_no_page() -> None:
    """A server that ignores where to begin: such a page would say that nothing follows."""
    keys = "".join(
        f"<Contents><Key>root/{key}</Key><Size>1</Size><ETag>e</ETag><LastModified>{TIME}</LastModified></Contents>"
        for key in "abc"
    )
    page = f"<ListBucketResult><IsTruncated>true</IsTruncated>{keys}</ListBucketResult>".encode()
    found: list[str] = []
    with paging_server(lambda _: page) as url, closing(_open("s3", url)) as store, suppress(StoreUnavailableError):
        found += [info.key for info in store.list("", after="x", limit=3).objects]
    assert found == []


@pytest.mark.slow
def test_pages_without_parts_do_not_end_a_listing_of_parts() -> None:
    def page(query: Query) -> bytes:
        number = int(query.get("part-number-marker", 0))
        part = "<Part><PartNumber>7</PartNumber><ETag>e</ETag><Size>1</Size></Part>"
        found, truncated = (part, "false") if number == 3 else ("", "true")
        return (
            f"<ListPartsResult><IsTruncated>{truncated}</IsTruncated>"
            f"<NextPartNumberMarker>{number + 1}</NextPartNumberMarker>{found}</ListPartsResult>"
        ).encode()

    with paging_server(page) as url, closing(_open("s3", url)) as store:
        assert [part.number for part in store.list_parts("k", "u")] == [7]


@pytest.mark.slow
def test_endless_listing_is_an_error() -> None:
    page = b"<ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken>t</NextContinuationToken>"
    with (
        paging_server(lambda _: page + b"</ListBucketResult>") as url,
        closing(_open("s3", url)) as store,
        pytest.raises(StoreUnavailableError, match="has too many pages"),
    ):
        store.list("")


def test_truncated_page_without_keys_and_token_is_an_error() -> None:
    with (
        paging_server(lambda _: b"<ListBucketResult><IsTruncated>true</IsTruncated></ListBucketResult>") as url,
        closing(_open("s3", url)) as store,
        pytest.raises(StoreUnavailableError, match="NextContinuationToken"),
    ):
        store.list("")
