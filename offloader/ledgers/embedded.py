"""Durable local ledgers in one SQLite database: the embedded hot tier.

Owns the database's streams and who may write to each. Must never know of segments or of the object store.

Rule (spec: embedded ledgers): a stream has at most one open ledger and one owner; taking ownership closes
the open ledger in the same transaction.
"""

from __future__ import annotations

import sqlite3

from formats.stream_names import levels_above
from offloader.clock import Clock, SystemClock
from offloader.errors import InvalidCall, NotFound
from offloader.ledgers.database import BUSY_TIMEOUT_S, Database, database_path
from offloader.ledgers.payloads import ENTRY_BYTES_MAX
from offloader.ledgers.stream import NOTE_BYTES_MAX, EmbeddedStream
from offloader.settings import LedgerSettings
from offloader.stream_names import name_clash, require_stream_name

__all__ = ["ENTRY_BYTES_MAX", "NOTE_BYTES_MAX", "EmbeddedLedgers", "EmbeddedStream"]


class EmbeddedLedgers:
    """Many streams' ledgers in one database; any number of threads and processes.

    Args:
        url_or_path: ``sqlite:///relative.db``, ``sqlite:////absolute.db``, ``sqlite://:memory:`` or a path.
        settings: when ledgers roll over.
        clock: for the times of ledgers.
        create: make the database and its directory when they aren't there.
        busy_timeout_s: how long a call waits for another process that writes, before it fails.

    Raises:
        as ``offloader.ledgers.database.Database``.
    """

    def __init__(
        self,
        url_or_path: str,
        *,
        settings: LedgerSettings | None = None,
        clock: Clock | None = None,
        create: bool = True,
        busy_timeout_s: float = BUSY_TIMEOUT_S,
    ) -> None:
        self._settings = settings or LedgerSettings()
        self._clock = clock or SystemClock()
        self._database = Database(
            database_path(url_or_path), clock=self._clock, create=create, busy_timeout_s=busy_timeout_s
        )

    @property
    def settings(self) -> LedgerSettings:
        """When its ledgers roll over."""
        return self._settings

    @property
    def path(self) -> str:
        """The database's file, or ``:memory:``."""
        return self._database.path

    def open_stream(self, stream: str) -> EmbeddedStream:
        """The stream, to append to; made when it isn't there.

        One transaction takes the next owner number, closes the open ledger (one without entries is removed) and
        opens a new one. Whoever owned the stream before is fenced.

        Raises:
            InvalidCall: not a stream name, or a new one that begins with the levels of another, or the other way round.
        """
        _require_name(stream)
        now_ms = self._clock.now_ms()
        with self._database.writing() as connection:
            _require_own_level(connection, stream)
            connection.execute("INSERT OR IGNORE INTO streams (stream, owner) VALUES (?, 0)", (stream,))
            connection.execute("UPDATE streams SET owner = owner + 1 WHERE stream = ?", (stream,))
            stream_id, owner = connection.execute(
                "SELECT stream_id, owner FROM streams WHERE stream = ?", (stream,)
            ).fetchone()
            connection.execute(
                "DELETE FROM ledgers WHERE stream_id = ? AND closed_ms IS NULL AND entries = 0", (stream_id,)
            )
            connection.execute(
                "UPDATE ledgers SET closed_ms = ? WHERE stream_id = ? AND closed_ms IS NULL", (now_ms, stream_id)
            )
            connection.execute("INSERT INTO ledgers (stream_id, created_ms) VALUES (?, ?)", (stream_id, now_ms))
        return EmbeddedStream(self._database, self._settings, self._clock, stream, stream_id, owner)

    def view_stream(self, stream: str, *, may_delete: bool = False) -> EmbeddedStream:
        """The stream, to read only; takes no ownership and disturbs no owner.

        Args:
            may_delete: closed ledgers can be deleted nevertheless.

        Raises:
            NotFound: no such stream.
        """
        with self._database.reading() as connection:
            row = connection.execute("SELECT stream_id FROM streams WHERE stream = ?", (stream,)).fetchone()
        if row is None:
            known = self.streams()
            raise NotFound(
                f"stream {stream!r} isn't in ledger database {self.path}",
                hint=f"it has {', '.join(known[:5])}{' ...' if len(known) > 5 else ''}"
                if known
                else "it has no streams",
            )
        return EmbeddedStream(self._database, self._settings, self._clock, stream, row[0], None, may_delete=may_delete)

    def streams(self) -> list[str]:
        """Names of all streams, ascending."""
        with self._database.reading() as connection:
            return [row[0] for row in connection.execute("SELECT stream FROM streams ORDER BY stream")]

    def version(self) -> int:
        """A number that is another one as soon as anybody, in this process or another, has changed the database."""
        return self._database.version()

    def close(self) -> None:
        """Closes the database; open ledgers stay open until their stream is opened again."""
        self._database.close()


def _require_name(stream: str) -> None:
    require_stream_name(stream)
    if not stream.isprintable():
        raise InvalidCall(
            f"{stream!r} is no stream name: its characters aren't all printable",
            hint="for example public/default/persistent/orders",
        )


def _require_own_level(connection: sqlite3.Connection, stream: str) -> None:
    """A stream that is new here must be able to stand beside the others in a store."""
    is_there = "SELECT stream FROM streams WHERE stream = ?"
    if connection.execute(is_there, (stream,)).fetchone() is not None:
        return
    found = [connection.execute(is_there, (name,)).fetchone() for name in levels_above(stream)]
    # "0" comes after "/".
    below = "SELECT stream FROM streams WHERE stream > ?1 || '/' AND stream < ?1 || '0' LIMIT 1"
    found.append(connection.execute(below, (stream,)).fetchone())
    for row in found:
        if row is not None:
            raise name_clash(stream, row[0])
