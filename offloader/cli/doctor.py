"""``offloader doctor``: checks configuration and connectivity, and finds streams that aren't offloaded.

It removes its scratch objects.
"""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Iterable, Iterator
from dataclasses import replace
from typing import Annotated

import typer

from offloader.cli.ledgers import LedgerArguments
from offloader.cli.options import Json, open_chosen_store
from offloader.cli.output import print_result
from offloader.doctor import (
    Finding,
    Outcome,
    check_bucket,
    check_compression,
    check_compression_ahead,
    check_compression_of_topics,
    check_machine,
    check_pulsar,
    check_store,
    check_streams,
    run_checks,
    store_answers,
)
from offloader.runtime.clock import SystemClock
from offloader.service.bootstrap import check_access
from offloader.service.broker_doctor import check_broker_routes
from offloader.service.small_topics import check_small_topics
from offloader.service.topic_doctor import check_topics
from offloader.settings.layered import SettingsFile
from offloader.store.wrappers import bucket_of

#: Longest line of the report.
WIDTH_MAX = 100
_OUTCOME_WIDTH = 9


def report_lines(found: Finding, width: int = WIDTH_MAX) -> list[str]:
    """A finding as text lines of at most ``width`` characters: the problem, then the remedy."""

    def wrapped(text: str, first: str, indent: int) -> list[str]:
        return textwrap.wrap(
            text, width, initial_indent=first, subsequent_indent=" " * indent, break_on_hyphens=False
        ) or [first.rstrip()]

    outcome, indent = f"{found.outcome.value:{_OUTCOME_WIDTH}}", " " * _OUTCOME_WIDTH
    lines = wrapped(f"{found.check}: {found.what}", outcome, _OUTCOME_WIDTH)
    return lines + (wrapped(found.hint, f"{indent}-> ", _OUTCOME_WIDTH + 3) if found.hint else [])


def run(
    given: LedgerArguments,
    read_only: Annotated[bool, typer.Option("--read-only", help="Write nothing, not even scratch objects.")] = False,
    json: Json = False,
) -> int:
    """Check configuration, connectivity and stalled streams.

    Checks that the store answers, allows every operation and keeps its guarantees; then clocks, disk, memory, brokers
    and streams with a backlog. Each finding names a remedy. The exit code is that of the first problem; warnings don't
    change it.

    Examples:
        offloader doctor --config offloader.toml
        offloader doctor --store s3://bucket --read-only
    """
    file = given.file()
    failed: list[int] = []
    width = min(WIDTH_MAX, shutil.get_terminal_size().columns) if sys.stdout.isatty() else WIDTH_MAX
    for each in run_checks(_checks(file, given, read_only=read_only)):
        if each.outcome is Outcome.PROBLEM:
            failed.append(each.kind.value if each.kind else 1)
        facts: dict[str, object] = {
            "outcome": each.outcome.value,
            "check": each.check,
            "what": each.what,
            "hint": each.hint or None,
            "kind": None if each.kind is None else each.kind.name.lower(),
        }
        print_result(facts, report_lines(each, width), as_json=json)
    if failed and not json:
        print(f"{len(failed)} problems", file=sys.stderr)
    return failed[0] if failed else 0


def _checks(file: SettingsFile, given: LedgerArguments, *, read_only: bool) -> Iterator[tuple[str, Iterable[Finding]]]:
    clock, settings = SystemClock(), file.settings_of("")
    serve = settings.serve
    # Short deadlines: an unresponsive store is reported soon.
    patience = replace(settings.store, retries_max=min(settings.store.retries_max, 1))
    opened = open_chosen_store(
        given.store or serve.store,
        given.endpoint_url or serve.endpoint_url,
        given.region or serve.region,
        settings=patience,
        limits=settings.limits,
        read_only=read_only,
        create=True,
    )
    answer = store_answers(opened)
    yield "store", [answer]
    if answer.outcome is Outcome.OK and not read_only:
        yield "store", check_store(opened, settings, clock)
    bucket = bucket_of(opened)
    if answer.outcome is Outcome.OK and bucket is not None:
        yield "bucket", check_bucket(bucket)
    yield "machine", check_machine(settings)
    yield "access", check_access(settings)
    if settings.pulsar.topics:
        yield "pulsar", check_pulsar(settings.pulsar, clock)
        if settings.pulsar.broker_plugin:
            yield "plugin's way here", check_broker_routes(settings, clock)
    if answer.outcome is Outcome.OK:
        yield "streams", check_streams(opened, file, clock, given.ledgers)
        if settings.pulsar.topics:
            yield "topics", check_topics(opened, settings.pulsar, clock)
        yield "small topics", check_small_topics(opened, file, clock)
        yield "compression", check_compression(opened, clock)
        if serve.ledgers:
            yield "compression", check_compression_ahead(opened, file, clock)
        if settings.pulsar.topics:
            yield "compression", check_compression_of_topics(opened, file, clock)
