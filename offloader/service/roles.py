"""Roles, and the one table of what may be done with which: HTTP's and Flight's checks and the docs are made of it."""

from __future__ import annotations

import enum
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from offloader.errors import AccessDenied, InvalidCall

__all__ = [
    "OPERATIONS",
    "OPERATION_OF_ACTION",
    "OPERATION_OF_ROUTE",
    "SUBSCRIBER_SCOPE",
    "Caller",
    "NotAllowed",
    "NotAuthenticated",
    "Operation",
    "Role",
    "operations_table",
]

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
