"""The phases of a stream that is offloaded: one table of what follows each event in each phase.

A stream is in one phase at a time. ``Transitions`` holds it and is the only place that changes it, under the stream's
lock. Everything else reports events. The table defines every pair of phase and event: an event without an entry for a
phase doesn't change the phase, because a stop, a fence or a failed segment may overtake any step.

**Durable state.** The manifest has the epoch, the segments that are assigned and offloaded, the gaps and the pause. The
phase is never stored. A process that dies in any phase starts in ``IDLE``; entries in the hot tier after the manifest's
committed end lead it from there.

**Why this order.** A segment is assigned by a record before any part of it is sent, so that a successor finds every
object. Its entries are acknowledged to the source after the record ``offloaded``, so that the hot copy outlives any
doubt about the commit. History is settled (``BACKFILLING``) after each takeover, failure and resume, before the stream
reads more: a live segment follows the newest promised position, so nothing before it could be added later.

**Steps by phase.** ``StreamOffload`` runs one step at a time. In ``STARTING`` it opens an epoch and
settles the segments of the last owner. In ``BACKFILLING`` it writes missing ranges in parallel. In ``CATCHING_UP`` it
reads the hot tier into the live segment. In ``LIVE`` the source's listener offers each batch, and steps only assign
and commit. ``DRAINING`` and ``AT_GAP`` take no entry: the open segment is committed first, then history continues, or
the gap is recorded. In ``PAUSED`` assigned segments are completed. The last three phases take no step.
"""

from __future__ import annotations

from collections.abc import Mapping
from enum import Enum
from types import MappingProxyType


class Mode(Enum):
    """Path of entries to the gathering segment, as users see it."""

    CATCH_UP = "catch-up"
    LIVE = "live"
    PAUSED = "paused"
    STOPPED = "stopped"


class Phase(Enum):
    """Activity of a stream. The value is its description in the documents."""

    IDLE = "owns no epoch; the hot tier has no uncommitted entry"
    STARTING = "owns no epoch; the hot tier has uncommitted entries"
    BACKFILLING = "owns the epoch; missing ranges are written in parallel, or looked for"
    CATCHING_UP = "owns the epoch; reads entries from the hot tier into the live segment"
    DRAINING = "owns the epoch; commits the open segments before it backfills, because it is far behind"
    AT_GAP = "owns the epoch; commits the open segments before it records a gap or stops at it"
    LIVE = "owns the epoch; every appended entry is offered to the live segment"
    PAUSED = "the manifest has a pause; assigned segments are completed, no other is assigned"
    FENCED = "another writer opened an epoch; polls whether that owner is inactive"
    HALTED = "the manifest or the hot tier is damaged or another one; only a new start continues"
    STOPPED = "the process stopped it"

    @property
    def mode(self) -> Mode:
        """The mode that users see."""
        return _MODES.get(self, Mode.CATCH_UP)


#: Phases that take no step.
ENDED = frozenset({Phase.FENCED, Phase.HALTED, Phase.STOPPED})
#: Phases in which the epoch is owned and segments may be assigned.
TAKING = frozenset({Phase.BACKFILLING, Phase.CATCHING_UP, Phase.DRAINING, Phase.AT_GAP, Phase.LIVE})
#: Phases that a pause stops.
_RUNNING = frozenset({Phase.IDLE, Phase.STARTING, *TAKING})

_MODES = {
    Phase.IDLE: Mode.LIVE,
    Phase.LIVE: Mode.LIVE,
    Phase.PAUSED: Mode.PAUSED,
    **dict.fromkeys(ENDED, Mode.STOPPED),
}


class Event(Enum):
    """An event of a stream. The value is its description in the documents."""

    LEFT_IN_HOT_TIER = "an appended entry wasn't offered: the stream wasn't live, or the buffer had no room"
    NOTHING_WAITS = "the manifest has everything that the hot tier has"
    TAKEN = "the epoch is owned, and the segments of the last owner are settled"
    HISTORY_SETTLED = "every older entry is in the cold tier or in a recorded gap"
    CAUGHT_UP = "every entry of the hot tier was offered"
    FELL_BEHIND = "after a commit, several segments' worth of entries wait in the hot tier"
    DRAINED = "the open segments are committed"
    GAP_FOUND = "the hot tier has lost entries after the last offered one"
    GAP_PASSED = "the gap is recorded"
    SEGMENT_FAILED = "a segment can't be completed, or its memory was needed: its entries are read again"
    PAUSE_SEEN = "the manifest has a pause"
    RESUMED = "the manifest no longer has a pause; no segment is open"
    RESUMED_OPEN = "the manifest no longer has a pause; a segment is still open"
    FENCED = "the store or the source refused this writer: another one has the stream"
    DAMAGED = "the manifest or the source contradicts this writer"
    REOPENED = "the owner is inactive, or the source or the operator made this writer the active one"
    STOP = "the process stops the stream"


def _table() -> Mapping[Phase, Mapping[Event, Phase]]:
    table: dict[Phase, dict[Event, Phase]] = {phase: {} for phase in Phase}
    table[Phase.IDLE] |= {Event.LEFT_IN_HOT_TIER: Phase.STARTING, Event.TAKEN: Phase.BACKFILLING}
    table[Phase.STARTING] |= {Event.NOTHING_WAITS: Phase.IDLE, Event.TAKEN: Phase.BACKFILLING}
    table[Phase.BACKFILLING] |= {Event.HISTORY_SETTLED: Phase.CATCHING_UP}
    table[Phase.CATCHING_UP] |= {
        Event.CAUGHT_UP: Phase.LIVE,
        Event.FELL_BEHIND: Phase.DRAINING,
        Event.GAP_FOUND: Phase.AT_GAP,
    }
    table[Phase.DRAINING] |= {Event.DRAINED: Phase.BACKFILLING}
    table[Phase.AT_GAP] |= {Event.GAP_PASSED: Phase.CATCHING_UP}
    table[Phase.LIVE] |= {Event.LEFT_IN_HOT_TIER: Phase.CATCHING_UP}
    table[Phase.PAUSED] |= {Event.RESUMED: Phase.STARTING, Event.RESUMED_OPEN: Phase.CATCHING_UP}
    table[Phase.FENCED] |= {Event.REOPENED: Phase.STARTING}
    for phase in TAKING:
        table[phase] |= {Event.SEGMENT_FAILED: Phase.BACKFILLING}
    for phase in _RUNNING:
        table[phase] |= {Event.PAUSE_SEEN: Phase.PAUSED}
    for phase in {*_RUNNING, Phase.PAUSED}:
        table[phase] |= {Event.FENCED: Phase.FENCED, Event.DAMAGED: Phase.HALTED}
    for phase in set(Phase) - {Phase.STOPPED}:
        table[phase] |= {Event.STOP: Phase.STOPPED}
    return MappingProxyType({phase: MappingProxyType(row) for phase, row in table.items()})


#: Phase -> event -> next phase; an absent event doesn't change the phase.
TABLE = _table()


def step(phase: Phase, event: Event) -> Phase:
    """The phase after ``event``."""
    return TABLE[phase].get(event, phase)
