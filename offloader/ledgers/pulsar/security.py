"""How a client shows who it is, and checks who the broker is.

Owns tokens and the settings of TLS. Must never write a token into a log, an error or a ``repr``.
"""

from __future__ import annotations

import os
import ssl
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path

from offloader.errors import AccessDenied, InvalidCall
from offloader.settings import PulsarSettings

__all__ = ["Security", "open_security", "security_of"]

TOKEN_VARIABLE = "OFFLOADER_PULSAR_TOKEN"  # noqa: S105 - the name of a variable
#: Longer files hold something else.
TOKEN_BYTES_MAX = 64 * 1024


@dataclass(frozen=True, slots=True)
class Security:
    """What a connection needs besides an address.

    Attributes:
        token: asked at each connecting, and whenever a broker wants a fresh one; ``None``: no authentication.
        tls: checks the broker's certificate and name; ``None``: the machine's authorities.
    """

    token: Callable[[], str] | None = field(default=None, repr=False)
    tls: ssl.SSLContext | None = None

    def context(self) -> ssl.SSLContext:
        """For a TLS connection; checks certificate and host name."""
        return self.tls or ssl.create_default_context()


def open_security(
    *,
    token_file: Path | None = None,
    token_variable: str = TOKEN_VARIABLE,
    ca_file: str = "",
    certificate_file: str = "",
    key_file: str = "",
) -> Security:
    """From a token's file or environment variable, certificate authorities and a certificate of our own.

    A file is read again each time, so that a renewed token counts. No file and no variable: no authentication.

    Raises:
        InvalidCall: a file of certificates isn't one.
        AccessDenied: there is no token in ``token_file``.
    """
    tls = None
    if ca_file:
        try:
            tls = ssl.create_default_context(cafile=ca_file)
        except (OSError, ssl.SSLError) as cause:
            raise InvalidCall(f"{ca_file} holds no certificate authorities: {cause}") from cause
    if certificate_file:
        tls = tls or ssl.create_default_context()
        try:
            tls.load_cert_chain(certificate_file, key_file or None, password="")
        except (OSError, ssl.SSLError) as cause:
            raise InvalidCall(f"{certificate_file} holds no certificate with its key: {cause}") from cause
    if token_file is not None:
        file = token_file
        _token_in(file)
        return Security(lambda: _token_in(file), tls)
    value = os.environ.get(token_variable, "").strip()
    return Security((lambda: value) if value else None, tls)


def security_of(settings: PulsarSettings) -> Security:
    """As the section ``[pulsar]`` says.

    Raises:
        InvalidCall: a file of certificates isn't one, or ``token`` names no place.
        AccessDenied: there is no token where ``token`` says.
    """
    kind, _, place = settings.token.partition(":")
    opened = partial(
        open_security,
        ca_file=settings.ca_file,
        certificate_file=settings.certificate_file,
        key_file=settings.key_file,
    )
    if not settings.token:
        return opened()
    if kind == "file" and place:
        return opened(token_file=Path(place))
    if kind != "env" or not place:
        # What stands there may be a token that somebody put there: it isn't repeated.
        raise InvalidCall("pulsar.token names no place of a token", hint="write file:PATH or env:NAME")
    security = opened(token_variable=place)
    if security.token is None:
        raise AccessDenied(f"no token in the environment variable {place}, which pulsar.token names")
    return security


def _token_in(file: Path) -> str:
    try:
        with file.open("rb") as opened:
            token = opened.read(TOKEN_BYTES_MAX + 1).decode("ascii").strip()
    except (OSError, UnicodeDecodeError) as cause:
        # What was read may be the token: the cause of a UnicodeDecodeError would show it.
        why = cause.strerror if isinstance(cause, OSError) else "not ASCII"
        raise AccessDenied(f"no token in {file}: {why}") from None
    if not token or len(token) > TOKEN_BYTES_MAX:
        raise AccessDenied(f"no token in {file}: {'empty' if not token else 'too long'}")
    return token
