"""Options of commands that read a ledger database, and its streams as hot tiers."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager, nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

from formats.entries import Position
from offloader.cli.options import COMMON, StoreArguments, option
from offloader.errors import InvalidCallError, NotFoundError
from offloader.ledgers.base import LedgerSource
from offloader.ledgers.sqlite.database import database_path
from offloader.ledgers.sqlite.embedded import EmbeddedLedgers, lost_with_database, require_whole


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerArguments(StoreArguments):
    """Options of commands that read a ledger database."""

    ledgers: Annotated[
        str,
        option(
            "--ledgers",
            "Ledger database: sqlite:///relative.db or sqlite:////absolute.db.",
            envvar="OFFLOADER_LEDGERS",
            metavar="URL",
            rich_help_panel=COMMON,
        ),
    ] = ""

    def ledgers_url(self) -> str:
        """The URL of the ledger database in the options, else of the only one in the settings file; empty: none."""
        found = self._ledgers_of_file()
        return self.ledgers or (found[0] if len(found) == 1 else "")

    def has_ledgers(self) -> bool:
        """Whether a ledger database can be read: an option's, or the settings file's on this machine."""
        url = self.ledgers_url()
        return bool(self.ledgers) or (bool(url) and Path(database_path(url)).exists())

    def _ledgers_of_file(self) -> list[str]:
        if self.ledgers or not self.config:
            return []
        settings = self.file().settings_of("")
        return sorted({settings.serve.ledgers, settings.flight.ledgers} - {""})

    def require_ledgers(self) -> str:
        """The ledger database, as ``ledgers_url``.

        Raises:
            InvalidCallError: no database was given, or the settings file has two.
        """
        url = self.ledgers_url()
        if url:
            return url
        where = f": the settings file {self.config} has no serve.ledgers" if self.config else ""
        hint = "give --ledgers sqlite:///FILE or set OFFLOADER_LEDGERS, or --config FILE with serve.ledgers"
        found = self._ledgers_of_file()
        if found:
            where = f": the settings file {self.config} has two, serve.ledgers and flight.ledgers"
            hint = f"give --ledgers {' or --ledgers '.join(found)}"
        raise InvalidCallError(f"no ledger database was given{where}", hint=hint)

    def open_ledgers(self, *, create: bool = False) -> EmbeddedLedgers:
        """The opened ledger database; the caller closes it.

        Raises:
            InvalidCallError: as ``require_ledgers``.
            OffloaderError: as ``EmbeddedLedgers``.
        """
        return EmbeddedLedgers(self.require_ledgers(), create=create)


@dataclass(frozen=True, slots=True)
class HotTiers:
    """The hot tiers of a ledger database, by the stream's name.

    Args:
        path: of the database; empty: none was given.
        database: ``None``: there is no database.
        may_delete: allow deleting closed ledgers.
    """

    path: str = ""
    database: EmbeddedLedgers | None = None
    may_delete: bool = False

    def __call__(self, stream: str) -> LedgerSource | None:
        """The stream's hot tier; ``None``: the database doesn't have the stream."""
        return None if self.database is None else self.database.source_of(stream, may_delete=self.may_delete)

    def require_whole(self, stream: str, committed: Position | None, last: Position | None = None) -> None:
        """Requires that the database has every acknowledged entry that isn't committed.

        Args:
            last: the newest entry to check; ``None``: check all.

        Raises:
            SourceMismatchError: entries are missing.
        """
        if not self.path:
            return
        found = lost_with_database(self.path, [stream]) if self.database is None else self.database.losses([stream])
        require_whole(self.path, found, stream, committed, last)


@contextmanager
def opening_sources(ledgers: str, *, may_be_absent: bool = False, may_delete: bool = False) -> Iterator[HotTiers]:
    """The hot tier of a stream by its name; ``None`` for a stream that the database doesn't have.

    Args:
        may_be_absent: print a note on standard error if the database doesn't exist, instead of an error.
        may_delete: allow deleting closed ledgers.
    """
    path = database_path(ledgers) if ledgers else ""
    try:
        opened = EmbeddedLedgers(ledgers, create=False) if ledgers else None
    except NotFoundError as error:
        if not may_be_absent:
            raise
        print(f"note: {error.message}; reading offloaded entries only", file=sys.stderr)
        opened = None
    with nullcontext() if opened is None else closing(opened):
        yield HotTiers(path, opened, may_delete)
