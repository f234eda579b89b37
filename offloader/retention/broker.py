"""The limit that a broker's list of ledgers sets to a start position, and how far its trim is followed.

A broker with the offloader plugin reads offloaded ledgers from the cold tier. A missing ledger that it still lists
would stop its consumers, so a start position never passes a listed ledger.

Of a scalable topic, brokers tell the segments only. So all of a segment is kept until the broker has deleted it. Which
ledgers of an active segment a broker has trimmed isn't known.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from formats.entries import Position
from formats.topic_layout import TopicLayout
from offloader.errors import OffloaderError, StoreUnavailableError, UnsupportedError
from offloader.ledgers.base import BrokerLedgers, listed_source
from offloader.ledgers.pulsar.topics import contradiction, topic_of_stream
from offloader.manifest.source_identity import known_ledgers
from offloader.manifest.state import ManifestState
from offloader.manifest.topic_layouts import merged, pruned
from offloader.parallel_map import at_once
from offloader.retention.cuts import StreamCut, cut_at
from offloader.retention.entries import StreamEntries
from offloader.retention.scope import Scope, SourceOf

#: The ledgers that a broker lists of a stream; ``None``: no broker has it, so only the policy limits its retention.
#: Raises ``OffloaderError``: unknown.
ListedOf = Callable[[str], BrokerLedgers | None]
#: Partitions that a text names; of further ones only the number.
NAMED_MAX = 3


class FirstListed(NamedTuple):
    """The first ledger that a broker lists of a partition, or a segment of a scalable topic.

    Attributes:
        partition: 0 for a stream without partitions; of a scalable topic the segment's id.
        ledger_id: ``None``: the broker has the segment, and lists no ledger.
    """

    partition: int
    ledger_id: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerView:
    """The ledgers that the brokers of a stream or topic list, as input of a decision.

    Attributes:
        first: by partition, ascending; empty: not known.
        bound: the beginning of those ledgers: the start position doesn't pass it.
        followed: where the broker's trim moves the start position, without partitions where it isn't followed;
            ``None``: it isn't followed in any.
        doubts: why the trim isn't followed in a partition, or in any.
        problem: why no list is known, or none is believed: nothing moves. Empty: they are known.
    """

    first: tuple[FirstListed, ...] = ()
    bound: StreamCut | None = None
    followed: StreamCut | None = None
    doubts: tuple[str, ...] = ()
    problem: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class BrokerRuling:
    """Effect of the brokers' lists on a decision.

    Attributes:
        first, problem: as ``BrokerView``.
        rules: whether they hold the start position back; without them more would be deleted.
        not_followed: reasons why the broker's trim isn't followed up to its end; empty: no reason, or it isn't followed
            at all.
    """

    first: tuple[FirstListed, ...] = ()
    problem: str = ""
    rules: bool = False
    not_followed: tuple[str, ...] = ()

    @property
    def listed(self) -> str:
        """``the broker still lists ledger 17``, or the problem that prevents an answer."""
        if self.problem:
            return f"{self.problem}, so nothing is deleted"
        shown = [_named(each, self.first) for each in self.first[:NAMED_MAX]]
        rest = len(self.first) - len(shown)
        if not shown:
            return "the broker has deleted all segments"
        return f"the broker still lists {', '.join(shown)}" + (f" and {rest} more" if rest > 0 else "")

    @property
    def words(self) -> tuple[str, ...]:
        """One line each, for people."""
        return self.listed, *(f"its trim isn't followed further: {each}" for each in self.not_followed)


def listed_by_source(source_of: SourceOf) -> ListedOf:
    """Asks through the hot tiers of this process."""

    def listed_of(stream: str) -> BrokerLedgers | None:
        if topic_of_stream(stream) is None:
            return None
        source = source_of(stream)
        if (listed := listed_source(source)) is not None:
            return listed.broker_ledgers()
        if source is None:
            raise StoreUnavailableError(f"stream {stream}: this process isn't connected to its broker")
        return None  # of another hot tier

    return listed_of


def first_listed(listed_of: ListedOf, streams: Sequence[str]) -> Mapping[str, int]:
    """The first ledger that brokers with the plugin list of each stream, without streams of no broker.

    Raises ``StoreUnavailableError``: unknown.
    """
    found = {}
    for stream in streams:
        try:
            answer = listed_of(stream)
        except OffloaderError as error:
            raise StoreUnavailableError(
                f"stream {stream}: the ledgers that its broker lists are unknown: {error.message}",
                hint="nothing was changed; try again, or use `offloader stream truncate --force`, which ignores the "
                "broker: consumers that reach a deleted ledger stop there",
            ) from error
        if answer is not None and not answer.stored:
            raise StoreUnavailableError(
                f"stream {stream}: its broker lists no ledger",
                hint="`offloader stream truncate --force` doesn't ask the broker",
            )
        if answer is not None:
            found[stream] = answer.stored[0][0]
    return found


def ask_brokers(
    listed_of: ListedOf, source_of: SourceOf, scope: Scope, own: StreamEntries, *, follows: bool
) -> BrokerView | None:
    """Asks which ledgers the brokers of a scope list, or which segments; ``None``: no broker has it.

    Args:
        own: the entries of the scope, read before: each ledger of them is listed, or the broker has deleted it.
        follows: as ``broker_view``.
    """

    def ask(stream: str) -> BrokerLedgers | OffloaderError | None:
        try:
            return listed_of(stream)
        except OffloaderError as error:
            return error

    if scope.layout is not None:
        # All segments have the same answer. This process may be connected to some of them only.
        row = min(scope.layout.segments, key=lambda row: (row.is_legacy, source_of(row.stream) is None))
        answer = ask(row.stream)
        return None if answer is None else segments_view(scope.layout, answer, own)
    numbers = sorted(scope.partitions)
    answers = zip(numbers, at_once(lambda number: ask(scope.partitions[number].stream), numbers), strict=True)
    asked = {number: answer for number, answer in answers if answer is not None}
    if not asked:
        return None
    return broker_view(asked, {number: own.partitions[number].state for number in asked}, own, follows=follows)


def broker_view(
    asked: Mapping[int, BrokerLedgers | OffloaderError],
    states: Mapping[int, ManifestState],
    own: StreamEntries,
    *,
    follows: bool,
) -> BrokerView:
    """What brokers answered, compared with the manifests.

    Args:
        asked: the answer about each partition, asked for after its manifest was read; or why there is none.
        states: the manifests.
        own: the entries of the partitions.
        follows: whether the broker's trim moves the start position.
    """
    problems = [
        problem for number in sorted(asked) if (problem := _problem(asked[number], states[number], number, asked))
    ]
    if problems or not asked:
        return BrokerView(problem=problems[0] if problems else "no broker was asked which ledgers it lists")
    lists = {number: each for number, each in asked.items() if isinstance(each, BrokerLedgers)}
    first = {number: Position(each.stored[0][0], 0) for number, each in sorted(lists.items())}
    doubts = {number: _doubt(each, states[number], own, number) for number, each in lists.items() if follows}
    followed = {number: at for number, at in first.items() if doubts.get(number) == ""}
    return BrokerView(
        first=tuple(FirstListed(number, at.ledger_id) for number, at in first.items()),
        bound=own.canonical(cut_at(first)),
        followed=own.canonical(cut_at(followed)) if followed else None,
        doubts=tuple(f"{text}{_of(number, lists)}" for number, text in sorted(doubts.items()) if text),
    )


def segments_view(recorded: TopicLayout, answer: BrokerLedgers | OffloaderError, own: StreamEntries) -> BrokerView:
    """A broker's answer about the segments of a scalable topic, compared with the recorded layout.

    Args:
        recorded: the layout from before the broker was asked.
        own: the entries of the segments that the store has.
    """
    try:
        if isinstance(answer, OffloaderError):
            raise answer
        if answer.layout is None:
            raise UnsupportedError("it answered about another topic")
        merged(recorded, answer.layout)  # an answer about another topic, or an older one, isn't believed
    except OffloaderError as error:
        return BrokerView(problem=f"the segments that the broker has are unknown: {error.message}")
    gone = pruned(recorded, answer.layout)
    begin = {number: each.head or each.first for number, each in own.partitions.items()}
    bound = {number: own.partitions[number].tail if number in gone else at for number, at in begin.items()}
    return BrokerView(
        first=tuple(FirstListed(number, None) for number in sorted(bound) if number not in gone),
        bound=own.canonical(cut_at(bound)),
    )


def _problem(
    found: BrokerLedgers | OffloaderError, state: ManifestState, number: int, asked: Mapping[int, object]
) -> str:
    """Why an answer isn't known, or not believed; empty if it is."""
    where = _of(number, asked)
    if isinstance(found, OffloaderError):
        return f"the ledgers that the broker lists are unknown{where}: {found.message}"
    if not found.stored:
        return f"the broker lists no ledger{where}"
    why = contradiction(found.stored, known_ledgers(state, [ledger_id for ledger_id, _ in found.stored]))
    return f"the broker's list{where} is outdated, or of another topic: {why}" if why else ""


