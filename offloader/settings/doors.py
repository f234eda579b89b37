"""Who may come in at the doors of a process, and how HTTP is served.

Owns the sections `access` and `http`. Must never hold a component or
read a file, an environment variable or the network; nor hold a token: only where one is.
"""

from __future__ import annotations

from dataclasses import dataclass

from offloader.settings.fields import KIB, MIB, Pairs, choice, flag, pairs, places, setting, text, texts

__all__ = ["AccessSettings", "HttpSettings"]


@dataclass(frozen=True, slots=True, kw_only=True)
class AccessSettings:
    """Who may do what at the doors of a process: HTTP and Arrow Flight."""

    read_tokens: tuple[str, ...] = places("where tokens are that may look and read: file:PATH, env:NAME")
    write_tokens: tuple[str, ...] = places("where tokens are that may write too: bring entries, offload now, pause")
    admin_tokens: tuple[str, ...] = places("where tokens are that may do everything: truncate, settle subscribers")
    subscriber_tokens: Pairs = pairs(  # noqa: RUF009 - a field, like the others
        "subscriber = where the token is that may register it and publish for it, file:PATH or env:NAME; no role",
        are_places=True,
    )
    certificates: Pairs = pairs(  # noqa: RUF009 - a field, like the others
        "client certificates: common name or DNS name = role, subscriber:NAME, or both (read subscriber:NAME); "
        "* = any that client_authorities_file signed"
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
    owner_hosts: tuple[str, ...] = texts(
        "hosts, or hosts and ports, to which a command sends OFFLOADER_TOKEN where a stream's manifest names them as "
        "its owner's; empty: only to those whose certificate OFFLOADER_CA_FILE is good for"
    )
    hosts: tuple[str, ...] = texts(
        "names in the header Host that are this process's, where anyone may come in (anonymous); beside IP addresses, "
        "localhost, and the names in http.listen and serve.url"
    )
    tokens_without_tls: bool = flag(False, "tokens may cross the network as they are: something else encrypts them")

    @property
    def has_tokens(self) -> bool:
        """Whether some caller may show a token."""
        return bool(self.read_tokens or self.write_tokens or self.admin_tokens or self.subscriber_tokens)


@dataclass(frozen=True, slots=True, kw_only=True)
class HttpSettings:
    """Where HTTP is served, and what one client may cost."""

    listen: str = text("", "address and port, 127.0.0.1:8750; :8750 is every address; empty: no HTTP")
    connections_max: int = setting(256, "open connections; more are closed at once", low=1, high=100_000)
    client_connections_max: int = setting(
        192, "those of one address (of an IPv6 network of 64 bits), so that others get in too", low=1, high=100_000
    )
    requests_max: int = setting(16, "requests worked on at once; more are asked to come again", low=1, high=256)
    header_bytes_max: int = setting(16 * KIB, "request line and headers of a request", low=4 * KIB, high=MIB)
    body_bytes_max: int = setting(64 * KIB, "body of a request", low=KIB, high=16 * MIB)
    request_seconds_max: float = setting(10.0, "time for a client to send its request", low=0.1, high=600)
    answer_seconds_max: float = setting(
        60.0, "time for an answer to be found, and again to be taken by the client", low=0.1, high=3600
    )
    unsent_bytes_max: int = setting(
        64 * MIB,
        "answers that clients haven't taken yet, all together; above it they are asked to come again",
        low=MIB,
        high=2**40,
    )
    idle_seconds_max: float = setting(30.0, "a connection without a request is closed after it", low=0.1, high=3600)
