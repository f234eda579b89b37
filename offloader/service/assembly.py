"""Making a serving process out of a settings file.

Owns what is made of which setting, and that nothing is started before everything is made. Must never be needed by a
part: each gets what it needs from here.
"""

from __future__ import annotations

import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from offloader.clock import Clock
from offloader.effective_settings import SettingsFile
from offloader.metrics import Metrics
from offloader.service.auth import Credentials, open_credentials
from offloader.service.control import ServiceControl
from offloader.service.feeds import Feed
from offloader.service.flight.feed import FlightFeed
from offloader.service.ledgers_feed import EmbeddedFeed
from offloader.service.listen import ListenAddress, parse_listen
from offloader.service.preflight import no_store, nothing_to_do
from offloader.service.process import Door, ServingParts, ServingProcess
from offloader.service.pulsar_feed import PulsarFeed
from offloader.service.recent import RecentErrors
from offloader.service.streams import ServedStreams
from offloader.service.view import ServiceView
from offloader.settings import Settings
from offloader.store.base import ObjectStore
from offloader.store.open import open_store
from offloader.store.probe import require_conditional_puts
from offloader.upkeep import Upkeep
from offloader.write.offloader import LedgerOffloader

__all__ = ["Assembled", "FeedParts", "assemble", "feeds_of"]


@dataclass(frozen=True, slots=True)
class FeedParts:
    """What a feed may be made of.

    Attributes:
        store: of the streams, open for writing.
        credentials: of the doors; the process reads them again.
        control: takes commands for every stream, once everything is made.
    """

    settings: Settings
    store: ObjectStore
    metrics: Metrics
    clock: Clock
    credentials: Credentials
    control: Callable[[], ServiceControl]


@dataclass(frozen=True, slots=True)
class Assembled:
    """A process that isn't started, and what its doors need.

    Attributes:
        view: answers questions; ``control``: takes commands.
        credentials: tokens and certificates that count at the doors.
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
    feeds: Callable[[FeedParts], Sequence[Feed]] | None = None,
    url: str = "",
) -> Assembled:
    """Makes a process; it isn't started.

    Args:
        file: the settings.
        recent: hears of the log; whoever gives it adds it to the logger.
        store: instead of the one that ``serve.store`` names; opened with a recorder, or it isn't measured.
        feeds: instead of those that the settings name.
        url: where the process can be reached when ``serve.url`` doesn't say.

    Raises:
        InvalidCall: no store, or nothing to do; a door that isn't safe to open.
        Unsupported: the store lets two writers create one object, and ``store.single_writer`` isn't set.
        OffloaderError: the store can't be used.
    """
    settings = file.settings_of("")
    serve = settings.serve
    metrics = Metrics(settings.telemetry, clock)
    store = store or _open_store(settings, clock, metrics)
    credentials = open_credentials(settings.access)
    controls: list[ServiceControl] = []
    made = list((feeds or feeds_of)(FeedParts(settings, store, metrics, clock, credentials, lambda: controls[0])))
    if not made and not serve.upkeep:
        raise nothing_to_do()
    # Two writers that both "win" would lose entries: found out before anything is written.
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
    """Where HTTP is served, as others may reach it; empty: it isn't, or at a port that nobody knows yet."""
    if not settings.http.listen:
        return ""
    address = parse_listen(settings.http.listen, setting="http.listen")
    if not address.port:
        return ""
    if address.is_every:
        address = ListenAddress(socket.gethostname(), address.port)
    return f"{'https' if settings.access.certificate_file else 'http'}://{address}"


def _http(parts: Assembled, settings: Settings, clock: Clock) -> Door:
    # Only now: a process that isn't looked into over HTTP needs none of its packages.
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


def feeds_of(parts: FeedParts) -> list[Feed]:
    """The feeds that the settings name."""
    found: list[Feed] = []
    if parts.settings.serve.ledgers:
        found.append(EmbeddedFeed(parts.settings.serve.ledgers, clock=parts.clock))
    if parts.settings.pulsar.topics:
        found.append(PulsarFeed(parts.settings.pulsar, parts.store, clock=parts.clock))
    if parts.settings.flight.listen:
        found.append(
            FlightFeed(
                parts.settings,
                parts.store,
                credentials=parts.credentials,
                control=parts.control,
                clock=parts.clock,
            )
        )
    return found
