"""What a manifest's owner and its hot tier tell each other: the start, how far the tier reaches, which ids it may give.

The order counts (docs/MANIFEST.md, "Which hot tier"): a start's token is durable in the database before the record that
names it, and ledger ids are reserved by a record before the database gives them.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence

from formats.entries import Position
from formats.manifest import Edit, OpenEpoch, Record, ReserveLedgers
from offloader.errors import OffloaderError, Unsupported
from offloader.ledgers.base import IdentifiedSource
from offloader.manifest.source_check import facts_now, first_free_ledger, require_noted, require_same_source
from offloader.manifest.state import ManifestState

__all__ = ["LEDGERS_RESERVED", "Accept", "OwnersSource", "own_edits"]

_log = logging.getLogger("offloader.manifest")

#: Ledger ids that one record reserves. Ids are plenty; few records and short names of positions are what counts.
LEDGERS_RESERVED = 1000
#: With fewer ids left the owner's next record reserves more.
LEDGERS_LEFT_MIN = LEDGERS_RESERVED // 2

#: What a record says when an operator accepts a source, from the view and a ledger id above all that anybody knows of;
#: new ledgers get later ones.
Accept = Callable[[ManifestState, int], Sequence[Edit]]


class OwnersSource:
    """The hot tier of the log that opened an epoch for it. The log's lock is held around every call.

    Args:
        source: the hot tier.
        token: random, of this start.
        reserve: new ledgers take their ids from a range of this start's own; else they only get ids above all others.
        accept: see ``Accept``; ``None``: the source has to be the one that the manifest knows.
    """

    def __init__(self, source: IdentifiedSource, token: str, *, reserve: bool, accept: Accept | None) -> None:
        self._source, self._token, self._reserves, self._accept = source, token, reserve, accept
        self._range: tuple[int, int] | None = None
        self._can_grant, self._has_granted, self._has_noted = True, False, False

    def check(self, state: ManifestState) -> Position | None:
        """How far the source reaches now.

        Raises:
            SourceMismatch: it isn't the one that ``state`` knows.
        """
        if self._accept is not None:
            return facts_now(state, self._source).reached
        return require_same_source(state, self._source).reached

    def opening(self, state: ManifestState) -> list[Edit]:
        """What the record says that opens the next epoch; the source has the token when this returns.

        Raises:
            SourceMismatch: as ``check``.
            LostRecords: the source has seen more of the manifest than there is.
        """
        require_noted(state, self._source)
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
        """How far the source reaches, and the edits of a record that is to follow ``state``.

        Raises:
            SourceMismatch: as ``check``.
        """
        return self.check(state), [*edits, *self._extension(state, edits)]

    def _extension(self, state: ManifestState, edits: Sequence[Edit]) -> list[Edit]:
        """Reserves more ledger ids when few are left."""
        if any(isinstance(edit, OpenEpoch) for edit in edits):
            return []
        self._range, left = None, self._source.ledgers_left() if self._can_grant else None
        if left is None or left >= LEDGERS_LEFT_MIN:
            return []
        first = max(first_free_ledger(state), self._source.next_ledger())
        self._range = first, first + LEDGERS_RESERVED
        return [ReserveLedgers(first + LEDGERS_RESERVED - 1)]

    def committed(self, state: ManifestState) -> None:
        """Hands the ids over that a record has reserved.

        Raises:
            OffloaderError: the source doesn't take the range of a start; it has no ids to give then.
        """
        self._accept = None
        if not self._has_noted:
            self._source.note_manifest(state.incarnation, state.record_id)
            self._has_noted = True
        if self._range is None or state.source is None or state.source.reserved < self._range[1] - 1:
            return
        (first, end), self._range = self._range, None
        try:
            self._source.grant_ledgers(first, end)
        except Unsupported:
            self._can_grant = False  # a view: the one who appends gives the ids
        except OffloaderError as error:
            if self._reserves and not self._has_granted:
                raise
            # The open ledger stays open meanwhile; a later record reserves again.
            _log.warning("stream %s: new ledger ids aren't taken: %s", state.stream, error)
        else:
            self._has_granted = True


def own_edits(record: Record) -> tuple[Edit, ...]:
    """A record's edits without what the log added by itself."""
    return tuple(edit for edit in record.edits if not isinstance(edit, ReserveLedgers))
