"""Reads Iceberg tables by Iceberg's own Java library: in the cache, or fetched and compiled with Maven."""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from services.binaries import Unavailable, cache_directory
from services.maven import build_with_maven
from services.pulsar.build import find_java

__all__ = ["FoundTable", "find_reader", "read_table", "reader_place"]

_SOURCES = Path(__file__).parent
_READ_TIMEOUT_S = 180


@dataclass(frozen=True, slots=True)
class FoundTable:
    """What the library found: each row, and each snapshot's ``id``, ``operation`` and ``summary``.

    In rows bytes are in base64, and times milliseconds since 1970.
    """

    rows: list[dict[str, Any]]
    snapshots: list[dict[str, Any]]


def reader_place() -> Path:
    """Where the program and the library are once they are built; the name changes with what they are made of."""
    made_of = b"".join(path.read_bytes() for path in (_SOURCES / "pom.xml", *sorted(_SOURCES.glob("java/*.java"))))
    return cache_directory() / f"iceberg-reader-{hashlib.sha256(made_of).hexdigest()[:12]}"


def find_reader(*, build: bool) -> list[str]:
    """The class path of the program: cached or, where ``build`` allows it, made and cached.

    Raises:
        Unavailable: no Java, no pyspark (which has Hadoop), or it isn't built and can't be; the text says what to do.
    """
    find_java()
    spark = importlib.util.find_spec("pyspark")
    if spark is None or spark.origin is None:
        raise Unavailable("pyspark isn't installed, which has what Iceberg's library needs of Hadoop")
    place = reader_place()
    if not place.is_dir() and not build:
        raise Unavailable(
            "Iceberg's Java library isn't there: `python -m services.servers build iceberg-reader` fetches it (Maven)"
        )
    found = build_with_maven("the reader of Iceberg tables", _SOURCES, place)
    return [f"{found}/lib/*", f"{Path(spark.origin).parent}/jars/*"]


def read_table(catalog: str, warehouse: str, namespace: str, table: str, snapshot_id: int | None = None) -> FoundTable:
    """The table, as the library reads it.

    Args:
        catalog: path of a SQLite database with a catalogue of the name ``offloader``.
        warehouse: URL of its files.
        snapshot_id: whose rows are read; default: the current one.

    Raises:
        Unavailable: as ``find_reader``.
        CalledProcessError: the library can't read it.
    """
    command = [find_java(), "-cp", os.pathsep.join(find_reader(build=True)), "ReadTable"]
    command += [f"jdbc:sqlite:{catalog}", "offloader", warehouse, namespace, table]
    command += [] if snapshot_id is None else [str(snapshot_id)]
    done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, timeout=_READ_TIMEOUT_S)
    rows, snapshots = list[dict[str, Any]](), list[dict[str, Any]]()
    for line in done.stdout.splitlines():
        what, _, rest = line.partition("\t")
        if what == "row":
            rows.append(json.loads(rest))
        elif what == "snapshot":
            number, operation, summary = rest.split("\t")
            snapshots.append({"id": int(number), "operation": operation, "summary": json.loads(summary)})
    return FoundTable(rows, snapshots)
