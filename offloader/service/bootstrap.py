"""Validates the settings of a serving process and builds the process from them."""

from __future__ import annotations

import os
import socket
import ssl
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec

from offloader.doctor import CheckResult, fine, warning
from offloader.errors import InvalidCallError, OffloaderError, UnsupportedError, install_hint
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
    """Checks the process settings. Does no network I/O, but reads tokens and certificates.

    Args:
        read_only: whether the process only answers queries about the store.

    Raises:
        InvalidCallError, AccessDeniedError: unusable settings; the message lists every problem.
    """
    _require(*_purpose(settings, read_only=read_only), *_values(settings), *_machine(settings))


def require_valid(settings: Settings) -> None:
    """Checks the process settings without access to this machine's files: ``serve`` refuses them on any machine, with
    or without ``--read-only``. A file without a store is valid, because other commands may use it.

    Raises:
        InvalidCallError: like ``require_sound``.
    """
    only_answers = bool(settings.http.listen) and not has_feed(settings) and not settings.serve.maintenance
    purpose = _purpose(settings, read_only=only_answers) if settings.serve.store else []
    _require(*purpose, *_values(settings))


def _require(*checks: Callable[[], object]) -> None:
    """Raises the error of the failed check, or one error that lists the messages of all failed checks."""
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
        raise InvalidCallError("; ".join(each.message for each in found), hint="every problem is listed")


def has_feed(settings: Settings) -> bool:
    """Whether the process has streams to offload."""
    return bool(settings.serve.ledgers or settings.pulsar.topics or settings.flight.listen)


def _purpose(settings: Settings, *, read_only: bool) -> list[Callable[[], object]]:
    """Checks that the process has a store and a task."""

    def require_store() -> None:
        if not settings.serve.store:
            raise InvalidCallError(
                "serve.store is not set", hint='set serve.store = "s3://BUCKET/ROOT" in the settings file'
            )

    def require_work() -> None:
        if read_only and not settings.http.listen:
            raise InvalidCallError(
                "with --read-only the process only serves HTTP, and http.listen is not set",
                hint='set http.listen = "ADDRESS:PORT"',
            )
        if not read_only and not (has_feed(settings) or settings.serve.maintenance):
            raise InvalidCallError(
                "the process has no task: no feed of streams, and no maintenance",
                hint="set serve.ledgers, pulsar.topics, flight.listen, or serve.maintenance = true",
            )

    return [require_store, require_work]


def _values(settings: Settings) -> list[Callable[[], object]]:
    """Checks of names and addresses."""
    serve, pulsar = settings.serve, settings.pulsar
    return [
        lambda: TopicPatterns.of(pulsar.topics, pulsar.exclude),
        *([lambda: database_path(serve.ledgers)] if serve.ledgers else []),
        *([lambda: require_addresses(pulsar)] if pulsar.topics else []),
        *(partial(parse_listen, text, setting=setting) for setting, text in _listens(settings).items()),
    ]


def _machine(settings: Settings) -> list[Callable[[], object]]:
    """Checks of this machine's packages, tokens and certificates."""
    checks: list[Callable[[], object]] = [lambda: _require_packages(settings)]
    if _listens(settings):
        checks.append(lambda: [*_guarded(settings, open_credentials(settings.access), server_tls(settings.access))])
    return checks


#: Packages of the extra ``serve`` that the HTTP listener imports.
_PACKAGES = ("anyio", "fastapi", "h11", "starlette", "uvicorn")


def _require_packages(settings: Settings) -> None:
    """Raises ``UnsupportedError``: packages of the HTTP listener are missing."""
    missing = [name for name in _PACKAGES if find_spec(name) is None] if settings.http.listen else []
    if missing:
        raise UnsupportedError(
            f"http.listen needs packages that aren't installed: {', '.join(missing)}", hint=install_hint("serve")
        )


