"""Where a server listens: an address as a value, and whether others than this machine can reach it.

Owns how an address is written. Must never resolve a name: what it resolves to may change after the check.
"""

from __future__ import annotations

import ipaddress
import re
from dataclasses import dataclass

from offloader.errors import InvalidCall

__all__ = ["ListenAddress", "parse_listen"]

_LISTEN = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<name>[A-Za-z0-9.\-]*)):(?P<port>[0-9]{1,5})", re.ASCII)
_PORT_MAX = 65_535


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """Host and port; port 0: any that is free.

    Attributes:
        host: an IP address or a host name.
    """

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        """Whether only this machine reaches it. A name never counts: it may mean another address tomorrow."""
        try:
            address = ipaddress.ip_address(self.host)
        except ValueError:
            return False
        mapped = getattr(address, "ipv4_mapped", None)  # ::ffff:127.0.0.1; is_loopback knows it only since 3.13
        return (mapped or address).is_loopback

    @property
    def is_every(self) -> bool:
        """Whether it stands for all addresses of the machine."""
        try:
            return ipaddress.ip_address(self.host).is_unspecified
        except ValueError:
            return False

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_listen(text: str, *, setting: str = "listen") -> ListenAddress:
    """``127.0.0.1:8080``, ``[::1]:8080``, ``localhost:8080`` (which is ``127.0.0.1``), ``:8080`` (every address).

    Args:
        text: the address.
        setting: its name, for the error.

    Raises:
        InvalidCall: it isn't one.
    """
    found = _LISTEN.fullmatch(text.strip())
    port = int(found["port"]) if found else -1
    if not found or port > _PORT_MAX:
        raise InvalidCall(
            f"{setting}: {ascii(text)[:200]} is no address to listen on",
            hint="give an address and a port: 127.0.0.1:8080, [::1]:8080, or :8080 for every address",
        )
    host = found["v6"] or found["name"] or "0.0.0.0"  # noqa: S104 - what ":8080" says; it is refused without tokens
    if found["v6"]:
        try:
            ipaddress.IPv6Address(host)
        except ValueError:
            raise InvalidCall(f"{setting}: {host!a} is no IPv6 address", hint="give [::1]:8080") from None
    return ListenAddress("127.0.0.1" if host == "localhost" else host, port)
