"""Protocols of the hot tier: a stream's ledgers and entries."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, Protocol, runtime_checkable
from uuid import UUID

from formats.entries import EntryBatch, Position
from formats.topic_layout import TopicLayout
from offloader.errors import FencedError, StoreUnavailableError


@dataclass(frozen=True, slots=True, kw_only=True)
class LedgerInfo:
    """A source's facts of one ledger.

    Attributes:
        ledger_id: ascends along the stream.
        closed: whether the ledger takes no more entries.
        entries: number of entries now; the ids are 0 .. entries - 1.
        size_bytes: payload bytes of those entries.
        created_ms: when it was opened, ms since 1970 UTC.
        closed_ms: when it was closed, ``None`` while open.
        undelivered: runs of ids, first and last, ascending, that the source stores and never delivers (a broker's
            markers, aborted transactions); they count in ``entries``.
        lost: runs of ids that the source lists and no longer stores (a broker whose bookies lost them); likewise.
        is_loss_accepted: whether an operator has accepted that ``lost`` entries are lost.
        unconfirmed: runs of ids that the source lists, doesn't deliver and doesn't explain, so that they may be lost;
            likewise.
        is_exact: whether ``size_bytes`` and ``created_ms`` are the ledger's own and stable. False: the source has seen
            only part of the ledger; don't compare these values with recorded ones.
    """

    ledger_id: int
    closed: bool
    entries: int
    size_bytes: int
    created_ms: int
    closed_ms: int | None = None
    undelivered: tuple[tuple[int, int], ...] = ()
    lost: tuple[tuple[int, int], ...] = ()
    unconfirmed: tuple[tuple[int, int], ...] = ()
    is_exact: bool = True
    is_loss_accepted: bool = False

    @property
    def not_given(self) -> tuple[tuple[int, int], ...]:
        """All runs that can't be read, ascending."""
        if not (self.lost or self.unconfirmed):
            return self.undelivered
        return tuple(sorted((*self.undelivered, *self.lost, *self.unconfirmed)))

    @property
    def last_entry_id(self) -> int:
        """-1 for an empty ledger."""
        return self.entries - 1


@dataclass(frozen=True, slots=True, kw_only=True)
class LostRange:
    """Entries of a stream that a hot tier acknowledged and no longer has.

    Attributes:
        first, last: of the range; the number of entries in ledgers between them isn't known.
        source_id: the hot tier that acknowledged them.
        is_other: whether that is a different hot tier than the queried one. Then ``first`` isn't known, and is 0:0.
    """

    stream: str
    first: Position
    last: Position
    source_id: UUID
    is_other: bool = False

    def is_after(self, committed: Position | None) -> bool:
        """Whether the cold tier, which ends at ``committed``, lacks some of them too."""
        return committed is None or committed < self.last


def newest_given(infos: Sequence[LedgerInfo]) -> Position | None:
    """The newest entry that readers receive; ``None`` if there is none.

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


def newest_listed(infos: Sequence[LedgerInfo]) -> Position | None:
    """The newest entry of the ledgers, which ascend, whether readers receive it or not; ``None`` if there is none."""
    return next((Position(each.ledger_id, each.last_entry_id) for each in reversed(infos) if each.entries), None)


def newest(*positions: Position | None) -> Position | None:
    """The newest position; ``None`` if all are."""
    return max((each for each in positions if each is not None), default=None)


#: Called after entries became durable in the hot tier, in order, once per appended batch. Return quickly and don't call
#: back into the source. The batch's memory is immutable: the listener may keep it. Return False if the batch wasn't
#: accepted and will be read later: a source that can hold entries back then may do so.
Listener = Callable[[EntryBatch], bool | None]


#: Called with a ledger that was closed, under the same rules.
ClosedListener = Callable[[LedgerInfo], None]


class Subscription(Protocol):
    def cancel(self) -> None:
        """No call of the listener begins after this returns."""


class NotChosenError(FencedError):
    """The broker chose another process for the stream: an ordinary handover, which alarms nobody."""


class HotTierLostError(StoreUnavailableError):
    """The process that served a hot tier no longer answers, or no longer has its entries: ask the next owner."""


class ReadableLedgers(Protocol):
    """One stream's ledgers, to be read only. All methods are thread-safe."""

    def ledgers(self) -> list[LedgerInfo]:
        """All ledgers that still exist, ascending, empty ones included."""

    def read(self, start: Position, max_bytes: int) -> EntryBatch | None:
        """Entries of one ledger, from the first one at or after ``start`` on.

        Returns at least one entry (even above ``max_bytes``), then as many as fit into ``max_bytes`` of payload.
        ``None``: nothing at or after ``start`` yet. Returns only durable entries, in immutable memory.
        """


