"""Durable local ledgers in one SQLite database: the embedded hot tier.

Owns the database's streams and who may write to each. Must never know of segments or of the object store.

Rule (spec: embedded ledgers): a stream has at most one open ledger and one owner; taking ownership closes
the open ledger in the same transaction.
"""

from __future__ import annotations

import logging
import os
import sqlite3
from collections.abc import Callable
from uuid import UUID

from formats.stream_names import levels_above
from offloader.clock import Clock, SystemClock
from offloader.errors import InvalidCall, NotFound
from offloader.ledgers.acked import AckedFile, AckedSlot
from offloader.ledgers.base import LostRange
from offloader.ledgers.database import BUSY_TIMEOUT_S, Database, database_path
from offloader.ledgers.handle import LEDGER_ID_MAX
from offloader.ledgers.losses import accept_lost, find_lost, refused
from offloader.ledgers.payloads import ENTRY_BYTES_MAX
from offloader.ledgers.queries import newest_given_out, raise_used, source_id_of
from offloader.ledgers.schema import check_entries, check_links
from offloader.ledgers.stream import NOTE_BYTES_MAX, EmbeddedStream
from offloader.settings import LedgerSettings
from offloader.stream_names import name_clash, require_stream_name

__all__ = ["ENTRY_BYTES_MAX", "NOTE_BYTES_MAX", "EmbeddedLedgers", "EmbeddedStream"]

