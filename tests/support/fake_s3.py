"""A small S3 in this process, which refuses what a test tells it to: for stores that differ from Amazon's.

It keeps conditions and compares checksums. Signatures aren't looked at.
"""

from __future__ import annotations

import base64
import hashlib
import itertools
import re
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import TracebackType
from typing import Any, Self
from urllib.parse import parse_qs, unquote, urlsplit
from xml.sax.saxutils import escape

from formats.checksum import crc32c
from offloader.settings import StoreSettings
from offloader.store.base import ObjectStore
from offloader.store.open import open_store
from offloader.store.s3_responses import encoded_crc32c
from tests.support.misbehaving_servers import Answer

__all__ = ["FakeS3", "Request", "refused"]

_TIME = "Sat, 21 Nov 2026 00:00:00 GMT"
_ISO_TIME = "2026-11-21T00:00:00Z"


@dataclass(frozen=True, slots=True)
class Request:
    """One request. ``headers`` have lower-case names; ``query`` is what follows the question mark."""

    method: str
    key: str
    query: Mapping[str, str]
    headers: dict[str, str]
    body: bytes

    @property
    def is_multi_delete(self) -> bool:
        return self.method == "POST" and "delete" in self.query


@dataclass(slots=True)
class _Object:
    body: bytes
    etag: str
    headers: dict[str, str] = field(default_factory=dict)


def refused(status: int, code: str, message: str = "says the server") -> Answer:
    """An error of S3."""
    return Answer(status, f"<Error><Code>{code}</Code><Message>{message}</Message></Error>".encode())