class LedgerSource(ReadableLedgers, Protocol):
    """One stream's ledgers. All methods are thread-safe."""

    def subscribe(self, listener: Listener | None, closed: ClosedListener | None = None) -> Subscription:
        """Calls ``listener`` for each batch appended after this returns; ``None`` if the entries aren't wanted.

        ``closed`` is called at the end of each ledger, before the next one's first batch. Without ``listener``, a
        source that learns of ledger ends from entries doesn't call it; ``ledgers`` reports them anyway.
        """

    def release(self, position: Position) -> None:
        """Acknowledges that everything up to ``position`` is committed in the cold tier; deletes nothing.

        Raises:
            FencedError: the source knows that another writer is active.
        """

    def delete(self, ledger_id: int) -> None:
        """Removes a closed ledger's entries; a missing ledger counts as removed."""


@runtime_checkable
class NotingSource(Protocol):
    """A hot tier that keeps which manifests its stream was committed to. All methods are thread-safe."""

    def note_manifest(self, incarnation: UUID, record_id: int) -> None:
        """Records how much of the stream's manifest its writer has seen; the incarnation becomes the newest one."""

    def noted_manifests(self) -> list[tuple[UUID, int]]:
        """The newest record noted for each incarnation, the newest incarnation last."""

    def note_store(self, store_id: UUID) -> None:
        """Records the identity of the store that the stream is committed to, in place of an earlier one."""

    def noted_store(self) -> UUID | None:
        """The noted identity; ``None``: none. Cheap: it may be called every few seconds."""

    def noted_remedy(self) -> str:
        """The steps by which an operator continues with another store."""


@runtime_checkable
class IdentifiedSource(NotingSource, Protocol):
    """A hot tier with an identity, for one stream. All methods are thread-safe.

    Without this, a ``LedgerSource`` is identified only by its ledgers. Records are durable when the call returns. A
    handle that another owner replaced raises ``FencedError``, a read-only one ``UnsupportedError``.
    """

    def source_id(self) -> UUID:
        """The hot tier's own id, created with it; a copy has the same one."""

    def has_start(self, token: str) -> bool:
        """Whether ``record_start`` recorded this token in this hot tier for this stream.

        A token that was found is kept as long as this handle exists, however many starts are recorded after it.
        """

    def record_start(self, token: str) -> None:
        """Records the random token of a start, before it is written to the manifest. Idempotent."""

    def reached(self) -> Position | None:
        """The newest position ever appended here, whether or not its ledger still exists."""

    def next_ledger(self) -> int:
        """The lowest ledger id that this hot tier has neither used nor granted to any stream."""

    def grant_ledgers(self, first: int, end: int) -> None:
        """Restricts new ledgers of this handle to ids from ``first`` up to before ``end``.

        The first grant of a handle begins a new ledger there. Later grants extend the range, or replace the remaining
        ids. Ids that the hot tier has used or granted already are skipped. While no id is left, the open ledger remains
        open instead of rolling over.

        Raises:
            InvalidCallError: an empty range, or ids that no ledger can have.
            StoreUnavailableError: every id of it is used or granted already: reserve from ``next_ledger`` on.
        """

    def ledgers_left(self) -> int | None:
        """Granted ids that no ledger has taken yet; ``None`` if this handle takes any id above all others."""

    def seed_ledgers(self, above: int) -> None:
        """Gives new ledgers of this hot tier ids above ``above``; closes this stream's open one if it isn't.

        Also allowed for a view that may delete.
        """


@runtime_checkable
class WrappedSource(Protocol):
    """A ``LedgerSource`` in front of another one."""

    @property
    def inner(self) -> LedgerSource: ...


def _layers(source: ReadableLedgers | NotingSource | None) -> Iterator[ReadableLedgers | NotingSource]:
    """A source and the sources that it wraps, from the outside to the inside."""
    while source is not None:
        yield source
        source = source.inner if isinstance(source, WrappedSource) else None


