"""What a retention cycle over many streams costs: deciding, and thinning what was recorded.

    python benchmarks/bench_retention.py [--streams 10000] [--records 1000] [--subscribers 10] [--json]

A third of the streams each: plain topics whose cuts are positions, measured against a list of 500 ledgers; topics of
four partitions; streams that were split and merged eight times. Policies by size, by time and by consumption, with
limits that make each kind of rule decide. Times are of the processor, on one core, without making the situations, of
which each is made anew from one of some hundred histories.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple
from uuid import UUID

from formats.entries import Position
from offloader.ledgers.base import LedgerInfo
from offloader.manifest.state import ManifestState
from offloader.retention.cuts import Offset, Record, SegmentId, StreamCut
from offloader.retention.decide import Situation, Subscription, decide
from offloader.retention.entries import PartitionEntries, StreamEntries
from offloader.retention.lineage import Lineage, LineageMeasure, Measure
from offloader.retention.policy import Limits, Policy, PolicyKind, Unit
from offloader.retention.state import RetentionSet

sys.path.insert(0, str(Path(__file__).parent.parent))
from tests.retention.lineages import ScalableLineage

HALF_HOUR_MS = 1_800_000
STEP_BYTES = 2**26
LEDGERS, LEDGER_ENTRIES, ENTRY_BYTES = 500, 50_000, 1024
HISTORIES = 120
SCALINGS = 8


class History(NamedTuple):
    """A stream whose tail is a function of how far it is, from 0 to 1."""

    lineage: Lineage
    measure: Measure
    place: Callable[[float], StreamCut]
    records: RetentionSet
    total_bytes: int


def plain(count: int, _: random.Random) -> History:
    """Positions, as our own streams have them."""
    infos = [
        LedgerInfo(
            ledger_id=n, entries=LEDGER_ENTRIES, size_bytes=LEDGER_ENTRIES * ENTRY_BYTES, closed=True, created_ms=0
        )
        for n in range(1, LEDGERS + 1)
    ]
    total = LEDGERS * LEDGER_ENTRIES

    def place(part: float) -> StreamCut:
        ledger, entry = divmod(min(int(part * total), total - 1), LEDGER_ENTRIES)
        return StreamCut({SegmentId(0, 0): Position(ledger + 1, entry)})

    measure = StreamEntries({0: PartitionEntries(ManifestState(stream="plain", incarnation=UUID(int=0)), infos)})
    return recorded(Lineage.of_partitions(range(1)), measure, place, count)


def partitioned(count: int, noise: random.Random) -> History:
    speeds = [noise.uniform(0.5, 2) * STEP_BYTES * count for _ in range(4)]
    lineage = Lineage.of_partitions(range(4))

    def place(part: float) -> StreamCut:
        return StreamCut({SegmentId(n, 0): 1 + int(part * speed) for n, speed in enumerate(speeds)})

    return recorded(lineage, LineageMeasure(lineage), place, count)


def scaled(count: int, noise: random.Random) -> History:
    """Each ninth of the history lies in an epoch of its own."""
    first = [SegmentId(n, 0) for n in range(4)]
    lineage = ScalableLineage.build({s: (s.number / 4, (s.number + 1) / 4) for s in first}, [first])
    size = STEP_BYTES * count // (SCALINGS + 1)
    epochs = [lineage.active]
    for _ in range(SCALINGS):
        begin = noise.randrange(len(lineage.active))
        run = lineage.active[begin : begin + noise.randint(1, 2)]
        low, high = run[0].key_from, run[-1].key_to
        ranges = [(low, high)] if len(run) > 1 else [(low, (low + high) / 2), ((low + high) / 2, high)]
        lineage = lineage.scaled({one.segment: size for one in run}, ranges)
        epochs.append(lineage.active)

    def place(part: float) -> StreamCut:
        epoch, rest = divmod(min(part, 1 - 1e-9) * len(epochs), 1)
        offsets: dict[SegmentId, Offset] = {}
        for one in epochs[int(epoch)]:
            age = int(epoch) - one.segment.epoch + rest
            offsets[one.segment] = int(age / (SCALINGS + 1) * size)
        return StreamCut(offsets)

    return recorded(lineage, LineageMeasure(lineage), place, count)


def recorded(lineage: Lineage, measure: Measure, place: Callable[[float], StreamCut], count: int) -> History:
    tails = [place((number + 1) / count) for number in range(count)]
    sizes = [measure.bytes_before(tail) or 0 for tail in tails]
    records = [
        Record((n + 1) * HALF_HOUR_MS, tail, size) for n, (tail, size) in enumerate(zip(tails, sizes, strict=True))
    ]
    return History(lineage, measure, place, RetentionSet(tuple(records)), sizes[-1])


def situation(history: History, subscribers: int, noise: random.Random) -> Situation:
    end_ms = history.records.records[-1].time_ms
    unit = noise.choice(list(Unit))
    whole = end_ms if unit is Unit.TIME else history.total_bytes
    low = noise.uniform(0, 0.3)
    limits = Limits(unit, int(low * whole), int(whole * noise.uniform(low, 0.9)) if noise.random() < 0.8 else None)
    kind = noise.choice([PolicyKind(unit.value), PolicyKind.CONSUMPTION])
    head = noise.uniform(0, 0.3)
    behind, ahead = noise.choice([(0.0, 1.0), (0.0, 0.2), (0.4, 0.8), (0.9, 1.0)])
    return Situation(
        policy=Policy(kind=kind, limits=limits, subscriber_timeout_ms=HALF_HOUR_MS),
        lineage=history.lineage,
        measure=history.measure,
        records=history.records,
        head=history.place(head),
        now_ms=end_ms + 1000,
        created_ms=0,
        head_time_ms=int(head * end_ms),
        tail=history.place(1),
        subscriptions=tuple(
            Subscription(name=f"s{n}", cut=history.place(noise.uniform(behind, ahead)), is_active=noise.random() < 0.9)
            for n in range(subscribers if noise.random() < 0.9 else 0)
        ),
    )


def measure(streams: int, records: int, subscribers: int) -> dict[str, object]:
    noise = random.Random(7)
    shapes = [plain, partitioned, scaled]
    histories = [shapes[n % 3](records, noise) for n in range(min(HISTORIES, streams))]
    rules: Counter[str] = Counter()
    spent_s = {shape.__name__: 0.0 for shape in shapes}
    cuts, thin_s = 0, 0.0
    for number in range(streams):
        one = situation(histories[number % len(histories)], subscribers, noise)
        began_s = time.process_time()
        decision = decide(one)
        spent_s[shapes[number % len(histories) % 3].__name__] += time.process_time() - began_s
        rules[decision.rule.name] += 1
        cuts += decision.cut is not None
        if number % 100 == 0:
            began_s = time.process_time()
            limits = one.policy.limits
            one.records.thinned(one.now_ms, [limits] if limits else [], decision.used_ms)
            thin_s += time.process_time() - began_s
    return {
        "streams": streams,
        "records": records,
        "subscribers": subscribers,
        "decide_cpu_s": sum(spent_s.values()),
        "decide_cpu_ms_each": {name: 3000 * spent / streams for name, spent in spent_s.items()},
        "thin_cpu_ms_each": thin_s * 1000 / len(range(0, streams, 100)),
        "truncated": cuts,
        "rules": dict(rules.most_common()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--streams", type=int, default=10_000)
    parser.add_argument("--records", type=int, default=1000)
    parser.add_argument("--subscribers", type=int, default=10)
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    found = measure(options.streams, options.records, options.subscribers)
    if options.json:
        print(json.dumps(found))
        return
    print(f"{found['streams']:,} streams, each {found['records']:,} recorded cuts, {found['subscribers']} subscribers")
    print(f"  deciding: {found['decide_cpu_s']:.2f} s of one core; {found['truncated']:,} streams are truncated")
    for name, each_ms in found["decide_cpu_ms_each"].items():  # type: ignore[attr-defined]
        print(f"    {name}: {each_ms:.3f} ms each")
    print(f"  thinning the records of one: {found['thin_cpu_ms_each']:.2f} ms")
    print(f"  rules: {', '.join(f'{name.lower()} {count:,}' for name, count in found['rules'].items())}")  # type: ignore[attr-defined]


if __name__ == "__main__":
    main()
