"""Protocol of the hot tier: where a stream's entries come from, and what is known of its ledgers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable
from uuid import UUID

from formats.entries import EntryBatch, Position

__all__ = [
    "AskKnown",
    "ClosedListener",
    "ComparedSource",
    "IdentifiedSource",
    "KnownLedger",
    "KnownLedgers",
    "LedgerInfo",
    "LedgerSource",
    "Ledgers",
    "Listener",
    "LostRange",
    "Subscription",
    "WrappedSource",
    "identified",
    "newest_given",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerInfo:
    """What a source knows of one ledger.

    Attributes:
        ledger_id: ascends along the stream.
        closed: whether no entry will ever be added.
        entries: how many entries it holds now; the ids are 0 .. entries - 1.
        size_bytes: payload bytes of those entries.
        created_ms: when it was opened, ms since 1970 UTC.
        closed_ms: when it was closed, ``None`` while open.
        holes: runs of ids, first and last, ascending, that the source stores and will never give to anybody (a broker's
            markers, aborted transactions); they count in ``entries``.
        lost: runs of ids that the source lists and has no more itself (a broker whose bookies lost them); likewise.
        unconfirmed: runs of ids that the source lists, gives to nobody and doesn't explain, so that they may be lost;
            likewise.
        is_exact: whether ``size_bytes`` and ``created_ms`` are the ledger's own, the same at each look. False: the
            source has seen a part of it only, and nothing of this may be compared with what is recorded.
    """

    ledger_id: int
    closed: bool
    entries: int
    size_bytes: int
    created_ms: int
    closed_ms: int | None = None
    holes: tuple[tuple[int, int], ...] = ()
    lost: tuple[tuple[int, int], ...] = ()
    unconfirmed: tuple[tuple[int, int], ...] = ()
    is_exact: bool = True

    @property
    def not_given(self) -> tuple[tuple[int, int], ...]:
        """All runs that can't be read, ascending."""
        if not (self.lost or self.unconfirmed):
            return self.holes
        return tuple(sorted((*self.holes, *self.lost, *self.unconfirmed)))

    @property
    def last_entry_id(self) -> int:
        """-1 for an empty ledger."""
        return self.entries - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LostRange:
    """Entries of a stream that a hot tier acknowledged and doesn't have.

    Attributes:
        stream: its name.
        first, last: of the range; how many entries ledgers between them had isn't known.
        source_id: the hot tier that acknowledged them.
        is_other: whether that is another one than the one that was asked. Then ``first`` isn't known, and is 0:0.
    """

    stream: str
    first: Position
    last: Position
    source_id: UUID
    is_other: bool = False


def newest_given(infos: Sequence[LedgerInfo]) -> Position | None:
    """The newest entry that somebody gets; ``None``: there is none.

    Args:
        infos: all ledgers, ascending.
    """
    for info in reversed(infos):
        at = info.last_entry_id
        for first, last in reversed(info.not_given):
            if first <= at <= last:
                at = first - 1
        if at >= 0:
            return Position(info.ledger_id, at)
    return None


#: Called after entries became durable in the hot tier, in order, once per appended batch. Must return quickly and
#: must not call back into the source. Nobody changes the batch's memory afterwards: who hears of it may keep it.
#: False: it wasn't taken as it came and will be read, so that a source which can hold entries back may do so.
Listener = Callable[[EntryBatch], bool | None]


#: Called with a ledger that was closed, under the same rules.
ClosedListener = Callable[[LedgerInfo], None]


class Subscription(Protocol):
    def cancel(self) -> None:
        """No call of the listener begins after this returns."""
        ...


class LedgerSource(Protocol):
    """One stream's ledgers. All methods are thread-safe."""

    def ledgers(self) -> list[LedgerInfo]:
        """All ledgers that still exist, ascending, empty ones included."""
        ...

    def read(self, start: Position, max_bytes: int) -> EntryBatch | None:
        """Entries of one ledger, from the first one at or after ``start`` on.

        At least one entry (even above ``max_bytes``), then as many as fit into ``max_bytes`` of payload.
        ``None``: nothing at or after ``start`` now. Only durable entries are answered, in memory that nobody changes
        afterwards.
        """
        ...

    def subscribe(self, listener: Listener | None, closed: ClosedListener | None = None) -> Subscription:
        """Calls ``listener`` for each batch appended after this returns; ``None``: nobody wants the entries.

        ``closed`` hears of the end of each ledger, before ``listener`` hears of the next one's first batch. A source
        that only learns of ends from entries tells them only to who wants those; ``ledgers`` has them anyway.
        """
        ...

    def release(self, position: Position) -> None:
        """Everything up to ``position`` is committed in the cold tier (an acknowledgement; deletes nothing).

        Raises:
            Fenced: the source knows that another writer is the active one.
        """
        ...

    def delete(self, ledger_id: int) -> None:
        """Removes a closed ledger's entries; one that isn't there counts as removed."""
        ...


