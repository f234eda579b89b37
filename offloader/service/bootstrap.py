"""Builds a serving process from a settings file, and checks the settings first."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

from offloader.doctor import Finding, fine, warning
from offloader.errors import InvalidCall, OffloaderError
from offloader.ledgers.pulsar.discovery import TopicPatterns
from offloader.ledgers.sqlite.database import database_path
from offloader.maintenance import Upkeep
from offloader.runtime.clock import Clock
from offloader.service.auth import Credentials, Guard, guard_for, open_credentials
from offloader.service.commands import ServiceControl
from offloader.service.listen import ListenAddress, parse_listen, server_tls
from offloader.service.process import HttpListener, ServingParts, ServingProcess
from offloader.service.providers.base import StreamProvider
from offloader.service.providers.embedded import EmbeddedProvider
from offloader.service.providers.flight import FlightProvider
from offloader.service.providers.pulsar import PulsarProvider
from offloader.service.queries import RecentErrors, ServiceView
from offloader.service.streams import ServedStreams
from offloader.settings import Settings
from offloader.settings.layered import SettingsFile
from offloader.store.base import ObjectStore
from offloader.store.open import open_store
from offloader.store.probe import require_conditional_puts
from offloader.telemetry.prometheus import Metrics
from offloader.write.offloader import LedgerOffloader

__all__ = [
    "Assembled",
    "DoorChecks",
    "ProviderParts",
    "assemble",
    "no_store",
    "nothing_to_do",
    "providers_of",
    "require_sound",
]


def require_sound(settings: Settings) -> None:
    """Refuses unusable process settings, with all problems at once. Does no network I/O, but reads tokens and
    certificates.

    Raises:
        InvalidCall, AccessDenied: one part per problem.
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
    """See ``offloader.doctor.Check``."""

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
    """Setting -> listen address."""
    named = {"http.listen": settings.http.listen, "flight.listen": settings.flight.listen}
    return {setting: address for setting, address in named.items() if address}


def _known(settings: Settings) -> tuple[Credentials, bool]:
    """Credentials, and whether TLS is configured. Raises as ``open_credentials`` and ``server_tls``."""
    return open_credentials(settings.access), server_tls(settings.access) is not None


def _guarded(
    settings: Settings, credentials: Credentials, *, has_tls: bool
) -> Iterator[tuple[str, ListenAddress, Guard]]:
    """Setting, address and guard of each listener. Raises as ``guard_for`` where it wouldn't be safe."""
    for setting, text in _listens(settings).items():
        address = parse_listen(text, setting=setting)
        yield setting, address, guard_for(address, credentials, settings.access, has_tls=has_tls, setting=setting)


def _require_safe(settings: Settings) -> None:
    credentials, has_tls = _known(settings)
    for _ in _guarded(settings, credentials, has_tls=has_tls):
        pass


def no_store() -> InvalidCall:
    """The error for a missing store."""
    return InvalidCall("no store is named", hint='set serve.store = "s3://BUCKET/ROOT" in the settings file')


def nothing_to_do() -> InvalidCall:
    """The error for settings with neither streams nor maintenance."""
    return InvalidCall(
        "there is nothing to do: no feed of streams, and no upkeep",
        hint="set serve.ledgers, pulsar.topics, flight.listen, or serve.upkeep = true",
    )


@dataclass(frozen=True, slots=True)
class ProviderParts:
    """Parts for making a provider.

    Attributes:
        store: of the streams, open for writing.
        credentials: of the listeners; the process reloads them.
        control: executes commands for every stream, once everything is made.
    """

    settings: Settings
    store: ObjectStore
    metrics: Metrics
    clock: Clock
    credentials: Credentials
    control: Callable[[], ServiceControl]


@dataclass(frozen=True, slots=True)
class Assembled:
    """A process that isn't started, and the parts of its listeners.

    Attributes:
        view: answers queries; ``control``: executes commands.
        credentials: accepted tokens and certificates.
    """

    process: ServingProcess
    view: ServiceView
    control: ServiceControl
    metrics: Metrics
    store: ObjectStore
    credentials: Credentials


