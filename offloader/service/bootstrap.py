"""Builds a serving process from a settings file, and checks the settings first."""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec

from offloader.doctor import Finding, fine, warning
from offloader.errors import InvalidCall, OffloaderError, Unsupported, install_hint
from offloader.ledgers.pulsar.discovery import TopicPatterns
from offloader.ledgers.pulsar.source import require_addresses
from offloader.ledgers.sqlite.database import database_path
from offloader.maintenance import Maintenance
from offloader.runtime.clock import Clock
from offloader.service.auth import (
    Credentials,
    Guard,
    ListenAddress,
    guard_for,
    open_credentials,
    parse_listen,
    server_tls,
)
from offloader.service.broker_ledgers import BrokerLedgers
from offloader.service.health import Probe, ask_broker, ask_store, probe_client, probe_settings
from offloader.service.process import HttpListener, RecentErrors, ServingProcess
from offloader.service.providers.embedded import EmbeddedProvider
from offloader.service.providers.flight import FlightProvider
from offloader.service.providers.pulsar import PulsarProvider
from offloader.service.queries import ServiceControl, ServiceView
from offloader.service.store_watch import StoreWatch
from offloader.service.streams import ServedStreams, StreamProvider
from offloader.settings import Settings
from offloader.settings.layered import SettingsFile
from offloader.store.base import ObjectStore
from offloader.store.open import open_store
from offloader.store.probe import require_conditional_puts
from offloader.telemetry.prometheus import Metrics
from offloader.write.offloader import LedgerOffloader


def require_sound(settings: Settings, *, read_only: bool = False) -> None:
    """Refuses unusable process settings, with all problems at once. Does no network I/O, but reads tokens and
    certificates.

    Args:
        read_only: whether the process only answers questions about the store.

    Raises:
        InvalidCall, AccessDenied: one part per problem.
    """
    _require(*_purpose(settings, read_only=read_only), *_values(settings), *_machine(settings))


def require_valid(settings: Settings) -> None:
    """Refuses process settings that ``serve`` refuses by the settings file alone: on any machine, and with or without
    ``--read-only``. A file that names no store is one for other commands.

    Raises:
        InvalidCall: as ``require_sound``.
    """
    only_answers = bool(settings.http.listen) and not has_feed(settings) and not settings.serve.maintenance
    purpose = _purpose(settings, read_only=only_answers) if settings.serve.store else []
    _require(*purpose, *_values(settings))


def _require(*checks: Callable[[], object]) -> None:
    """Raises the one error of all checks, or one that names each."""
    found: list[OffloaderError] = []
    for check in checks:
        try:
            check()
        except OffloaderError as error:
            if str(error) not in map(str, found):
                found.append(error)
    if len(found) == 1:
        raise found[0]
    if found:
        raise InvalidCall("; ".join(each.message for each in found), hint="every problem is listed")


def has_feed(settings: Settings) -> bool:
    """Whether the process has streams to offload."""
    return bool(settings.serve.ledgers or settings.pulsar.topics or settings.flight.listen)


def _purpose(settings: Settings, *, read_only: bool) -> list[Callable[[], object]]:
    """Whether the process has a store, and anything to do."""

    def require_store() -> None:
        if not settings.serve.store:
            raise InvalidCall("no store is named", hint='set serve.store = "s3://BUCKET/ROOT" in the settings file')

    def require_work() -> None:
        if read_only and not settings.http.listen:
            raise InvalidCall(
                "with --read-only the process does nothing but answer over HTTP, and it listens nowhere",
                hint='set http.listen = "ADDRESS:PORT"',
            )
        if not read_only and not (has_feed(settings) or settings.serve.maintenance):
            raise InvalidCall(
                "there is nothing to do: no feed of streams, and no maintenance",
                hint="set serve.ledgers, pulsar.topics, flight.listen, or serve.maintenance = true",
            )

    return [require_store, require_work]


def _values(settings: Settings) -> list[Callable[[], object]]:
    """Names and addresses."""
    serve, pulsar = settings.serve, settings.pulsar
    return [
        lambda: TopicPatterns.of(pulsar.topics, pulsar.exclude),
        *([lambda: database_path(serve.ledgers)] if serve.ledgers else []),
        *([lambda: require_addresses(pulsar)] if pulsar.topics else []),
        *(partial(parse_listen, text, setting=setting) for setting, text in _listens(settings).items()),
    ]


