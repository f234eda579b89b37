"""A hot tier checked against its manifest at each listing, without the ledgers set aside."""

from __future__ import annotations

from collections.abc import Callable

from formats.entries import EntryBatch, Position
from offloader.ledgers.base import ClosedListener, LedgerInfo, LedgerSource, Listener, Subscription, identified
from offloader.manifest.log import ManifestLog
from offloader.manifest.source_identity import compare_source, require_same_ledgers, require_same_source
from offloader.manifest.state import ManifestState


class CheckedSource:
    """A ``LedgerSource`` whose ``ledgers`` raises ``SourceMismatch`` if it contradicts the manifest.

    Skipping, releasing, truncating and acknowledging entries all list the ledgers first, so none of it happens to a
    wrong source. A source without an identity compares itself if it can: a Pulsar topic. Thread-safe.

    Args:
        view: the last loaded manifest, ``None`` before that: then nothing is compared.
    """

    def __init__(self, inner: LedgerSource, view: Callable[[], ManifestState | None]) -> None:
        self.inner, self._view = inner, view
        self._identity = identified(inner)

    def ledgers(self) -> list[LedgerInfo]:
        # The view first: an entry that is recorded after the listing isn't missing in it.
        state = self._view()
        infos = self.inner.ledgers()
        if state is None:
            return infos
        if self._identity is None:
            compare_source(self.inner, state)
        else:
            require_same_source(state, self._identity)
            require_same_ledgers(state, infos)
        aside = state.aside_ledgers
        return [info for info in infos if info.ledger_id not in aside]

    def read(self, start: Position, max_bytes: int) -> EntryBatch | None:
        state = self._view()
        batch = self.inner.read(start, max_bytes)
        while batch is not None and state is not None and batch.ledger_id in state.aside_ledgers:
            batch = self.inner.read(Position(batch.ledger_id + 1, 0), max_bytes)
        return batch

    def subscribe(self, listener: Listener | None, closed: ClosedListener | None = None) -> Subscription:
        return self.inner.subscribe(listener, closed)

    def release(self, position: Position) -> None:
        self.inner.release(position)

    def delete(self, ledger_id: int) -> None:
        self.inner.delete(ledger_id)


def checked(source: LedgerSource, log: ManifestLog) -> CheckedSource:
    """A stream's source, compared with the view of ``log``."""
    return CheckedSource(source, lambda: log.state if log.is_loaded else None)
