"""Two sidecars for one stream and a network that falls apart: one run of a plan, and what the bucket says of it.

    ./dev chaos --partition                     # twenty seeds, MinIO and versitygw in turns
    ./dev chaos --partition --seed 7 --server versitygw

The broker is the fake one of ``offloader.testing``, in this process: a failover subscription decides who works, real
sockets carry it, and it gives up who is silent.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import sys
import tempfile
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path

import boto3

from services.servers import Endpoint, make_bucket, running
from services.toxiproxy import Toxiproxy, toxiproxy
from tests.formats.pulsar_entries import Sent, single_entry
from tests.independent_manifest import Manifest, read_manifest
from tests.proof.chaos.chaos_oracle import S3Contents, cold_entries
from tests.proof.chaos.partition_schedule import Plan, Role, Step, Way, plan
from tests.proof.chaos.partition_sidecar import Sidecar, settings_of
from tests.support.pulsar_admin import FakeAdmin
from tests.support.pulsar_broker import FakeBroker
from tests.support.pulsar_topics import FakeTopic
from tests.support.waiting import eventually, settled

__all__ = ["Outcome", "owners_problems", "run"]

TOPIC, STREAM = "persistent://t/n/orders", "t/n/persistent/orders"
SUBSCRIPTION = "offloader"
#: After so much silence the broker asks, and after as much again it lets the other process work. The processes may be
#: slower to give a silent broker up: meanwhile the one whose turn is over doesn't know.
BROKERS_KEEP_ALIVE_S = 0.3
STARTED_WITHIN_S = 150.0
#: With every way healed, after so long without a further entry in the store the run is called stalled.
STALLED_S = 150.0
LOOK_S = 0.05

Entry = tuple[int, int, bytes]


@dataclass(slots=True)
class Outcome:
    """What came of a run.

    Attributes:
        cuts, starts: ways that were cut; processes that were begun.
        turns: how often the broker said whose turn it is. On a machine so busy that a process says nothing for long,
            more often than ways are cut.
        epochs, commits: of the manifest.
        entries: that were produced.
        problems: empty, or what must not be.
        said: what the processes logged.
    """

    starts: int = 0
    turns: int = 0
    cuts: int = 0
    epochs: int = 0
    commits: int = 0
    entries: int = 0
    problems: list[str] = field(default_factory=list)
    said: list[str] = field(default_factory=list)


#: Fields of an outcome that are told, with their words.
_COUNTED: Mapping[str, str] = {
    "cuts": "ways cut",
    "starts": "starts",
    "turns": "turns",
    "epochs": "epochs",
    "commits": "commits",
    "entries": "entries",
}


class Bucket:
    """The stream as it lies in the bucket, asked for without any proxy."""

    def __init__(self, endpoint: Endpoint, bucket: str, root: str) -> None:
        self._client = boto3.client(
            "s3",
            endpoint_url=endpoint.url,
            region_name="us-east-1",
            aws_access_key_id=endpoint.access_key,
            aws_secret_access_key=endpoint.secret_key,
        )
        # Nothing is deleted here: what was read once needn't be read again.
        self._contents = S3Contents(self._client, bucket, root, {}, is_kept=lambda key: not key.endswith("/boundary"))

    def found(self) -> tuple[Manifest, list[Entry], list[str]]:
        """The manifest, the entries that it says are offloaded, in order, and what is wrong with either."""
        manifest = read_manifest(self._contents, STREAM)
        cold, findings = cold_entries(self._contents, manifest)
        entries = [(*place, payload) for place, payload in sorted(cold.items())]
        return manifest, entries, manifest.findings + findings

    def close(self) -> None:
        self._client.close()


class Partitioned:
    """Two sidecars, a topic, and what was produced.

    Args:
        bucket: where they offload to.
        sidecars: both of them.
        topic: what they offload.
        outcome: takes what is found.
    """

    def __init__(self, bucket: Bucket, sidecars: Sequence[Sidecar], topic: FakeTopic, outcome: Outcome) -> None:
        self._bucket, self._sidecars, self._topic, self._outcome = bucket, sidecars, topic, outcome
        self._produced: list[Entry] = []

    def begin(self) -> None:
        """Starts both and waits for the first commit."""
        for sidecar in self._sidecars:
            sidecar.start()
        eventually(lambda: all(sidecar.has_started for sidecar in self._sidecars), within_s=STARTED_WITHIN_S)
        self._produce(5, 0)
        self.await_all()

    def do(self, step: Step) -> None:
        """One step; at its end everything is connected again."""
        self._outcome.cuts += len(step.cuts)
        by_role, entries = self._roles(), step.entries // 3 + 1
        self._produce(entries, step.seconds / 6)  # so that something is on its way
        for cut in step.cuts:
            by_role[cut.whose].cut(cut)
        self._produce(entries, step.seconds / 2)
        for cut in step.cuts:
            if cut.is_short:
                by_role[cut.whose].heal(cut.way)
        if step.killed is not None:
            by_role[step.killed].kill()
            by_role[step.killed].start()
        if step.closes_ledger:
            self._topic.roll()
        self._produce(entries, step.seconds / 2)
        self.look()
        for sidecar in self._sidecars:
            sidecar.heal()
            sidecar.start()
        if step.heals:
            self._produce(1, 0)
            self.await_all()

    def await_all(self) -> None:
        """Waits until exactly what was produced is offloaded; as long as it goes on, however slowly."""

        def look() -> tuple[list[Entry], list[str]]:
            for sidecar in self._sidecars:
                sidecar.start()
            _, entries, wrong = self._bucket.found()
            return entries, wrong

        def is_done(seen: tuple[list[Entry], list[str]]) -> bool:
            return seen[0] == self._produced or bool(seen[1])

        if not settled(look, is_done, still_s=STALLED_S, look_s=LOOK_S):
            self._outcome.problems.append(
                f"{len(self._produced)} entries were produced, {len(look()[0])} are there, or others, and nothing "
                f"came in {STALLED_S:g} s, with everything healed"
            )

    def look(self) -> Manifest:
        """What holds at any time; the manifest.

        Nothing is there that wasn't produced, in another order, or twice; one owner wrote after the other; the broker
        wasn't told to give up what isn't committed.
        """
        given_up = self._topic.mark_delete(SUBSCRIPTION)
        manifest, entries, wrong = self._bucket.found()
        problems = self._outcome.problems
        problems += wrong
        if entries != self._produced[: len(entries)]:
            problems.append("what is offloaded isn't what was produced first")
        if given_up is not None and (not entries or entries[-1][:2] < tuple(given_up)):
            problems.append(f"the broker was told to give up {given_up}, offloaded is {entries[-1:] or 'nothing'}")
        return manifest

    def judge(self) -> None:
        """At the end, with nothing on its way any more."""
        manifest, outcome = self.look(), self._outcome
        outcome.starts = sum(each.starts for each in self._sidecars)
        outcome.commits, outcome.epochs, outcome.entries = manifest.records, manifest.epoch, len(self._produced)
        outcome.turns = self._topic.turns(SUBSCRIPTION)
        outcome.problems += owners_problems(manifest, epochs_max=outcome.turns + outcome.cuts)
        outcome.problems += [f"a gap was recorded: {gap}" for gap in manifest.gaps]

    def _roles(self) -> dict[Role, Sidecar]:
        """Who has the stream, as the newest epoch says, and who doesn't."""
        owner = self._bucket.found()[0].owner
        first, second = self._sidecars
        return {"owner": first, "other": second} if first.is_named(owner) else {"owner": second, "other": first}

    def _produce(self, count: int, seconds: float) -> None:
        """So many entries, evenly over that time, which is how long a way is cut."""
        never = threading.Event()
        for _ in range(count):
            stored = single_entry(Sent(value=b"entry %d" % len(self._produced)))
            position = self._topic.append(stored)
            self._produced.append((position.ledger_id, position.entry_id, stored))
            never.wait(seconds / count)


