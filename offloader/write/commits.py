"""One stream's commits, one after another, whatever the store answers.

Owns the edits whose outcome isn't known yet. Must never let other edits go before them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

from formats.manifest import Edit
from offloader.errors import OffloaderError, OutcomeUnknown
from offloader.manifest.log import ManifestLog
from offloader.manifest.state import ManifestState

__all__ = ["Commits"]


class Commits:
    """Commits edits, and what is to be done after them, exactly once."""

    def __init__(self, log: ManifestLog) -> None:
        self._log = log
        self._pending: tuple[Sequence[Edit], Callable[[ManifestState], None]] | None = None

    def commit(self, edits: Sequence[Edit], then: Callable[[ManifestState], None]) -> None:
        """Commits ``edits``, then calls ``then`` with the new view.

        Raises:
            OutcomeUnknown: call ``finish`` until it returns; nothing else may be committed before.
            Fenced, EditRefused, StoreUnavailable: nothing was committed, and the edits are forgotten.
        """
        assert self._pending is None, "an earlier commit is unfinished"
        self._pending = (edits, then)
        self.finish()

    def finish(self) -> None:
        """Commits what is pending, if anything is; raises like ``commit``."""
        if self._pending is None:
            return
        edits, then = self._pending
        try:
            state = self._log.commit(edits)
        except OutcomeUnknown:
            raise
        except OffloaderError:
            self._pending = None
            raise
        self._pending = None
        then(state)
