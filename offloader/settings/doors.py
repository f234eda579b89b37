"""Who may come in at the doors of a process.

Owns the section `access`. Must never hold a component or
read a file, an environment variable or the network; nor hold a token: only where one is.
"""

from __future__ import annotations

from dataclasses import dataclass

from offloader.settings.fields import Pairs, choice, flag, pairs, places, text

__all__ = ["AccessSettings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessSettings:
    """Who may do what at the doors of a process: HTTP and Arrow Flight."""

    read_tokens: tuple[str, ...] = places("where tokens are that may look and read: file:PATH, env:NAME")
    write_tokens: tuple[str, ...] = places("where tokens are that may write too: bring entries, offload now, pause")
    admin_tokens: tuple[str, ...] = places("where tokens are that may do everything: truncate, settle subscribers")
    certificates: Pairs = pairs(  # noqa: RUF009 - a field, like the others
        "client certificates: common name or DNS name = role; * = any that client_authorities_file signed"
    )
    client_authorities_file: str = text("", "PEM file of the authorities that sign client certificates; empty: none")
    certificate_file: str = text("", "PEM file of this process's certificate and chain; empty: no TLS")
    key_file: str = text("", "PEM file of its key; empty: it is in certificate_file")
    anonymous: str = choice(
        "loopback",
        "what may be done without token and certificate: everything on a loopback address if none is set (loopback), "
        "or by name, on every address: read, write, admin",
        ("loopback", "read", "write", "admin"),
    )
    tokens_without_tls: bool = flag(False, "tokens may cross the network as they are: something else encrypts them")
