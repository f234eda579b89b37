"""Checks of a serving process's settings before it starts: what no single setting's check can know.

Opens no connection, database or port, and shows no secret; reads tokens and certificates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from offloader.doctor.findings import Finding, fine, warning
from offloader.errors import InvalidCall, OffloaderError
from offloader.ledgers.database import database_path
from offloader.ledgers.pulsar.topic_patterns import TopicPatterns
from offloader.service.auth import Credentials, Guard, guard_for, open_credentials
from offloader.service.listen import ListenAddress, parse_listen
from offloader.service.tls import server_tls
from offloader.settings import Settings

__all__ = ["DoorChecks", "no_store", "nothing_to_do", "require_sound"]


def require_sound(settings: Settings) -> None:
    """Refuses settings of a process that can't be made of them, all that is wrong at once. Opens and asks nothing, but
    reads tokens and certificates.

    Raises:
        InvalidCall, AccessDenied: what is wrong, a part each.
    """
    serve = settings.serve
    found: list[OffloaderError] = []
    if not serve.store:
        found.append(no_store())
    if not (serve.ledgers or settings.pulsar.topics or settings.flight.listen or serve.upkeep):
        found.append(nothing_to_do())
    checks: list[Callable[[], object]] = [
        lambda: TopicPatterns.of(settings.pulsar.topics, settings.pulsar.exclude),
        *([lambda: database_path(serve.ledgers)] if serve.ledgers else []),
        lambda: _doors(settings),
    ]
    for check in checks:
        try:
            check()
        except OffloaderError as error:
            found.append(error)
    if len(found) == 1:
        raise found[0]
    if found:
        raise InvalidCall("; ".join(each.message for each in found), hint="every problem is listed")


class DoorChecks:
    """See ``offloader.doctor.findings.Check``."""

    name = "access"

    def __init__(self, settings: Settings) -> None:
        self._settings = settings

    def run(self) -> Iterator[Finding]:
        credentials, has_tls, doors = _doors(self._settings)
        if doors:
            yield fine("access", f"known: {credentials}" + ("; TLS" if has_tls else ""))
        for setting, (address, guard) in doors.items():
            if guard.anonymous is not None and not address.is_loopback:
                role = guard.anonymous.name.lower()
                yield warning(setting, f"anyone who reaches {address} may {role}", "access.anonymous says so")
            else:
                yield fine(setting, f"{address} may be opened")


def _doors(settings: Settings) -> tuple[Credentials | None, bool, dict[str, tuple[ListenAddress, Guard]]]:
    """Who is known, whether there is TLS, and what guards each address that is listened on: by its setting.

    Raises: as ``guard_for``, ``open_credentials``, ``server_tls``, where an address wouldn't be safe to open.
    """
    named = {"http.listen": settings.http.listen, "flight.listen": settings.flight.listen}
    if not any(named.values()):
        return None, False, {}
    access = settings.access
    credentials, has_tls = open_credentials(access), server_tls(access) is not None
    found = {}
    for setting, text in named.items():
        if text:
            address = parse_listen(text, setting=setting)
            found[setting] = address, guard_for(address, credentials, access, has_tls=has_tls, setting=setting)
    return credentials, has_tls, found


def no_store() -> InvalidCall:
    """There is nowhere to offload to."""
    return InvalidCall("no store is named", hint='set serve.store = "s3://BUCKET/ROOT" in the settings file')


def nothing_to_do() -> InvalidCall:
    """Nothing of it asks for a process."""
    return InvalidCall(
        "there is nothing to do: no feed of streams, and no upkeep",
        hint="set serve.ledgers, pulsar.topics, flight.listen, or serve.upkeep = true",
    )
