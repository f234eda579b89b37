"""The uuids that a manifest names, for comparison with a listing."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple
from uuid import UUID

import numpy as np
from numpy.typing import NDArray

from formats.checkpoint import AssigningEpoch, Checkpoint
from formats.checkpoint_parquet import SegmentColumns, decode_names
from formats.errors import FormatError
from formats.keys import manifest_prefix
from formats.manifest import (
    Adopt,
    Assign,
    Failed,
    GapFilled,
    Hold,
    Offloaded,
    OpenEpoch,
    Purged,
    Record,
    Replace,
    Retire,
    Rewrite,
    StreamDeleted,
    UndoRetire,
)
from offloader.errors import Corrupt, NotFound
from offloader.manifest.apply import require_follows
from offloader.manifest.boundary import REBUILD, unreadable
from offloader.manifest.load import Reading, load_view, read_run, refreshed_view
from offloader.manifest.segment_table import OFFLOADED
from offloader.manifest.state import assigning_after
from offloader.store.base import ObjectStore

#: One half of each of some uuids.
Words = NDArray[np.uint64]

#: Purged segments of a checkpoint remembered individually; further ones stay named until the next checkpoint.
GONE_MAX = 65_536
_HALF = (1 << 64) - 1


class _Part(NamedTuple):
    """uuids, ascending by their upper half, and which of them are retired."""

    high: Words
    low: Words
    retired: NDArray[np.bool_]

    def rows(self, start: int, stop: int) -> _Part:
        """Some rows, in place."""
        return _Part(self.high[start:stop], self.low[start:stop], self.retired[start:stop])

    def put_in_order(self, dead: Sequence[tuple[int, int]]) -> int:
        """Sorts the rows in place, the tombstoned ones last; returns how many are live."""
        alive = np.ones(len(self.high), dtype=bool)
        for start, stop in dead:
            alive[start:stop] = False
        order = np.argsort(self.high)
        order = np.concatenate([order[alive[order]], order[~alive[order]]]) if dead else order
        for column in self:
            column[:] = column[order]
        return int(alive.sum())

    def rows_of(self, high: Words, low: Words) -> NDArray[np.int64]:
        """The row of each uuid, -1 if it isn't here."""
        rows = np.full(len(high), -1, dtype=np.int64)
        at = np.searchsorted(self.high, high)
        # Upper halves are random: adjacent duplicates are improbable, and handled correctly anyway.
        pending = np.flatnonzero(at < len(self.high))
        while len(pending):
            here = at[pending]
            same = self.high[here] == high[pending]
            pending, here = pending[same], here[same]
            found = self.low[here] == low[pending]
            rows[pending[found]] = here[found]
            pending = pending[~found]
            at[pending] += 1
            pending = pending[at[pending] < len(self.high)]
        return rows


def _part_of(numbers: Iterable[int]) -> _Part:
    halves = np.array([(number >> 64, number & _HALF) for number in numbers], dtype=np.uint64).reshape(-1, 2)
    order = np.argsort(halves[:, 0])
    return _Part(halves[order, 0], halves[order, 1], np.zeros(len(order), dtype=bool))


