"""Detects that a different store is mounted under a running process, by the store identity that the store's probe
reads.

The identity is compared with the first one that the process read, and with the one recorded by each stream's hot tier.
A hot tier records the identity of a new store just after that was created, so a store that had none when it was read
before isn't another one: the identity is read once more.
Differences are only reported; the manifests decide whether writing is allowed (``offloader.manifest.noted``).
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator
from uuid import UUID

from offloader.errors import OffloaderError
from offloader.ledgers.base import LedgerSource, noting
from offloader.manifest.store_identity import IDENTITY_HINT, other_identity
from offloader.runtime.clock import Clock
from offloader.service.health import named
from offloader.service.streams import ProviderProblem, error_of
from offloader.telemetry.recorder import Reading

_log = logging.getLogger("offloader.service.health")


class StoreWatch:
    """Thread-safe.

    Args:
        url: of the store.
        sources: name and hot tier of each stream of the process.
    """

    def __init__(self, url: str, sources: Callable[[], Iterable[tuple[str, LedgerSource]]], clock: Clock) -> None:
        self._url, self._sources, self._clock = url, sources, clock
        self._lock = threading.Lock()
        #: How often the store's identity was read.
        self._sights = 0
        self._first: UUID | None = None
        self._newest: UUID | None = None
        #: Stream -> store identity recorded by its hot tier, and after which sight that was read.
        self._noted: dict[str, tuple[UUID, int]] = {}
        self._problems: dict[str, ProviderProblem] = {}

    def see(self, identity: UUID | None) -> None:
        """Records the current identity of the store; ``None``: it has none."""
        with self._lock:
            self._sights, self._newest = self._sights + 1, identity
            self._first = self._first or identity

    def look(self) -> None:
        """Compares the identities and logs each difference once. Queries only hot tiers that are new or differed
        before."""
        with self._lock:
            sight, first, newest, noted = self._sights, self._first, self._newest, self._noted
        if not sight:
            return
        asked: dict[str, tuple[UUID, int]] = {}
        for name, source in self._sources():
            found = noted.get(name)
            if found is None or found[0] != newest:
                identity = _noted_by(source, name)
                if identity is None:
                    continue
                found = found if found is not None and found[0] == identity else (identity, sight)
            asked[name] = found
        with self._lock:
            self._noted = asked
        known = {name: each for name, (each, since) in asked.items() if newest is not None or since < sight}
        self._report(first, newest, known)

    def _report(self, first: UUID | None, newest: UUID | None, noted: dict[str, UUID]) -> None:
        whys = {"": other_identity(newest, first)}
        for why in sorted({why for each in noted.values() if (why := other_identity(newest, each))}):
            names = sorted(name for name, each in noted.items() if other_identity(newest, each) == why)
            whys[why] = f"{named(names)}: {why} to the hot tier"
        with self._lock:
            before, now_ms = self._problems, self._clock.now_ms()
            self._problems = {
                key: ProviderProblem(
                    where=f"store {self._url}",
                    what=text,
                    hint=IDENTITY_HINT
                    if key
                    else "check that the right store is mounted; if it is, restart the process",
                    since_ms=before[key].since_ms if key in before else now_ms,
                    blocks_ready=not key and newest is not None,
                )
                for key, text in whys.items()
                if text
            }
            fresh = [each for key, each in self._problems.items() if key not in before]
        for each in fresh:
            _log.error("%s: %s", each.where, each.what, extra={"event": "store_identity_differs"})

    def problems(self) -> list[ProviderProblem]:
        """Current differences, without I/O. A difference from the process's first identity blocks readiness."""
        with self._lock:
            return list(self._problems.values())

    def readings(self) -> Iterator[Reading]:
        """The gauge of differences; empty before the first identity is read."""
        with self._lock:
            sights, differs = self._sights, bool(self._problems)
        if sights:
            yield Reading("store_identity_differs", float(differs))


def _noted_by(source: LedgerSource, name: str) -> UUID | None:
    """The recorded identity; ``None``: none, or the hot tier doesn't respond, which is reported elsewhere."""
    found: list[UUID | None] = []
    notes = noting(source)
    if notes is not None:
        error: OffloaderError | None = error_of(lambda: found.append(notes.noted_store()), f"stream {name}: its note")
        return None if error is not None else found[0]
    return None