def _doubt(found: BrokerLedgers, state: ManifestState, own: StreamEntries, number: int) -> str:
    """Why the broker may not have trimmed all entries before its first ledger; empty if it has."""
    if state.held:
        return "the stream is on hold"
    if found.since is None:
        return (
            "the start of following the broker's list isn't recorded yet; the process that leads the topic records it"
        )
    partition = own.partitions[number]
    begin = partition.head or partition.first
    if begin is not None and begin.ledger_id < found.since:
        return (
            f"the stream begins at {begin}, before ledger {found.since}, the first that the broker listed when its "
            "list began to be followed, or when the topic was created again: truncate the stream to there once"
        )
    released = [each for each in state.hot_released_ledgers if begin is None or each >= begin.ledger_id]
    if released:
        return (
            f"ledger {max(released)} was released after the deletion lag and not trimmed by the broker: truncate the "
            "stream behind it once"
        )
    return ""


def _named(each: FirstListed, among: Sequence[object]) -> str:
    """``ledger 17 in partition 3``, or ``segment 3``."""
    if each.ledger_id is None:
        return f"segment {each.partition}"
    return f"ledger {each.ledger_id}{_of(each.partition, among)}"


def _of(number: int, among: Mapping[int, object] | Sequence[object]) -> str:
    """`` in partition 3``, where there are several."""
    return f" in partition {number}" if len(among) > 1 or number else ""