class LiveUuids:
    """The uuids that a manifest names, at one record. Mutable while loading; discard it after an error.

    Attributes:
        stream, incarnation, record_id: of which manifest, up to which record.
        assigning: as in ``ManifestState``.
        stream_deleted: whether it is deleted: then all it names is garbage.
    """

    def __init__(self, stream: str, incarnation: UUID) -> None:
        self.stream = stream
        self.incarnation = incarnation
        self.record_id = 0
        self.nonce = ""
        self.assigning: tuple[AssigningEpoch, ...] = ()
        self._epoch_nonce = ""
        self.held = False
        self.stream_deleted = False
        self._parts: list[_Part] = []
        #: Purged since, of the parts.
        self._gone: set[int] = set()
        #: Named outside of the parts.
        self._loose: set[int] = set()
        #: Loose ones whose objects may still be in flight.
        self._open: set[int] = set()
        #: uuid -> the record after which it may be purged.
        self._retired: dict[int, int] = {}
        #: Retired in a part and restored since.
        self._undone: set[int] = set()
        #: ``_gone`` and ``_loose`` for lookups, built on demand.
        self._small: tuple[_Part, _Part] | None = None

    @classmethod
    def restored(cls, store: ObjectStore, stream: str, header: Checkpoint, own: SegmentColumns) -> LiveUuids:
        """The uuids in a checkpoint, given its header and its own segments; reads one run at a time."""
        names = cls(stream, header.incarnation)
        names.record_id = header.record_id
        names.nonce, names.assigning, names._epoch_nonce = header.writer.nonce, header.assigning, header.owner.nonce
        names.held, names.stream_deleted = header.held, header.stream_deleted
        prefix = manifest_prefix(stream, header.incarnation)
        # Allocated before a run is read: otherwise permanent and temporary memory would interleave.
        rows = len(own) + sum(run.rows for run in header.runs)
        room = _Part(np.empty(rows, np.uint64), np.empty(rows, np.uint64), np.empty(rows, np.bool_))
        # The largest first: its temporary memory is freed before most of the room is used.
        for run in sorted(header.runs, key=lambda run: -run.rows):
            part = room.rows(0, run.rows)
            _read_into(part, store, f"{prefix}{run.name}", read_run(store, prefix, run))
            count = part.put_in_order([(each.start, each.stop) for each in run.dead])
            names._parts.append(part.rows(0, count))
            room = room.rows(count, len(room.high))
        part = room.rows(0, len(own))
        part.high[:], part.low[:], part.retired[:] = own.uuid_high, own.uuid_low, own.status != OFFLOADED
        names._parts.append(part.rows(0, part.put_in_order(())))
        for promised in (*header.assigned, *header.rewrites):
            names._promise(promised.uuid.int)
        names._loose.update(fill.uuid.int for fill in header.fills)
        for replaced in header.replaced:
            names._loose.add(replaced.uuid.int)
            names._retire([replaced.uuid], replaced.retire_record)
        return names

    def __contains__(self, uuid: UUID) -> bool:
        return uuid.int in self._loose or (uuid.int not in self._gone and self._row_of(uuid.int) is not None)

    def is_open(self, uuid: UUID) -> bool:
        """Whether a writer may still upload objects of this uuid: it is assigned, and neither offloaded nor failed."""
        return uuid.int in self._open

    def named(self, high: Words, low: Words) -> NDArray[np.bool_]:
        """Which of many uuids the manifest names."""
        found = np.zeros(len(high), dtype=bool)
        for part in self._parts:
            found |= part.rows_of(high, low) >= 0
        if self._small is None:
            self._small = _part_of(self._gone), _part_of(self._loose)
        gone, loose = self._small
        found[gone.rows_of(high, low) >= 0] = False
        found[loose.rows_of(high, low) >= 0] = True
        return found

    def fold(self, record: Record) -> LiveUuids:
        """Applies one more record. The names of released segments stay, as these adopted objects do.

        So do those of fills until the next checkpoint: whether a purge ended one depends on ranges, which aren't here.

        Raises:
            EditRefused: it isn't the next one.
        """
        require_follows(self, record)
        self._small = None
        if any(isinstance(edit, OpenEpoch) for edit in record.edits):
            self._epoch_nonce = record.writer.nonce
        self.assigning = assigning_after(
            self.assigning, record.edits, epoch_nonce=self._epoch_nonce, record_id=record.record_id
        )
        for edit in record.edits:
            match edit:
                case Assign() | Rewrite():
                    self._promise(edit.uuid.int)
                case Adopt() | GapFilled():
                    self._loose.add(edit.uuid.int)
                case Offloaded():
                    self._arrive(edit.uuid.int)
                case Failed() if edit.uuid.int in self._open:
                    self._open.remove(edit.uuid.int)
                    self._loose.discard(edit.uuid.int)
                case Replace():
                    for each in edit.by:
                        self._arrive(each.uuid.int)
                    self._retire(edit.uuids, record.record_id)
                case Retire():
                    self._retire(edit.uuids, record.record_id)
                case UndoRetire():
                    for uuid in edit.uuids:
                        self._retired.pop(uuid.int, None)
                        self._undone.add(uuid.int)
                case Purged():
                    for uuid in edit.uuids:
                        self._purge(uuid.int, edit.retire_record)
                case Hold():
                    self.held = edit.on
                case StreamDeleted():
                    self.stream_deleted = True
        self.record_id, self.nonce = record.record_id, record.writer.nonce
        return self

    def _promise(self, number: int) -> None:
        self._loose.add(number)
        self._open.add(number)

    def _arrive(self, number: int) -> None:
        self._loose.add(number)
        self._open.discard(number)

    def _retire(self, uuids: Iterable[UUID], record_id: int) -> None:
        self._retired.update((uuid.int, record_id) for uuid in uuids)

    def _purge(self, number: int, retire_record: int) -> None:
        retired = self._retired.get(number) == retire_record
        if number in self._loose and retired:
            self._loose.remove(number)
        row = self._row_of(number)
        if row is None or len(self._gone) >= GONE_MAX:
            return
        if retired or (number not in self._undone and self._parts[row[0]].retired[row[1]]):
            self._gone.add(number)

    def _row_of(self, number: int) -> tuple[int, int] | None:
        high, low = np.array([number >> 64], dtype=np.uint64), np.array([number & _HALF], dtype=np.uint64)
        rows = ((at, int(part.rows_of(high, low)[0])) for at, part in enumerate(self._parts))
        return next(((at, row) for at, row in rows if row >= 0), None)