def check_access(settings: Settings) -> Iterator[CheckResult]:
    """Doctor's findings about access to the listeners. Raises ``OffloaderError``: the credentials or the certificate
    can't be used, or a listener isn't safe."""
    if not _listens(settings):
        return
    _require_packages(settings)
    credentials = open_credentials(settings.access)
    tls = server_tls(settings.access)
    yield fine("access", f"configured: {credentials}" + ("; TLS" if tls else ""))
    for setting, address, guard in _guarded(settings, credentials, tls):
        if guard.anonymous is not None and not address.is_loopback:
            yield warning(
                setting,
                f"unauthenticated callers that reach {address} have the role {guard.anonymous.name.lower()}",
                "set by access.anonymous",
            )
        else:
            yield fine(setting, f"{address} is safe to open")


def _listens(settings: Settings) -> dict[str, str]:
    """Setting -> listen address."""
    named = {"http.listen": settings.http.listen, "flight.listen": settings.flight.listen}
    return {setting: address for setting, address in named.items() if address}


def _guarded(
    settings: Settings, credentials: Credentials, tls: ssl.SSLContext | None
) -> Iterator[tuple[str, ListenAddress, Guard]]:
    """Setting, address and guard of each listener. Raises like ``guard_for`` for an unsafe listener."""
    for setting, text in _listens(settings).items():
        address = parse_listen(text, setting=setting)
        guard = guard_for(address, credentials, settings.access, has_tls=tls is not None, setting=setting)
        yield setting, address, guard


@dataclass(frozen=True, slots=True)
class Assembled:
    """A process that isn't started, with the components that its providers and listeners use.

    Attributes:
        view: answers queries; ``control``: executes commands; ``ledgers``: serves brokers.
        settings: the process settings.
        store: the streams' store, open for writing.
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
    """Builds a process without starting it.

    Args:
        file: the settings, which ``require_sound`` accepts.
        recent: log handler for recent errors; the caller adds it to the logger.
        store: replaces ``serve.store``; it isn't probed, and without a recorder it isn't measured.
        feeds: replaces the providers of the settings; their sources aren't probed.
        read_only: the process only answers over HTTP: it has no streams and no maintenance, and writes nothing.

    Raises:
        InvalidCallError: an unsafe listener.
        UnsupportedError: the store lets two writers create one object, and ``store.single_writer`` isn't set.
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
    # Without conditional puts two writers could both succeed and lose entries: check before the first write.
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
    """A probe of the store over a separate connection, without rate limits."""
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
        hint="check the server, the network and the credentials; nothing is lost: requests are retried until it "
        "responds",
        end=store.close,
    )


def _broker_probe(process: ServingProcess, settings: Settings, clock: Clock) -> Probe:
    client = probe_client(settings.pulsar, clock)
    rest = "topics wait; nothing is lost: the connection is retried until the broker responds"
    return Probe(
        "source",
        f"feed {PulsarProvider.name}",
        f"the broker {client.service_url}",
        partial(ask_broker, client),
        clock=clock,
        hint="start the broker, or check pulsar.service_url and the network; nothing is lost: the connection is "
        "retried",
        touched=lambda: f"{len(process.streams.all())} {rest}",
        end=client.close,
    )


def listening_url(settings: Settings) -> str:
    """The HTTP URL for other machines; empty: HTTP is not served, or the port is not known yet."""
    if not settings.http.listen:
        return ""
    address = parse_listen(settings.http.listen, setting="http.listen")
    if not address.port:
        return ""
    if address.is_every:
        address = ListenAddress(socket.gethostname(), address.port)
    return f"{'https' if settings.access.certificate_file else 'http'}://{address}"


def _http(parts: Assembled) -> HttpListener:
    # Imported here, so that a process without HTTP doesn't need its packages.
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
    """The providers configured in the settings."""
    settings, store, clock = parts.settings, parts.store, parts.clock
    found: list[StreamProvider] = []
    if settings.serve.ledgers:
        found.append(EmbeddedProvider(settings.serve.ledgers, clock=clock))
    if settings.pulsar.topics:
        found.append(PulsarProvider(settings.pulsar, store, clock=clock, recorder=parts.metrics))
    if settings.flight.listen:
        found.append(FlightProvider(settings, store, credentials=parts.credentials, control=parts.control, clock=clock))
    return found