def owners_problems(manifest: Manifest, *, epochs_max: int) -> list[str]:
    """What contradicts that two processes share a stream quietly, beyond what can't be in any manifest.

    Args:
        epochs_max: how often the stream may have changed hands.
    """
    found = []
    if manifest.epoch > epochs_max:
        found.append(f"the stream changed hands {manifest.epoch} times, at most {epochs_max} are explained")
    if manifest.assigned_most > 1:
        found.append(f"{manifest.assigned_most} segments were assigned at once")
    return found


def run(
    plan: Plan,
    endpoint: Endpoint,
    faults: Toxiproxy,
    *,
    bucket: str,
    root: str,
    say: Callable[[str], object] = lambda _: None,
) -> Outcome:
    """One run over an S3 server, with a topic of its own; what came of it.

    Args:
        bucket, root: an empty place there.
        say: hears of each step.
    """
    outcome = Outcome()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="partition-")))
        keys = {"AWS_ACCESS_KEY_ID": endpoint.access_key, "AWS_SECRET_ACCESS_KEY": endpoint.secret_key}
        stack.enter_context(_environment(keys))
        look = stack.enter_context(contextlib.closing(Bucket(endpoint, bucket, root)))
        broker = stack.enter_context(FakeBroker(keep_alive_s=BROKERS_KEEP_ALIVE_S, is_proxied=True))
        topic = FakeTopic(broker, TOPIC)
        admin = stack.enter_context(FakeAdmin(topic))
        targets: dict[Way, str] = {"store": endpoint.url, "broker": f"http://{broker.address}", "admin": admin.url}

        def settings(urls: Mapping[Way, str]) -> str:
            return settings_of(urls, endpoint, f"s3://{bucket}/{root}", plan)

        sidecars = [Sidecar(folder / f"{name}.toml", faults, targets, settings) for name in "ab"]
        for sidecar in sidecars:
            stack.callback(sidecar.close)
        partitioned = Partitioned(look, sidecars, topic, outcome)
        partitioned.begin()
        for number, step in enumerate(plan.steps, 1):
            say(f"step {number} of {len(plan.steps)}: {step}")
            partitioned.do(step)
        partitioned.judge()
    for sidecar in sidecars:
        outcome.said += sidecar.said
    return outcome