@runtime_checkable
class IdentifiedSource(Protocol):
    """A hot tier that knows which one it is, for one stream. All methods are thread-safe.

    A ``LedgerSource`` without this has only the facts of its ledgers. What is recorded is durable when the call
    returns. A handle that another owner replaced raises ``Fenced``, one that may only read ``Unsupported``.
    """

    def source_id(self) -> UUID:
        """The hot tier's own, made with it; a copy has the same one."""
        ...

    def has_start(self, token: str) -> bool:
        """Whether ``record_start`` recorded this token in this hot tier for this stream.

        A token that was found stays as long as this handle is used, however many starts are recorded after it.
        """
        ...

    def record_start(self, token: str) -> None:
        """Records the random token of a start, before the manifest gets it. Twice the same counts once."""
        ...

    def reached(self) -> Position | None:
        """The newest position that was ever appended here, whether or not its ledger still exists."""
        ...

    def next_ledger(self) -> int:
        """The lowest ledger id that this hot tier has neither used nor granted to any stream."""
        ...

    def grant_ledgers(self, first: int, end: int) -> None:
        """New ledgers of this handle take their ids from ``first`` up to before ``end`` only.

        The first grant of a handle begins a new ledger there. Later ones extend the range, or replace what is left of
        it. Ids that the hot tier used or granted already are left out. While no id is left, the open ledger stays open
        instead of rolling over.

        Raises:
            InvalidCall: an empty range, or ids that no ledger can have.
            StoreUnavailable: every id of it is used or granted already: reserve from ``next_ledger`` on.
        """
        ...

    def ledgers_left(self) -> int | None:
        """Granted ids that no ledger has taken yet; ``None``: this handle takes any id above all others."""
        ...

    def seed_ledgers(self, above: int) -> None:
        """Every new ledger of this hot tier gets an id above ``above``; an open one of this stream that hasn't is
        closed (also a view that may delete can do this)."""
        ...

    def note_manifest(self, incarnation: UUID, record_id: int) -> None:
        """Records how much of the manifest the stream's writer has seen; the newest word counts."""
        ...

    def noted_manifest(self) -> tuple[UUID, int] | None:
        """What ``note_manifest`` recorded last."""
        ...


@runtime_checkable
class WrappedSource(Protocol):
    """A ``LedgerSource`` in front of another one."""

    @property
    def inner(self) -> LedgerSource: ...


def identified(source: LedgerSource) -> IdentifiedSource | None:
    """The source's identity, through whatever is in front of it; ``None``: it has none."""
    while not isinstance(source, IdentifiedSource):
        if not isinstance(source, WrappedSource):
            return None
        source = source.inner
    return source


class Ledgers(Protocol):
    """A hot tier: many streams, each a ``LedgerSource`` to be read."""

    def streams(self) -> list[str]:
        """Names of all streams, ascending."""
        ...

    def view_stream(self, stream: str, *, may_delete: bool = False) -> LedgerSource:
        """The stream, to read only; disturbs no owner.

        Args:
            may_delete: closed ledgers can be deleted and starts recorded nevertheless: for who opens an epoch.

        Raises:
            NotFound: no such stream.
        """
        ...

    def close(self) -> None:
        """Nothing is read any more."""
        ...


@dataclass(frozen=True, slots=True)
class KnownLedger:
    """One ledger that a manifest knows of.

    Attributes:
        last_entry_id: where it ended, -1: empty; ``None``: its end was never recorded.
        reached: the newest of its entries that a segment holds or was to hold, -1: none.
    """

    last_entry_id: int | None = None
    reached: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownLedgers:
    """What a manifest knows of the ledgers that it was asked about.

    Attributes:
        newest: the newest position that it knows of; ``None``: none yet.
        whole: ledger ids, first and last, between which every ledger with entries is known: nothing is missing between
            the ranges there.
        ledgers: those of the ones asked about that it knows.
    """

    newest: Position | None = None
    whole: tuple[int, int] | None = None
    ledgers: Mapping[int, KnownLedger] = field(default_factory=dict)


#: What is known of some ledgers, by a manifest that was read before they were listed.
AskKnown = Callable[[Sequence[int]], KnownLedgers]


@runtime_checkable
class ComparedSource(Protocol):
    """A ``LedgerSource`` without an identity that can tell by its ledgers that it isn't the one that is known."""

    def require_same(self, known: AskKnown) -> None:
        """Compares what the source lists with what is known.

        Raises:
            SourceMismatch: they contradict each other, and a second look didn't change that.
            StoreUnavailable: they contradict each other, and there was no second look yet: nothing may be deleted.
        """
        ...
