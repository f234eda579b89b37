"""The start of a stream over an embedded ledger database: known to the manifest before anything is appended.

The order (docs/MANIFEST.md, "Which hot tier"): the manifest is read and compared, the database has the start's token,
the epoch is opened, the database gets the ledger ids that were reserved, entries are accepted.
"""

from __future__ import annotations

import logging

from offloader.clock import Clock
from offloader.errors import NotFound, SourceMismatch
from offloader.ledgers.base import LedgerSource, identified
from offloader.ledgers.embedded import EmbeddedLedgers, EmbeddedStream
from offloader.manifest.catalog import read_entry
from offloader.manifest.checked_source import checked
from offloader.manifest.log import ManifestLog
from offloader.manifest.source_check import first_free_ledger
from offloader.settings import OffloadSettings
from offloader.write.ownership.accepting import accept_source

__all__ = ["open_source"]

_log = logging.getLogger("offloader.stream")


def open_source(
    database: EmbeddedLedgers,
    log: ManifestLog,
    *,
    settings: OffloadSettings,
    clock: Clock,
    new_source: bool = False,
) -> EmbeddedStream:
    """The stream, to append to; whoever had it open is fenced.

    Of a stream that is offloaded an epoch is open then, ``log``'s. One that isn't, and never was, costs one request.

    Args:
        log: of the stream, not loaded yet.
        new_source: go on with this database although the manifest knows another one.

    Raises:
        SourceMismatch: the database isn't the one that the manifest knows; nothing can be appended.
        StoreUnavailable, OutcomeUnknown: the store can't be asked; call again.
    """
    if settings.method == "none":
        return _not_offloaded(database, log, settings, clock, new_source=new_source)
    database.require_name(log.stream)
    log.load(create=True)
    source = _opened(database, log.stream, new_source=new_source, held=True)
    try:
        _start(log, source)
    except SourceMismatch:
        if not new_source:
            raise
        _accept(log, source, settings, clock)
    return source


def _opened(
    database: EmbeddedLedgers, stream: str, *, new_source: bool, held: bool = False, above: int = 0
) -> EmbeddedStream:
    try:
        return database.open_stream(stream, held=held, above=above)
    except SourceMismatch:
        if not new_source:
            raise
        database.accept_loss(stream)
        return database.open_stream(stream, held=held, above=above)


def _start(log: ManifestLog, source: LedgerSource) -> None:
    """Opens an epoch for a source that takes its ledger ids from a range of this start's own."""
    checked(source, log).ledgers()
    log.open_epoch(identified(source), reserve=True)


def _not_offloaded(
    database: EmbeddedLedgers, log: ManifestLog, settings: OffloadSettings, clock: Clock, *, new_source: bool
) -> EmbeddedStream:
    """Takes no epoch from whoever offloads the stream beside the one who appends."""
    try:
        state = None if read_entry(log.store, log.stream) is None else log.load()
    except NotFound:
        state = None
    above = 0 if state is None else max(first_free_ledger(state) - 1, 0)
    source = _opened(database, log.stream, new_source=new_source, above=above)
    if state is None:
        return source
    try:
        checked(source, log).ledgers()
    except SourceMismatch:
        if not new_source:
            raise
        _accept(log, source, settings, clock)
    return source


def _accept(log: ManifestLog, source: EmbeddedStream, settings: OffloadSettings, clock: Clock) -> None:
    done = accept_source(log, source, settings=settings, clock=clock, reserve=True)
    _log.error(
        "stream %s: ledger database %s is its hot tier from now on: %s; missing: %s; left aside: %s",
        *(log.stream, done.source, done.why),
        ", ".join(f"{gap.first} up to {gap.last}" for gap in done.gaps) or "nothing that is known of",
        ", ".join(map(str, done.aside)) or "no ledger",
    )
