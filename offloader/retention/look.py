"""A stream or topic as it is now, and what is remembered of it: all that a decision is made of.

Owns turning that into what decisions take. Must never write anything, nor decide.
"""

from __future__ import annotations

from dataclasses import dataclass

from formats.entries import Position
from offloader.retention.cuts import Cut
from offloader.retention.lineage import Lineage
from offloader.retention.own_cuts import OwnCuts
from offloader.retention.partitions import LoadedPartitions
from offloader.retention.place import Place
from offloader.retention.recorded_state import RecordedState, lineage_of
from offloader.retention.rows import partition_segment
from offloader.retention.stream_retention import StreamRetention
from offloader.retention.subscribers import Registry

__all__ = ["Look", "offloaded_end", "with_records"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """See the module.

    Attributes:
        retention, place: where its state is.
        past: what was recorded.
        own: its cuts, by ``partitions`` as they are now.
        registry: who subscribes.
        now_ms: the time of looking.
    """

    retention: StreamRetention
    place: Place
    past: RecordedState
    own: OwnCuts
    partitions: LoadedPartitions
    registry: Registry
    now_ms: int

    @property
    def lineage(self) -> Lineage:
        return lineage_of(self.place)


def offloaded_end(look: Look) -> Cut:
    """Up to where the head may move: the committed end, or of partitions that aren't offloaded the tail."""
    found = {}
    for number in look.place.partitions:
        state, entries = look.partitions.state(number), look.own.partitions[number]
        end = state.prefix_end()
        if state.method == "none":
            position = entries.tail
        else:
            position = None if end is None else entries.canonical(Position(end.ledger_id, end.entry_id + 1))
        if position is not None:
            found[partition_segment(number)] = position
    return Cut(found)


def with_records(look: Look, begin: Cut, *, is_recorded: bool) -> RecordedState:
    """What is remembered, fit to the head as it is, whoever moved it there; with the tail if that is recorded."""
    past = look.past
    if past.records.up_to(begin, look.lineage):
        past = past.truncated(begin, look.lineage, None)
    return past.with_tail(look.own, look.now_ms) if is_recorded else past
