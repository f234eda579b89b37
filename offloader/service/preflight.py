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
        *([lambda: _require_safe(settings)] if _listens(settings) else []),
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
        if not _listens(self._settings):
            return
        credentials, has_tls = _known(self._settings)
        yield fine("access", f"known: {credentials}" + ("; TLS" if has_tls else ""))
        for setting, address, guard in _guarded(self._settings, credentials, has_tls=has_tls):
            if guard.anonymous is not None and not address.is_loopback:
                role = guard.anonymous.name.lower()
                yield warning(setting, f"anyone who reaches {address} may {role}", "access.anonymous says so")
            else:
                yield fine(setting, f"{address} may be opened")


def _listens(settings: Settings) -> dict[str, str]:
    """Setting -> address, of what is listened on."""
    named = {"http.listen": settings.http.listen, "flight.listen": settings.flight.listen}
    return {setting: address for setting, address in named.items() if address}


def _known(settings: Settings) -> tuple[Credentials, bool]:
    """Who is known, and whether there is TLS. Raises as ``open_credentials`` and ``server_tls``."""
    return open_credentials(settings.access), server_tls(settings.access) is not None


def _guarded(
    settings: Settings, credentials: Credentials, *, has_tls: bool
) -> Iterator[tuple[str, ListenAddress, Guard]]:
    """Setting, address and guard, one after another. Raises as ``guard_for`` where one wouldn't be safe to open."""
    for setting, text in _listens(settings).items():
        address = parse_listen(text, setting=setting)
        yield setting, address, guard_for(address, credentials, settings.access, has_tls=has_tls, setting=setting)


def _require_safe(settings: Settings) -> None:
    credentials, has_tls = _known(settings)
    for _ in _guarded(settings, credentials, has_tls=has_tls):
        pass


def no_store() -> InvalidCall:
    """There is nowhere to offload to."""
    return InvalidCall("no store is named", hint='set serve.store = "s3://BUCKET/ROOT" in the settings file')


def nothing_to_do() -> InvalidCall:
    """Nothing of it asks for a process."""
    return InvalidCall(
        "there is nothing to do: no feed of streams, and no upkeep",
        hint="set serve.ledgers, pulsar.topics, flight.listen, or serve.upkeep = true",
    )
