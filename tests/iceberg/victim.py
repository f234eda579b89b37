"""Exports streams in a process of its own; kills itself with SIGKILL at the Nth passage of a point, if one is given.

``python -m tests.iceberg.victim``: for each line on standard input, ``STORE CATALOG WAREHOUSE STREAMS [POINT N]``
(streams with commas between), a process is forked, and how it ended is a line on standard output. To load the libraries
once is what makes twenty kills fast.
"""

from __future__ import annotations

import inspect
import os
import signal
import sys
from collections.abc import Callable
from typing import Any

from pyiceberg.catalog.sql import SqlCatalog
from pyiceberg.io.pyarrow import ParquetFormatWriter, PyArrowFileIO

from offloader import iceberg
from offloader.iceberg import upkeep
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
    """Exports the streams; with a point that begins with ``upkeep`` it joins files and expires snapshots as well."""
    table = iceberg.open_table("lake.entries", catalog=catalog, warehouse=warehouse)
    opened, what = open_store(store, read_only=True), point.removeprefix("upkeep").removeprefix("-")
    if what:
        die_at(what, int(passage))
    for stream in streams.split(","):
        iceberg.export(opened, stream, table, range_bytes=1)
        if point.startswith("upkeep"):
            upkeep.SMALL_FILES_MIN = 3
            upkeep.join_files(table, stream)
            upkeep.expire(opened, table, before_ms=_LATER_MS)


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