def _read_into(part: _Part, store: ObjectStore, key: str, data: bytes) -> None:
    """Fills ``part`` from a run's bytes.

    Raises:
        Corrupt: it isn't a run, or has another number of rows than in its checkpoint.
    """
    start = 0
    try:
        for high, low, status in decode_names(data, object_name=key):
            some = part.rows(start, start + len(high))
            start += len(high)
            some.high[:], some.low[:], some.retired[:] = high, low, status != OFFLOADED
    except ValueError as error:
        raise Corrupt(f"{key} in {store.url} has more rows than its checkpoint says", hint=REBUILD) from error
    except FormatError as error:
        raise unreadable(f"the run {key}", error) from error
    if start != len(part.high):
        raise Corrupt(f"{key} in {store.url} has {start} rows, its checkpoint says {len(part.high)}", hint=REBUILD)


def load_live_uuids(store: ObjectStore, stream: str, incarnation: UUID) -> LiveUuids:
    """The uuids that one incarnation's manifest names now.

    Raises:
        NotFound: it has no boundary: it is being created, or was deleted.
        Corrupt: it is damaged, or was abandoned for a rebuild.
        Unsupported: a later release wrote it.
    """
    names, boundary = load_view(store, stream, incarnation, _NAMES)
    if boundary is None:
        raise NotFound(f"stream {stream} has no manifest {incarnation} in {store.url}")
    return names


def refreshed_live_uuids(store: ObjectStore, names: LiveUuids) -> LiveUuids:
    """Reads tail and boundary again; returns the current uuids. Don't use ``names`` afterwards.

    Raises:
        NotFound: the stream was deleted.
        Corrupt, Unsupported: as ``load_live_uuids``.
    """
    newer, boundary = refreshed_view(store, names, _NAMES)
    if boundary is None:
        raise NotFound(f"stream {names.stream} was deleted from {store.url}")
    return newer


_NAMES = Reading(begin=LiveUuids, restore=LiveUuids.restored, fold=LiveUuids.fold)
