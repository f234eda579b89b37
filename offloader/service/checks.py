"""All checks of ``offloader doctor`` and ``Store.check``, in the order of the report."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

from offloader.doctor import (
    CheckResult,
    Outcome,
    check_bucket,
    check_compression,
    check_compression_ahead,
    check_compression_of_topics,
    check_machine,
    check_pulsar,
    check_store,
    check_streams,
    run_checks,
    store_answers,
)
from offloader.runtime.clock import SystemClock
from offloader.service.bootstrap import check_access
from offloader.service.broker_doctor import check_broker_routes
from offloader.service.small_topics import check_small_topics
from offloader.service.topic_doctor import check_topics
from offloader.settings.layered import SettingsFile, read_settings_file
from offloader.store.base import ObjectStore
from offloader.store.wrappers import bucket_of


def check_everything(
    store: ObjectStore, settings: SettingsFile | str | Path | None, *, ledgers: str = "", read_only: bool = False
) -> Iterator[CheckResult]:
    """Check the store, this machine, the brokers of the settings and the backlog of each stream.

    Args:
        settings: a settings file, or its path; ``None``: the defaults.
        ledgers: URL of a ledger database with streams of the store.
        read_only: write no scratch objects.
    """
    file = settings if isinstance(settings, SettingsFile) else SettingsFile()
    if isinstance(settings, str | Path):
        file = read_settings_file(str(settings))
    return run_checks(_checks(store, file, ledgers, read_only=read_only))


def _checks(
    store: ObjectStore, file: SettingsFile, ledgers: str, *, read_only: bool
) -> Iterator[tuple[str, Iterable[CheckResult]]]:
    clock, settings = SystemClock(), file.settings_of("")
    answer = store_answers(store)
    yield "store", [answer]
    if answer.outcome is Outcome.OK and not read_only:
        yield "store", check_store(store, settings, clock)
    bucket = bucket_of(store)
    if answer.outcome is Outcome.OK and bucket is not None:
        yield "bucket", check_bucket(bucket)
    yield "machine", check_machine(settings)
    yield "access", check_access(settings)
    if settings.pulsar.topics:
        yield "pulsar", check_pulsar(settings.pulsar, clock)
        if settings.pulsar.broker_plugin:
            yield "plugin's way here", check_broker_routes(settings, clock)
    if answer.outcome is Outcome.OK:
        yield "streams", check_streams(store, file, clock, ledgers)
        if settings.pulsar.topics:
            yield "topics", check_topics(store, settings.pulsar, clock)
        yield "small topics", check_small_topics(store, file, clock)
        yield "compression", check_compression(store, clock)
        if settings.serve.ledgers:
            yield "compression", check_compression_ahead(store, file, clock)
        if settings.pulsar.topics:
            yield "compression", check_compression_of_topics(store, file, clock)
