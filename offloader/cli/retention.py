"""``offloader retention ACTION``: what the next cycle decides, and retention cycles."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Annotated, Any

import typer

from offloader.cli.options import Json, LedgerArguments, StreamOrTopic, argument, opening_sources
from offloader.cli.output import Column, bytes_text, print_result, print_rows
from offloader.errors import NotFound, OffloaderError
from offloader.ledgers.base import BrokerLedgers, LedgerSource
from offloader.ledgers.pulsar.admin import AdminClient
from offloader.ledgers.pulsar.source import listed_by_broker
from offloader.ledgers.pulsar.topics import topic_of_stream
from offloader.ledgers.pulsar.transport import security_of
from offloader.read.reader import time_text
from offloader.retention.broker import ListedOf
from offloader.retention.cycle import CycleOutcome, RetentionCycle, retained_streams
from offloader.retention.explain import explain, outcome_facts
from offloader.retention.state import read_decisions
from offloader.retention.subscribers import open_retention
from offloader.runtime.clock import SystemClock
from offloader.settings import PulsarSettings
from offloader.settings.layered import SettingsFile

Streams = Annotated[list[str] | None, argument("Streams, or partitioned topics.", metavar="[STREAM]...", shown="all")]


def plan(given: LedgerArguments, streams: Streams = None, json: Json = False) -> int:
    """Say what the next cycle would do to each stream; change nothing.

    The policies are those of the settings file: see `offloader config explain`.
    """
    with _cycles(given, read_only=True) as (cycle, _):
        return _print_each(cycle, streams, cycle.plan, json, done=False)


def run(
    given: LedgerArguments,
    streams: Streams = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="The same as plan.")] = False,
    json: Json = False,
) -> int:
    """Run one cycle now: record where the streams end, decide, and let streams begin later.

    With --ledgers, hot ledgers before the new beginning are deleted at once. Objects in the store stay until a round of
    cleanup, which has a grace period. A stream that fails keeps no other from its turn.
    """
    with _cycles(given, read_only=dry_run) as (cycle, _):
        return _print_each(cycle, streams, cycle.plan if dry_run else cycle.run, json, done=not dry_run)


def explain_stream(
    stream: StreamOrTopic,
    given: LedgerArguments,
    decisions: Annotated[bool, typer.Option("--decisions", help="List the decisions of past cycles instead.")] = False,
    json: Json = False,
) -> None:
    """Explain in words and as a picture what would go of a stream now, by which rule, and who isn't done with it."""
    with _cycles(given, read_only=True) as (cycle, file):
        if decisions:
            retention = open_retention(cycle.store, stream)
            kept = read_decisions(retention, retention.scope())
            print_rows(map(_decision_row, kept), _DECISIONS, as_json=json, empty=f"stream {stream} has no decision yet")
            return
        outcome = cycle.plan(stream)
    print_result(outcome_facts(outcome, done=False), explain(outcome), as_json=json)
    if outcome.policy is None and not file.name and not json:
        print("\nno settings file was named: --config FILE says which policies there are", file=sys.stderr)


@contextmanager
def opening_lists(pulsar: PulsarSettings, source_of: Callable[[str], LedgerSource | None]) -> Iterator[ListedOf]:
    """What brokers with our plugin list of a stream, from their admin interface; ``None`` for other streams.

    Args:
        source_of: a stream that has another hot tier has no broker.
    """
    if not pulsar.broker_plugin:
        yield lambda _: None
        return
    with AdminClient(pulsar.admin_url, security=security_of(pulsar), hosts=pulsar.admin_hosts) as admin:

        def listed_of(stream: str) -> BrokerLedgers | None:
            topic = topic_of_stream(stream)
            if topic is None or source_of(stream) is not None:
                return None
            return listed_by_broker(admin, topic, pulsar)

        yield listed_of


@contextmanager
def _cycles(given: LedgerArguments, *, read_only: bool) -> Iterator[tuple[RetentionCycle, SettingsFile]]:
    file = given.file()
    opened = given.open(file.settings_of(""), read_only=read_only)
    clock = SystemClock()
    with opening_sources(given.ledgers) as source_of, opening_lists(file.settings_of("").pulsar, source_of) as lists:
        yield (
            RetentionCycle(opened, clock=clock, settings_of=file.settings_of, source_of=source_of, listed_of=lists),
            file,
        )


def _print_each(
    cycle: RetentionCycle,
    streams: Sequence[str] | None,
    turn: Callable[[str], CycleOutcome],
    as_json: bool,
    *,
    done: bool,
) -> int:
    """The exit code: that of the first failed stream."""
    failed: list[OffloaderError] = []

    def rows() -> Iterator[Mapping[str, object]]:
        for stream in streams or retained_streams(cycle.store):
            try:
                yield outcome_facts(turn(stream), done=done)
            except NotFound:
                if streams:
                    raise  # deleted meanwhile, and not named on the command line
            except OffloaderError as error:
                if len(streams or ()) == 1:
                    raise
                failed.append(error)
                yield {"stream": stream, "error": str(error), "retryable": error.retryable}

    print_rows(rows(), _CYCLE_COLUMNS, as_json=as_json, empty=f"no stream in {cycle.store.url}")
    for error in failed:
        print(f"error: {error}", file=sys.stderr)
    return failed[0].kind.value if failed else 0


def _decision_row(row: Mapping[str, object]) -> Mapping[str, object]:
    cut = row.get("cut")
    overridden = row.get("overridden")
    names = [str(each["name"]) for each in overridden] if isinstance(overridden, list) else []
    shown = ",".join(f"{name}={at}" for name, at in cut.items()) if isinstance(cut, dict) else None
    return {**row, "shown": shown, "loses": ", ".join(names) or None}


_CYCLE_COLUMNS = [
    Column("stream", "STREAM"),
    Column("new_head", "BEGINS AT", right=True),
    Column("entries", "ENTRIES GO", right=True),
    Column("bytes", "BYTES GO", bytes_text, right=True),
    Column("overridden", "LOSES", lambda names: ", ".join(names) or "-"),
    Column("rule", "RULE"),
]
_DECISIONS = [
    Column("at_ms", "TIME", time_text),
    Column("shown", "BEGINS AT"),
    Column("removed_entries", "ENTRIES", right=True),
    Column("removed_bytes", "BYTES", bytes_text, right=True),
    Column("loses", "LOSES"),
    Column("why", "RULE"),
]


#: Action -> its function, in the order of the help.
ACTIONS: Mapping[str, Callable[..., Any]] = {"explain": explain_stream, "plan": plan, "run": run}