@contextlib.contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Variables that processes started within have."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
            else:
                os.environ[name] = value


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(
        prog="./dev chaos --partition", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--seed", type=int, help="this one alone")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--seeds", type=int, default=20, help="how many")
    parser.add_argument("--steps", type=int, default=10, help="partitions of a run, one after the other")
    parser.add_argument("--seconds", type=float, default=4.0, help="the longest that one holds")
    parser.add_argument(
        "--server", choices=("minio", "versitygw", "moto"), help="default: MinIO and versitygw in turns"
    )
    options = parser.parse_args(arguments)
    seeds = [options.seed] if options.seed is not None else range(options.first, options.first + options.seeds)
    outcomes = []
    with toxiproxy() as faults:
        for seed in seeds:
            server = options.server or ("minio", "versitygw")[seed % 2]
            with running(server) as endpoint:
                make_bucket(endpoint, "partitions")
                outcome = run(
                    plan(seed, options.steps, seconds=options.seconds),
                    endpoint,
                    faults,
                    bucket="partitions",
                    root=f"seed-{seed}",
                    say=(lambda line: print(line, flush=True)) if options.seed is not None else (lambda _: None),
                )
            outcomes.append(outcome)
            print(f"{len(outcomes)} of {len(seeds)}: seed {seed}, {server}: {counts([outcome])}", flush=True)
            if outcome.problems:
                again = f"--seed {seed} --steps {options.steps} --seconds {options.seconds:g} --server {server}"
                _tell(outcome, again, Path(f"artifacts/partition-{seed}.log"))
    broken = sum(bool(outcome.problems) for outcome in outcomes)
    print(f"{len(outcomes)} runs, {broken} broken: {counts(outcomes)}")
    return 1 if broken else 0


def counts(outcomes: Sequence[Outcome]) -> str:
    """What was done and what came of it, in all of them."""
    sums = {name: sum(getattr(outcome, name) for outcome in outcomes) for name in _COUNTED}
    return ", ".join(f"{total:,} {words}" for words, total in zip(_COUNTED.values(), sums.values(), strict=True))


def _tell(outcome: Outcome, again: str, log: Path) -> None:
    log.parent.mkdir(exist_ok=True)
    log.write_text("\n".join(outcome.said))
    print(*outcome.problems, f"again: ./dev chaos --partition {again}; log: {log}", sep="\n  ", flush=True)


if __name__ == "__main__":
    sys.exit(main())
