"""``offloader doctor``: checks configuration and connectivity, and finds streams that aren't offloaded.

It removes its scratch objects.
"""

from __future__ import annotations

import shutil
import sys
import textwrap
from dataclasses import replace
from typing import Annotated

import typer

from offloader.cli.ledgers import LedgerArguments
from offloader.cli.options import Json, open_chosen_store
from offloader.cli.output import print_result
from offloader.doctor import CheckResult, Outcome
from offloader.service.checks import check_everything

#: Longest line of the report.
WIDTH_MAX = 100
_OUTCOME_WIDTH = 9


def report_lines(found: CheckResult, width: int = WIDTH_MAX) -> list[str]:
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
    settings = file.settings_of("")
    opened = open_chosen_store(
        given.store or settings.serve.store,
        given.endpoint_url or settings.serve.endpoint_url,
        given.region or settings.serve.region,
        # Short deadlines: an unresponsive store is reported soon.
        settings=replace(settings.store, retries_max=min(settings.store.retries_max, 1)),
        limits=settings.limits,
        read_only=read_only,
        create=True,
    )
    failed: list[int] = []
    width = min(WIDTH_MAX, shutil.get_terminal_size().columns) if sys.stdout.isatty() else WIDTH_MAX
    for each in check_everything(opened, file, ledgers=given.ledgers, read_only=read_only):
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
