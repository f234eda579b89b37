"""Authentication and authorization: listen addresses, TLS, tokens, client certificates, and the role of each
operation."""

from __future__ import annotations

import enum
import hashlib
import hmac
import ipaddress
import os
import re
import ssl
from collections.abc import Callable, Collection, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, NoReturn, TypeVar, cast

from offloader.errors import AccessDeniedError, InvalidCallError, NotFoundError, parsing
from offloader.settings import AccessSettings
from offloader.stream_names import partition_of, require_stream_name

_LISTEN = re.compile(r"(?:\[(?P<v6>[0-9A-Fa-f:.]+)\]|(?P<name>[A-Za-z0-9.\-]*)):(?P<port>[0-9]{1,5})", re.ASCII)
_PORT_MAX = 65_535


@dataclass(frozen=True, slots=True)
class ListenAddress:
    """Host and port; port 0: any free one."""

    host: str
    port: int

    @property
    def is_loopback(self) -> bool:
        """Whether it is reachable from this machine only. False for names: their address may change."""
        with suppress(ValueError):
            address = ipaddress.ip_address(self.host)
            # ::ffff:127.0.0.1, which is_loopback recognizes only since 3.13
            return bool((getattr(address, "ipv4_mapped", None) or address).is_loopback)
        return False

    @property
    def is_every(self) -> bool:
        """Whether it stands for all addresses of the machine."""
        with suppress(ValueError):
            return ipaddress.ip_address(self.host).is_unspecified
        return False

    def __str__(self) -> str:
        return f"[{self.host}]:{self.port}" if ":" in self.host else f"{self.host}:{self.port}"


def parse_listen(text: str, *, setting: str = "listen") -> ListenAddress:
    """``127.0.0.1:8080``, ``[::1]:8080``, ``localhost:8080`` (which is ``127.0.0.1``), ``:8080`` (every address).

    Args:
        setting: name of the setting, for the error.

    Raises:
        InvalidCallError: an invalid address.
    """
    found = _LISTEN.fullmatch(text.strip())
    port = int(found["port"]) if found else -1
    if not found or port > _PORT_MAX:
        raise InvalidCallError(
            f"{setting}: {ascii(text)[:200]} is not a valid listen address",
            hint="give an address and a port: 127.0.0.1:8080, [::1]:8080, or :8080 for every address",
        )
    host = found["v6"] or found["name"] or "0.0.0.0"  # noqa: S104 - the meaning of ":8080"; refused without tokens
    if found["v6"]:
        with parsing(f"{setting}: {host!a} is not a valid IPv6 address", hint="give [::1]:8080"):
            ipaddress.IPv6Address(host)
    return ListenAddress("127.0.0.1" if host == "localhost" else host, port)


_NAMES_MAX = 100


def server_tls(settings: AccessSettings) -> ssl.SSLContext | None:
    """Server context for TLS 1.2 and later; ``None``: TLS is not configured.

    With ``certificates`` configured, client certificates are accepted; without tokens they are required.

    Raises:
        InvalidCallError: contradictory settings, or invalid files.
        AccessDeniedError: a file that can't be read.
    """
    if not settings.certificate_file:
        for name in ("key_file", "client_authorities_file"):
            if getattr(settings, name):
                raise InvalidCallError(f"access.{name} has no effect without access.certificate_file", hint="set both")
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.minimum_version = ssl.TLSVersion.TLSv1_2
    context.options |= ssl.OP_NO_RENEGOTIATION
    key_file = settings.key_file or settings.certificate_file
    load = partial(context.load_cert_chain, settings.certificate_file, key_file, password=_no_password)
    _load(load, "access.certificate_file and access.key_file", settings.certificate_file)
    if bool(settings.client_authorities_file) != bool(settings.certificates):
        raise InvalidCallError(
            "access.client_authorities_file and access.certificates: one has no effect without the other",
            hint='assign roles to names: certificates = { "prometheus" = "read" }; "*" matches any certificate',
        )
    if settings.client_authorities_file:
        load = partial(context.load_verify_locations, cafile=settings.client_authorities_file)
        _load(load, "access.client_authorities_file", settings.client_authorities_file)
        must_show = not settings.has_tokens and settings.anonymous == "loopback"
        context.verify_mode = ssl.CERT_REQUIRED if must_show else ssl.CERT_OPTIONAL
    return context