def identified(source: ReadableLedgers | NotingSource | None) -> IdentifiedSource | None:
    """The source's identity, unwrapped; ``None`` if it has none."""
    return next((each for each in _layers(source) if isinstance(each, IdentifiedSource)), None)


def noting(source: ReadableLedgers | NotingSource | None) -> NotingSource | None:
    """The source that keeps notes of manifests, unwrapped; ``None`` if it keeps none."""
    return next((each for each in _layers(source) if isinstance(each, NotingSource)), None)


class Ledgers(Protocol):
    """A hot tier: many streams, each readable as a ``LedgerSource``."""

    def streams(self) -> list[str]:
        """Names of all streams, ascending."""

    def view_stream(self, stream: str, *, may_delete: bool = False) -> LedgerSource:
        """Opens a stream read-only, without disturbing its owner.

        Args:
            may_delete: allow deleting closed ledgers and recording starts: for a process that opens an epoch.

        Raises:
            NotFoundError: no such stream.
        """

    def close(self) -> None:
        """Stops all reads."""


class KnownLedger(NamedTuple):
    """One ledger as the manifest knows it.

    Attributes:
        last_entry_id: where it ended, -1: empty; ``None``: its end was never recorded.
        reached: the newest of its entries that a segment holds or was to hold, -1: none.
    """

    last_entry_id: int | None = None
    reached: int = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownLedgers:
    """The manifest's facts of the requested ledgers.

    Attributes:
        newest: the newest position in the manifest; ``None``: none yet.
        settled: the position up to which every entry is in a segment or a gap; ``None``: none yet.
        whole: first and last ledger id of a range in which every ledger with entries is known.
        ledgers: the requested ledgers that the manifest knows.
    """

    newest: Position | None = None
    settled: Position | None = None
    whole: tuple[int, int] | None = None
    ledgers: Mapping[int, KnownLedger] = field(default_factory=dict)


#: Returns the manifest's facts about some ledgers, from a manifest that was read before they were listed. ``None``:
#: about the closed ones up to the settled position whose hot copies weren't released.
AskKnown = Callable[[Sequence[int] | None], KnownLedgers]


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerLedgers:
    """The ledgers that a broker lists of one stream: its own readers may ask for any of them.

    Attributes:
        stored: ledger and number of entries, ascending, the open one included.
        since: the first ledger that the broker listed when its list began to be followed; ``None``: it wasn't noted, or
            the topic was created again since.
        layout: of a segment of a scalable topic, whose ledgers no broker lists: the segments that the broker has of the
            topic. Its readers may ask for any ledger of these.
    """

    stored: tuple[tuple[int, int], ...] = ()
    since: int | None = None
    layout: TopicLayout | None = None


@runtime_checkable
class ListedSource(Protocol):
    """A ``LedgerSource`` of a broker that may read its offloaded ledgers through this project's plugin.

    Attributes:
        acknowledges_commits: whether the broker decides about its copies: committed entries are acknowledged
            immediately, and ``delete`` does nothing.
    """

    acknowledges_commits: bool

    def broker_ledgers(self) -> BrokerLedgers:
        """The ledgers that the broker lists now; never a cached answer.

        Raises:
            OffloaderError: unknown: decide nothing.
        """

    def acknowledge(self, position: Position) -> None:
        """Acknowledges everything up to a committed position.

        Raises:
            FencedError: another process is the active one. StoreUnavailableError: retry later.
        """

    def watch_releases(self, released: Callable[[], object]) -> None:
        """Calls ``released`` after each ``release``, on the caller's thread; replaces an earlier one."""


def listed_source(source: LedgerSource | None) -> ListedSource | None:
    """The source that knows its broker's list, unwrapped; ``None`` if it is none."""
    return next((each for each in _layers(source) if isinstance(each, ListedSource)), None)


@runtime_checkable
class ComparedSource(Protocol):
    """A ``LedgerSource`` without an identity that detects by its ledgers that it isn't the known one."""

    def require_same(self, known: AskKnown) -> None:
        """Compares the source's ledgers with the known ones.

        Raises:
            SourceMismatchError: they contradict each other, and a second check confirmed that.
            StoreUnavailableError: they contradict each other, and the second check is pending: delete nothing.
        """
