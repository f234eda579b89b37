"""Exported ranges of a table, recorded in properties of its snapshots and of the table.

A range's positions are in the summary of the snapshot that added it. Snapshots expire, so two properties of the table
keep the information: ``offloader.expired.STREAM`` joins the ranges of the snapshots that this package expired, and
``offloader.newest.STREAM`` is the range that was added last.

The history of a table is *whole* if only this package has expired snapshots of it: either no snapshot expired, or the
oldest kept snapshot is the one named by ``offloader.expired-before``. The history and the expired ranges together are
then exact, also after a rollback. If another program expired snapshots, only ``offloader.newest.STREAM`` remains. A
rollback doesn't change that property, so it counts only if it is older than the history.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace

from pyiceberg.table.metadata import TableMetadata
from pyiceberg.table.snapshots import Snapshot

from formats.entries import Position
from offloader.errors import CorruptError

_PREFIX = "offloader."
#: Table property: the newest range of a stream, used when the snapshot that added it has expired.
NEWEST = "offloader.newest."
#: Table property: ranges of a stream in expired snapshots, joined into one range.
EXPIRED = "offloader.expired."
#: Table property: the oldest snapshot that the last expiry by this package kept.
EXPIRED_BEFORE = "offloader.expired-before"
_SEQUENCE = "offloader.sequence-number"


@dataclass(frozen=True, slots=True, kw_only=True)
class ExportedRange:
    """A range of a stream, added by one snapshot of the table.

    Attributes:
        stream, incarnation: stream of the entries.
        manifest: manifest record that the range was planned from.
        first, last: positions, inclusive.
        after: last position of the previous range; ``None``: this is the first range.
        entries: number of entries in the range.
        rows: number of added rows: entries, or their messages.
        lost: whether retention deleted entries between ``after`` and ``first``.
    """

    stream: str
    incarnation: str
    manifest: int
    first: Position
    last: Position
    after: Position | None
    entries: int
    rows: int
    lost: bool

    def encode(self) -> dict[str, str]:
        """The range as properties of a snapshot."""
        facts = {
            "stream": self.stream,
            "stream-id": self.incarnation,
            "manifest": str(self.manifest),
            "first": str(self.first),
            "last": str(self.last),
            "after": "" if self.after is None else str(self.after),
            "entries": str(self.entries),
            "rows": str(self.rows),
            "lost": "true" if self.lost else "false",
        }
        return {_PREFIX + name: value for name, value in facts.items()}

    @classmethod
    def decode(cls, properties: Mapping[str, str]) -> ExportedRange | None:
        """The range in a snapshot's properties; ``None``: another program's snapshot. Raises ``CorruptError``: changed
        properties."""
        if _PREFIX + "stream" not in properties:
            return None
        facts = {name.removeprefix(_PREFIX): value for name, value in properties.items() if name.startswith(_PREFIX)}
        try:
            return cls(
                stream=facts["stream"],
                incarnation=facts["stream-id"],
                manifest=int(facts["manifest"]),
                first=Position.parse(facts["first"]),
                last=Position.parse(facts["last"]),
                after=Position.parse(facts["after"]) if facts["after"] else None,
                entries=int(facts["entries"]),
                rows=int(facts["rows"]),
                lost=facts["lost"] == "true",
            )
        except (ValueError, KeyError) as cause:
            raise _changed("a snapshot's summary", cause) from cause


def exported_ranges(metadata: TableMetadata) -> list[ExportedRange]:
    """Ranges of all streams in the table's current state, newest first, as far as snapshots are kept.

    Raises:
        CorruptError: a snapshot's properties were changed.
    """
    return [each for each in map(range_of, history(metadata)) if each is not None]


def newest_range(metadata: TableMetadata, stream: str) -> ExportedRange | None:
    """The last exported range of a stream; ``None``: no range was exported.

    The table's history decides: after a rollback the export continues from the restored state.

    Raises:
        CorruptError: properties were changed, or the table was rolled back to before all recorded ranges of the stream.
    """
    snapshots = history(metadata)
    newest = next((each for each in map(range_of, snapshots) if each is not None and each.stream == stream), None)
    if newest is not None or not snapshots:
        return newest
    if is_whole(metadata):
        return _expired_range(metadata.properties, stream)
    kept = metadata.properties.get(NEWEST + stream)
    if kept is None:
        return None
    try:
        properties = dict(json.loads(kept))
        sequence = int(properties[_SEQUENCE])
    except (ValueError, TypeError, KeyError) as cause:
        raise _changed(f"property {NEWEST}{stream}", cause) from cause
    if sequence >= (snapshots[-1].sequence_number or 0):
        raise CorruptError(
            f"the table was rolled back, and the snapshots that record the export of stream {stream} have expired",
            hint="export the stream to a new table",
        )
    return ExportedRange.decode(properties)


def newest_property(added: ExportedRange, sequence: int) -> dict[str, str]:
    """Table property with a stream's newest range, added by the snapshot of that sequence number."""
    return {NEWEST + added.stream: json.dumps({**added.encode(), _SEQUENCE: str(sequence)})}


