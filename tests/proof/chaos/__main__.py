"""``./dev chaos``: kills and faults on the real path, round after round, with the oracle's word after each.

Exit code 1 where the oracle found something.
"""

from __future__ import annotations

import argparse
import shutil
import signal
import sys
import tempfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

from services.servers import Unavailable
from services.toxiproxy import Toxiproxy, toxiproxy
from tests.proof.chaos.chaos_outcome import ROOT, Kept, NotKept, Outcome, code_version, table
from tests.proof.chaos.chaos_round import play
from tests.proof.chaos.chaos_schedule import KILLS_A_ROUND, SERVERS, Round, round_of

__all__ = ["main"]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(prog="./dev chaos", description=__doc__.splitlines()[0] if __doc__ else "")
    parser.add_argument("--seed", type=int, default=1, help="of the first round; the next ones follow (default: 1)")
    parser.add_argument("--kills", type=int, default=200, help="in all (default: 200)")
    parser.add_argument("--round", type=int, default=KILLS_A_ROUND, help=f"kills in a world (default: {KILLS_A_ROUND})")
    parser.add_argument("--from", type=int, default=1, metavar="ROUND", dest="begin", help="go on with this one")
    parser.add_argument("--server", choices=SERVERS, default="", help="default: in turns")
    parser.add_argument("--no-spark", action="store_true", help="without Spark jobs")
    parser.add_argument("--keep", metavar="FOLDER", default="", help="keep everything there, not only what went wrong")
    given = parser.parse_args(arguments)
    if min(given.kills, given.round) < 1:
        parser.error("--kills and --round: at least 1, or nothing is tried")
    rounds = planned(given)
    if not 1 <= given.begin <= len(rounds):
        parser.error(f"--from: 1 to {len(rounds)}")
    # Ended in good order, so that no server and no mount is left behind
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    kept = Kept(ROOT / "artifacts" / f"chaos-{given.seed}.jsonl", run_of(given))
    outcomes: list[Outcome] = []
    try:
        if given.begin == 1:
            kept.begin()
        else:
            outcomes += kept.first(given.begin - 1)
        print(f"{given.kills} kills in {len(rounds)} rounds, version {code_version()}", flush=True)
        with toxiproxy() as faults:
            for each in rounds[given.begin - 1 :]:
                outcomes.append(_play(each, f"round {len(outcomes) + 1} of {len(rounds)}, ", given, faults))
                kept.add(outcomes[-1])
    except (Unavailable, NotKept) as error:
        print(f"chaos: {error}", file=sys.stderr)
        return 2
    finally:
        for line in table(outcomes):
            print(line)
        if len(outcomes) < len(rounds):
            again = options_of(given, given.seed, given.kills, given.server)
            print(f"broken off; go on: ./dev chaos {again} --from {len(outcomes) + 1}", flush=True)
    return 1 if any(outcome.findings for outcome in outcomes) else 0


def planned(given: argparse.Namespace) -> list[Round]:
    """All rounds of a run."""
    counts = [min(given.round, given.kills - done) for done in range(0, given.kills, given.round)]
    return [
        round_of(seed, kills, with_spark=not given.no_spark, server=given.server)
        for seed, kills in enumerate(counts, given.seed)
    ]


def run_of(given: argparse.Namespace) -> dict[str, object]:
    """What makes a run this one."""
    options = {name: getattr(given, name) for name in ("seed", "kills", "round", "server", "no_spark")}
    return {**options, "version": code_version()}


def options_of(given: argparse.Namespace, seed: int, kills: int, server: str) -> str:
    """The options that say the same again."""
    named = f" --server {server}" if server else ""
    return f"--seed {seed} --kills {kills} --round {given.round}{named}{' --no-spark' * given.no_spark}"


def _play(each: Round, which: str, given: argparse.Namespace, faults: Toxiproxy) -> Outcome:
    folder = Path(tempfile.mkdtemp(prefix=f"chaos-{each.seed}-", dir=given.keep or None))
    outcome = play(each, folder, faults, lambda line: print(which + line, file=sys.stderr, flush=True))
    say = partial(print, flush=True)
    sound = "nothing lost, twice or dangling" if outcome.ahead else "nothing lost, twice, dangling or leaked"
    verdict = f"{len(outcome.findings)} findings" if outcome.findings else sound
    say(f"{which}seed {each.seed}: {each.server}: {outcome.acknowledged:,} acknowledged entries, {verdict}")
    for finding in outcome.findings:
        say(f"  {finding}")
    if outcome.findings:
        say(f"  again: ./dev chaos {options_of(given, each.seed, len(each.steps), each.server)}")
        say(f"  what it left: {folder}")
    elif not given.keep:
        shutil.rmtree(folder, ignore_errors=True)
    return outcome


if __name__ == "__main__":
    sys.exit(main())