def _machine(settings: Settings) -> list[Callable[[], object]]:
    """Packages, tokens and certificates of this machine."""
    checks: list[Callable[[], object]] = [lambda: _require_packages(settings)]
    if _listens(settings):
        checks.append(lambda: [*_guarded(settings, open_credentials(settings.access), server_tls(settings.access))])
    return checks


#: Packages of the extra ``serve`` that the HTTP listener imports.
_PACKAGES = ("anyio", "fastapi", "h11", "starlette", "uvicorn")


def _require_packages(settings: Settings) -> None:
    """Raises ``Unsupported``: packages of the HTTP listener are missing."""
    missing = [name for name in _PACKAGES if find_spec(name) is None] if settings.http.listen else []
    if missing:
        raise Unsupported(
            f"http.listen needs packages that aren't installed: {', '.join(missing)}", hint=install_hint("serve")
        )


def check_access(settings: Settings) -> Iterator[Finding]:
    """Doctor's findings on the listeners: who may reach them. Raises ``OffloaderError``: the credentials or the
    certificate can't be used, or a listener isn't safe."""
    if not _listens(settings):
        return
    _require_packages(settings)
    credentials = open_credentials(settings.access)
    tls = server_tls(settings.access)
    yield fine("access", f"known: {credentials}" + ("; TLS" if tls else ""))
    for setting, address, guard in _guarded(settings, credentials, tls):
        if guard.anonymous is not None and not address.is_loopback:
            yield warning(
                setting,
                f"anyone who reaches {address} may {guard.anonymous.name.lower()}",
                "access.anonymous says so",
            )
        else:
            yield fine(setting, f"{address} may be opened")


def _listens(settings: Settings) -> dict[str, str]:
    """Setting -> listen address."""
    named = {"http.listen": settings.http.listen, "flight.listen": settings.flight.listen}
    return {setting: address for setting, address in named.items() if address}


def _guarded(
    settings: Settings, credentials: Credentials, tls: ssl.SSLContext | None
) -> Iterator[tuple[str, ListenAddress, Guard]]:
    """Setting, address and guard of each listener. Raises as ``guard_for`` where it wouldn't be safe."""
    for setting, text in _listens(settings).items():
        address = parse_listen(text, setting=setting)
        guard = guard_for(address, credentials, settings.access, has_tls=tls is not None, setting=setting)
        yield setting, address, guard


@dataclass(frozen=True, slots=True)
class Assembled:
    """A process that isn't started, and the parts of its providers and listeners.

    Attributes:
        view: answers queries; ``control``: executes commands; ``ledgers``: serves brokers.
        settings: of the process.
        store: of the streams, open for writing.
        credentials: of the listeners; the process reloads them.
    """

    process: ServingProcess
    view: ServiceView
    control: ServiceControl
    ledgers: BrokerLedgers
    metrics: Metrics
    settings: Settings
    store: ObjectStore
    clock: Clock
    credentials: Credentials


def assemble(
    file: SettingsFile,
    *,
    clock: Clock,
    recent: RecentErrors,
    store: ObjectStore | None = None,
    feeds: Callable[[Assembled], Sequence[StreamProvider]] | None = None,
    read_only: bool = False,
) -> Assembled:
    """Makes a process, not started.

    Args:
        file: the settings, which ``require_sound`` accepts.
        recent: log handler for recent errors; the caller adds it to the logger.
        store: instead of ``serve.store``; without a recorder it isn't measured, and nothing probes it.
        feeds: instead of the settings' providers; nothing probes what they read.
        read_only: it only answers over HTTP: it has no streams and no maintenance, and writes nothing.

    Raises:
        InvalidCall: an unsafe listener.
        Unsupported: the store lets two writers create one object, and ``store.single_writer`` isn't set.
        OffloaderError: the store can't be used.
    """
    settings = file.settings_of("")
    metrics = Metrics(settings.telemetry, clock)
    is_given = store is not None
    store = store or _open_store(settings, clock, metrics, read_only=read_only)
    credentials = open_credentials(settings.access)
    offloader = _offloader(store, settings, clock, read_only=read_only)
    streams = ServedStreams(offloader, file, clock)
    upkeep = None
    if settings.serve.maintenance and not read_only:
        upkeep = Maintenance(
            store,
            clock=clock,
            settings_of=streams.settings_of,
            source_of=streams.source_of,
            hot_streams=lambda: [each.name for each in streams.all()],
            recorder=metrics,
        )
    process = ServingProcess(offloader, streams, upkeep, recent, credentials, clock, metrics.last_hour)
    metrics.watch(process.readings)
    view = ServiceView(store, clock=clock, process=process, last_hour=metrics.last_hour)
    control = ServiceControl(store, clock=clock, process=process)
    ledgers = BrokerLedgers(
        store,
        settings=settings,
        clock=clock,
        recorder=metrics,
        control=None if read_only else control,
        environ=os.environ,
        settings_of=process.streams.settings_of,
    )
    process.more_problems.append(ledgers.refusals.problems)
    made = Assembled(process, view, control, ledgers, metrics, settings, store, clock, credentials)
    for feed in [] if read_only else (feeds or providers_of)(made):
        process.add_feed(feed)
    if not is_given:
        watch = StoreWatch(store.url, lambda: [(each.name, each.source) for each in streams.all()], clock)
        process.probes[""] = _store_probe(settings, clock, watch)
        process.looks.append(watch.look)
        process.more_problems.append(watch.problems)
        metrics.watch(watch.readings)
    if feeds is None and settings.pulsar.topics and not read_only:
        process.probes[PulsarProvider.name] = _broker_probe(process, settings, clock)
    if settings.http.listen:
        process.doors.append(_http(made))
    return made


