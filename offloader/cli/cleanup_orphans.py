"""``offloader cleanup orphans``: what lies in a store and no manifest needs.

Owns what is asked and said. Must never delete anything without ``--delete``.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated

import typer

from offloader.cleanup.orphans import Leftover, Outcome, Place
from offloader.cleanup.reconciler import Reconciliation, Tally
from offloader.cleanup.whole_store import StoreReconciliation
from offloader.cli.errors import failure_of
from offloader.cli.options import ConfigArguments, Json
from offloader.cli.output import Column, bytes_text, json_line, print_rows
from offloader.clock import SystemClock
from offloader.errors import ErrorKind, InvalidCall, OffloaderError

__all__ = ["run"]


def run(
    given: ConfigArguments,
    stream: Annotated[
        str, typer.Argument(help="The stream's name; without one: the whole store.", show_default=False)
    ] = "",
    delete: Annotated[bool, typer.Option("--delete", help="Delete what may be deleted.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Delete nothing, which is the default.")] = False,
    ours: Annotated[bool, typer.Option("--ours", help="Leave out what is foreign; the sums still count it.")] = False,
    json: Json = False,
) -> int:
    """Find objects and unfinished uploads that no manifest needs, and delete those that are ours and old.

    Ours is what its name proves to be ours; everything else is foreign: it is listed and never touched. Old is what
    was last written orphan_age_hours_min ago, by the earlier of this machine's clock and the store's. With --delete the
    same list is gone through: each line says what became of it.
    """
    if delete and dry_run:
        raise InvalidCall("--delete and --dry-run contradict each other", hint="leave out one of them")
    settings_of = given.settings_of()
    settings = settings_of(stream)
    opened = given.open(settings, read_only=not delete)
    clock, said = SystemClock(), _Said(ours_only=ours)
    search: Reconciliation | StoreReconciliation
    if stream:
        search = Reconciliation(opened, stream, clock=clock, settings=settings.manifest, delete=delete)
    else:
        search = StoreReconciliation(
            opened,
            clock=clock,
            settings_of=lambda name: settings_of(name).manifest,
            failed=said.fail,
            delete=delete,
        )
    now_ms = clock.now_ms()
    print_rows(said.rows(search.leftovers(), now_ms), _COLUMNS, as_json=json)
    if json:
        print(json_line(said.summary(search.needed)))
    else:
        said.print_summary(search.needed)
    return said.exit_code


def _age_text(seconds: float) -> str:
    if seconds < 0:
        return "in the future"
    for unit, length in (("d", 86_400), ("h", 3600), ("min", 60)):
        if seconds >= length:
            return f"{seconds / length:.1f} {unit}"
    return f"{seconds:.0f} s"


_COLUMNS = [
    Column("stream", "STREAM", lambda name: name or "-"),
    Column("key", "KEY"),
    Column("what", "WHAT"),
    Column("age_s", "AGE", _age_text, right=True),
    Column("bytes", "BYTES", bytes_text, right=True),
    Column("ours", "OURS", lambda ours: "yes" if ours else "no"),
    Column("reason", "WHY"),
    Column("outcome", "OUTCOME"),
]


@dataclass(slots=True)
class _Said:
    """What was printed, added up.

    Attributes:
        ours_only: foreign things aren't printed.
        tallies: (outcome, whether it is ours) -> how many.
        exit_code: of the process.
    """

    ours_only: bool
    tallies: dict[tuple[Outcome, bool], Tally] = field(default_factory=dict)
    failures: int = 0
    exit_code: int = 0

    def rows(self, leftovers: Iterator[Leftover], now_ms: int) -> Iterator[Mapping[str, object]]:
        for each in leftovers:
            ours = each.reason.is_ours
            self.tallies.setdefault((each.outcome, ours), Tally()).add(each.objects, each.size_bytes)
            if each.outcome is Outcome.FAILED:
                self.exit_code = self.exit_code or ErrorKind.RETRY_LATER.value
            if ours or not self.ours_only:
                yield each.as_json(now_ms)

    def fail(self, stream: str, error: OffloaderError) -> None:
        """Says why a stream couldn't be finished; the others go on."""
        failure = failure_of(error)
        self.failures += 1
        self.exit_code = max(self.exit_code, failure.exit_code)
        sys.stderr.write(f"offloader: stream {stream}: {failure.message}\n")
        if failure.hint:
            sys.stderr.write(f"hint: {failure.hint}\n")

    def summary(self, needed: Mapping[Place, Tally]) -> Mapping[str, object]:
        """One object for programs."""
        found: dict[str, object] = {"what": "summary", "failed_streams": self.failures}
        for (outcome, ours), tally in sorted(self.tallies.items()):
            name = outcome.value if ours else "foreign"
            found |= {name: tally.objects, f"{name}_bytes": tally.size_bytes}
        found["needed"] = {
            place.value: {"objects": tally.objects, "bytes": tally.size_bytes} for place, tally in needed.items()
        }
        return found

    def print_summary(self, needed: Mapping[Place, Tally]) -> None:
        """The same in words."""
        count, size_bytes = (
            sum(each.objects for each in needed.values()),
            sum(each.size_bytes for each in needed.values()),
        )
        print(f"{count:,} objects ({bytes_text(size_bytes)}) are needed")
        words = {
            Outcome.DELETABLE: "may be deleted: say --delete",
            Outcome.DELETED: "deleted",
            Outcome.FAILED: "couldn't be deleted; the next run tries again",
            Outcome.KEPT: "kept for now",
        }
        for (outcome, ours), tally in sorted(self.tallies.items()):
            text = words[outcome] if ours else "foreign, left alone"
            print(f"{tally.objects:,} ({bytes_text(tally.size_bytes)}) {text}")
        if not any(ours for _, ours in self.tallies) and not self.failures:
            print("nothing of ours is left over")
