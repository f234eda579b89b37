"""The page's files, and the rules under which a browser may run them.

Owns which files there are, their types and headers. Must never serve anything that isn't part of the package: what is
asked for is looked up by name, never on a disk.

The files hold nothing of anybody: who may see them is everybody, so that the page can ask for a token. Everything it
shows comes from ``/v1/...`` (``api.js`` has the list), asked for with that token.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from importlib import resources

__all__ = ["HEADERS", "PageFile", "page_files"]

_TYPES = {
    "html": "text/html; charset=utf-8",
    "css": "text/css; charset=utf-8",
    "js": "text/javascript; charset=utf-8",
    "svg": "image/svg+xml",
}
#: Of every answer that is one of the files. No script, style, picture or address but our own, nothing inline, and
#: nobody may put the page into a frame.
HEADERS: Mapping[str, str] = {
    "Content-Security-Policy": (
        "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; "
        "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
    ),
    "X-Content-Type-Options": "nosniff",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    # Another release has other files under the same names.
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
    """Path of a URL -> file: ``/`` is the page itself, the rest lies below ``/dashboard/``."""
    found = {}
    for entry in resources.files(__package__).iterdir():
        media_type = _TYPES.get(entry.name.rpartition(".")[2])
        if media_type is not None:
            body = entry.read_bytes()
            path = "/" if entry.name == "index.html" else f"/dashboard/{entry.name}"
            found[path] = PageFile(body, media_type, f'"{hashlib.sha256(body).hexdigest()[:32]}"')
    return found
