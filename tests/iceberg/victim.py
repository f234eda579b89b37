"""Exports streams in a process of its own; kills itself with SIGKILL at the Nth passage of a point, if one is given.

``python -m tests.iceberg.victim``: for each line on standard input, ``STORE CATALOG WAREHOUSE STREAMS [POINT N]``
(streams with commas between), a process is forked, and how it ended is a line on standard output. To load the libraries
once is what makes twenty kills fast.
"""

from __future__ import annotations

import inspect
import json
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io.pyarrow import ParquetFormatWriter, PyArrowFileIO
from pyiceberg.table import Table

from formats.pulsar.messages import BadEntry
from offloader import iceberg
from offloader.iceberg import upkeep
from offloader.iceberg.columns import Values
from offloader.read.typed_values import typed_decoder
from offloader.read.values import MessageSchema, VersionedDecoders
from offloader.store.open import open_store

#: Point -> the method, and whether the process dies before or after it.
POINTS: dict[str, tuple[Any, str, bool]] = {
    "rows": (ParquetFormatWriter, "write", False),
    "file": (ParquetFormatWriter, "close", False),
    "commit": (SqlCatalog, "commit_table", True),
    "metadata": (SqlCatalog, "_write_metadata", False),
    "committed": (SqlCatalog, "commit_table", False),
}
#: With files that are joined and snapshots that expire: also before a file is deleted.
UPKEEP_POINTS = {**POINTS, "delete": (PyArrowFileIO, "delete", True)}
#: After every snapshot.
_LATER_MS = 10**14


def die_at(point: str, passage: int) -> None:
    """The process kills itself at that passage of a point."""
    owner, name, is_before = UPKEEP_POINTS[point]
    original: Callable[..., Any] = getattr(owner, name)
    left = [passage]

    def dying(*arguments: Any, **more: Any) -> Any:
        left[0] -= 1
        if is_before and not left[0]:
            os.kill(os.getpid(), signal.SIGKILL)
        result = original(*arguments, **more)
        if not left[0]:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    is_static = isinstance(inspect.getattr_static(owner, name), staticmethod)
    setattr(owner, name, staticmethod(dying) if is_static else dying)


def export(store: str, catalog: str, warehouse: str, streams: str, point: str = "", passage: str = "") -> None:
    """Exports the streams, as the point's name begins: ``upkeep`` with decoded values, joined files and expired
    snapshots; ``evolve`` with one more field in the values besides."""
    table = iceberg.open_table("lake.entries", catalog=catalog, warehouse=warehouse)
    opened, (what, _, where) = open_store(store, read_only=True), point.partition("-")
    is_more = what in ("upkeep", "evolve")
    if where or (what and not is_more):
        die_at(where or what, int(passage))
    values = _values(table, one_more=what == "evolve") if is_more else None
    for stream in streams.split(","):
        iceberg.export(opened, stream, table, range_bytes=1, values=values, bad_messages=BadEntry.NULL)
        if is_more:
            upkeep.SMALL_FILES_MIN = 3
            upkeep.join_files(table, stream)
            upkeep.expire(table, before_ms=_LATER_MS)


def _values(table: Table, *, one_more: bool) -> Values:
    """A schema with the fields that the table has, at least one."""
    count = max(sum(name.startswith("decoded.") for name in table.schema().column_names), 1) + one_more
    fields = [{"name": f"f{number}", "type": "int"} for number in range(count)]
    text = json.dumps({"type": "record", "name": "R", "fields": fields})
    return VersionedDecoders({None: typed_decoder(MessageSchema("JSON", text), what="it")})


def main() -> None:
    for line in sys.stdin:
        child = os.fork()
        if not child:
            export(*line.split())
            os._exit(0)
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main()