_log = logging.getLogger(__name__)


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
        as ``offloader.ledgers.database.Database``; ``Corrupt``: ledgers, streams and entries don't belong together.
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
        # A database in memory is gone with its process, and nothing outlasts it.
        in_memory = self._database.path == ":memory:"
        self._acked = None if in_memory else AckedFile(f"{self._database.path}.acked")
        try:
            with self._database.reading() as connection:
                check_links(connection, self.path)
            for lost in self.losses():
                _log.warning(
                    "%s", refused(self.path, lost), extra={"event": "acknowledged_lost", "stream": lost.stream}
                )
        except BaseException:
            self.close()
            raise

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
            InvalidCall: not a stream name, a new one that begins with the levels of another, or the other way round; no
                ledger id can be above ``above``.
            SourceMismatch: the database lacks entries that were acknowledged; ``accept_loss`` goes on without them.
            Corrupt: a ledger of the stream isn't what was written.
        """
        _require_name(stream)
        if not 0 <= above < LEDGER_ID_MAX:
            raise InvalidCall(f"stream {stream!r}: no ledger has an id above {above}")
        now_ms = self._clock.now_ms()
        with self._database.writing() as connection:
            _require_own_level(connection, stream)
            connection.execute("INSERT OR IGNORE INTO streams (stream, owner) VALUES (?, 0)", (stream,))
            connection.execute(
                "UPDATE streams SET owner = owner + 1, ids_next = 0, ids_end = ? WHERE stream = ?",
                (0 if held else None, stream),
            )
            stream_id, owner = connection.execute(
                "SELECT stream_id, owner FROM streams WHERE stream = ?", (stream,)
            ).fetchone()
            check_entries(connection, self.path, stream_id)
            slot = self._acked_slot(connection, stream, stream_id, owner)
            connection.execute(
                "DELETE FROM ledgers WHERE stream_id = ? AND closed_ms IS NULL AND entries = 0", (stream_id,)
            )
            connection.execute(
                "UPDATE ledgers SET closed_ms = ? WHERE stream_id = ? AND closed_ms IS NULL", (now_ms, stream_id)
            )
            raise_used(connection, above)
            if not held:
                connection.execute("INSERT INTO ledgers (stream_id, created_ms) VALUES (?, ?)", (stream_id, now_ms))
        return EmbeddedStream(self._database, self._settings, self._clock, stream, stream_id, owner, acked=slot)

    def losses(self) -> list[LostRange]:
        """What the database lacks of what it acknowledged; its streams can be read and not be appended to.

        Only of streams that the database knows: what it forgot altogether is found by ``open_stream``.
        """
        if self._acked is None:
            return []
        with self._database.translated("reading its acknowledged ends"):
            self._acked.load()
        acked = {stream: self._acked.of_stream(stream) for stream in self.streams()}
        with self._database.reading() as connection:
            source_id = source_id_of(connection)
            found = [
                find_lost(connection, stream, stream_id, acked.get(stream, ()), source_id)
                for stream, stream_id in connection.execute("SELECT stream, stream_id FROM streams ORDER BY stream")
            ]
        return [lost for lost in found if lost is not None]

    def require_name(self, stream: str) -> None:
        """Refuses a name that a stream of this database can't have, before anything is made for it.

        Raises:
            InvalidCall: as ``open_stream``.
        """
        _require_name(stream)
        with self._database.reading() as connection:
            _require_own_level(connection, stream)

    def accept_loss(self, stream: str, *, dry_run: bool = False) -> list[LostRange]:
        """Goes on without entries that were acknowledged and are gone, so that the stream can be opened again.

        Their positions stay used. The ledger that the last one was in lists them as lost (``LedgerInfo.lost``).

        Args:
            dry_run: change nothing.

        Returns:
            What is lost; nothing when the database has everything that was acknowledged, and then nothing is changed.
        """
        _require_name(stream)
        if self._acked is None:
            return []
        with self._database.writing() as connection:
            self._acked.load()
            row = connection.execute("SELECT stream_id FROM streams WHERE stream = ?", (stream,)).fetchone()
            source_id = source_id_of(connection)
            acked = self._acked.of_stream(stream)
            lost = find_lost(connection, stream, None if row is None else row[0], acked, source_id)
            if lost is None or dry_run:
                return [] if lost is None else [lost]
            connection.execute("INSERT OR IGNORE INTO streams (stream, owner) VALUES (?, 0)", (stream,))
            connection.execute("UPDATE streams SET owner = owner + 1 WHERE stream = ?", (stream,))
            stream_id, owner = connection.execute(
                "SELECT stream_id, owner FROM streams WHERE stream = ?", (stream,)
            ).fetchone()
            accept_lost(connection, stream_id, lost, self._clock.now_ms())
            reached = newest_given_out(connection, stream_id)
        # Now the database has it: a crash before this asks the operator once more.
        self._acked.replace(stream, UUID(bytes=source_id), reached, owner)
        _log.warning(
            "stream %s: accepted that entries from %s up to %s are lost", stream, lost.first, lost.last,
            extra={"event": "loss_accepted", "stream": stream},
        )  # fmt: skip
        return [lost]

    def _acked_slot(self, connection: sqlite3.Connection, stream: str, stream_id: int, owner: int) -> AckedSlot | None:
        """Where a new owner notes what it acknowledges; its ledgers get ids above all that were ever noted.

        Raises:
            SourceMismatch: the database lacks what was acknowledged.
        """
        if self._acked is None:
            return None
        source_id = source_id_of(connection)
        if not self._acked.load():
            if connection.execute("SELECT has_acked_file FROM identity").fetchone()[0]:
                _log.warning(
                    "%s is gone: whether ledger database %s has everything that it acknowledged can't be told from it",
                    self._acked.path, self.path, extra={"event": "acked_file_gone"},
                )  # fmt: skip
            self._acked.make()
            connection.execute("UPDATE identity SET has_acked_file = 1")
        lost = find_lost(connection, stream, stream_id, self._acked.of_stream(stream), source_id)
        if lost is not None:
            raise refused(self.path, lost)
        raise_used(connection, self._acked.newest_ledger)
        return self._acked.replace(stream, UUID(bytes=source_id), newest_given_out(connection, stream_id), owner)

    def view_stream(self, stream: str, *, may_delete: bool = False) -> EmbeddedStream:
        """The stream, to read only; takes no ownership and disturbs no owner.

        Args:
            may_delete: closed ledgers can be deleted and starts recorded nevertheless.

        Raises:
            NotFound: no such stream.
            Corrupt: a ledger of the stream isn't what was written.
        """
        with self._database.reading() as connection:
            row = connection.execute("SELECT stream_id FROM streams WHERE stream = ?", (stream,)).fetchone()
            if row is not None:
                check_entries(connection, self.path, row[0])
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
        if self._acked is not None:
            self._acked.close()


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
