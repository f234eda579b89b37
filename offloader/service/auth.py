"""Authentication and roles: bearer tokens, client certificates, and the one table of operations by role."""

from __future__ import annotations

import enum
import hashlib
import hmac
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import NoReturn

from offloader.errors import AccessDenied, InvalidCall
from offloader.service.listen import ListenAddress
from offloader.settings import AccessSettings

__all__ = [
    "OPERATIONS",
    "OPERATION_OF_ACTION",
    "OPERATION_OF_ROUTE",
    "SUBSCRIBER_SCOPE",
    "TOKEN_BYTES_MAX",
    "Caller",
    "Credentials",
    "Guard",
    "NotAllowed",
    "NotAuthenticated",
    "Operation",
    "Role",
    "bearer_token",
    "digest_of",
    "guard_for",
    "is_token",
    "open_credentials",
    "operations_table",
    "token_digests",
]

#: Bytes of one token: shorter ones can be guessed, longer ones don't fit into a header.
TOKEN_BYTES_MIN = 16
TOKEN_BYTES_MAX = 4096
#: Larger files hold something else.
TOKEN_FILE_BYTES_MAX = 256 * 1024

#: RFC 6750, b64token: what can stand in a header.
_TOKEN = re.compile(r"[A-Za-z0-9\-._~+/]+=*", re.ASCII)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


def is_token(text: str) -> bool:
    """Whether it could be one: tokens that are known are longer than those that are looked up."""
    return 0 < len(text) <= TOKEN_BYTES_MAX and _TOKEN.fullmatch(text) is not None


def digest_of(token: str) -> bytes:
    """What is kept of a token, and compared."""
    return hashlib.sha256(token.encode()).digest()


def token_digests(source: str, environ: Mapping[str, str]) -> Sequence[bytes]:
    """Digests of the tokens of one source, ``file:PATH`` or ``env:NAME``.

    Raises:
        InvalidCall: a source of another kind, nothing in it, or what is no token; which is never in the message.
        AccessDenied: a file that can't be read.
    """
    kind, _, place = source.partition(":")
    if kind == "env" and _VARIABLE.fullmatch(place):
        text = environ.get(place, "")
    elif kind == "file" and place:
        text = _file_text(Path(place))
    else:
        # What stands there may be a token that somebody put there: it isn't repeated.
        raise InvalidCall("a token's source is neither file:PATH nor env:NAME")
    lines = [line.strip() for line in text.splitlines()]
    tokens = [line for line in lines if line and not line.startswith("#")]
    if not tokens:
        raise InvalidCall(f"{source} holds no token")
    for number, token in enumerate(tokens, 1):
        which = f"token {number} of {source}" if len(tokens) > 1 else f"the token of {source}"
        if not TOKEN_BYTES_MIN <= len(token) <= TOKEN_BYTES_MAX:
            raise InvalidCall(f"{which} is shorter than {TOKEN_BYTES_MIN} characters or longer than {TOKEN_BYTES_MAX}")
        if not _TOKEN.fullmatch(token):
            raise InvalidCall(f"{which} has characters that can't stand in a header")
    return [digest_of(token) for token in tokens]


def _file_text(file: Path) -> str:
    try:
        with file.open("rb") as opened:
            raw = opened.read(TOKEN_FILE_BYTES_MAX + 1)
    except OSError as cause:
        raise AccessDenied(f"no token in {file}: {cause.strerror}") from None
    if len(raw) > TOKEN_FILE_BYTES_MAX:
        raise InvalidCall(f"{file} is longer than {TOKEN_FILE_BYTES_MAX} bytes: no file of tokens")
    try:
        return raw.decode("ascii")
    except UnicodeDecodeError:
        # The cause would show what was read, which may be a token.
        raise InvalidCall(f"{file} isn't ASCII: no file of tokens") from None


#: Before a subscriber's name in the scope of a certificate: ``subscriber:billing``.
SUBSCRIBER_SCOPE = "subscriber:"


class Role(enum.IntEnum):
    """What a caller may do; each includes the ones before it. ``OPERATIONS`` is what that is."""

    READ = 1
    WRITE = 2
    ADMIN = 3

    @classmethod
    def of(cls, name: str) -> Role:
        """``read``, ``write`` or ``admin``.

        Raises:
            InvalidCall: another word.
        """
        try:
            return cls[name.upper()]
        except KeyError:
            raise InvalidCall(f"{ascii(name)[:80]} is no role", hint="roles: read, write, admin") from None


class NotAuthenticated(AccessDenied):
    """Nobody known: neither token nor certificate, or a wrong one."""


class NotAllowed(AccessDenied):
    """Somebody known, whose role doesn't reach."""


