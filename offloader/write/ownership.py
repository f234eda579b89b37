"""An owner's hot tier at its stream's commits: rules M17 to M24 of docs/explanation/manifest.md.

The durable steps of a start, in their order:

1. The source is compared with the manifest, and its notes with the store. A wrong one is refused; nothing is written.
2. The source records a new token.
3. The record that opens the epoch names the source, the token, and the ledger ids that are reserved for this start.
4. The source notes the manifest's incarnation and that record, and the store's identity.
5. The source is granted the reserved ids. Only then can it be appended to.

After a crash between two steps the next start begins at step 1. A token that no record names is never looked for, ids
that were reserved and not granted remain unused, and a missing note is accepted if the manifest names a token of this
very source. Each later record of the epoch repeats the comparison of step 1, and steps 3 and 5 when few ids are left.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from formats.entries import Position
from formats.manifest import Edit, OpenEpoch, ReserveLedgers
from offloader.errors import OffloaderError, UnsupportedError
from offloader.ledgers.base import IdentifiedSource
from offloader.manifest.log import ManifestLog
from offloader.manifest.noted import require_noted
from offloader.manifest.source_identity import facts_now, first_free_ledger, require_same_source
from offloader.manifest.state import ManifestState
from offloader.manifest.store_identity import note_start
from offloader.store.base import ObjectStore

_log = logging.getLogger("offloader.manifest")

#: Ledger ids that one record reserves. Ids are plentiful; this keeps records few and positions short.
LEDGERS_RESERVED = 1000
#: With fewer ids left the owner's next record reserves more.
LEDGERS_LEFT_MIN = LEDGERS_RESERVED // 2

#: Edits by which an operator accepts a source, from the view and a ledger id above all known ones; new ledgers get
#: later ids.
Accept = Callable[[ManifestState, int], Sequence[Edit]]


class OwnersSource:
    """The hot tier of the log that opened an epoch for it: the log's ``EpochGuard``.

    Args:
        reserve: new ledgers take their ids from a range of this start; otherwise they only get ids above all others.
        accept: see ``Accept``; ``None``: the source has to be the one that the manifest knows.
    """

    def __init__(
        self, source: IdentifiedSource, token: str, store: ObjectStore, *, reserve: bool, accept: Accept | None
    ) -> None:
        self._source, self._token, self._reserves, self._accept = source, token, reserve, accept
        self._store = store
        self._range: tuple[int, int] | None = None
        self._can_grant, self._has_granted, self._has_noted = True, False, False

    def check(self, state: ManifestState) -> Position | None:
        """The newest position of the source. Raises ``SourceMismatchError``: it isn't the one that ``state`` knows."""
        if self._accept is not None:
            return facts_now(state, self._source).reached
        return require_same_source(state, self._source).reached

    def opening(self, state: ManifestState) -> list[Edit]:
        """The edits of the record that opens the next epoch; the source has the token when this returns.

        Raises:
            SourceMismatchError: as ``check``.
            StoreMismatchError: the source has seen more of the manifest, or another one.
        """
        if self._accept is None:
            require_noted(self._store, state, self._source, self._source.noted_manifests())
        self.check(state)
        self._source.record_start(self._token)
        next_ledger = self._source.next_ledger()
        first = max(first_free_ledger(state), next_ledger)
        said: Sequence[Edit] = []
        if self._accept is not None:
            said, first = self._accept(state, first), first + 1
        end = first + LEDGERS_RESERVED
        if self._reserves:
            self._range = first, end
        elif first > next_ledger:
            self._source.seed_ledgers(first - 1)
        reserved = end - 1 if self._reserves else None
        return [*said, OpenEpoch(state.epoch + 1, self._source.source_id(), self._token, reserved, bool(self._accept))]

    def recorded(self, state: ManifestState, edits: Sequence[Edit]) -> tuple[Position | None, Sequence[Edit]]:
        """The newest position of the source, and the edits of the next record: with more ledger ids when few are left.

        Raises:
            SourceMismatchError: as ``check``.
        """
        reached = self.check(state)
        if any(isinstance(edit, OpenEpoch) for edit in edits):
            return reached, edits
        self._range, left = None, self._source.ledgers_left() if self._can_grant else None
        if left is None or left >= LEDGERS_LEFT_MIN:
            return reached, edits
        first = max(first_free_ledger(state), self._source.next_ledger())
        self._range = first, first + LEDGERS_RESERVED
        return reached, [*edits, ReserveLedgers(first + LEDGERS_RESERVED - 1)]

    def committed(self, state: ManifestState) -> None:
        """Grants the source the ids that a record has reserved.

        Raises:
            OffloaderError: the source refuses the range of a start, and so has no ids.
        """
        is_accepted, self._accept = self._accept is not None, None
        if not self._has_noted:
            note_start(self._store, self._source, state, is_accepted=is_accepted)
            self._has_noted = True
        if self._range is None or state.source is None or state.source.reserved < self._range[1] - 1:
            return
        (first, end), self._range = self._range, None
        try:
            self._source.grant_ledgers(first, end)
        except UnsupportedError:
            self._can_grant = False  # a view: the appending process grants the ids
        except OffloaderError as error:
            if self._reserves and not self._has_granted:
                raise
            # The open ledger remains open; a later record reserves again.
            _log.warning("stream %s: the source refused new ledger ids: %s", state.stream, error)
        else:
            self._has_granted = True


def open_owned(
    log: ManifestLog,
    source: IdentifiedSource | None,
    *,
    reserve: bool = False,
    accept: Accept | None = None,
    check: Callable[[ManifestState], object] = lambda _: None,
) -> int:
    """Open the next epoch of a stream for a hot tier.

    Args:
        source: what this writer offloads; ``None``: a source without an identity, which isn't compared.
        reserve, accept: see ``OwnersSource``.
        check: see ``ManifestLog.open_epoch``.

    Raises:
        SourceMismatchError: ``source`` isn't the stream's. Others as ``ManifestLog.open_epoch``.
    """
    if source is None:
        return log.open_epoch(check=check)
    guard = OwnersSource(source, log.new_token(), log.store, reserve=reserve, accept=accept)
    return log.open_epoch(guard, check=check)
