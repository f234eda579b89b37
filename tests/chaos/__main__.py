"""``./dev chaos``: kills and faults on the real path, round after round, with the oracle's word after each.

Owns options, progress and the table at the end. Exit code 1 where the oracle found something.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Sequence
from pathlib import Path

from services.servers import Unavailable
from services.toxiproxy import toxiproxy
from tests.chaos.chaos_round import Outcome, play
from tests.chaos.chaos_schedule import KILLS_A_ROUND, SERVERS, round_of

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="./dev chaos", description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seed", type=int, default=1, help="of the first round; the next ones follow (default: 1)")
    parser.add_argument("--kills", type=int, default=200, help="in all (default: 200)")
    parser.add_argument("--round", type=int, default=KILLS_A_ROUND, help=f"kills in a world (default: {KILLS_A_ROUND})")
    parser.add_argument("--server", choices=SERVERS, default="", help="default: in turns")
    parser.add_argument("--no-spark", action="store_true", help="without Spark jobs")
    parser.add_argument("--keep", metavar="FOLDER", default="", help="keep everything there, not only what went wrong")
    given = parser.parse_args(arguments)
    if min(given.kills, given.round) < 1:
        parser.error("--kills and --round: at least 1, or nothing is tried")
    # Ended in good order, so that no server and no mount is left behind
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    outcomes: list[Outcome] = []
    begin_s = time.monotonic()
    try:
        with toxiproxy() as faults:
            left, seed = given.kills, given.seed
            while left > 0:
                kills = min(left, given.round)
                planned = round_of(seed, kills, with_spark=not given.no_spark, server=given.server)
                folder = Path(tempfile.mkdtemp(prefix=f"chaos-{seed}-", dir=given.keep or None))
                outcome = play(planned, folder, faults, lambda line: print(line, file=sys.stderr, flush=True))
                outcomes.append(outcome)
                _report(outcome, kills, given.no_spark)
                if not outcome.findings and not given.keep:
                    shutil.rmtree(folder, ignore_errors=True)
                left, seed = left - kills, seed + 1
    except Unavailable as error:
        print(f"chaos: {error}", file=sys.stderr)
        return 2
    for line in table(outcomes, time.monotonic() - begin_s):
        print(line)
    return 1 if any(outcome.findings for outcome in outcomes) else 0


def _report(outcome: Outcome, kills: int, no_spark: bool) -> None:
    sound = "nothing lost, twice or dangling" if outcome.ahead else "nothing lost, twice, dangling or leaked"
    verdict = f"{len(outcome.findings)} findings" if outcome.findings else sound
    print(
        f"seed {outcome.seed}: {outcome.server}: {outcome.acknowledged:,} acknowledged entries, {verdict}", flush=True
    )
    for finding in outcome.findings:
        print(f"  {finding}")
    if outcome.findings:
        options = f"--seed {outcome.seed} --kills {kills} --server {outcome.server}{' --no-spark' * no_spark}"
        print(f"  again: ./dev chaos {options} --round {kills}", flush=True)


def table(outcomes: Sequence[Outcome], seconds: float) -> Iterable[str]:
    """What was injected and what was found, in lines."""
    killed, by_time, injected, skipped = (
        _sum(getattr(outcome, name) for outcome in outcomes) for name in ("killed", "by_time", "injected", "skipped")
    )
    yield f"{'KILLED':<20} {'AT ITS REQUEST':>15} {'BY TIME':>8}"
    for role in sorted({*killed, *by_time}):
        yield f"{role:<20} {killed[role]:>15} {by_time[role]:>8}"
    yield f"{'FAULT':<20} {'BEGUN':>15} {'NOT':>8}"
    for kind in sorted({*injected, *skipped}):
        yield f"{kind:<20} {injected[kind]:>15} {skipped[kind]:>8}"
    exits = _sum(outcome.exits for outcome in outcomes)
    yield "ended by themselves: " + (", ".join(f"{count} x {each}" for each, count in sorted(exits.items())) or "none")
    totals = {
        name: sum(getattr(outcome, name) for outcome in outcomes)
        for name in ("acknowledged", "entries", "segments", "purged", "records", "epochs", "refused")
    }
    yield ", ".join(f"{total:,} {name}" for name, total in totals.items())
    kills = sum(killed.values()) + sum(by_time.values())
    found = sum(len(outcome.findings) for outcome in outcomes)
    yield f"{kills} kills in {len(outcomes)} rounds, {seconds:.0f} s: {found or 'no'} findings"


def _sum(counters: Iterable[Counter[str]]) -> Counter[str]:
    total: Counter[str] = Counter()
    for counter in counters:
        total += counter
    return total


if __name__ == "__main__":
    sys.exit(main())