@dataclass(frozen=True, slots=True)
class Caller:
    """Who calls.

    Attributes:
        name: for logs and the audit: ``token of env:READ_TOKEN``, ``certificate prometheus``, ``anyone``. No secret.
        role: ``None`` with no subscribers either: may only ask whether the process lives.
        subscribers: whose progress the caller speaks for, outside of the roles.
    """

    name: str
    role: Role | None
    subscribers: frozenset[str] = frozenset()

    def require_known(self) -> None:
        """Passes everybody but those of whom nothing is known.

        Raises:
            NotAuthenticated: nobody known.
        """
        if self.role is None and not self.subscribers:
            raise NotAuthenticated(
                "this needs a token or a client certificate",
                hint="send the header Authorization: Bearer TOKEN",
            )

    def require(self, role: Role, *, subscriber: str | None = None) -> None:
        """Passes whoever has ``role`` or more, or speaks for ``subscriber``.

        Raises:
            NotAuthenticated: nobody known.
            NotAllowed: the role doesn't reach.
        """
        self.require_known()
        if (self.role is not None and self.role >= role) or (subscriber is not None and subscriber in self.subscribers):
            return
        own = "no role" if self.role is None else f"the role {self.role.name.lower()}"
        scoped = "" if subscriber is None else ", or a token that is bound to that subscriber"
        raise NotAllowed(
            f"{self.name} has {own}, this needs {role.name.lower()}{scoped}",
            hint="ask whoever runs the process for a token of that role",
        )

    def may(self, operation: Operation, *, subscriber: str | None = None) -> None:
        """Passes whoever may do ``operation``, with ``subscriber`` where it is about one.

        Raises:
            NotAuthenticated, NotAllowed: as ``require``.
        """
        if operation.role is not None:
            self.require(operation.role, subscriber=subscriber if operation.is_of_subscriber else None)


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """Something that may be asked for.

    Attributes:
        about: what it is.
        role: that is needed; ``None``: none.
        is_of_subscriber: a token that is bound to the subscriber it is about is as good.
        http: methods and paths.
        flight: names of actions, and of the protocol's calls.
    """

    about: str
    role: Role | None
    is_of_subscriber: bool = False
    http: tuple[str, ...] = ()
    flight: tuple[str, ...] = ()

    @property
    def who(self) -> str:
        """The role for people; ``-``: none is needed."""
        return "-" if self.role is None else self.role.name.lower() + (", subscriber" if self.is_of_subscriber else "")


_STREAM = "/v1/streams/{stream}"
_SUBSCRIBER = f"{_STREAM}/subscribers/{{subscriber}}"
_OF_STREAM = ("segments", "ledgers", "shape", "retention", "decisions", "subscribers", "cleanup", "orphans")
_OF_PROCESS = ("openapi.json", "overview", "status", "config", "errors", "decisions", "orphans", "streams")

OPERATIONS: Mapping[str, Operation] = {
    "probe": Operation(
        about="ask whether the process lives and is ready", role=None, http=("GET /healthz", "GET /readyz")
    ),
    "look": Operation(
        about="look at everything but secrets",
        role=Role.READ,
        http=(
            "GET /metrics",
            *(f"GET /v1/{name}" for name in _OF_PROCESS),
            f"GET {_STREAM}",
            *(f"GET {_STREAM}/{name}" for name in _OF_STREAM),
        ),
        flight=("status", "ListFlights", "GetFlightInfo", "ListActions", "DoExchange"),
    ),
    "read": Operation(about="read entries", role=Role.READ, flight=("DoGet",)),
    "append": Operation(about="bring entries", role=Role.WRITE, flight=("DoPut",)),
    "close-ledger": Operation(about="close an open ledger", role=Role.WRITE, flight=("close-ledger",)),
    "offload": Operation(
        about="offload now, and wait for it", role=Role.WRITE, http=(f"POST {_STREAM}/offload",), flight=("offload",)
    ),
    "pause": Operation(
        about="pause and resume", role=Role.WRITE, http=(f"POST {_STREAM}/pause", f"POST {_STREAM}/resume")
    ),
    "subscribe": Operation(
        about="register a subscriber, raise its generation",
        role=Role.ADMIN,
        is_of_subscriber=True,
        http=(f"PUT {_SUBSCRIBER}",),
        flight=("subscribe",),
    ),
    "publish": Operation(
        about="publish what a subscriber has consumed",
        role=Role.ADMIN,
        is_of_subscriber=True,
        http=(f"POST {_SUBSCRIBER}/publish",),
        flight=("publish",),
    ),
    "unsubscribe": Operation(about="forget a subscriber", role=Role.ADMIN, http=(f"DELETE {_SUBSCRIBER}",)),
    "truncate": Operation(about="let a stream begin later", role=Role.ADMIN, flight=("truncate",)),
}
#: ``POST /v1/streams/{stream}/pause`` -> the operation.
OPERATION_OF_ROUTE: Mapping[str, Operation] = {route: each for each in OPERATIONS.values() for route in each.http}
#: An action's or a call's name in Flight -> the operation.
OPERATION_OF_ACTION: Mapping[str, Operation] = {name: each for each in OPERATIONS.values() for name in each.flight}


def operations_table() -> Iterator[tuple[str, str, str, str]]:
    """What may be done, with which role, and how over HTTP and over Flight: a row for each operation."""
    for each in OPERATIONS.values():
        looks = each is OPERATIONS["look"]
        http = "every other GET" if looks else ", ".join(f"`{route}`" for route in each.http)
        yield each.about, each.who, http, ", ".join(f"`{name}`" for name in each.flight)


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