def assemble(
    file: SettingsFile,
    *,
    clock: Clock,
    recent: RecentErrors,
    store: ObjectStore | None = None,
    feeds: Callable[[ProviderParts], Sequence[StreamProvider]] | None = None,
    url: str = "",
) -> Assembled:
    """Makes a process, not started.

    Args:
        file: the settings.
        recent: log handler for recent errors; the caller adds it to the logger.
        store: instead of ``serve.store``; without a recorder it isn't measured.
        feeds: instead of the settings' providers.
        url: the process's address if ``serve.url`` isn't set.

    Raises:
        InvalidCall: no store, or nothing to do; an unsafe listener.
        Unsupported: the store lets two writers create one object, and ``store.single_writer`` isn't set.
        OffloaderError: the store can't be used.
    """
    settings = file.settings_of("")
    serve = settings.serve
    metrics = Metrics(settings.telemetry, clock)
    store = store or _open_store(settings, clock, metrics)
    credentials = open_credentials(settings.access)
    controls: list[ServiceControl] = []
    made = list(
        (feeds or providers_of)(ProviderParts(settings, store, metrics, clock, credentials, lambda: controls[0]))
    )
    if not made and not serve.upkeep:
        raise nothing_to_do()
    # Two writers that both "win" would lose entries: check before the first write.
    problems = require_conditional_puts(store, single_writer=settings.store.single_writer).problems
    offloader = LedgerOffloader(
        store,
        settings,
        clock=clock,
        observe=True,
        store_problems=problems,
        writer_url=serve.url or url or _listening_url(settings),
    )
    streams = ServedStreams(offloader, file, clock)
    upkeep = None
    if serve.upkeep:
        upkeep = Upkeep(
            store,
            clock=clock,
            settings_of=streams.settings_of,
            source_of=streams.source_of,
            hot_streams=lambda: [each.name for each in streams.all()],
            recorder=metrics,
        )
    process = ServingProcess(ServingParts(offloader, streams, made, upkeep, recent, clock, credentials))
    metrics.watch(process.readings)
    view = ServiceView(store, clock=clock, process=process)
    controls.append(ServiceControl(store, clock=clock, process=process))
    made_of = Assembled(process, view, controls[0], metrics, store, credentials)
    if settings.http.listen:
        process.add_door(_http(made_of, settings, clock))
    return made_of


def _open_store(settings: Settings, clock: Clock, metrics: Metrics) -> ObjectStore:
    serve = settings.serve
    if not serve.store:
        raise no_store()
    return open_store(
        serve.store,
        endpoint_url=serve.endpoint_url or None,
        region=serve.region or None,
        settings=settings.store,
        limits=settings.limits,
        clock=clock,
        recorder=metrics,
    )


def _listening_url(settings: Settings) -> str:
    """The HTTP address for other machines; empty: not served, or at a port not yet known."""
    if not settings.http.listen:
        return ""
    address = parse_listen(settings.http.listen, setting="http.listen")
    if not address.port:
        return ""
    if address.is_every:
        address = ListenAddress(socket.gethostname(), address.port)
    return f"{'https' if settings.access.certificate_file else 'http'}://{address}"


def _http(parts: Assembled, settings: Settings, clock: Clock) -> HttpListener:
    # Imported late: a process without HTTP needs none of its packages.
    from offloader.service.http.server import OffloadHttp

    return OffloadHttp(
        parts.view,
        parts.control,
        settings=settings,
        credentials=parts.credentials,
        clock=clock,
        exposition=parts.metrics.exposition,
        recorder=parts.metrics,
    )


def providers_of(parts: ProviderParts) -> list[StreamProvider]:
    """The providers in the settings."""
    found: list[StreamProvider] = []
    if parts.settings.serve.ledgers:
        found.append(EmbeddedProvider(parts.settings.serve.ledgers, clock=parts.clock))
    if parts.settings.pulsar.topics:
        found.append(PulsarProvider(parts.settings.pulsar, parts.store, clock=parts.clock))
    if parts.settings.flight.listen:
        found.append(
            FlightProvider(
                parts.settings,
                parts.store,
                credentials=parts.credentials,
                control=parts.control,
                clock=parts.clock,
            )
        )
    return found
