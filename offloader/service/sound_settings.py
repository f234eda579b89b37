"""Whether a serving process can be made of some settings: what no single setting's check can know.

Owns that judgement, all that is wrong at once. Must never open a connection, a database or a port.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from offloader.errors import InvalidCall, OffloaderError
from offloader.ledgers.database import database_path
from offloader.ledgers.pulsar.topic_patterns import TopicPatterns
from offloader.service.auth import guard_for, open_credentials
from offloader.service.listen import parse_listen
from offloader.service.tls import server_tls
from offloader.settings import Settings

__all__ = ["no_store", "nothing_to_do", "require_safe_doors", "require_sound"]


def require_sound(settings: Settings) -> None:
    """Refuses settings of a process that can't be made of them, all that is wrong at once. Opens and asks nothing, but
    reads tokens and certificates.

    Raises:
        InvalidCall, AccessDenied: what is wrong, a part each.
    """
    serve, doors = settings.serve, {"http.listen": settings.http.listen, "flight.listen": settings.flight.listen}
    found: list[OffloaderError] = []
    if not serve.store:
        found.append(no_store())
    if not (serve.ledgers or settings.pulsar.topics or settings.flight.listen or serve.upkeep):
        found.append(nothing_to_do())
    checks: list[Callable[[], object]] = [
        lambda: TopicPatterns.of(settings.pulsar.topics, settings.pulsar.exclude),
        *([lambda: database_path(serve.ledgers)] if serve.ledgers else []),
    ]
    if any(doors.values()):
        checks.append(lambda: require_safe_doors(settings, {name: at for name, at in doors.items() if at}))
    for check in checks:
        try:
            check()
        except OffloaderError as error:
            found.append(error)
    if len(found) == 1:
        raise found[0]
    if found:
        raise InvalidCall("; ".join(each.message for each in found), hint="every problem is listed")


def require_safe_doors(settings: Settings, doors: Mapping[str, str]) -> None:
    """Refuses doors that wouldn't be safe to open; ``doors``: setting -> address.

    Raises: as ``guard_for``, ``open_credentials``, ``server_tls``.
    """
    credentials, tls = open_credentials(settings.access), server_tls(settings.access)
    for setting, listen in doors.items():
        address = parse_listen(listen, setting=setting)
        guard_for(address, credentials, settings.access, has_tls=tls is not None, setting=setting)


def no_store() -> InvalidCall:
    """There is nowhere to offload to."""
    return InvalidCall("no store is named", hint='set serve.store = "s3://BUCKET/ROOT" in the settings file')


def nothing_to_do() -> InvalidCall:
    """Nothing of it asks for a process."""
    return InvalidCall(
        "there is nothing to do: no feed of streams, and no upkeep",
        hint="set serve.ledgers, pulsar.topics, flight.listen, or serve.upkeep = true",
    )
