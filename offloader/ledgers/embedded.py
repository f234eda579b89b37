"""Durable local ledgers in one SQLite database: the embedded hot tier.

Owns the database's streams and who may write to each. Must never know of segments or of the object store.

Rule (spec: embedded ledgers): a stream has at most one open ledger and one owner; taking ownership closes
the open ledger in the same transaction.
"""

from __future__ import annotations

import os
from collections.abc import Callable

from offloader.clock import Clock, SystemClock
from offloader.errors import InvalidCall, NotFound
from offloader.ledgers.database import BUSY_TIMEOUT_S, Database, database_path
from offloader.ledgers.given import ENTRY_BYTES_MAX
from offloader.ledgers.handle import LEDGER_ID_MAX, raise_used
from offloader.ledgers.stream import NOTE_BYTES_MAX, EmbeddedStream
from offloader.settings import LedgerSettings

__all__ = ["ENTRY_BYTES_MAX", "NOTE_BYTES_MAX", "STREAM_NAME_CHARS_MAX", "EmbeddedLedgers", "EmbeddedStream"]

#: Longest stream name.
STREAM_NAME_CHARS_MAX = 1024


class EmbeddedLedgers:
    """Many streams' ledgers in one database; any number of threads and processes.

    Args:
        url_or_path: ``sqlite:///relative.db``, ``sqlite:////absolute.db``, ``sqlite://:memory:`` or a path.
        settings: when ledgers roll over.
        clock: for the times of ledgers.
        create: make the database and its directory when they aren't there.
        busy_timeout_s: how long a call waits for another process that writes, before it fails.
        entropy: randomness of a new database's identity, for tests.

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
        entropy: Callable[[int], bytes] = os.urandom,
    ) -> None:
        self._settings = settings or LedgerSettings()
        self._clock = clock or SystemClock()
        self._database = Database(
            database_path(url_or_path),
            clock=self._clock,
            create=create,
            busy_timeout_s=busy_timeout_s,
            entropy=entropy,
        )

    @property
    def settings(self) -> LedgerSettings:
        """When its ledgers roll over."""
        return self._settings

    @property
    def path(self) -> str:
        """The database's file, or ``:memory:``."""
        return self._database.path

    def open_stream(self, stream: str, *, held: bool = False, above: int = 0) -> EmbeddedStream:
        """The stream, to append to; made when it isn't there.

        One transaction takes the next owner number, closes the open ledger (one without entries is removed) and
        opens a new one. Whoever owned the stream before is fenced.

        Args:
            held: no ledger is opened and nothing can be appended before ``grant_ledgers``.
            above: new ledgers of the database get ids above this one.

        Raises:
            InvalidCall: not a stream name, or no ledger id can be above ``above``.
        """
        _check_stream_name(stream)
        if not 0 <= above < LEDGER_ID_MAX:
            raise InvalidCall(f"stream {stream!r}: no ledger has an id above {above}")
        now_ms = self._clock.now_ms()
        with self._database.writing() as connection:
            connection.execute("INSERT OR IGNORE INTO streams (stream, owner) VALUES (?, 0)", (stream,))
            connection.execute(
                "UPDATE streams SET owner = owner + 1, ids_next = 0, ids_end = ? WHERE stream = ?",
                (0 if held else None, stream),
            )
            stream_id, owner = connection.execute(
                "SELECT stream_id, owner FROM streams WHERE stream = ?", (stream,)
            ).fetchone()
            connection.execute(
                "DELETE FROM ledgers WHERE stream_id = ? AND closed_ms IS NULL AND entries = 0", (stream_id,)
            )
            connection.execute(
                "UPDATE ledgers SET closed_ms = ? WHERE stream_id = ? AND closed_ms IS NULL", (now_ms, stream_id)
            )
            raise_used(connection, above)
            if not held:
                connection.execute("INSERT INTO ledgers (stream_id, created_ms) VALUES (?, ?)", (stream_id, now_ms))
        return EmbeddedStream(self._database, self._settings, self._clock, stream, stream_id, owner)

    def view_stream(self, stream: str, *, may_delete: bool = False) -> EmbeddedStream:
        """The stream, to read only; takes no ownership and disturbs no owner.

        Args:
            may_delete: closed ledgers can be deleted and starts recorded nevertheless.

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


def _check_stream_name(stream: str) -> None:
    if not stream or len(stream) > STREAM_NAME_CHARS_MAX or not stream.isprintable():
        raise InvalidCall(
            f"{stream!r} is no stream name: 1 to {STREAM_NAME_CHARS_MAX} printable characters",
            hint="for example public/default/persistent/orders",
        )