def certificate_names(tls: ssl.SSLObject | ssl.SSLSocket | None) -> list[str] | None:
    """Common names and DNS names of the peer's certificate; ``None``: it presented none.

    Unprintable names are dropped, because names are logged.
    """
    found: Mapping[str, Any] | None = None if tls is None else tls.getpeercert()
    if not found:
        return None
    names = [value for part in found.get("subject", ()) for name, value in part if name == "commonName"]
    names += [value for kind, value in found.get("subjectAltName", ()) if kind == "DNS"]
    return [name for name in names if name.isprintable()][:_NAMES_MAX]


def _no_password() -> str:
    """Raises instead of prompting on a terminal: a service can't use an encrypted key."""
    raise InvalidCallError(
        "access.key_file is encrypted", hint="provide the key without a password, readable only by this user"
    )


def _load(load: Callable[[], object], setting: str, file: str) -> None:
    try:
        load()
    except ssl.SSLError as cause:
        raise InvalidCallError(
            f"{setting}: {file}: {cause.reason or 'invalid'}",
            hint="provide valid PEM files; the key must match the certificate",
        ) from cause
    except OSError as cause:
        raise AccessDeniedError(
            f"{setting}: {file}: {cause.strerror}", hint="check the paths and their permissions"
        ) from cause


#: Limits of a token's length: shorter tokens can be guessed, longer ones don't fit into a header.
TOKEN_BYTES_MIN = 16
TOKEN_BYTES_MAX = 4096
#: Maximum size of a token file.
TOKEN_FILE_BYTES_MAX = 256 * 1024

#: RFC 6750, b64token: the characters allowed in a header.
_TOKEN = re.compile(r"[A-Za-z0-9\-._~+/]+=*", re.ASCII)
_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*", re.ASCII)


def digest_of(token: str) -> bytes:
    """Digest of a token, for comparison."""
    return hashlib.sha256(token.encode()).digest()


def tokens_of(source: str, environ: Mapping[str, str]) -> Sequence[str]:
    """The tokens of one source, ``file:PATH`` or ``env:NAME``.

    Raises:
        InvalidCallError: another kind of source, an empty one, or an invalid token; the message never contains it.
        AccessDeniedError: a file that can't be read.
    """
    kind, _, place = source.partition(":")
    if kind == "env" and _VARIABLE.fullmatch(place):
        text = environ.get(place, "")
    elif kind == "file" and place:
        text = _file_text(Path(place))
    else:
        # The message must not repeat the value: it may be a misplaced token.
        raise InvalidCallError("a token's source is neither file:PATH nor env:NAME")
    tokens = [token for line in text.splitlines() if (token := line.strip()) and not token.startswith("#")]
    if not tokens:
        raise InvalidCallError(f"{source} holds no token")
    for number, token in enumerate(tokens, 1):
        which = f"token {number} of {source}" if len(tokens) > 1 else f"the token of {source}"
        if not TOKEN_BYTES_MIN <= len(token) <= TOKEN_BYTES_MAX:
            raise InvalidCallError(
                f"{which} is shorter than {TOKEN_BYTES_MIN} characters or longer than {TOKEN_BYTES_MAX}"
            )
        if not _TOKEN.fullmatch(token):
            raise InvalidCallError(f"{which} has characters that are not allowed in a header")
    return tokens


def _file_text(file: Path) -> str:
    try:
        with file.open("rb") as opened:
            raw = opened.read(TOKEN_FILE_BYTES_MAX + 1)
    except OSError as cause:
        raise AccessDeniedError(f"no token in {file}: {cause.strerror}") from None
    if len(raw) > TOKEN_FILE_BYTES_MAX:
        raise InvalidCallError(f"{file} is longer than {TOKEN_FILE_BYTES_MAX} bytes: not a token file")
    try:
        return raw.decode("ascii")
    except UnicodeDecodeError:
        # The cause would contain the data read, which may be a token.
        raise InvalidCallError(f"{file} isn't ASCII: not a token file") from None


#: Prefix of a subscriber's name in the scope of a certificate: ``subscriber:billing``.
SUBSCRIBER_SCOPE = "subscriber:"
#: Scope of the broker plugin, in addition to the roles.
BROKER_SCOPE = "broker"
#: Scope of tokens that are bound to streams, in addition to the roles.
STREAMS_SCOPE = "streams"


