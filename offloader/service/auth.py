"""Who may do what at the doors of a process: bearer tokens, client certificates, roles, and where it is safe to listen.

Owns the comparison of tokens and the rule that nobody unknown comes in from another machine. Must never keep a token
itself, only its digest, nor show one: not in a log, an error, a ``repr``, a status or a pickle.

Tokens come from files and environment variables, ``file:/run/secrets/read`` or ``env:READ_TOKEN``: a command line can
be read by every process of the machine. A file holds a token a line, so that a new one counts before the old one goes.
"""

from __future__ import annotations

import hmac
import os
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import NoReturn

from offloader.errors import AccessDenied, InvalidCall
from offloader.service.listen import ListenAddress
from offloader.service.roles import SUBSCRIBER_SCOPE, Caller, NotAllowed, NotAuthenticated, Role
from offloader.service.tokens import digest_of, is_token, token_digests
from offloader.settings import AccessSettings

__all__ = [
    "Caller",
    "Credentials",
    "Guard",
    "NotAllowed",
    "NotAuthenticated",
    "Role",
    "bearer_token",
    "guard_for",
    "open_credentials",
]

#: Of one process; a caller's token is compared with each of them.
TOKENS_MAX = 64
#: In ``certificates``: whoever has a certificate that our authorities signed.
ANY_CERTIFICATE = "*"


@dataclass(frozen=True, slots=True)
class _Known:
    """A token that counts: its digest, where it comes from, and what it is good for."""

    digest: bytes
    source: str
    role: Role | None
    subscribers: frozenset[str] = frozenset()


