"""Commands about retention: retention, subscribers, truncate.

truncate deletes entries that aren't offloaded only with ``--force``.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, closing, contextmanager
from dataclasses import dataclass, replace
from typing import Annotated

import typer

from formats.entries import TIME_UNKNOWN_MS, Position
from offloader.cli import NOTHING_PLANNED
from offloader.cli.ledgers import LedgerArguments, opening_sources
from offloader.cli.options import (
    Apply,
    Json,
    StoreArguments,
    StreamOrTopic,
    TakeOver,
    amount,
    argument,
    name_argument,
    option,
    partition_position_of,
)
from offloader.cli.output import Column, bytes_text, counted, print_each, print_result, print_rows
from offloader.errors import InvalidCallError, NotFoundError, StoreUnavailableError
from offloader.ledgers.base import BrokerLedgers, LedgerSource
from offloader.ledgers.pulsar.admin import AdminClient
from offloader.ledgers.pulsar.topic_facts import listed_by_broker
from offloader.ledgers.pulsar.topics import topic_of_stream
from offloader.ledgers.pulsar.transport import security_of
from offloader.manifest.log import ManifestLog
from offloader.manifest.protection import user_at_host
from offloader.owner_client import OwnerUnreachableError, ask_owner
from offloader.read.reader import existing_streams, load_stream, open_stream_reader
from offloader.retention.broker import ListedOf, first_listed
from offloader.retention.cuts import StreamCut
from offloader.retention.cycle import CycleOutcome, RetentionCycle, retained_streams
from offloader.retention.explain import explain, outcome_facts
from offloader.retention.scope import SourceOf, find_scope, require_no_segments
from offloader.retention.state import read_decisions
from offloader.retention.subscribers import StreamRetention, cut_of, open_retention, require_subscriber_name
from offloader.retention.truncate import Truncation, truncate_stream, truncate_topic
from offloader.runtime.clock import SystemClock
from offloader.settings import Duration, PulsarSettings, RetentionSettings, Settings, Size
from offloader.settings.layered import SettingsFile
from offloader.store.base import ObjectStore
from offloader.times import time_ms_of, time_text

# -- retention


@dataclass(frozen=True, slots=True, kw_only=True)
class KeepArguments:
    """Options that replace the policy of the settings file. Its minimum applies unless an option sets another one."""

    keep: Annotated[
        float,
        amount("--keep", "Maximum age of entries, instead of the settings' policy.", "seconds", shown="retention.keep"),
    ] = 0.0
    keep_size: Annotated[
        int,
        amount(
            "--keep-size",
            "Maximum size of the stream, instead of the settings' policy.",
            "bytes",
            whole=True,
            shown="retention.keep_size",
        ),
    ] = 0
    keep_at_least: Annotated[
        float,
        amount(
            "--keep-at-least",
            "With --keep-size: minimum age of deleted entries.",
            "seconds",
            shown="retention.keep_at_least",
        ),
    ] = 0.0
    keep_at_least_size: Annotated[
        int,
        amount(
            "--keep-at-least-size",
            "With --keep: minimum size to keep of the newest entries.",
            "bytes",
            whole=True,
            shown="retention.keep_at_least_size",
        ),
    ] = 0

    @property
    def is_given(self) -> bool:
        """Whether an option was given."""
        return bool(self.keep or self.keep_size or self.keep_at_least or self.keep_at_least_size)

    def within(self, settings: Settings) -> Settings:
        """The settings with this policy."""
        if not self.is_given:
            return settings
        retention = RetentionSettings(
            keep=Duration(self.keep),
            keep_size=Size(self.keep_size),
            keep_at_least=Duration(self.keep_at_least or settings.retention.keep_at_least),
            keep_at_least_size=Size(self.keep_at_least_size or settings.retention.keep_at_least_size),
            record_interval=settings.retention.record_interval,
        )
        return replace(settings, retention=retention)


Streams = Annotated[
    list[str] | None, name_argument("Streams, or partitioned topics.", metavar="[STREAM]...", shown="all")
]


def plan(given: LedgerArguments, keep: KeepArguments, streams: Streams = None, json: Json = False) -> int:
    """Show the decision of the next cycle for each stream, with boundary and reason; change nothing.

    Uses the policies of the settings file: see `offloader config explain`. --keep and --keep-size test other policies.

    Examples:
        offloader retention plan --config offloader.toml
        offloader retention plan orders --keep 7d
    """
    return run(given, keep, streams, json=json)


def run(
    given: LedgerArguments,
    keep: KeepArguments,
    streams: Streams = None,
    apply: Apply = False,
    json: Json = False,
) -> int:
    """Run one retention cycle now: record the ends of the streams, decide, and move their start positions.

    With --ledgers, hot ledgers before the new start are deleted immediately. Objects in the store are deleted by a
    later cleanup round, after a grace period. A failure in one stream does not stop the others.

    Examples:
        offloader retention run --config offloader.toml
        offloader retention run orders --keep-size 10GiB --apply
    """
    dry_run = not apply
    if keep.is_given and not streams and apply:
        raise InvalidCallError(
            "--keep and --keep-size require STREAM", hint="name the streams, or use `retention plan`"
        )
    if apply and streams and len(streams) == 1:
        find_scope(given.open(), streams[0])  # before the store is probed with a write
    outcomes: list[CycleOutcome] = []
    with _cycles(given, keep, read_only=dry_run) as (cycle, _):

        def facts_of(stream: str) -> Mapping[str, object]:
            outcomes.append(cycle.plan(stream) if dry_run else cycle.run(stream))
            return outcome_facts(outcomes[-1], done=not dry_run)

        code = print_each(
            streams or retained_streams(cycle.store),
            facts_of,
            lambda stream, error: {
                "stream": stream,
                "error": str(error),
                "retryable": getattr(error, "retryable", False),
            },
            _CYCLE_COLUMNS,
            is_named=bool(streams),
            as_json=json,
            empty=f"no streams in {cycle.store.url}",
        )
    truncates = any(each.decision is not None and each.decision.cut is not None for each in outcomes)
    return code or (0 if truncates or any(each.is_recorded for each in outcomes) else NOTHING_PLANNED)


def explain_stream(
    stream: StreamOrTopic,
    given: LedgerArguments,
    keep: KeepArguments,
    decisions: Annotated[bool, typer.Option("--decisions", help="List the decisions of past cycles instead.")] = False,
    json: Json = False,
) -> None:
    """Explain the next deletions of a stream: entries, rule, and subscribers that still need them, with a picture.

    Examples:
        offloader retention explain orders --config offloader.toml
        offloader retention explain orders --decisions
    """
    if decisions and keep.is_given:
        raise InvalidCallError(
            "--decisions and --keep exclude each other: past decisions don't depend on --keep",
            hint="leave one of them out",
        )
    with _cycles(given, keep, read_only=True) as (cycle, file):
        if decisions:
            retention = open_retention(cycle.store, stream)
            kept = read_decisions(retention, retention.scope())
            print_rows(map(_decision_row, kept), _DECISIONS, as_json=json, empty=f"no decisions on stream {stream} yet")
            return
        outcome = cycle.plan(stream)
    print_result(outcome_facts(outcome, done=False), explain(outcome), as_json=json)
    if outcome.policy is None and not file.name and not json:
        print("\nno settings file was given; give --config FILE to apply its policies", file=sys.stderr)


@contextmanager
def opening_lists(pulsar: PulsarSettings, source_of: Callable[[str], LedgerSource | None]) -> Iterator[ListedOf]:
    """A stream's ledgers as listed by brokers with our plugin over their admin interface; ``None`` for other streams.

    Args:
        source_of: a stream with another hot tier has no broker.
    """
    if not pulsar.broker_plugin:
        yield lambda _: None
        return
    with AdminClient(pulsar.admin_url, security=security_of(pulsar), hosts=pulsar.admin_hosts) as admin:

        def listed_of(stream: str) -> BrokerLedgers | None:
            topic = topic_of_stream(stream)
            return None if topic is None or source_of(stream) is not None else listed_by_broker(admin, topic, pulsar)

        yield listed_of


@contextmanager
def _cycles(
    given: LedgerArguments, keep: KeepArguments, *, read_only: bool
) -> Iterator[tuple[RetentionCycle, SettingsFile]]:
    file = given.file()

    def settings_of(stream: str) -> Settings:
        return keep.within(file.settings_of(stream))

    opened = given.open(read_only=read_only)
    clock = SystemClock()
    with (
        opening_sources(given.ledgers, may_delete=not read_only) as source_of,
        opening_lists(file.settings_of("").pulsar, source_of) as lists,
    ):
        yield (
            RetentionCycle(opened, clock=clock, settings_of=settings_of, source_of=source_of, listed_of=lists),
            file,
        )


def _decision_row(row: Mapping[str, object]) -> Mapping[str, object]:
    cut = row.get("cut")
    overridden = row.get("overridden")
    names = [str(each["name"]) for each in overridden] if isinstance(overridden, list) else []
    shown = ",".join(f"{name}={at}" for name, at in cut.items()) if isinstance(cut, dict) else None
    return {**row, "shown": shown, "loses": ", ".join(names) or None}


_CYCLE_COLUMNS = [
    Column("stream", "STREAM"),
    Column("new_head", "BEGINS AT", right=True),
    Column("entries", "ENTRIES GO", right=True, less=2),
    Column("bytes", "BYTES GO", bytes_text, right=True, less=1),
    Column("overridden", "LOSES", lambda names: ", ".join(names) or "-"),
    Column("boundary", "BOUNDARY", less=3),
    Column("why", "RULE", wraps=True),
]
_DECISIONS = [
    Column("at_ms", "TIME", time_text),
    Column("shown", "BEGINS AT"),
    Column("removed_entries", "ENTRIES", right=True, less=1),
    Column("removed_bytes", "BYTES", bytes_text, right=True),
    Column("loses", "LOSES", wraps=True),
    Column("why", "RULE", wraps=True),
]


# -- subscribers

#: Name of the current end as a cut.
LATEST = "latest"

Name = Annotated[str, argument("The subscriber's name.", metavar="SUBSCRIBER")]
_CUT = "[PARTITION=]LEDGER:ENTRY"


def list_subscribers(
    stream: StreamOrTopic,
    given: LedgerArguments,
    timeout: Annotated[
        float | None,
        amount(
            "--timeout",
            "Time without a publication after which a subscriber times out. 0 = never.",
            "seconds",
            shown="retention.subscriber_timeout",
        ),
    ] = None,
    json: Json = False,
) -> None:
    """List a stream's subscribers with their positions, lags and states.

    Examples:
        offloader subscriber list orders
    """
    if timeout is None:
        timeout = given.settings(stream).retention.subscriber_timeout
    with _retention(stream, given, ledgers=given.ledgers, read_only=True) as retention:
        found = retention.subscribers(timeout_ms=max(1, round(timeout * 1000)) if timeout else None)
    rows = (each.as_json() for each in found)
    print_rows(rows, _SUBSCRIBER_COLUMNS, as_json=json, empty=f"stream {stream} has no subscribers")


def add_subscriber(
    stream: StreamOrTopic,
    name: Name,
    given: LedgerArguments,
    generation: Annotated[int, typer.Option("--generation", min=0, help="Generation, for owners that count them.")] = 0,
    start: Annotated[
        list[str] | None,
        option("--start", "First position to read, or 'latest'.", metavar=_CUT, shown="the stream's start"),
    ] = None,
    json: Json = False,
) -> None:
    """Register a subscriber, or raise the generation of one.

    A subscriber does not hold entries back until it publishes a position, unless the policy protects subscribers that
    have never published.

    Examples:
        offloader subscriber add orders billing
        offloader subscriber add orders billing --start 7:0
    """
    require_subscriber_name(name)
    wanted = given_cut(start, option="--start") if start else None
    with _retention(stream, given, ledgers=given.ledgers, read_only=False) as retention:
        begin = retention.tail() if start and wanted is None else wanted
        found = retention.add(name, generation=generation, start=begin)
    print_result(
        {"stream": stream, **found.as_json()},
        f"{name} subscribes to {stream}, generation {found.generation}",
        as_json=json,
    )


def acknowledge(
    stream: StreamOrTopic,
    name: Name,
    at: Annotated[
        list[str],
        option(
            "--at",
            "The first entry that the subscriber still needs, or 'latest'. For a partitioned topic "
            "once for each partition, by its number.",
            metavar=_CUT,
        ),
    ],
    given: LedgerArguments,
    generation: Annotated[int | None, option("--generation", "Required generation of the subscriber.", min=0)] = None,
    json: Json = False,
) -> None:
    """Publish a subscriber's position: it has consumed all entries before it, so retention may delete them.

    You may publish the same position again; it proves that the subscriber is active. Entries that aren't offloaded yet
    are known only with --ledgers.

    Examples:
        offloader subscriber ack orders billing --at 7:99
    """
    wanted = given_cut(at, option="--at")
    with _retention(stream, given, ledgers=given.ledgers, read_only=False) as retention:
        found = retention.publish(name, retention.tail() if wanted is None else wanted, generation=generation)
    print_result(
        {"stream": stream, **found.as_json()},
        f"{name} consumed {stream} up to {cut_text(found.cut)}",
        as_json=json,
    )


def remove_subscriber(
    stream: StreamOrTopic,
    name: Name,
    given: StoreArguments,
    generation: Annotated[int | None, option("--generation", "Highest generation to remove.", min=0)] = None,
    apply: Apply = False,
    json: Json = False,
) -> int:
    """Remove a subscriber and its position, so that it no longer holds entries back.

    Examples:
        offloader subscriber remove orders billing
        offloader subscriber remove orders billing --apply
    """
    with _retention(stream, given, ledgers="", read_only=not apply) as retention:
        registry = retention.registry()
        if name not in registry.subscribers:
            raise NotFoundError(
                f"{name} doesn't subscribe to stream {stream}", hint=f"`offloader subscriber list {stream}`"
            )
        if apply:
            removed = retention.remove(name, generation=generation)
        else:
            removed = generation is None or generation >= registry.subscribers[name].generation
    text = (
        f"{'removed' if apply else 'would remove'} subscriber {name} of {stream}"
        if removed
        else f"{name} is still subscribed to {stream}: its generation is higher than {generation}"
    )
    facts = {"stream": stream, "dry_run": not apply, "subscriber": name, "removed": removed}
    print_result(facts, text, as_json=json)
    return 0 if removed else NOTHING_PLANNED


def accept_registry_loss(stream: StreamOrTopic, given: StoreArguments, apply: Apply = False, json: Json = False) -> int:
    """Continue with the current registry of subscribers, although a newer revision existed.

    Retention stops after the registry was lost or restored to an earlier revision. If you have a copy of its newest
    revision, restore it. Otherwise accept the loss, and register missing subscribers again before retention runs.

    Examples:
        offloader subscriber accept-loss orders
        offloader subscriber accept-loss orders --apply
    """
    dry_run = not apply
    with _retention(stream, given, ledgers="", read_only=dry_run) as retention:
        revision, named = retention.accept_registry(dry_run=dry_run)
    facts = {"stream": stream, "dry_run": dry_run, "revision": revision, "named_revision": named}
    text = f"{stream} {'would continue' if dry_run else 'continues'} without revision {named} of its registry"
    text = text if revision < named else f"the registry of {stream} is the newest revision: nothing to do"
    print_result(facts, text, as_json=json)
    return 0 if revision < named else NOTHING_PLANNED


def given_cut(texts: list[str], *, option: str) -> StreamCut | None:
    """The cut in an option's values: one position, or one for each partition; ``None``: ``latest``.

    Raises:
        InvalidCallError: invalid values; names the option.
    """
    if texts == [LATEST]:
        return None
    positions: dict[int, Position] = {}
    for text in texts:
        number, position = partition_position_of(text, option=option, hint=f"{option} 3=7:12")
        if (number or 0) in positions:
            raise InvalidCallError(f"{option} names partition {number or 0} twice", hint="give each partition once")
        positions[number or 0] = position
    return cut_of(positions)


def cut_text(cut: StreamCut | None) -> str:
    """``7:12``, or for several partitions ``0=7:12,3=8:0``."""
    if cut is None:
        return "-"
    parts = {segment.number: offset for segment, offset in cut.offsets.items()}
    several = ",".join(f"{number}={parts[number]}" for number in sorted(parts))
    return str(parts[0]) if list(parts) == [0] else several or "nothing"


@contextmanager
def _retention(stream: str, given: StoreArguments, *, ledgers: str, read_only: bool) -> Iterator[StreamRetention]:
    if not read_only:
        find_scope(given.open(), stream)  # before the store is probed with a write
    opened = given.open(read_only=read_only)
    with opening_sources(ledgers) as source_of:
        yield open_retention(opened, stream, source_of=source_of)


_SUBSCRIBER_COLUMNS = [
    Column("subscriber", "SUBSCRIBER"),
    Column("activity", "ACTIVITY"),
    Column("cut", "CONSUMED UP TO", lambda cut: cut_text(StreamCut.of(cut)), right=True),
    Column("lag_entries", "ENTRIES BEHIND", right=True),
    Column("lag_bytes", "BYTES BEHIND", bytes_text, right=True, less=2),
    Column("active_ms", "LAST HEARD OF", time_text, less=1),
    Column("generation", "GENERATION", right=True, less=3),
]


# -- truncate

Force = Annotated[
    bool,
    typer.Option(
        "--force",
        help="Also drop entries that aren't offloaded yet, recorded as a gap, and ledgers that a broker still lists "
        "and reads from this store.",
    ),
]


def truncate(
    stream: StreamOrTopic,
    given: LedgerArguments,
    before: Annotated[
        list[str] | None,
        option(
            "--before",
            "First position to keep; for a partitioned topic once for each partition, by its number.",
            metavar="[PARTITION=]LEDGER:ENTRY",
        ),
    ] = None,
    before_time: Annotated[
        str,
        option(
            "--before-time",
            "Keep entries from the first one published at or after TIME, in each partition. Instead of --before. "
            "Not in the future.",
            metavar="TIME",
        ),
    ] = "",
    force: Force = False,
    take_over: TakeOver = False,
    apply: Apply = False,
    json: Json = False,
) -> int:
    """Move a stream's start position forward: entries before it are no longer readable.

    One manifest record holds the new start and the deleted ledgers. Hot ledgers before the start are deleted if
    --ledgers names their database. `offloader cleanup run` deletes segments before the start after its grace period;
    until then `offloader cleanup undo` restores them. Only --force moves the start past the offloaded entries: the
    command first asks a reachable process that offloads the stream to complete the entries before the position.

    Examples:
        offloader stream truncate orders --before 7:0
        offloader stream truncate orders --before-time -7d --apply
    """
    dry_run = not apply
    if bool(before) == bool(before_time):
        raise InvalidCallError("truncate needs either --before or --before-time", hint="give one of them")
    existing_streams(given.open(), stream)  # before the store is probed with a write
    settings, opened = given.prepared(stream, read_only=dry_run)
    wanted = [partition_position_of(text, option="--before", hint="PARTITION=LEDGER:ENTRY") for text in before or ()]
    if before_time:
        wanted = _starts_at(opened, stream, _past_ms_of(before_time), settings)
    with ExitStack() as stack:
        database = stack.enter_context(closing(given.open_ledgers())) if given.ledgers else None

        def source_of(name: str) -> LedgerSource | None:
            return None if database is None else database.view_stream(name, may_delete=not dry_run)

        if force and not (take_over or dry_run):
            _ask_owners(opened, stream, wanted, settings)
        names = [stream if number is None else f"{stream}-partition-{number}" for number, _ in wanted]
        listed = {} if force else first_listed(stack.enter_context(opening_lists(settings.pulsar, source_of)), names)
        done = _truncations(
            *(opened, stream, wanted, settings),
            source_of=source_of,
            force=force,
            take_over=take_over,
            dry_run=dry_run,
            listed=listed,
        )
        has_work = False
        for each in done:
            has_work = has_work or each.moves or bool(each.hot_ledgers)
            print_result(
                _truncation_facts(each, dry_run=dry_run), _truncation_lines(each, dry_run=dry_run), as_json=json
            )
    return 0 if has_work else NOTHING_PLANNED


def _truncations(
    store: ObjectStore,
    stream: str,
    wanted: Sequence[tuple[int | None, Position]],
    settings: Settings,
    *,
    source_of: SourceOf,
    force: bool,
    take_over: bool,
    dry_run: bool,
    listed: Mapping[str, int],
) -> Iterable[Truncation]:
    """Truncates a stream, or each named partition of a topic."""
    clock, after_s = SystemClock(), settings.offload.takeover_after
    if len(wanted) == 1 and wanted[0][0] is None:
        log = ManifestLog(store, stream, clock=clock, settings=settings.manifest)
        return [
            truncate_stream(
                *(log, wanted[0][1]),
                clock=clock,
                source=source_of(stream),
                force=force,
                take_over=take_over,
                takeover_after_s=after_s,
                dry_run=dry_run,
                method=settings.offload.method,
                listed=listed.get(stream),
            )
        ]
    return truncate_topic(
        *(store, stream, _heads(store, stream, wanted)),
        clock=clock,
        by=user_at_host(),
        source_of=source_of,
        force=force,
        take_over=take_over,
        takeover_after_s=after_s,
        dry_run=dry_run,
        listed=listed,
    ).values()


def _past_ms_of(before_time: str) -> int:
    """The time of ``--before-time``. Raises ``InvalidCallError`` for a future time, which would delete every entry."""
    now_ms = SystemClock().now_ms()
    time_ms = time_ms_of(before_time, option="--before-time", now_ms=now_ms)
    if time_ms > now_ms:
        raise InvalidCallError(
            f"--before-time: {time_text(time_ms)} is in the future and would remove every entry; nothing was changed",
            hint="correct the time. To remove all entries published so far, give --before-time -0s, first "
            "without --apply",
        )
    return time_ms


def _starts_at(store: ObjectStore, stream: str, time_ms: int, settings: Settings) -> list[tuple[int | None, Position]]:
    """For each partition, the first position published at or after a time, or else the committed end. Partitions
    without entries are left out."""
    scope = find_scope(store, stream)
    require_no_segments(scope)
    found: list[tuple[int | None, Position]] = []
    for number, partition in sorted(scope.partitions.items()):
        with open_stream_reader(store, partition.stream, settings=settings.read) as reader:
            last = reader.last_position
            if last is None:
                continue
            start = reader.position_at(time_ms) or last.next()
            goes = reader.state.offloaded(reader.state.head, start)
            if bool((goes.ends()[:, 2] == TIME_UNKNOWN_MS).any()):
                raise InvalidCallError(
                    f"stream {partition.stream} has entries without a publish time before {start}, which can't be "
                    f"compared with {time_text(time_ms)}",
                    hint="give the position with --before LEDGER:ENTRY",
                )
            found.append((number if scope.is_topic else None, start))
    if not found:
        raise InvalidCallError(f"stream {stream} has no entries in {store.url}", hint="nothing to truncate")
    return found


def _ask_owners(
    store: ObjectStore, stream: str, wanted: Sequence[tuple[int | None, Position]], settings: Settings
) -> None:
    """Asks the owner, if its address is known and reachable, to complete the entries before the start position: then no
    entries are lost, and no takeover is needed."""
    for number, head in wanted:
        name = stream if number is None else f"{stream}-partition-{number}"
        state = load_stream(store, name, may_be_absent=True)
        end = state.committed_end()
        if not state.owner.url or state.method == "none" or (end is not None and head <= end):
            continue
        until = head.previous() if head.entry_id else None
        try:
            end = ask_owner(store, state, until, settings).committed_end()
        except (OwnerUnreachableError, NotFoundError):
            continue  # it stopped, or no longer offloads this stream
        except StoreUnavailableError as error:
            raise StoreUnavailableError(
                error.message, hint="retry when it is done, or drop entries that aren't offloaded with --take-over"
            ) from error
        if until is not None and (end is None or end < until):
            raise InvalidCallError(
                f"{state.owner.url} completed stream {name} up to {end or 'nothing'}, not up to {until}",
                hint="nothing was changed; --take-over skips the request to the owner",
            )


def _heads(store: ObjectStore, topic: str, wanted: Sequence[tuple[int | None, Position]]) -> Mapping[str, Position]:
    place = find_scope(store, topic)
    require_no_segments(place)
    known = [each.stream for each in place.partitions.values()] if place.is_topic else []
    heads = {f"{topic}-partition-{number}": head for number, head in wanted if number is not None}
    unknown = [stream for stream in heads if stream not in known]
    if len(heads) < len(wanted) or unknown:
        raise InvalidCallError(
            f"{unknown[0]} isn't in {store.url}" if unknown else "several positions need a partitioned topic",
            hint="give PARTITION=LEDGER:ENTRY once for each partition"
            + (f"; partitions of {topic}: {len(known)}" if known else f"; the store has no partitions of {topic}"),
        )
    return heads


def _truncation_facts(done: Truncation, *, dry_run: bool) -> Mapping[str, object]:
    return {
        "stream": done.stream,
        "dry_run": dry_run,
        "head": done.head,
        "head_before": done.head_before,
        "record": done.record_id,
        "ledgers": done.ledgers,
        "hot_ledgers": done.hot_ledgers,
        "hot_kept": [{"ledger_id": ledger_id, "reason": str(error)} for ledger_id, error in done.hot_kept],
        "segments": done.segments,
        "entries": done.entries,
        "object_bytes": done.object_bytes,
        "gaps": [{"first": gap.first, "last": gap.last} for gap in done.gaps],
        "failed": done.failed,
    }


def _truncation_lines(done: Truncation, *, dry_run: bool) -> Iterator[str]:
    if not done.moves and not done.hot_ledgers:
        yield f"{done.stream} already starts at {done.head}: nothing to do"
        return
    verb = "would start" if dry_run else "starts"
    yield (
        f"{done.stream} {verb} at {done.head}; before it: {counted(done.segments, 'segment')}, "
        f"{done.entries:,} entries, {bytes_text(done.object_bytes)} in the store, to be retired by the next cleanup"
    )
    for gap in done.gaps:
        yield f"dropped without offload: {gap.first} up to {gap.last}"
    kept = dict(done.hot_kept)
    gone = [ledger_id for ledger_id in done.hot_ledgers if ledger_id not in kept]
    if gone:
        yield f"hot ledgers {'to be deleted' if dry_run else 'deleted'}: {', '.join(map(str, gone))}"
    for ledger_id, error in kept.items():
        yield f"hot ledger {ledger_id} not deleted yet: {error}"
