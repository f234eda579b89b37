"""The head of a request, and what is wrong with it whoever sent it.

Owns sizes, doubled headers, media types, and the checks that keep a page of another site from using what its visitor's
machine may do: whose name is in ``Host``, and where a request comes from. Must never believe a name because it resolves
to us.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

from offloader.service.http.problems import problem_document
from offloader.service.listen import ListenAddress
from offloader.settings import HttpSettings

__all__ = ["SHORT", "Head", "HeadRules", "is_other_site", "is_our_host"]

#: Answered shortly and to everybody.
SHORT = frozenset({"/healthz", "/readyz"})
_READ_ONLY = frozenset({"GET", "HEAD", "OPTIONS"})
#: Of these there can be one.
_SINGLE = frozenset({"authorization", "content-length", "content-type", "host", "origin"})


@dataclass(frozen=True, slots=True)
class Head:
    """What came before the body.

    Attributes:
        path: percent-encoded, as it was sent.
        headers: by their names in lower case; of several the last.
        doubled: whether there were two of which there can be one.
        size_bytes: of all of it.
    """

    method: str
    path: str
    headers: Mapping[str, str]
    doubled: bool
    size_bytes: int

    @classmethod
    def of(cls, scope: Mapping[str, Any]) -> Head:
        """Out of what uvicorn found."""
        pairs = [(name.decode("latin-1"), value.decode("latin-1")) for name, value in scope["headers"]]
        names = [name for name, _ in pairs if name in _SINGLE]
        size_bytes = sum(len(name) + len(value) + len(": \r\n") for name, value in pairs)
        return cls(
            scope["method"],
            scope["raw_path"].decode("ascii"),
            dict(pairs),
            len(names) > len(set(names)),
            size_bytes + len(scope["raw_path"]) + len(scope["query_string"]),
        )

    @property
    def has_body(self) -> bool:
        return bool(self.body_bytes) or "transfer-encoding" in self.headers

    @property
    def body_bytes(self) -> int:
        """As it says; 0 where it doesn't."""
        return int(self.headers.get("content-length") or 0)


class HeadRules:
    """What a door takes.

    Args:
        settings: sizes.
        address: where the door is.
        is_trusting: whether somebody may do something there without being known.
        is_page: whether a path is one of the page's own files.
        names: by which others reach it, beside IP addresses, ``localhost`` and the name in ``address``.
    """

    def __init__(
        self,
        settings: HttpSettings,
        address: ListenAddress,
        *,
        is_trusting: bool,
        is_page: Callable[[str], bool],
        names: Collection[str] = (),
    ) -> None:
        self._settings, self._is_page, self._is_trusting = settings, is_page, is_trusting
        self._names = frozenset(name.lower() for name in (*names, address.host) if name)

    def is_open(self, path: str) -> bool:
        """Whether nobody has to be known for it."""
        return path in SHORT or self._is_page(path)

    def problem(self, head: Head) -> dict[str, Any] | None:
        """What is wrong with a head; ``None``: nothing."""
        # uvicorn looks only at heads that come in pieces.
        if head.size_bytes > self._settings.header_bytes_max:
            return problem_document(431, f"a head of more than {self._settings.header_bytes_max} bytes")
        if head.doubled:
            return problem_document(400, "a header is there twice that can be there once")
        if "content-length" in head.headers and "transfer-encoding" in head.headers:
            return problem_document(400, "the body's length is said in two ways")
        if self._is_trusting and not is_our_host(head.headers.get("host", ""), self._names):
            # A web page whose name resolves to our address may do what anyone may who reaches us.
            hint = "ask by this process's address, or list the name in access.hosts"
            return problem_document(421, "the header Host names somebody else", hint=hint)
        changes = head.method not in _READ_ONLY
        if is_other_site(head.headers) and (changes or not self.is_open(head.path)):
            return problem_document(403, "a web page of another site may ask for nothing here")
        media = head.headers.get("content-type", "").partition(";")[0].strip().lower()
        if changes and head.has_body and media != "application/json":
            return problem_document(415, "the body isn't application/json", hint="Content-Type: application/json")
        return self.too_long() if head.body_bytes > self._settings.body_bytes_max else None

    def too_long(self) -> dict[str, Any]:
        """Of a body."""
        return problem_document(413, f"a body of more than {self._settings.body_bytes_max} bytes")


def is_our_host(host: str, names: Collection[str]) -> bool:
    """Whether ``Host: host`` is an IP address, ``localhost``, or one of ``names``, which are in small letters."""
    name = _name_of(f"http://{host}") if host else None
    if name is None:
        return False
    if name == "localhost" or name in names:
        return True
    try:
        ipaddress.ip_address(name)
    except ValueError:
        return False
    return True


def is_other_site(headers: Mapping[str, str]) -> bool:
    """Whether a browser says that another site's page sent this. What isn't a browser says nothing."""
    if headers.get("sec-fetch-site", "none") not in ("none", "same-origin"):
        return True
    origin = headers.get("origin")
    if origin is None:
        return False
    try:
        return urlsplit(origin).netloc.lower() != headers.get("host", "").lower()
    except ValueError:
        return True


def _name_of(url: str) -> str | None:
    try:
        return urlsplit(url).hostname
    except ValueError:
        return None
