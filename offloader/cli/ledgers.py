"""Options of verbs that read a ledger database, and its streams as hot tiers."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from typing import Annotated

from offloader.cli.options import StoreArguments, option
from offloader.errors import InvalidCall, NotFound
from offloader.ledgers.base import LedgerSource
from offloader.ledgers.sqlite.embedded import EmbeddedLedgers


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerArguments(StoreArguments):
    """Options of verbs that read a ledger database."""

    ledgers: Annotated[
        str,
        option(
            "--ledgers",
            "The ledger database: sqlite:///relative.db, sqlite:////absolute.db.",
            envvar="OFFLOADER_LEDGERS",
            metavar="URL",
        ),
    ] = ""

    def require_ledgers(self) -> None:
        """Raises ``InvalidCall`` without a ledger database."""
        if not self.ledgers:
            raise InvalidCall(
                "no ledger database was named", hint="give --ledgers sqlite:///FILE or set OFFLOADER_LEDGERS"
            )

    def open_ledgers(self, *, create: bool = False) -> EmbeddedLedgers:
        """The ledger database; close it.

        Raises:
            InvalidCall: none was given.
            OffloaderError: as ``EmbeddedLedgers``.
        """
        self.require_ledgers()
        return EmbeddedLedgers(self.ledgers, create=create)


@contextmanager
def opening_sources(ledgers: str, *, may_be_absent: bool = False) -> Iterator[Callable[[str], LedgerSource | None]]:
    """The hot tier by a stream's name; none for other streams, or without a database.

    Args:
        may_be_absent: a database that doesn't exist is noted on standard error, instead of an error.
    """
    try:
        opened = EmbeddedLedgers(ledgers, create=False) if ledgers else None
    except NotFound as error:
        if not may_be_absent:
            raise
        print(f"note: {error.message}: only what is offloaded is read", file=sys.stderr)
        opened = None
    if opened is None:
        yield lambda _: None
        return
    with closing(opened) as database:

        def source_of(stream: str) -> LedgerSource | None:
            try:
                return database.view_stream(stream)
            except NotFound:
                return None

        yield source_of