def _offloader(store: ObjectStore, settings: Settings, clock: Clock, *, read_only: bool) -> LedgerOffloader:
    # Two writers that both "win" would lose entries: check before the first write.
    single_writer = settings.store.single_writer
    problems = () if read_only else require_conditional_puts(store, single_writer=single_writer).problems
    url = settings.serve.url or listening_url(settings)
    return LedgerOffloader(store, settings, clock=clock, observe=True, store_problems=problems, writer_url=url)


def _open_store(settings: Settings, clock: Clock, metrics: Metrics, *, read_only: bool) -> ObjectStore:
    return open_store(
        settings.serve.store,
        endpoint_url=settings.serve.endpoint_url,
        region=settings.serve.region,
        settings=settings.store,
        limits=settings.limits,
        clock=clock,
        recorder=metrics,
        read_only=read_only,
    )


def _store_probe(settings: Settings, clock: Clock, watch: StoreWatch) -> Probe:
    """Asks the store over a connection that nothing else uses, without limits of the rate."""
    store = open_store(
        settings.serve.store,
        endpoint_url=settings.serve.endpoint_url,
        region=settings.serve.region,
        settings=probe_settings(settings.store),
        clock=clock,
        read_only=True,
    )
    return Probe(
        "store",
        f"store {store.url}",
        "the store",
        partial(ask_store, store, watch.see),
        clock=clock,
        hint="look at the server, the network and the credentials; nothing is lost: it is asked again, and all goes on",
        end=store.close,
    )


def _broker_probe(process: ServingProcess, settings: Settings, clock: Clock) -> Probe:
    client = probe_client(settings.pulsar, clock)
    rest = "topics wait; nothing is lost, and it is tried again until it answers"
    return Probe(
        "source",
        f"feed {PulsarProvider.name}",
        f"the broker {client.service_url}",
        partial(ask_broker, client),
        clock=clock,
        hint="start the broker, or look at pulsar.service_url and the network; nothing is lost: it is tried again",
        touched=lambda: f"{len(process.streams.all())} {rest}",
        end=client.close,
    )


def listening_url(settings: Settings) -> str:
    """The HTTP address for other machines; empty: not served, or at a port not yet known."""
    if not settings.http.listen:
        return ""
    address = parse_listen(settings.http.listen, setting="http.listen")
    if not address.port:
        return ""
    if address.is_every:
        address = ListenAddress(socket.gethostname(), address.port)
    return f"{'https' if settings.access.certificate_file else 'http'}://{address}"


def _http(parts: Assembled) -> HttpListener:
    # Imported late: a process without HTTP needs none of its packages.
    from offloader.service.http.server import OffloadHttp

    return OffloadHttp(
        parts.view,
        parts.control,
        ledgers=parts.ledgers,
        settings=parts.settings,
        credentials=parts.credentials,
        clock=parts.clock,
        exposition=parts.metrics.exposition,
        recorder=parts.metrics,
    )


def providers_of(parts: Assembled) -> list[StreamProvider]:
    """The providers in the settings."""
    settings, store, clock = parts.settings, parts.store, parts.clock
    found: list[StreamProvider] = []
    if settings.serve.ledgers:
        found.append(EmbeddedProvider(settings.serve.ledgers, clock=clock))
    if settings.pulsar.topics:
        found.append(PulsarProvider(settings.pulsar, store, clock=clock, recorder=parts.metrics))
    if settings.flight.listen:
        found.append(FlightProvider(settings, store, credentials=parts.credentials, control=parts.control, clock=clock))
    return found
