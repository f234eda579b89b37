"""``offloader doctor``: checks configuration and connectivity, and finds streams that aren't offloaded.

Leaves nothing behind: it removes its scratch objects.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from dataclasses import replace
from typing import Annotated

import typer

from offloader.cli.options import ConfigArguments, Json, StoreArguments, open_chosen_store
from offloader.cli.output import Column, print_rows
from offloader.doctor import Check, Finding, LocalChecks, Outcome, PulsarChecks, StoreChecks, StreamChecks, run_checks
from offloader.runtime.clock import SystemClock
from offloader.service.bootstrap import DoorChecks
from offloader.settings.layered import SettingsFile

__all__ = ["run"]

_COLUMNS = [
    Column("outcome", "OUTCOME"),
    Column("check", "CHECK"),
    Column("what", "FOUND"),
    Column("hint", "TO DO"),
]


def run(
    given: ConfigArguments,
    read_only: Annotated[bool, typer.Option("--read-only", help="Write nothing, not even scratch objects.")] = False,
    json: Json = False,
) -> int:
    """Look whether the store answers, lets us do each verb and keeps its promises; at clocks, disk, memory, brokers,
    and at streams that wait to be offloaded. Each finding says what to do about it.

    The exit code is that of the first problem; warnings have none.
    """
    file = given.file()
    failed: list[int] = []

    def rows() -> Iterator[dict[str, object]]:
        for each in run_checks(_checks(file, given, read_only=read_only)):
            if each.outcome is Outcome.PROBLEM:
                failed.append(each.kind.value if each.kind else 1)
            yield _row(each)

    print_rows(rows(), _COLUMNS, as_json=json)
    if failed and not json:
        print(f"{len(failed)} problems", file=sys.stderr)
    return failed[0] if failed else 0


def _checks(file: SettingsFile, given: StoreArguments, *, read_only: bool) -> Iterator[Check]:
    clock, settings = SystemClock(), file.settings_of("")
    serve = settings.serve
    # Report an unresponsive store soon.
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
    stores = StoreChecks(opened, settings, clock, read_only=read_only)
    yield stores
    yield LocalChecks(settings)
    yield DoorChecks(settings)
    if settings.pulsar.topics:
        yield PulsarChecks(settings.pulsar, clock)
    if stores.answers:
        yield StreamChecks(opened, file, clock)


def _row(finding: Finding) -> dict[str, object]:
    return {
        "outcome": finding.outcome.value,
        "check": finding.check,
        "what": finding.what,
        "hint": finding.hint or None,
        "kind": None if finding.kind is None else finding.kind.name.lower(),
    }
