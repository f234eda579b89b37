"""Whether a browser asks on behalf of somebody's web page.

Owns the two checks that keep a page of another site from using what its visitor's machine may do: whose name is in the
header Host, and where a change comes from. Must never believe a name because it resolves to us.
"""

from __future__ import annotations

import ipaddress
from collections.abc import Mapping
from urllib.parse import urlsplit

from offloader.service.listen import ListenAddress

__all__ = ["is_other_site", "is_our_host"]


def is_our_host(host: str, address: ListenAddress) -> bool:
    """Whether ``Host: host`` is an IP address, ``localhost``, or the name that we listen on."""
    name = _name_of(f"http://{host}") if host else None
    if name is None:
        return False
    if name in ("localhost", address.host.lower()):
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