class Credentials:
    """The tokens and certificates of a process, shared by its doors. Thread-safe.

    Args:
        tokens: role -> where its tokens are: ``file:PATH`` or ``env:NAME``.
        subscriber_tokens: subscriber -> where the token is that speaks for it. A token that has a role may speak for
            subscribers too.
        certificates: common name or DNS name of a client's certificate -> its role; ``*``: any other that was signed
            by the authorities of the door.
        certificate_subscribers: such a name -> the subscriber that the certificate speaks for.
        environ: where variables are looked up; default: the process's environment.

    Raises:
        InvalidCall: a source of another kind; a token that is too short, too long or not one, or stands for two roles;
            nothing in a source. Every problem at once; a token is never in it.
        AccessDenied: a file that can't be read.
    """

    def __init__(
        self,
        *,
        tokens: Mapping[Role, Sequence[str]] | None = None,
        subscriber_tokens: Mapping[str, str] | None = None,
        certificates: Mapping[str, Role] | None = None,
        certificate_subscribers: Mapping[str, str] | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        roles = [(source, role, "") for role, sources in (tokens or {}).items() for source in sources]
        scopes = [(source, None, name) for name, source in (subscriber_tokens or {}).items()]
        self._sources: Sequence[tuple[str, Role | None, str]] = [*roles, *scopes]
        self._certificates = dict(certificates or {})
        self._certificate_subscribers = dict(certificate_subscribers or {})
        self._environ = environ
        self._known: tuple[_Known, ...] = ()
        self.reload()

    def reload(self) -> None:
        """Reads the tokens again; what was wrong changes nothing. Raises as the constructor."""
        self.read()()

    def read(self) -> Callable[[], None]:
        """Reads the tokens again; they count once what is returned is called, which can't fail.

        Raises:
            InvalidCall, AccessDenied: as the constructor.
        """
        environ = os.environ if self._environ is None else self._environ
        known: dict[bytes, _Known] = {}
        problems: list[str] = []
        denied = False
        for source, role, subscriber in self._sources:
            try:
                found = token_digests(source, environ)
            except (AccessDenied, InvalidCall) as error:
                denied |= isinstance(error, AccessDenied)
                problems.append(error.message)
                continue
            for digest in found:
                other = known.get(digest, _Known(digest, source, role))
                if role is not None and other.role not in (role, None):
                    problems.append(f"{other.source} and {source} hold the same token, for two roles")
                subscribers = other.subscribers | ({subscriber} if subscriber else frozenset())
                known[digest] = replace(other, role=other.role or role, subscribers=subscribers)
        if len(known) > TOKENS_MAX:
            problems.append(f"{len(known)} tokens are above {TOKENS_MAX}")
        if problems:
            kind = AccessDenied if denied else InvalidCall
            raise kind(
                "; ".join(problems), hint="one token a line, of at least 16 letters and digits; nothing was changed"
            )
        return partial(self._use, tuple(known.values()))

    def _use(self, known: tuple[_Known, ...]) -> None:
        self._known = known

    @property
    def has_tokens(self) -> bool:
        return bool(self._sources)

    @property
    def has_certificates(self) -> bool:
        """Whether certificates of clients mean anything here."""
        return bool(self._certificates or self._certificate_subscribers)

    def of_token(self, token: str) -> Caller:
        """Whose token it is. Takes as long for a wrong one as for a right one.

        Raises:
            NotAuthenticated: nobody's.
        """
        digest = digest_of(token)
        found: _Known | None = None
        for each in self._known:  # all of them, so that time doesn't say which one was nearly right
            if hmac.compare_digest(each.digest, digest):
                found = each
        if found is None:
            raise NotAuthenticated("the token isn't known here", hint="it may have been replaced: get the new one")
        return Caller(f"token of {found.source}", found.role, found.subscribers)

    def of_certificate(self, names: Collection[str]) -> Caller:
        """Whose certificate it is, by the names in it; the transport has checked who signed it.

        Raises:
            NotAuthenticated: none of its names means anything here.
        """
        bound = [name for name in names if name in self._certificate_subscribers]
        subscribers = frozenset(self._certificate_subscribers[name] for name in bound)
        known = [name for name in names if name != ANY_CERTIFICATE and name in self._certificates]
        best = max(known, key=lambda name: self._certificates[name], default="")
        if best:
            return Caller(f"certificate {best}", self._certificates[best], subscribers)
        role = self._certificates.get(ANY_CERTIFICATE)
        if bound or role is not None:
            return Caller(f"certificate {min(bound or names, default='without a name')}", role, subscribers)
        raise NotAuthenticated(
            "the client certificate's name isn't known here", hint="name it with a role in access.certificates"
        )

    def __repr__(self) -> str:
        return f"Credentials({self})"

    def __str__(self) -> str:
        """How many there are, for people."""
        certificates = self._certificates.keys() | self._certificate_subscribers.keys()
        return f"{len(self._known)} tokens, {len(certificates)} certificates"

    def __reduce__(self) -> NoReturn:
        raise TypeError("credentials stay in their process")


class Guard:
    """Who comes in at one door.

    Args:
        credentials: tokens and certificates that count.
        anonymous: the role of whoever shows nothing; ``None``: none. ``guard_for`` knows when that is safe.
    """

    def __init__(self, credentials: Credentials, anonymous: Role | None = None) -> None:
        self.credentials = credentials
        self.anonymous = anonymous

    def caller(self, authorization: str | None, certificate_names: Collection[str] | None = None) -> Caller:
        """Who calls. A wrong token is refused even where none is needed: whoever sends one believes that it counts.

        Args:
            authorization: the header of that name, as sent; ``None``: there was none.
            certificate_names: of the client's certificate, which the transport has checked; ``None``: it showed none.

        Raises:
            NotAuthenticated: a token or certificate that isn't known, or another kind of authentication.
        """
        if authorization is not None:
            return self.credentials.of_token(bearer_token(authorization))
        if certificate_names is not None and self.credentials.has_certificates:
            return self.credentials.of_certificate(certificate_names)
        return Caller("anyone", self.anonymous)

    def __repr__(self) -> str:
        return f"Guard({self.credentials!r}, anonymous={self.anonymous!r})"


def bearer_token(authorization: str) -> str:
    """The token of a header ``Bearer TOKEN``.

    Raises:
        NotAuthenticated: another kind, or nothing that is a token.
    """
    kind, _, token = authorization.partition(" ")
    token = token.strip()
    if kind.lower() != "bearer" or not is_token(token):
        raise NotAuthenticated("the authorization isn't a bearer token", hint="send Authorization: Bearer TOKEN")
    return token


def open_credentials(settings: AccessSettings, environ: Mapping[str, str] | None = None) -> Credentials:
    """The tokens and certificates that a process's settings name.

    Raises:
        InvalidCall, AccessDenied: as ``Credentials``; a certificate with a word that is no role.
    """
    roles: dict[str, Role] = {}
    subscribers: dict[str, str] = {}
    for name, granted in settings.certificates:
        role, scope, subscriber = granted.partition(SUBSCRIBER_SCOPE)
        if scope and subscriber.strip() and name != ANY_CERTIFICATE:
            subscribers[name] = subscriber.strip()
        if role.strip() or name not in subscribers:
            roles[name] = Role.of(role.strip() or granted)
    return Credentials(
        tokens={
            Role.READ: settings.read_tokens,
            Role.WRITE: settings.write_tokens,
            Role.ADMIN: settings.admin_tokens,
        },
        subscriber_tokens=dict(settings.subscriber_tokens),
        certificates=roles,
        certificate_subscribers=subscribers,
        environ=environ,
    )


def guard_for(
    address: ListenAddress,
    credentials: Credentials,
    settings: AccessSettings,
    *,
    has_tls: bool,
    setting: str = "listen",
) -> Guard:
    """The guard of a door at ``address``, if it is safe to open it there.

    On loopback without tokens and certificates everyone may do everything, unless ``access.anonymous`` says what.

    Args:
        address: where the door is.
        credentials: tokens and certificates that count there.
        settings: ``anonymous`` and ``tokens_without_tls`` are what may be said by name.
        has_tls: whether what goes through the door is encrypted.
        setting: of the address, for the error.

    Raises:
        InvalidCall: other machines would come in without authentication, or tokens would cross the network readable.
    """
    anonymous = None if settings.anonymous == "loopback" else Role.of(settings.anonymous)
    has_authentication = credentials.has_tokens or credentials.has_certificates
    if credentials.has_certificates and not has_tls:
        raise InvalidCall(
            f"{setting} {address}: client certificates need TLS",
            hint="set access.certificate_file and access.key_file",
        )
    if not address.is_loopback:
        if not has_authentication and anonymous is None:
            raise InvalidCall(
                f"{setting} {address} can be reached from other machines, and nobody would be asked who they are",
                hint="set access.read_tokens, write_tokens, admin_tokens or certificates, or listen on 127.0.0.1; "
                "access.anonymous lets anyone in by name",
            )
        if credentials.has_tokens and not has_tls and not settings.tokens_without_tls:
            raise InvalidCall(
                f"{setting} {address}: tokens would cross the network readable",
                hint="set access.certificate_file and access.key_file, or access.tokens_without_tls = true where "
                "something else encrypts",
            )
    if not has_authentication and anonymous is None:
        anonymous = Role.ADMIN
    return Guard(credentials, anonymous)
