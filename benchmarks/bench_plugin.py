"""A consumer through the broker over cold history: our plugin beside Pulsar's own offloader and BookKeeper.

    python benchmarks/bench_plugin.py [--mib 64] [--rounds 3] [--delays 0 30] [--json]      # --mib 1024: as documented

Three brokers of one release, each with the same messages (1 KiB, batches of 100): one offloaded by the plugin and a
sidecar, one by tiered-storage-jcloud, both to one MinIO, and one that keeps them in BookKeeper. In turns, with nothing
and 30 ms added to each request to MinIO: a Java reader from the first message on, three of them that begin one after
the other, one entry by its id through the admin interface and another one of its ledger, and a seek by time. The last
three are done twice: in the topic that was read as a whole before, and in one of which nothing but these was read
(unread). Pulsar's own offloader remembers the place of each entry that it read for five minutes, and without it reads
a block of 64 MiB from its beginning. The bookie of the first two has no such ledgers meanwhile. The reader runs in the
broker's process, whose processor time, with that of the sidecar, is a figure that still tells something while other
programs share the cores; the number of requests to MinIO is another one.
"""

from __future__ import annotations

import argparse
import json
import random
import signal
import statistics
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

sys.path.insert(0, str(Path(__file__).parent.parent))

from benchmarks.s3_rig import cpu_s
from services.pulsar.broker import offload_settings
from services.pulsar.build import find_place
from services.servers import Endpoint, running
from services.slow_proxy import SlowProxy

KIB, MIB = 1024, 1024 * 1024
MESSAGE_BYTES, BATCH = KIB, 100
#: Ledgers of each topic.
LEDGERS = 8
SINGLES = 8
SEEKS = 5
#: Unmeasured rounds, in which Java compiles what the others run.
WARM_UPS = 2
TIERS = ("plugin", "jcloud", "bookkeeper")
#: Of a topic of which nothing else was read.
UNREAD = " (unread)"
FIGURES = (
    "read, MB/s",
    "read, CPU s per GB",
    "three readers, MB/s",
    "first message, ms",
    *(
        f"{what}{of}, {unit}"
        for of in ("", UNREAD)
        for what in ("one entry", "another one", "seek by time")
        for unit in ("ms", "requests")
    ),
)
#: That begin one after the other, each when the one before it has a quarter of the messages.
READERS = 3
#: As a broker runs, not as the tests' rig starts quickly.
JAVA = ("-Xmx1g", "-XX:MaxDirectMemorySize=1g", "-XX:TieredStopAtLevel=4", "-XX:-UseSerialGC", "-XX:+UseG1GC")

#: The sidecar's defaults: the tests' seldom rest, and the other brokers have no sidecar to share the processor with.
DISCOVERY, CYCLE = "30s", "30m"


@dataclass
class Tier:
    """One broker's topic.

    Attributes:
        times_ms: when its first and last message were sent.
        ledgers: that are cold: id -> entries.
        uploads, uploads_bytes: objects with entries that were put into the bucket while the broker offloaded.
        figures: (what, delay in ms) -> what was measured.
        unread: the same with half of the messages in another topic, of which only single entries are looked up.
    """

    name: str
    world: Any
    topic: str
    count: int
    times_ms: tuple[int, int]
    ledgers: dict[int, int]
    uploads: int
    uploads_bytes: int
    figures: dict[tuple[str, float], list[float]] = field(default_factory=dict)
    unread: Tier | None = None

    def add(self, what: str, delay_ms: float, figure: float) -> None:
        self.figures.setdefault((what, delay_ms), []).append(figure)

    def load(self) -> None:
        """What the broker keeps in memory of the topic is dropped, and the topic is there again."""
        from tests.plugin.plugin_world import eventually_some, path_of

        self.world.admin("PUT", f"{path_of(self.topic)}/unload")
        eventually_some(lambda: self.world.ledgers(self.topic))


