"""Export the ledgers of a stream or a topic as V1 objects, for brokers with Pulsar's own offloader.

All records and streams are read before the target is opened for writing, so that a wrong record leaves no trace.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from formats.summary import SegmentSummary
from offloader.errors import InvalidCallError
from offloader.manifest.names import NamedStreams, named_streams
from offloader.manifest.state import ManifestState
from offloader.read.reader import load_stream
from offloader.settings import Settings
from offloader.store.base import ObjectStore
from offloader.write.export_v1 import ExportedLedger, LedgerExport, RecordedLedger, recorded_ledgers

_HINT = "give --broker-record PARTITION=FILE once for each partition"


@dataclass(frozen=True, slots=True)
class V1Export:
    """The ledgers to export of each stream.

    Attributes:
        named: the stream, or the partitions of the topic.
        paths: the broker's record of each stream.
        recorded: the ledgers that are offloaded according to the record.
    """

    store: ObjectStore
    named: NamedStreams
    paths: Mapping[str, str]
    recorded: Mapping[str, Sequence[RecordedLedger]]
    states: Mapping[str, ManifestState]

    def run(
        self,
        stream: str,
        target: ObjectStore,
        *,
        settings: Settings,
        dry_run: bool = False,
        on_progress: Callable[[SegmentSummary], None] = lambda _: None,
    ) -> list[ExportedLedger]:
        """Write the ledgers of one stream; a ledger that can't be written has its error. Raises as ``LedgerExport``."""
        export = LedgerExport(
            *(self.store, self.states[stream], target),
            settings=settings.offload,
            read=settings.read,
            on_progress=on_progress,
        )
        return export.run(self.recorded[stream], dry_run=dry_run)


def plan_export(store: ObjectStore, name: str, records: Sequence[tuple[int | None, str]]) -> V1Export:
    """The export of a stream or a topic. Writes nothing.

    Args:
        records: a partition's number and the file with its broker's record; ``None``: of a stream without partitions.

    Raises:
        NotFoundError: the stream or a file does not exist.
        InvalidCallError: a partition lacks a record or has two, or a file has no record.
    """
    named = named_streams(store, name)
    paths = _paths(named, records)
    states = {each: load_stream(store, each) for each in named.streams}
    return V1Export(store, named, paths, {each: recorded_ledgers(path) for each, path in paths.items()}, states)


def _paths(named: NamedStreams, records: Sequence[tuple[int | None, str]]) -> Mapping[str, str]:
    """The record's file of each stream; raises ``InvalidCallError`` unless there is exactly one for each."""
    if not named.partitions:
        if len(records) != 1 or records[0][0] is not None:
            raise InvalidCallError(f"{named.name} is one stream and needs one record", hint="give --broker-record once")
        return {named.name: records[0][1]}
    found: dict[str, str] = {}
    for number, path in records:
        if number is None:
            named.require_one("a broker's record belongs to one: give --broker-record PARTITION=FILE")
        stream = None if number is None else named.partitions.get(number)
        if stream is None or stream in found:
            what = f"names partition {number} twice" if stream else f"partition {number} isn't in the store"
            raise InvalidCallError(f"--broker-record {number}={path}: {what}", hint=_HINT)
        found[stream] = path
    absent = [str(number) for number, stream in named.partitions.items() if stream not in found]
    if absent:
        raise InvalidCallError(f"missing --broker-record for partition {', '.join(absent)} of {named.name}", hint=_HINT)
    return found
