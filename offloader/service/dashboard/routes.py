"""The dashboard's files, their paths, and their browser security headers."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources

from fastapi import APIRouter, Request, Response

_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
#: Headers of every file. Only our own scripts, styles, images and addresses, nothing inline, no framing.
HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    # Another release has other files of the same names.
    "Cache-Control": "no-cache",
}


@dataclass(frozen=True, slots=True)
class PageFile:
    """One file.

    Attributes:
        media_type: for ``Content-Type``.
        etag: of these bytes, quotation marks included.
    """

    body: bytes
    media_type: str
    etag: str


@cache
def page_files() -> Mapping[str, PageFile]:
    """Path of a URL -> file: ``/`` is the page itself, the rest lies below ``/dashboard/``. They hold no data, and need
    no authentication."""
    found = {}
    for entry in resources.files(__package__).iterdir():
        media_type = _TYPES.get(entry.name.rpartition(".")[2])
        if media_type is not None:
            body = entry.read_bytes()
            path = "/" if entry.name == "index.html" else f"/dashboard/{entry.name}"
            found[path] = PageFile(body, media_type, f'"{hashlib.sha256(body).hexdigest()[:32]}"')
    return found


def page_routes() -> APIRouter:
    """``/`` and its files."""
    router = APIRouter()
    for path, file in page_files().items():
        router.add_api_route(path, _answering(file), methods=["GET", "HEAD"], include_in_schema=False)
    return router


def _answering(file: PageFile) -> Callable[[Request], Response]:
    headers = {**HEADERS, "ETag": file.etag}

    def answer(request: Request) -> Response:
        if request.headers.get("if-none-match") == file.etag:
            return Response(status_code=304, headers=headers)
        return Response(file.body, media_type=file.media_type, headers=headers)

    return answer