def is_whole(metadata: TableMetadata) -> bool:
    """Whether only this package has expired snapshots of the current history."""
    oldest = next(reversed(history(metadata)), None)
    if oldest is None or oldest.sequence_number == 1:  # a table's first snapshot has number 1
        return True
    return metadata.properties.get(EXPIRED_BEFORE) == str(oldest.snapshot_id)


def history(metadata: TableMetadata) -> Sequence[Snapshot]:
    """The current snapshot and its kept ancestors, newest first."""
    # pyiceberg's implementation searches all snapshots for each ancestor.
    kept: dict[int | None, Snapshot] = {each.snapshot_id: each for each in metadata.snapshots}
    found, at = list[Snapshot](), kept.get(metadata.current_snapshot_id)
    while at is not None:
        found.append(at)
        at = kept.get(at.parent_snapshot_id)
    return found


def range_of(snapshot: Snapshot) -> ExportedRange | None:
    """The range that a snapshot added; ``None``: another program's snapshot.

    Raises ``CorruptError``: changed properties.
    """
    return ExportedRange.decode(snapshot.summary.additional_properties if snapshot.summary else {})


def _changed(where: str, cause: Exception) -> CorruptError:
    return CorruptError(f"{where} wasn't written by an export: {cause!r}", hint="export to a new table")


def expired_properties(metadata: TableMetadata, old: Sequence[Snapshot]) -> dict[str, str]:
    """The table's properties after its oldest snapshots expire, with the ranges of those snapshots.

    Args:
        metadata: metadata of the table.
        old: the expiring snapshots, oldest first: the oldest of the history, and not all of it.

    Raises:
        CorruptError: a property was changed; or another program has expired snapshots, and the table was rolled back to
            before all recorded ranges of a stream.
    """
    snapshots = history(metadata)
    found = expired_ranges(metadata.properties, [each for each in map(range_of, old) if each is not None])
    if is_whole(metadata):
        return {**found, EXPIRED_BEFORE: str(snapshots[-len(old) - 1].snapshot_id)}
    # A property from before a rollback would count as soon as the history is younger.
    for name in metadata.properties:
        if name.startswith(NEWEST):
            newest_range(metadata, name.removeprefix(NEWEST))
    for snapshot in reversed(snapshots):
        if (added := range_of(snapshot)) is not None:
            found |= newest_property(added, snapshot.sequence_number or 0)
    return found


def expired_ranges(properties: Mapping[str, str], old: Iterable[ExportedRange]) -> dict[str, str]:
    """The table's properties with ranges of its expired snapshots; ``old`` are further ranges, oldest first.

    Raises ``CorruptError``: a property was changed.
    """
    known: dict[str, ExportedRange] = {}
    for each in old:
        before = known.get(each.stream) or _expired_range(properties, each.stream)
        follows = before is not None and before.last == each.after and before.incarnation == each.incarnation
        known[each.stream] = each if before is None or not follows else _joined(before, each)
    return {EXPIRED + name: json.dumps(each.encode()) for name, each in known.items()}


def _joined(one: ExportedRange, two: ExportedRange) -> ExportedRange:
    return replace(
        two,
        first=one.first,
        after=one.after,
        entries=one.entries + two.entries,
        rows=one.rows + two.rows,
        lost=one.lost or two.lost,
    )


def _expired_range(properties: Mapping[str, str], stream: str) -> ExportedRange | None:
    try:
        return ExportedRange.decode(dict(json.loads(properties.get(EXPIRED + stream, "{}"))))
    except (ValueError, TypeError) as cause:
        raise CorruptError(
            f"the table's property {EXPIRED}{stream} was changed: {cause}", hint="export to a new table"
        ) from cause