class FakeS3:
    """A server with one bucket; a context.

    Args:
        refuse: the answer to a request instead of the server's own, or ``None``.

    Attributes:
        requests: what came, in order.
        objects: key -> object.
        encrypts: whether it does, and confirms, the encryption that is asked for.
        damages: whether it gets other bodies than were sent.
    """

    def __init__(self, refuse: Callable[[Request], Answer | None] = lambda _: None, *, encrypts: bool = True) -> None:
        self.refuse, self.encrypts, self.damages = refuse, encrypts, False
        self.requests: list[Request] = []
        self.objects: dict[str, _Object] = {}
        self._uploads: dict[str, tuple[str, dict[str, str], dict[int, _Object]]] = {}
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()
        self._opened: list[ObjectStore] = []
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.005,), daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for store in self._opened:
            store.close()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def open(self, *, settings: StoreSettings | None = None, **more: Any) -> ObjectStore:
        """The store at ``root/`` in its bucket, closed with the server; by default without retries."""
        given = {"access_key": "offloader", "secret_key": "a-secret", "region": "us-east-1", **more}
        settings = settings or StoreSettings(retries_max=0)
        store = open_store("s3://bucket/root", endpoint_url=self.url, settings=settings, **given)
        self._opened.append(store)
        return store

    def asked(self, method: str, header: str = "") -> list[Request]:
        """Requests of a method, with a header if one is named."""
        return [each for each in self.requests if each.method == method and (not header or header in each.headers)]

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        outer = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            timeout = 10

            def _answer(self) -> None:
                body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
                place = urlsplit(self.path)
                request = Request(
                    self.command,
                    unquote(place.path).removeprefix("/bucket").removeprefix("/"),
                    {name: values[0] for name, values in parse_qs(place.query, keep_blank_values=True).items()},
                    {name.lower(): value for name, value in self.headers.items()},
                    body,
                )
                answer = outer._answered(request)
                self.send_response_only(answer.status)
                for name, value in answer.headers.items():
                    self.send_header(name, value)
                if self.command != "HEAD" or "Content-Length" not in answer.headers:
                    self.send_header("Content-Length", str(len(answer.body)))
                self.end_headers()
                if self.command != "HEAD":
                    self.wfile.write(answer.body)

            do_GET = do_PUT = do_POST = do_HEAD = do_DELETE = _answer  # noqa: N815

            def log_message(self, *_: object) -> None:
                """Says nothing."""

        return Handler

    def _answered(self, request: Request) -> Answer:
        with self._lock:
            self.requests.append(request)
            if (answer := self.refuse(request)) is not None:
                return answer
            if "uploads" in request.query or "uploadId" in request.query:
                return self._of_upload(request)
            if request.is_multi_delete:
                keys = re.findall(rb"<Key>([^<]*)</Key>", request.body)
                for key in keys:
                    self.objects.pop(key.decode(), None)
                return Answer(200, b"<DeleteResult/>")
            if request.method == "PUT":
                return self._put(request)
            if request.method == "DELETE":
                self.objects.pop(request.key, None)
                return Answer(204)
            if not request.key:
                return self._listed(request)
            return self._read(request)

    def _put(self, request: Request) -> Answer:
        there = self.objects.get(request.key)
        wanted = request.headers.get("if-match")
        if request.headers.get("if-none-match") == "*" and there is not None:
            return refused(412, "PreconditionFailed")
        if wanted is not None and there is None:
            return refused(404, "NoSuchKey")
        if wanted is not None and there is not None and wanted != there.etag:
            return refused(412, "PreconditionFailed")
        made = self._made(request)
        if isinstance(made, Answer):
            return made
        self.objects[request.key] = made
        return Answer(200, b"", {"ETag": made.etag, "Date": _TIME, **made.headers})

    def _made(self, request: Request) -> _Object | Answer:
        sent, body = request.headers, request.body + b"!" * self.damages
        digest = hashlib.md5(body, usedforsecurity=False)
        if sent.get("content-md5", (right := base64.b64encode(digest.digest()).decode())) != right:
            return refused(400, "BadDigest")
        crc = encoded_crc32c(crc32c(body))
        if sent.get("x-amz-checksum-crc32c", crc) != crc:
            return refused(400, "BadDigest")
        kept = {name: value for name, value in sent.items() if name.startswith("x-amz-meta-")}
        if "x-amz-checksum-crc32c" in sent:
            kept["x-amz-checksum-crc32c"] = crc
        return _Object(body, f'"{digest.hexdigest()}"', kept | self._encryption(sent))

    def _encryption(self, sent: Mapping[str, str]) -> dict[str, str]:
        names = ("x-amz-server-side-encryption", "x-amz-server-side-encryption-aws-kms-key-id")
        return {name: sent[name] for name in names if self.encrypts and name in sent}

    def _read(self, request: Request) -> Answer:
        found = self.objects.get(request.key)
        if found is None:
            return refused(404, "NoSuchKey")
        headers = {"ETag": found.etag, "Last-Modified": _TIME, **found.headers}
        body, asked = found.body, re.fullmatch(r"bytes=(\d+)-(\d+)", request.headers.get("range", ""))
        if request.method == "HEAD":
            return Answer(200, b"", {**headers, "Content-Length": str(len(body))})
        if asked is None:
            return Answer(200, body, headers)
        start, stop = int(asked[1]), min(int(asked[2]) + 1, len(body))
        headers["Content-Range"] = f"bytes {start}-{stop - 1}/{len(body)}"
        return Answer(206, body[start:stop], headers)

    def _listed(self, request: Request) -> Answer:
        prefix, after = request.query.get("prefix", ""), request.query.get("start-after", "")
        rows = "".join(
            f"<Contents><Key>{escape(key)}</Key><Size>{len(each.body)}</Size><ETag>{escape(each.etag)}</ETag>"
            f"<LastModified>{_ISO_TIME}</LastModified></Contents>"
            for key, each in sorted(self.objects.items())
            if key.startswith(prefix) and key > after
        )
        body = f"<ListBucketResult><IsTruncated>false</IsTruncated>{rows}</ListBucketResult>"
        return Answer(200, body.encode())

    def _of_upload(self, request: Request) -> Answer:
        if request.method == "POST" and "uploads" in request.query:
            upload_id = f"upload-{next(self._numbers)}"
            encryption = self._encryption(request.headers)
            self._uploads[upload_id] = request.key, encryption, {}
            body = f"<InitiateMultipartUploadResult><UploadId>{upload_id}</UploadId></InitiateMultipartUploadResult>"
            return Answer(200, body.encode(), encryption)
        if "uploads" in request.query:
            return Answer(200, b"<ListMultipartUploadsResult/>")
        upload_id = request.query["uploadId"]
        if upload_id not in self._uploads:
            return refused(404, "NoSuchUpload")
        key, encryption, parts = self._uploads[upload_id]
        if request.method == "PUT":
            part = self._made(request)
            if isinstance(part, Answer):
                return part
            parts[int(request.query["partNumber"])] = part
            return Answer(200, b"", {"ETag": part.etag, **part.headers})
        if request.method == "GET":
            rows = "".join(
                f"<Part><PartNumber>{number}</PartNumber><ETag>{escape(part.etag)}</ETag>"
                f"<Size>{len(part.body)}</Size></Part>"
                for number, part in sorted(parts.items())
            )
            return Answer(200, f"<ListPartsResult>{rows}</ListPartsResult>".encode())
        del self._uploads[upload_id]
        if request.method == "DELETE":
            return Answer(204)
        digests = b"".join(bytes.fromhex(parts[number].etag.strip('"')) for number in sorted(parts))
        etag = f'"{hashlib.md5(digests, usedforsecurity=False).hexdigest()}-{len(parts)}"'
        whole = b"".join(parts[number].body for number in sorted(parts))
        self.objects[key] = _Object(whole, etag, encryption)
        answer = f"<CompleteMultipartUploadResult><ETag>{escape(etag)}</ETag></CompleteMultipartUploadResult>"
        return Answer(200, answer.encode(), encryption)
