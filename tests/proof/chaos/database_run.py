"""A ledger database that is deleted, restored from a backup or opened twice under living processes, over a real server.

    ./dev chaos --database                     # twelve draws, MinIO and versitygw in turns
    ./dev chaos --database --seed 7 --server versitygw

One draw: an appender and ``offloader serve`` work on one database; then the database is changed behind them and both
start again. Every acknowledged entry must be in the store or in a database that still exists, with its own bytes; what
went with a database must be told of by name.
"""

from __future__ import annotations

import argparse
import os
import random
import shutil
import signal
import sqlite3
import sys
import tempfile
from collections.abc import Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, field
from pathlib import Path

import boto3

from services.servers import Endpoint, make_bucket, running
from tests.independent_manifest import read_manifest
from tests.proof.chaos.chaos_clock import VARIABLE, set_clock
from tests.proof.chaos.chaos_journal import number_of, read_journal
from tests.proof.chaos.chaos_oracle import Entries, S3Contents, cold_entries, hot_entries
from tests.proof.chaos.chaos_roles import Paths, Roles, Started
from tests.proof.chaos.chaos_schedule import SERVERS
from tests.support.waiting import eventually

__all__ = ["CLASSES", "Outcome", "class_of", "run"]

CLASSES = ("deleted", "restored", "opened twice")
#: The stream that is looked at: nothing of it is ever truncated.
STREAM = "chaos/live"
#: Entries that are in the store before the database is changed, and that are appended to the changed one.
ENTRIES_BEFORE, ENTRIES_AFTER = 200, 200
WITHIN_S = 120.0
_BUCKET = "databases"
#: How the product names it: the error's hint is the operator's way on.
_NAMED = "set-source"


@dataclass(slots=True)
class Outcome:
    """What came of a draw.

    Attributes:
        acknowledged: entries of all appenders.
        destroyed: of those, the ones that went with their database.
        problems: what must not be; empty: nothing.
        said: the last lines of the processes.
    """

    acknowledged: int = 0
    destroyed: int = 0
    problems: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)


def class_of(seed: int) -> str:
    """What happens to the database in the draw of this seed."""
    return CLASSES[seed % len(CLASSES)]


class _Side:
    """An appender and a sidecar over one database."""

    def __init__(self, name: str, folder: Path, url: str, environment: dict[str, str]) -> None:
        self.paths = Paths(folder=folder / name, database=folder / name / "data" / "ledgers.db")
        self.paths.database.parent.mkdir(parents=True)
        clock = self.paths.folder / "clock"
        set_clock(clock, 0)
        environment = {**environment, VARIABLE: str(clock)}
        self.roles = Roles(self.paths, url, {"appender": environment, "sidecar": environment}, lambda *_: None)
        self.lines: list[str] = []

    def start(self) -> None:
        for role in ("appender", "sidecar"):
            self.roles.start(role)

    def stop(self, *, hard: bool) -> None:
        for started in list(self.roles.running.values()):
            if hard:
                started.kill()
            else:
                started.process.send_signal(signal.SIGTERM)
            if started.ended(WITHIN_S) is None:
                started.kill()
                started.ended(WITHIN_S)
            self.lines += started.lines
            del self.roles.running[started.role]

    def is_named(self) -> bool:
        """Whether a process said that the database isn't the one that the manifest knows."""
        running: list[Started] = list(self.roles.running.values())
        return any(_NAMED in line for lines in (self.lines, *(each.lines for each in running)) for line in list(lines))

    def acked(self) -> dict[int, tuple[int, int]]:
        return dict(read_journal(self.paths.journal)[STREAM].acked)

    def hot(self) -> Entries:
        return hot_entries(self.paths.database, STREAM) if self.paths.database.exists() else {}


