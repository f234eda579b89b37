"""Tables of the embedded ledgers' database, their versions, and the check that they fit each other.

A database of any earlier version is migrated at its first opening, in the transaction that finds its version.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from uuid import UUID

from offloader.errors import Corrupt, InvalidCall, Unsupported

__all__ = ["check_entries", "check_identity", "check_links", "prepare_schema"]

#: Marks the file as ours ("offl"), so that no other program's database is taken for one.
_APPLICATION_ID = 0x6F66666C
_SCHEMA_VERSION = 2
_VERSION_1 = (
    """CREATE TABLE streams (
        stream_id INTEGER PRIMARY KEY, stream TEXT NOT NULL UNIQUE, owner INTEGER NOT NULL,
        released_ledger_id INTEGER NOT NULL DEFAULT -1, released_entry_id INTEGER NOT NULL DEFAULT -1)""",
    """CREATE TABLE ledgers (
        ledger_id INTEGER PRIMARY KEY AUTOINCREMENT, stream_id INTEGER NOT NULL, entries INTEGER NOT NULL DEFAULT 0,
        size_bytes INTEGER NOT NULL DEFAULT 0, created_ms INTEGER NOT NULL, closed_ms INTEGER)""",
    "CREATE INDEX ledgers_of_stream ON ledgers (stream_id, ledger_id)",
    # payload comes last: SQLite reads a row's columns from the front and skips overflow pages it doesn't need
    """CREATE TABLE chunks (
        ledger_id INTEGER NOT NULL, first_entry_id INTEGER NOT NULL, entries INTEGER NOT NULL,
        first_time_ms INTEGER NOT NULL, crc INTEGER NOT NULL, lengths BLOB, times BLOB, payload BLOB NOT NULL)""",
    "CREATE UNIQUE INDEX chunks_in_order ON chunks (ledger_id, first_entry_id)",
    """CREATE TABLE notes (
        stream_id INTEGER NOT NULL, key TEXT NOT NULL, value BLOB NOT NULL, PRIMARY KEY (stream_id, key))""",
)
#: What version 2 adds: which database this is, who started on it, where positions were given out, what its ledgers
#: belong to. Chunks keep their table: a foreign key would mean to write all of them anew.
_VERSION_2 = (
    # has_acked_file: the file of acknowledged ends was there, so that its absence is noticed.
    "CREATE TABLE identity (source_id BLOB NOT NULL, has_acked_file INTEGER NOT NULL DEFAULT 0)",
    # ledgers_held: kept by triggers, so that a ledger whose stream_id was changed is missed.
    "ALTER TABLE streams ADD COLUMN ledgers_held INTEGER NOT NULL DEFAULT 0",
    # The newest position of ledgers that are deleted.
    "ALTER TABLE streams ADD COLUMN reached_ledger_id INTEGER NOT NULL DEFAULT -1",
    "ALTER TABLE streams ADD COLUMN reached_entry_id INTEGER NOT NULL DEFAULT -1",
    # Ledger ids granted to the owner and not used yet, ids_next up to before ids_end; NULL: any above all others.
    "ALTER TABLE streams ADD COLUMN ids_next INTEGER NOT NULL DEFAULT 0",
    "ALTER TABLE streams ADD COLUMN ids_end INTEGER",
    "ALTER TABLE streams ADD COLUMN manifest_incarnation BLOB",
    "ALTER TABLE streams ADD COLUMN manifest_record_id INTEGER",
    # lost_entries: the last ones of entries, acknowledged, gone, and accepted as lost.
    """CREATE TABLE linked_ledgers (
        ledger_id INTEGER PRIMARY KEY AUTOINCREMENT, stream_id INTEGER NOT NULL REFERENCES streams,
        entries INTEGER NOT NULL DEFAULT 0, size_bytes INTEGER NOT NULL DEFAULT 0, created_ms INTEGER NOT NULL,
        closed_ms INTEGER, lost_entries INTEGER NOT NULL DEFAULT 0)""",
    "INSERT INTO sqlite_sequence (name, seq) SELECT 'linked_ledgers', seq FROM sqlite_sequence WHERE name = 'ledgers'",
    """INSERT INTO linked_ledgers (ledger_id, stream_id, entries, size_bytes, created_ms, closed_ms)
        SELECT ledger_id, stream_id, entries, size_bytes, created_ms, closed_ms FROM ledgers""",
    "DROP TABLE ledgers",
    "ALTER TABLE linked_ledgers RENAME TO ledgers",
    "CREATE INDEX ledgers_of_stream ON ledgers (stream_id, ledger_id)",
    """CREATE TABLE starts (
        start_id INTEGER PRIMARY KEY AUTOINCREMENT, stream_id INTEGER NOT NULL REFERENCES streams,
        token TEXT NOT NULL, UNIQUE (stream_id, token))""",
    "UPDATE streams SET ledgers_held = (SELECT count(*) FROM ledgers WHERE ledgers.stream_id = streams.stream_id)",
    """CREATE TRIGGER ledger_made AFTER INSERT ON ledgers BEGIN
        UPDATE streams SET ledgers_held = ledgers_held + 1 WHERE stream_id = NEW.stream_id; END""",
    """CREATE TRIGGER ledger_gone AFTER DELETE ON ledgers BEGIN
        UPDATE streams SET ledgers_held = ledgers_held - 1 WHERE stream_id = OLD.stream_id;
        UPDATE streams SET reached_ledger_id = OLD.ledger_id, reached_entry_id = OLD.entries - 1
            WHERE stream_id = OLD.stream_id AND OLD.entries > 0 AND reached_ledger_id < OLD.ledger_id; END""",
)
_ORPHANED_LEDGER = (
    "SELECT ledger_id, stream_id FROM ledgers WHERE stream_id NOT IN (SELECT stream_id FROM streams) LIMIT 1"
)
_LEDGERS_HELD = (
    "SELECT stream, found, ledgers_held FROM (SELECT stream, ledgers_held, (SELECT count(*) FROM ledgers "
    "WHERE ledgers.stream_id = streams.stream_id) AS found FROM streams) WHERE found != ledgers_held LIMIT 1"
)
# Jumps from one ledger to the next one in the index, whatever number of chunks each has.
_ORPHANED_CHUNK = (
    "WITH RECURSIVE stored (ledger_id) AS (SELECT min(ledger_id) FROM chunks UNION ALL "
    "SELECT (SELECT min(ledger_id) FROM chunks WHERE ledger_id > stored.ledger_id) FROM stored "
    "WHERE stored.ledger_id IS NOT NULL) SELECT ledger_id FROM stored WHERE ledger_id IS NOT NULL "
    "AND ledger_id NOT IN (SELECT ledger_id FROM ledgers) LIMIT 1"
)
_ENTRIES_STORED = (
    "SELECT ledger_id, listed, stored FROM (SELECT ledger_id, entries - lost_entries AS listed, "
    "coalesce((SELECT first_entry_id + chunks.entries FROM chunks WHERE chunks.ledger_id = ledgers.ledger_id "
    "ORDER BY first_entry_id DESC LIMIT 1), 0) AS stored FROM ledgers WHERE stream_id = ?) "
    "WHERE listed != stored LIMIT 1"
)
_RESTORE = "restore the database from a copy, or begin a new one and read what the object store has"


def check_identity(connection: sqlite3.Connection, path: str) -> int:
    """The schema's version, 0 for an empty file.

    Raises:
        InvalidCall: another program's database.
        Unsupported: written by a newer release.
    """
    version = _version(connection)
    application = int(connection.execute("PRAGMA application_id").fetchone()[0])
    tables = int(connection.execute("SELECT count(*) FROM sqlite_master").fetchone()[0])
    if tables and application != _APPLICATION_ID:
        raise InvalidCall(f"{path} is another program's SQLite database", hint="name a file of its own")
    if version > _SCHEMA_VERSION:
        raise Unsupported(
            f"ledger database {path} has layout {version}, this release knows {_SCHEMA_VERSION}",
            hint="use the release that wrote it, or a newer one",
        )
    return version


def prepare_schema(connection: sqlite3.Connection, path: str, entropy: Callable[[int], bytes]) -> bool:
    """Makes or migrates the tables inside the caller's write transaction; whether anything was changed.

    Raises: as ``check_identity`` and ``check_links``.
    """
    version = check_identity(connection, path)
    if version == 0:
        _execute(connection, _VERSION_1)
        connection.execute(f"PRAGMA application_id = {_APPLICATION_ID}")
    if version < 2:
        check_links(connection, path)
        _execute(connection, _VERSION_2)
        source_id = UUID(bytes=entropy(16), version=4)
        connection.execute("INSERT INTO identity (source_id) VALUES (?)", (source_id.bytes,))
    connection.execute(f"PRAGMA user_version = {_SCHEMA_VERSION}")
    return version < _SCHEMA_VERSION


def check_links(connection: sqlite3.Connection, path: str) -> None:
    """Finds ledgers that belong to no stream, ledgers that a stream misses, and entries that belong to no ledger.

    Raises:
        Corrupt: names the first of them.
    """
    checks = [(_ORPHANED_LEDGER, "ledger {} belongs to stream number {}, which doesn't exist")]
    if _version(connection) >= 2:
        checks.append((_LEDGERS_HELD, "stream {} has {} ledgers of {}: a ledger of it belongs to another stream"))
    checks.append((_ORPHANED_CHUNK, "there are entries of ledger {}, which doesn't exist"))
    _check(connection, path, checks)


def check_entries(connection: sqlite3.Connection, path: str, stream_id: int) -> None:
    """Finds a ledger of a stream that has more or fewer entries than were stored in it.

    Raises:
        Corrupt: names the ledger.
    """
    _check(connection, path, [(_ENTRIES_STORED, "ledger {} has {} entries, and {} are stored")], stream_id)


def _check(connection: sqlite3.Connection, path: str, checks: Sequence[tuple[str, str]], *values: int) -> None:
    for query, what in checks:
        found = connection.execute(query, values).fetchone()
        if found is not None:
            raise Corrupt(f"ledger database {path} is damaged: {what.format(*found)}", hint=_RESTORE)


def _version(connection: sqlite3.Connection) -> int:
    return int(connection.execute("PRAGMA user_version").fetchone()[0])


def _execute(connection: sqlite3.Connection, statements: tuple[str, ...]) -> None:
    for statement in statements:
        connection.execute(statement)