def covers(scope: str, stream: str) -> bool:
    """Whether a token for ``scope`` may see a stream. A scope that ends with ``/``, such as ``public/default/``, is a
    prefix of stream names; any other scope is one stream with its partitions."""
    if scope.endswith("/"):
        return stream.startswith(scope)
    split = partition_of(stream)
    return stream == scope or (split is not None and split[0] == scope)


class Role(enum.IntEnum):
    """Permissions of a caller; each role includes the lower ones. See ``OPERATIONS``."""

    READ = 1
    WRITE = 2
    ADMIN = 3

    @classmethod
    def of(cls, name: str) -> Role:
        """The role ``read``, ``write`` or ``admin``. Raises ``InvalidCallError``: unknown role."""
        try:
            return cls[name.upper()]
        except KeyError:
            raise InvalidCallError(
                f"{ascii(name)[:80]} is not a role", hint="roles: read, write, admin; or broker"
            ) from None


class NotAuthenticated(AccessDeniedError):
    """Unknown caller: a missing or wrong token or certificate."""


class NotAllowed(AccessDeniedError):
    """A known caller with an insufficient role."""


#: Matches URLs of stores and databases, and file paths; not topics, web addresses or paths of this API.
_PLACE = re.compile(
    r"(?:(?<![\w+.-])(?!https?:|(?:non-)?persistent:)[a-z][a-z0-9+.-]*://|"
    r"(?<![\w/.:%-])/(?!v1/|dashboard/|healthz|readyz|metrics))"
    r"[^\s'\"`,;()]*[^\s'\"`,;():.]"
)


_Told = TypeVar("_Told")


def without_places(told: _Told) -> _Told:
    """Removes URLs of stores and file paths from a text, or from the texts of a document, for callers whose token is
    bound to streams."""
    found: Any = told
    match told:
        case str():
            found = _PLACE.sub("(a place on the server)", told)
        case Mapping():
            found = {name: without_places(value) for name, value in told.items()}
        case list() | tuple():
            found = [without_places(value) for value in told]
    return cast("_Told", found)


