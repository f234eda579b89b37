"""DoGet, ListFlights, GetFlightInfo: entries out, and which there are.

Owns what a ticket opens. Must never read beyond what is durable.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator

import pyarrow as pa
import pyarrow.flight as fl

from formats.entries import EntryBatch
from offloader.ledgers.base import LedgerSource
from offloader.manifest.log import list_streams
from offloader.read.reader import Reader, open_reader
from offloader.read.streams import load_stream
from offloader.service.flight.columns import ENTRY_SCHEMA
from offloader.service.flight.messages import GetRequest, encoded
from offloader.service.flight.refusals import refusing
from offloader.settings import ReadSettings
from offloader.store.base import ObjectStore

__all__ = ["LEASE_S", "Gets"]

#: Cleanup stays away for so long from what a DoGet began to read; renewed while it reads.
LEASE_S = 3600
#: Rows and bytes of which nobody has counted how many there are.
_UNKNOWN = -1


class Gets:
    """Reads from one store. Thread-safe.

    Args:
        store: open for writing, for the leases.
        settings: of readers.
        source_of: the hot tier of a stream whose ledgers are ours: its newest entries are read from there.
    """

    def __init__(
        self, store: ObjectStore, settings: ReadSettings, source_of: Callable[[str], LedgerSource | None]
    ) -> None:
        self._store, self._settings, self._source_of = store, settings, source_of

    def entries(self, request: GetRequest) -> fl.FlightDataStream:
        """The entries of a ticket, a batch at a time.

        Raises:
            NotFound, Trimmed, BeyondEnd, InvalidCall and what else a reader raises: at once where that is known.
        """
        source = self._source_of(request.stream)
        reader = open_reader(self._store, request.stream, settings=self._settings, source=source, lease_seconds=LEASE_S)
        try:
            batches = self._scan(reader, request)
        except BaseException:
            reader.close()
            raise
        return fl.GeneratorStream(ENTRY_SCHEMA, _sent(reader, batches))

    def info(self, name: str) -> fl.FlightInfo:
        """What is known of one stream: first and last position, entries and bytes in the cold tier.

        Raises:
            NotFound: no such stream.
        """
        source = self._source_of(name)
        state = load_stream(self._store, name, may_be_absent=source is not None)
        with open_reader(self._store, name, settings=self._settings, source=source, state=state) as reader:
            first, last = reader.first_position, reader.last_position
        known = {"first": first and str(first), "last": last and str(last)}
        return _info(name, state.sums.entries, state.sums.payload_bytes, encoded(known))

    def infos(self, prefix: str) -> Iterator[fl.FlightInfo]:
        """All streams whose names begin so, without a look at each."""
        with refusing("ListFlights"):
            for name in list_streams(self._store):
                if name.startswith(prefix):
                    yield _info(name, _UNKNOWN, _UNKNOWN, b"")

    def _scan(self, reader: Reader, request: GetRequest) -> Iterator[EntryBatch]:
        first, last = request.first, request.last
        if request.from_time_ms is not None:
            first = reader.position_at(request.from_time_ms)
            if first is None or (last is not None and first > last):
                return iter(())
        if first is None and last is None and reader.last_position is None:
            return iter(())
        batch_bytes = min(request.batch_bytes or self._settings.batch_bytes, self._settings.batch_bytes)
        return reader.scan(first, last, batch_bytes)


def _sent(reader: Reader, batches: Iterator[EntryBatch]) -> Iterator[pa.RecordBatch]:
    with contextlib.closing(reader), refusing("DoGet"):
        for batch in batches:
            yield batch.to_arrow()


def _info(name: str, entries: int, size_bytes: int, known: bytes) -> fl.FlightInfo:
    endpoint = fl.FlightEndpoint(GetRequest(name).encode(), [])
    descriptor = fl.FlightDescriptor.for_path(name)
    return fl.FlightInfo(ENTRY_SCHEMA, descriptor, [endpoint], entries, size_bytes, app_metadata=known)