def run(seed: int, endpoint: Endpoint, folder: Path, *, bucket: str, root: str) -> Outcome:
    """One draw in an empty folder over an S3 server; what came of it.

    Args:
        bucket, root: an empty place there.
    """
    outcome, dice, kind = Outcome(), random.Random(seed), class_of(seed)
    environment = {**endpoint.environment, "NO_PROXY": "127.0.0.1"}
    client = boto3.client(
        "s3",
        endpoint_url=endpoint.url,
        region_name="us-east-1",
        aws_access_key_id=endpoint.access_key,
        aws_secret_access_key=endpoint.secret_key,
    )
    contents = S3Contents(client, bucket, root)
    with ExitStack() as stack:
        stack.callback(client.close)
        side = _Side("a", folder, f"s3://{bucket}/{root}", environment)
        sides = [side]
        stack.callback(side.roles.close)
        side.start()
        eventually(lambda: len(_cold(contents)) >= ENTRIES_BEFORE, within_s=WITHIN_S)
        backup = folder / "backup"
        if kind == "restored":
            _copy(side.paths.database, backup)
            if dice.random() < 0.5:
                side.stop(hard=True)
                side.start()
            wanted = len(_cold(contents)) + ENTRIES_BEFORE
            eventually(lambda: len(_cold(contents)) >= wanted, within_s=WITHIN_S)
        if kind == "opened twice":
            other = _Side("b", folder, f"s3://{bucket}/{root}", environment)
            sides.append(other)
            stack.callback(other.roles.close)
            _copy(side.paths.database, other.paths.database.parent)
            shutil.copy(side.paths.journal, other.paths.journal)
            known = set(side.acked())
            other.start()
        else:
            side.stop(hard=dice.random() < 0.5)
            known = set(side.acked())
            shutil.rmtree(side.paths.database.parent)
            if kind == "restored":
                backup.rename(side.paths.database.parent)
            else:
                side.paths.database.parent.mkdir()
            side.start()
        changed = sides[-1]
        eventually(lambda: len(set(changed.acked()) - known) >= ENTRIES_AFTER, within_s=WITHIN_S)
        try:
            eventually(lambda: any(each.is_named() for each in sides), within_s=WITHIN_S)
        except AssertionError:
            outcome.problems.append(f"nobody said in {WITHIN_S:g} s that the database isn't the one the manifest knows")
        for each in sides:
            each.stop(hard=False)
        _judge(outcome, sides, _cold(contents), known, is_gone=kind != "opened twice")
        outcome.said = [f"{each.paths.folder.name}: {line}" for each in sides for line in each.lines]
    return outcome


def _judge(outcome: Outcome, sides: Sequence[_Side], cold: Entries, known: set[int], *, is_gone: bool) -> None:
    """Compares what was acknowledged with what both tiers have.

    Args:
        known: numbers that were acknowledged before the database was changed.
        is_gone: those may have gone with their database where the store doesn't have them.
    """
    in_store = {number_of(STREAM, payload): place for place, payload in cold.items()}
    for side in sides:
        hot, acked = side.hot(), side.acked()
        in_hot = {number_of(STREAM, payload): place for place, payload in hot.items()}
        outcome.acknowledged += len(acked)
        lost = [n for n, place in acked.items() if place not in (in_store.get(n), in_hot.get(n))]
        excused = [n for n in lost if n in known] if is_gone else []
        outcome.destroyed += len(excused)
        rest = sorted(set(lost) - set(excused))
        if rest:
            first = f"the first is number {rest[0]} at {acked[rest[0]]}"
            outcome.problems.append(f"{side.paths.folder.name}: lost: {len(rest)} acknowledged entries, {first}")
    if None in in_store:
        outcome.problems.append("the store has entries that nobody appended")


def _cold(contents: S3Contents) -> Entries:
    keys = contents.names()
    if not any(key.startswith(f"_catalog/{STREAM}") for key in keys):
        return {}
    manifest = read_manifest(contents, STREAM, keys)
    found, problems = cold_entries(contents, manifest)
    assert not problems, problems
    return found


def _copy(database: Path, folder: Path) -> None:
    """A consistent copy of a database in use, as a backup tool makes one."""
    folder.mkdir(exist_ok=True)
    with closing(sqlite3.connect(database)) as old, closing(sqlite3.connect(folder / database.name)) as new:
        old.backup(new)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="./dev chaos --database", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, help="this one alone")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--seeds", type=int, default=12, help="how many")
    parser.add_argument("--server", choices=(*SERVERS, "moto"), help="default: MinIO and versitygw in turns")
    options = parser.parse_args(arguments)
    seeds = [options.seed] if options.seed is not None else range(options.first, options.first + options.seeds)
    # Ended in good order, so that no server and no process is left behind
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    broken = 0
    for seed in seeds:
        server = options.server or SERVERS[seed // len(CLASSES) % 2]
        with running(server) as endpoint, tempfile.TemporaryDirectory(prefix="databases-") as folder:
            make_bucket(endpoint, _BUCKET)
            outcome = run(seed, endpoint, Path(folder), bucket=_BUCKET, root=f"seed-{seed}")
        broken += bool(outcome.problems)
        print(
            f"seed {seed}: {class_of(seed)}, {server}: {outcome.acknowledged:,} acknowledged, {outcome.destroyed:,} "
            f"went with their database; {'; '.join(outcome.problems) or 'nothing else lost, and it was named'}",
            flush=True,
        )
        if outcome.problems:
            log = Path(f"artifacts/database-{seed}.log")
            log.parent.mkdir(exist_ok=True)
            log.write_text("\n".join(outcome.said))
            print(f"  again: ./dev chaos --database --seed {seed} --server {server}; log: {log}", flush=True)
    print(f"{len(seeds)} draws, {broken} broken")
    return 1 if broken else 0


if __name__ == "__main__":
    os.environ.setdefault("AWS_EC2_METADATA_DISABLED", "true")
    sys.exit(main())