@dataclass(frozen=True, slots=True)
class Caller:
    """An authenticated or anonymous caller.

    Attributes:
        name: for logs and the audit: ``token of env:READ_TOKEN``, ``certificate prometheus``, ``anyone``. No secret.
        role: ``None``: no role; without subscribers the caller may only query liveness.
        subscribers: subscribers whose progress the caller may report, in addition to its role.
        is_broker: whether the caller may use the operations of the broker plugin, in addition to its role.
        streams: scopes (``covers``) of the streams that the caller may see; ``None``: all streams.
    """

    name: str
    role: Role | None
    subscribers: frozenset[str] = frozenset()
    is_broker: bool = False
    streams: frozenset[str] | None = None

    def sees(self, stream: str) -> bool:
        """Whether the caller may see the stream."""
        return self.streams is None or any(covers(scope, stream) for scope in self.streams)

    def told(self, answer: _Told) -> _Told:
        """``answer`` without the parts that the caller may not see."""
        return answer if self.streams is None else without_places(answer)

    def require_known(self) -> None:
        """Raises ``NotAuthenticated``: the caller is unknown."""
        if self.role is None and not self.subscribers and not self.is_broker:
            raise NotAuthenticated(
                "a token or a client certificate is required",
                hint="send the header Authorization: Bearer TOKEN",
            )

    def operations(self) -> list[str]:
        """Names of the operations that the caller may perform, if they concern a stream it may see."""
        found = []
        for name, operation in OPERATIONS.items():
            with suppress(AccessDeniedError):
                self.may(operation)
                found.append(name)
        return found

    def may(self, operation: Operation, *, subscriber: str | None = None, stream: str | None = None) -> None:
        """Checks that the caller may perform ``operation``: by its role, as a broker, or as the ``subscriber``
        concerned; and that it may see the ``stream`` concerned.

        Raises:
            NotAuthenticated: the caller is unknown.
            NotAllowed: the role isn't sufficient, or tokens bound to streams don't allow the operation.
            NotFoundError: the caller's token is bound to other streams, whether or not this stream exists.
        """
        role, scoped = operation.role, operation.is_of_subscriber and subscriber is not None
        if role is None:
            return
        self.require_known()
        is_own = scoped and subscriber in self.subscribers
        self._require_in_scope(operation, stream, is_own)
        if (self.role is not None and self.role >= role) or is_own or (operation.is_of_broker and self.is_broker):
            return
        own = "no role" if self.role is None else f"the role {self.role.name.lower()}"
        other = ", or a token that is bound to that subscriber" if scoped else ""
        other = ", or a token of access.broker_tokens" if operation.is_of_broker else other
        raise NotAllowed(
            f"{self.name} has {own}, this needs {role.name.lower()}{other}",
            hint="ask the operator for a token with that role",
        )

    def _require_in_scope(self, operation: Operation, stream: str | None, is_own_subscriber: bool) -> None:
        if self.streams is None:
            return
        scopes = ", ".join(sorted(self.streams))
        if not operation.is_of_streams and not is_own_subscriber:
            raise NotAllowed(
                f"{self.name} is bound to {scopes} and allows only to view and read there",
                hint="ask the operator for a token of access.read_tokens or with a higher role",
            )
        if stream is not None and not self.sees(stream):
            raise NotFoundError(
                f"stream {stream} doesn't exist for {self.name}", hint=f"its token is bound to {scopes}"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """An operation of the API.

    Attributes:
        role: required role; ``None``: none required.
        is_of_subscriber: a token bound to the subscriber concerned is sufficient.
        is_of_broker: a broker's token is sufficient.
        is_of_streams: a token bound to streams is sufficient for these streams; lists contain only these streams.
        flight: names of Flight actions and calls.
    """

    about: str
    role: Role | None
    is_of_subscriber: bool = False
    is_of_broker: bool = False
    is_of_streams: bool = False
    http: tuple[str, ...] = ()
    flight: tuple[str, ...] = ()

    @property
    def who(self) -> str:
        """The role as text; ``-``: none required."""
        scopes = {
            "subscriber": self.is_of_subscriber,
            BROKER_SCOPE: self.is_of_broker,
            STREAMS_SCOPE: self.is_of_streams,
        }
        return "-" if self.role is None else ", ".join([self.role.name.lower(), *filter(scopes.get, scopes)])


_STREAM = "/v1/streams/{stream}"
_SUBSCRIBER = f"{_STREAM}/subscribers/{{subscriber}}"
_GROUP = "/v1/groups/{group}"
_LEDGER = f"{_STREAM}/ledgers/{{ledger}}"
_OF_STREAM = ("segments", "ledgers", "timeline", "graph", "retention", "decisions", "subscribers", "cleanup", "orphans")
_OF_PROCESS = ("openapi.json", "overview", "status", "errors", "decisions", "orphans", "streams")

OPERATIONS: Mapping[str, Operation] = {
    "probe": Operation(about="query liveness and readiness", role=None, http=("GET /healthz", "GET /readyz")),
    "look": Operation(
        about="view status, streams and metrics",
        role=Role.READ,
        is_of_streams=True,
        http=(
            "GET /metrics",
            *(f"GET /v1/{name}" for name in _OF_PROCESS),
            f"GET {_STREAM}",
            *(f"GET {_STREAM}/{name}" for name in _OF_STREAM),
        ),
        flight=("status", "ListFlights", "GetFlightInfo", "ListActions", "DoExchange"),
    ),
    "read": Operation(
        about="read entries",
        role=Role.READ,
        is_of_streams=True,
        http=(f"GET {_STREAM}/entries",),
        flight=("DoGet",),
    ),
    "look-at-settings": Operation(about="view the settings", role=Role.READ, http=("GET /v1/config",)),
    "append": Operation(about="append entries", role=Role.WRITE, flight=("DoPut",)),
    "close-ledger": Operation(about="close an open ledger", role=Role.WRITE, flight=("close-ledger",)),
    "offload": Operation(
        about="offload now, and wait for the commit",
        role=Role.WRITE,
        http=(f"POST {_STREAM}/offload",),
        flight=("offload",),
    ),
    "pause": Operation(
        about="pause and resume offloading", role=Role.WRITE, http=(f"POST {_STREAM}/pause", f"POST {_STREAM}/resume")
    ),
    "subscribe": Operation(
        about="register a subscriber, or raise its generation",
        role=Role.ADMIN,
        is_of_subscriber=True,
        http=(f"PUT {_SUBSCRIBER}",),
        flight=("subscribe",),
    ),
    "publish": Operation(
        about="publish a subscriber's position",
        role=Role.ADMIN,
        is_of_subscriber=True,
        http=(f"PUT {_SUBSCRIBER}/position",),
        flight=("publish",),
    ),
    "unsubscribe": Operation(about="remove a subscriber", role=Role.ADMIN, http=(f"DELETE {_SUBSCRIBER}",)),
    "look-at-groups": Operation(about="view reader groups", role=Role.READ, http=("GET /v1/groups", f"GET {_GROUP}")),
    "change-group": Operation(
        about="create, change and remove reader groups, start and publish their checkpoints",
        role=Role.ADMIN,
        http=(
            f"PUT {_GROUP}",
            f"DELETE {_GROUP}",
            f"POST {_GROUP}/checkpoints",
            f"PUT {_GROUP}/truncation-checkpoint",
        ),
    ),
    "read-ledger": Operation(
        about="read whole ledgers",
        role=Role.ADMIN,
        is_of_broker=True,
        http=(f"GET {_LEDGER}", f"GET {_LEDGER}/entries"),
    ),
    "offload-ledger": Operation(
        about="request the offload of a closed ledger, send entries that readers do not receive, end an attempt",
        role=Role.ADMIN,
        is_of_broker=True,
        http=(f"POST {_LEDGER}/offload", f"PUT {_LEDGER}/missing", f"DELETE {_LEDGER}"),
    ),
    "clean": Operation(
        about="approve a cleanup of more than half of a stream", role=Role.ADMIN, http=(f"POST {_STREAM}/cleanup",)
    ),
    "truncate": Operation(
        about="move a stream's start position forward",
        role=Role.ADMIN,
        http=(f"POST {_STREAM}/truncate",),
        flight=("truncate",),
    ),
}
#: ``POST /v1/streams/{stream}/pause`` -> the operation.
OPERATION_OF_ROUTE: Mapping[str, Operation] = {route: each for each in OPERATIONS.values() for route in each.http}
#: Name of a Flight action or call -> the operation.
OPERATION_OF_ACTION: Mapping[str, Operation] = {name: each for each in OPERATIONS.values() for name in each.flight}


#: Maximum number of tokens of a process; a caller's token is compared with each of them.
TOKENS_MAX = 64
#: In ``certificates``: any certificate signed by the configured authorities.
ANY_CERTIFICATE = "*"


class Credentials:
    """The tokens and certificates of a process, shared by its listeners. Thread-safe.

    Args:
        tokens: role -> sources of its tokens: ``file:PATH`` or ``env:NAME``.
        broker_tokens: sources of broker tokens. A token may have a role and also be a broker token.
        stream_tokens: scope of streams (``covers``) -> source of the tokens that are bound to it. Such a token has
            the role read for these streams; it may have several scopes, and subscribers, but no other role.
        subscriber_tokens: subscriber -> source of its token. A token with a role may also have subscribers.
        certificates: common name or DNS name of a client certificate -> the granted permissions, without a name;
            ``*``: the role of signed certificates whose names grant no role.
        environ: environment variables; default: the process's.

    Raises:
        InvalidCallError: another kind of source; a token that is too short, too long, invalid, or has two roles; an
            empty source. The message lists all problems and never contains a token.
        AccessDeniedError: a file that can't be read.
    """

    def __init__(
        self,
        *,
        tokens: Mapping[Role, Sequence[str]] | None = None,
        broker_tokens: Sequence[str] = (),
        subscriber_tokens: Mapping[str, str] | None = None,
        stream_tokens: Mapping[str, str] | None = None,
        certificates: Mapping[str, Caller] | None = None,
        environ: Mapping[str, str] | None = None,
    ) -> None:
        for scope in stream_tokens or {}:
            _require_scope(scope)
        #: Token sources, and the permissions that each grants; the caller's name is derived from the source.
        self._sources: Sequence[tuple[str, Caller]] = [
            *((source, Caller("", role)) for role, sources in (tokens or {}).items() for source in sources),
            *((source, Caller("", Role.READ, streams=frozenset({s}))) for s, source in (stream_tokens or {}).items()),
            *((source, Caller("", None, frozenset({name}))) for name, source in (subscriber_tokens or {}).items()),
            *((source, Caller("", None, is_broker=True)) for source in broker_tokens),
        ]
        self._certificates = dict(certificates or {})
        self._environ = os.environ if environ is None else environ
        #: Digest of a token -> its caller.
        self._known: Mapping[bytes, Caller] = {}
        self.read()()

    def read(self) -> Callable[[], None]:
        """Reads the tokens again; the returned function activates them and can't fail. Raises ``InvalidCallError``,
        ``AccessDeniedError``: like the constructor."""
        known: dict[bytes, Caller] = {}
        problems: list[str] = []
        denied = False
        for source, grant in self._sources:
            try:
                tokens = tokens_of(source, self._environ)
            except (AccessDeniedError, InvalidCallError) as error:
                denied |= isinstance(error, AccessDeniedError)
                problems.append(error.message)
                continue
            for digest in map(digest_of, tokens):
                other = known.get(digest, Caller(f"token of {source}", None))
                if why := _contradiction(other, grant):
                    problems.append(f"{other.name} and of {source}: {why}")
                known[digest] = _merged(other, grant)
        if len(known) > TOKENS_MAX:
            problems.append(f"{len(known)} tokens exceed the limit of {TOKENS_MAX}")
        if problems:
            raise (AccessDeniedError if denied else InvalidCallError)(
                "; ".join(problems),
                hint="write one token per line, of at least 16 letters and digits; nothing was changed",
            )
        return partial(setattr, self, "_known", known)

    @property
    def has_tokens(self) -> bool:
        return bool(self._sources)

    @property
    def has_certificates(self) -> bool:
        """Whether client certificates are accepted."""
        return bool(self._certificates)

    def of_token(self, token: str) -> Caller:
        """The token's caller. Constant time for wrong and right tokens. Raises ``NotAuthenticated``: an unknown
        token."""
        digest = digest_of(token)
        # Compare with all tokens: timing must not reveal a near match.
        found = [caller for known, caller in self._known.items() if hmac.compare_digest(known, digest)]
        if not found:
            raise NotAuthenticated("unknown token", hint="it may have been replaced: get the new one")
        return found[0]

    def of_certificate(self, names: Collection[str]) -> Caller:
        """The certificate's caller, by its names; the transport has verified the signature. Raises
        ``NotAuthenticated``: none of the names is configured."""
        known = {
            each: self._certificates[each] for each in names if each != ANY_CERTIFICATE and each in self._certificates
        }
        roles = {each: grant.role for each, grant in known.items() if grant.role is not None}
        anyone = self._certificates.get(ANY_CERTIFICATE)
        if known or anyone is not None:
            name = max(roles, key=lambda each: roles[each]) if roles else min(known or names, default="without a name")
            role = roles.get(name, None if anyone is None else anyone.role)
            subscribers = frozenset[str]().union(*(each.subscribers for each in known.values()))
            return Caller(f"certificate {name}", role, subscribers, any(each.is_broker for each in known.values()))
        raise NotAuthenticated(
            "the client certificate has no configured name", hint="add its name with a role to access.certificates"
        )

    def __repr__(self) -> str:
        return f"Credentials({self})"

    def __str__(self) -> str:
        return f"{len(self._known)} tokens, {len(self._certificates)} certificates"

    def __reduce__(self) -> NoReturn:
        raise TypeError("credentials can't be pickled")


def _require_scope(scope: str) -> None:
    """Raises ``InvalidCallError``: neither a stream name nor a prefix of stream names that ends with a slash."""
    try:
        require_stream_name(scope.removesuffix("/"))
    except InvalidCallError as error:
        raise InvalidCallError(
            f"access.stream_tokens: {error.message}", hint='"public/default/" stands for every stream below it'
        ) from error


def _contradiction(other: Caller, grant: Caller) -> str:
    """The reason why one token can't have both grants; empty: it can."""
    both = (other, grant)
    if None not in (other.role, grant.role) and other.role != grant.role:
        return "one token with two roles"
    if any(each.streams is not None for each in both) and any(
        each.is_broker or (each.role is not None and each.streams is None) for each in both
    ):
        return "one token for every stream and for some"
    return ""


def _merged(caller: Caller, grant: Caller) -> Caller:
    return replace(
        caller,
        role=caller.role or grant.role,
        subscribers=caller.subscribers | grant.subscribers,
        is_broker=caller.is_broker or grant.is_broker,
        streams=caller.streams if grant.streams is None else grant.streams.union(caller.streams or ()),
    )


@dataclass(frozen=True)
class Guard:
    """Authentication of one listener.

    Attributes:
        anonymous: the role of callers without credentials; ``None``: none. ``guard_for`` decides whether that is safe.
    """

    credentials: Credentials
    anonymous: Role | None = None

    def caller(self, authorization: str | None, certificate_names: Collection[str] | None = None) -> Caller:
        """The caller of a request. A wrong token is refused even if none is required, because its sender relies on it.

        Args:
            authorization: value of the header Authorization; ``None``: absent.
            certificate_names: names of the client certificate, verified by the transport; ``None``: absent.

        Raises:
            NotAuthenticated: an unknown token or certificate, or another kind of authentication.
        """
        if authorization is not None:
            return self.credentials.of_token(bearer_token(authorization))
        if certificate_names is not None and self.credentials.has_certificates:
            return self.credentials.of_certificate(certificate_names)
        return Caller("anyone", self.anonymous)


def bearer_token(authorization: str) -> str:
    """The token of a header ``Bearer TOKEN``. Raises ``NotAuthenticated``: another scheme, or an invalid token."""
    kind, _, token = authorization.partition(" ")
    token = token.strip()
    if kind.lower() != "bearer" or len(token) > TOKEN_BYTES_MAX or not _TOKEN.fullmatch(token):
        raise NotAuthenticated("the authorization isn't a bearer token", hint="send Authorization: Bearer TOKEN")
    return token


def open_credentials(settings: AccessSettings, environ: Mapping[str, str] | None = None) -> Credentials:
    """The tokens and certificates in a process's settings. Raises ``InvalidCallError``, ``AccessDeniedError``: like
    ``Credentials``, and for a certificate with an unknown role."""
    return Credentials(
        tokens={
            Role.READ: settings.read_tokens,
            Role.WRITE: settings.write_tokens,
            Role.ADMIN: settings.admin_tokens,
        },
        broker_tokens=settings.broker_tokens,
        subscriber_tokens=dict(settings.subscriber_tokens),
        stream_tokens=dict(settings.stream_tokens),
        certificates={name: _certificate_grant(name, granted) for name, granted in settings.certificates},
        environ=environ,
    )


def _certificate_grant(name: str, granted: str) -> Caller:
    """The permissions that ``read broker subscriber:NAME`` grants. Raises ``InvalidCallError``: an unknown role."""
    given, _, subscriber = granted.partition(SUBSCRIBER_SCOPE)
    words, is_any = given.split(), name == ANY_CERTIFICATE
    subscribers = frozenset({subscriber.strip()} - {""} if not is_any else ())
    is_broker = BROKER_SCOPE in words and not is_any
    if is_broker:
        words.remove(BROKER_SCOPE)
    has_role = bool(words) or not (subscribers or is_broker)
    return Caller("", Role.of(" ".join(words) or granted) if has_role else None, subscribers, is_broker)


def guard_for(
    address: ListenAddress,
    credentials: Credentials,
    settings: AccessSettings,
    *,
    has_tls: bool,
    setting: str = "listen",
) -> Guard:
    """The guard of a listener at ``address``, if the listener is safe.

    On loopback without tokens and certificates every caller has every permission, unless ``access.anonymous`` is set.

    Args:
        settings: ``anonymous`` and ``tokens_without_tls`` explicitly permit unsafe listeners.
        setting: name of the address's setting, for the error.

    Raises:
        InvalidCallError: other machines could connect without authentication, or tokens would be sent unencrypted.
    """
    anonymous = None if settings.anonymous == "loopback" else Role.of(settings.anonymous)
    is_open = anonymous is None and not (credentials.has_tokens or credentials.has_certificates)
    if credentials.has_certificates and not has_tls:
        raise InvalidCallError(
            f"{setting} {address}: client certificates need TLS",
            hint="set access.certificate_file and access.key_file",
        )
    if not address.is_loopback:
        if is_open:
            raise InvalidCallError(
                f"{setting} {address} can be reached from other machines without authentication",
                hint="set access.read_tokens, write_tokens, admin_tokens or certificates, or listen on 127.0.0.1; "
                "access.anonymous explicitly permits unauthenticated callers",
            )
        if credentials.has_tokens and not has_tls and not settings.tokens_without_tls:
            raise InvalidCallError(
                f"{setting} {address}: tokens would be sent over the network unencrypted",
                hint="set access.certificate_file and access.key_file, or access.tokens_without_tls = true if "
                "something else encrypts the traffic",
            )
    return Guard(credentials, Role.ADMIN if is_open else anonymous)