@contextmanager
def slow(endpoint: Endpoint) -> Iterator[tuple[str, SlowProxy]]:
    """A proxy whose delay can be changed; its work is done by the kernel, and nothing else runs here meanwhile."""
    at = urlsplit(endpoint.url)
    proxy = SlowProxy((str(at.hostname), int(at.port or 80)), 0.0)
    thread = threading.Thread(target=proxy.serve, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{proxy.port}", proxy
    finally:
        proxy.close()
        thread.join()


def settings_of(name: str, url: str, bucket: str, count: int) -> dict[str, str]:
    more = {"managedLedgerMaxEntriesPerLedger": str(count // BATCH // LEDGERS), "managedLedgerCacheSizeMB": "64"}
    if name == "plugin":
        return more
    if name == "jcloud":
        offloaders = {"offloadersDirectory": str(find_place(build=True) / "offloaders")}
        return {**more, **offload_settings(url, bucket), **offloaders}
    return {**more, "managedLedgerOffloadDriver": ""}


def filled(name: str, world: Any, count: int, topic: str) -> Tier:
    """The topic, offloaded where there is something to offload to."""
    import pulsar

    from tests.plugin.plugin_world import path_of, topic_of
    from tests.plugin.topic_history import client_of

    topic = topic_of(topic)
    client = client_of(world.service_url)
    producer = client.create_producer(
        topic,
        block_if_queue_full=True,
        send_timeout_millis=120_000,
        batching_enabled=True,
        batching_max_messages=BATCH,
        batching_max_allowed_size_in_bytes=MIB,
        batching_max_publish_delay_ms=1000,
    )
    dice = random.Random(1)
    values = [dice.randbytes(MESSAGE_BYTES) for _ in range(1000)]
    failed: list[object] = []
    began_ms = int(time.time() * 1000)
    for number in range(count):
        producer.send_async(
            values[number % 1000], lambda result, _: failed.append(result) if result != pulsar.Result.Ok else None
        )
    producer.flush()
    times_ms = (began_ms, int(time.time() * 1000))
    client.close()
    if failed:
        raise RuntimeError(f"{len(failed)} messages weren't stored")
    uploads: list[int] = []
    if name == "plugin":
        world.await_committed(topic)
    if name != "bookkeeper":
        before = world.objects()
        offloaded = world.offload(topic)
        after = world.objects()
        uploads = [size for key, size in after.items() if key not in before and "/manifest/" not in key]
        world.forget(topic, offloaded)
    found = world.admin("GET", f"{path_of(topic)}/internalStats")["ledgers"]
    ledgers = {each["ledgerId"]: each["entries"] for each in found if each["entries"]}
    return Tier(name, world, topic, count, times_ms, ledgers, len(uploads), sum(uploads))


def measure(tier: Tier, delay_ms: float, dice: random.Random, proxy: SlowProxy) -> None:
    """One round; a negative ``delay_ms``: one that only warms up, and leaves the unread topic as it is."""
    tier.load()
    pids = [tier.world.broker.process.pid, *(each.process.pid for each in tier.world.sidecars.values())]
    used_s = sum(map(cpu_s, pids))
    drained = tier.world.broker.drain(tier.topic, tier.count)
    used_s = sum(map(cpu_s, pids)) - used_s
    if drained.messages != tier.count:
        raise RuntimeError(f"{tier.name}: {drained.messages} of {tier.count} messages came")
    tier.add("read, MB/s", delay_ms, drained.size_bytes / 1e6 / (drained.all_ms / 1000))
    tier.add("read, CPU s per GB", delay_ms, used_s / (drained.size_bytes / 1e9))
    tier.load()
    several = tier.world.broker.staggered(tier.topic, tier.count, READERS)
    if several["messages"] != READERS * tier.count:
        raise RuntimeError(f"{tier.name}: {several['messages']} of {READERS} times {tier.count} messages came")
    tier.add("three readers, MB/s", delay_ms, several["size_bytes"] / 1e6 / (several["all_ms"] / 1000))
    tier.load()
    tier.add("first message, ms", delay_ms, tier.world.broker.drain(tier.topic, 1).first_ms)
    for of, topic in (("", tier), (UNREAD, tier.unread)):
        if topic is not None and (delay_ms >= 0 or topic is tier):
            for what, unit, figure in looked_up(topic, dice, proxy):
                tier.add(f"{what}{of}, {unit}", delay_ms, figure)


def looked_up(topic: Tier, dice: random.Random, proxy: SlowProxy) -> Iterator[tuple[str, str, float]]:
    """What was looked up, the unit and the figure: single entries and seeks by time, the topic's load apart."""
    from tests.plugin.plugin_world import path_of

    for ledger_id in dice.sample(list(topic.ledgers), min(SINGLES, len(topic.ledgers))):
        topic.load()
        for what in ("one entry", "another one"):
            entry = f"{path_of(topic.topic)}/ledger/{ledger_id}/entry/{dice.randrange(topic.ledgers[ledger_id])}"
            began, asked = time.perf_counter(), proxy.requests
            topic.world.admin("GET", entry)
            yield what, "ms", (time.perf_counter() - began) * 1000
            yield what, "requests", proxy.requests - asked
    for _ in range(SEEKS):
        topic.load()
        at_ms, asked = dice.randrange(*topic.times_ms), proxy.requests
        yield "seek by time", "ms", topic.world.broker.drain(topic.topic, 1, f"time:{at_ms}").first_ms
        yield "seek by time", "requests", proxy.requests - asked


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--mib", type=int, default=64, help="of messages in each topic")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--delays", type=float, nargs="+", default=[0.0, 30.0], help="ms of each request to the store")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # so that no server is left behind
    with ExitStack() as stack:
        tiers, proxy = set_up(stack, given.mib)
        dice = random.Random(2)
        for tier in WARM_UPS * tiers:
            measure(tier, -1.0, dice, proxy)
        for number in range(given.rounds):
            for delay_ms in given.delays:
                proxy.set_delay(delay_ms / 1000)
                for tier in dice.sample(tiers, len(tiers)):
                    measure(tier, delay_ms, dice, proxy)
            print(f"round {number + 1} of {given.rounds}", file=sys.stderr, flush=True)
        heaps = {tier.name: tier.world.broker.heap_bytes() / MIB for tier in tiers}
    rows = rows_of(tiers, given.delays, heaps)
    print(json.dumps(rows) if given.json else table(rows))
    return 0


def set_up(stack: ExitStack, mib: int) -> tuple[list[Tier], SlowProxy]:
    """The brokers with their topics, and the proxy between them and MinIO."""
    from tests.plugin.plugin_world import PluginWorld

    folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="bench-plugin-")))
    endpoint = stack.enter_context(running("minio"))
    url, proxy = stack.enter_context(slow(endpoint))
    count, tiers = mib * MIB // MESSAGE_BYTES, []
    for name in TIERS:
        world = PluginWorld(
            folder / name,
            endpoint,
            store_endpoint=url,
            has_sidecar=name == "plugin",
            java_options=JAVA,
            discovery=DISCOVERY,
            cycle=CYCLE,
        )
        world.broker_settings = settings_of(name, url, world.bucket, count)
        tiers.append(filled(name, stack.enter_context(world), count, "history"))
        tiers[-1].unread = filled(name, world, count // 2, "unread")
        print(f"{name}: {mib} MiB in {len(tiers[-1].ledgers)} ledgers", file=sys.stderr, flush=True)
    return tiers, proxy


def rows_of(tiers: Sequence[Tier], delays: Sequence[float], heaps: dict[str, float]) -> list[dict[str, Any]]:
    """Medians, and the plugin's ratio to the others: above 1 it is better."""
    rows: list[dict[str, Any]] = []
    for delay_ms in delays:
        for what in FIGURES:
            medians = {tier.name: statistics.median(tier.figures[what, delay_ms]) for tier in tiers}
            better: Callable[[float, float], float] = (
                (lambda ours, theirs: ours / theirs) if "MB/s" in what else (lambda ours, theirs: theirs / ours)
            )
            others = () if what.endswith("requests") else TIERS[1:]
            ratios = {f"over {name}": better(medians["plugin"], medians[name]) for name in others}
            rows.append({"what": what, "delay_ms": delay_ms, **medians, **ratios})
    rows.append({"what": "heap, MiB", "delay_ms": 0.0, **heaps})
    rows.append({"what": "put by the offload, objects", "delay_ms": 0.0} | {tier.name: tier.uploads for tier in tiers})
    rows.append(
        {"what": "put by the offload, MB", "delay_ms": 0.0} | {tier.name: tier.uploads_bytes / 1e6 for tier in tiers}
    )
    return rows


def table(rows: Sequence[dict[str, Any]]) -> str:
    names = [*TIERS, *(f"over {name}" for name in TIERS[1:])]
    lines = [f"{'':28}{'delay, ms':>10}" + "".join(f"{name:>16}" for name in names)]
    for row in rows:
        cells = "".join(f"{row[name]:>16.2f}" if name in row else " " * 16 for name in names)
        lines.append(f"{row['what']:28}{row['delay_ms']:>10.0f}{cells}")
    return "\n".join(lines)


if __name__ == "__main__":
    sys.exit(main())
