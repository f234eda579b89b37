"""Listen addresses and the server's TLS certificate."""

from __future__ import annotations

import ipaddress
import re
import ssl
from dataclasses import dataclass

from offloader.errors import AccessDenied, InvalidCall
from offloader.settings import AccessSettings

_LISTEN = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<name>[A-Za-z0-9.\-]*)):(?P<port>[0-9]{1,5})", re.ASCII)
_PORT_MAX = 65_535


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """Host and port; port 0: any free one."""

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        """Whether it is reachable from this machine only. A name never counts: its address may change."""
        try:
            address = ipaddress.ip_address(self.host)
        except ValueError:
            return False
        # ::ffff:127.0.0.1, which is_loopback recognizes only since 3.13
        return (getattr(address, "ipv4_mapped", None) or address).is_loopback

    @property
    def is_every(self) -> bool:
        """Whether it means all addresses of the machine."""
        try:
            return ipaddress.ip_address(self.host).is_unspecified
        except ValueError:
            return False

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_listen(text: str, *, setting: str = "listen") -> ListenAddress:
    """``127.0.0.1:8080``, ``[::1]:8080``, ``localhost:8080`` (which is ``127.0.0.1``), ``:8080`` (every address).

    Args:
        setting: its name, for the error.

    Raises:
        InvalidCall: an invalid address.
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


_NAMES_MAX = 100


def server_tls(settings: AccessSettings) -> ssl.SSLContext | None:
    """TLS 1.2 and later, by the settings; ``None``: not configured.

    A client may present a certificate where ``certificates`` names some, and must if there are no tokens.

    Raises:
        InvalidCall: contradictory settings, or invalid files.
        AccessDenied: a file that can't be read.
    """
    if not settings.certificate_file:
        for name in ("key_file", "client_authorities_file"):
            if getattr(settings, name):
                raise InvalidCall(f"access.{name} has no effect without access.certificate_file", hint="set both")
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    key_file = settings.key_file or settings.certificate_file
    try:
        context.load_cert_chain(settings.certificate_file, key_file, password=_no_password)
    except OSError as cause:
        raise _refusal(cause, "access.certificate_file and access.key_file", settings.certificate_file) from cause
    if bool(settings.client_authorities_file) != bool(settings.certificates):
        raise InvalidCall(
            "access.client_authorities_file and access.certificates: one has no effect without the other",
            hint='name who may do what: certificates = { "prometheus" = "read" }; "*" is any certificate',
        )
    if settings.client_authorities_file:
        try:
            context.load_verify_locations(cafile=settings.client_authorities_file)
        except OSError as cause:  # ssl.SSLError is one
            raise _refusal(cause, "access.client_authorities_file", settings.client_authorities_file) from cause
        must_show = not settings.has_tokens and settings.anonymous == "loopback"
        context.verify_mode = ssl.CERT_REQUIRED if must_show else ssl.CERT_OPTIONAL
    return context


def certificate_names(tls: ssl.SSLObject | ssl.SSLSocket | None) -> list[str] | None:
    """Common names and DNS names of the peer's certificate; ``None``: it presented none.

    An unprintable name is dropped: it would get into the log.
    """
    found = None if tls is None else tls.getpeercert()
    if not found:
        return None
    subject: tuple[tuple[tuple[str, str], ...], ...] = found.get("subject", ())  # type: ignore[assignment]
    others: tuple[tuple[str, str], ...] = found.get("subjectAltName", ())  # type: ignore[assignment]
    names = [value for part in subject for name, value in part if name == "commonName"]
    names += [value for kind, value in others if kind == "DNS"]
    return [name for name in names if name.isprintable()][:_NAMES_MAX]


def _no_password() -> str:
    """Refuses instead of prompting on a terminal: a service can't use a key with a password."""
    raise InvalidCall("access.key_file is encrypted", hint="give the key without a password, readable only for us")


def _refusal(cause: OSError, setting: str, file: str) -> InvalidCall | AccessDenied:
    if isinstance(cause, ssl.SSLError):
        return InvalidCall(f"{setting}: {file}: {cause.reason or 'not what it should be'}", hint="PEM files that fit")
    return AccessDenied(f"{setting}: {file}: {cause.strerror}", hint="check the paths and who may read them")
