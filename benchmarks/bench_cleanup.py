"""Finding orphans below one stream of many segments: processor time and memory of a whole run.

    python benchmarks/bench_cleanup.py [--segments 1000000] [--objects 1000000] [--orphans 10000] [--json]

The manifest is a real one in a directory. The listing is generated: a file of keys that a store in front of that
directory hands out page by page, segments' objects, orphans and foreign ones mixed. The orphans are deleted. Each run
is a process of its own, which has reconciled a stream of one segment before; the peak of its resident set since then
is what a run needs. A run over a tenth of the objects shows what of that depends on the listing, one over a manifest of
a fiftieth of the segments what depends on those: bytes a segment are the difference between the two.
"""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import Any
from uuid import UUID, uuid4

sys.path.insert(0, str(Path(__file__).parent.parent))

import numpy as np

from benchmarks.bench_manifest import BIG, SMALL, build, resident_mb
from formats.keys import new_segment_uuid, stream_prefix
from offloader.gc.orphans import Place
from offloader.gc.reconcile import Reconciliation
from offloader.manifest.log import load_manifest
from offloader.runtime.clock import SystemClock
from offloader.settings import Duration, ManifestSettings
from offloader.store.base import ListPage, ObjectInfo, ObjectStore
from offloader.store.open import open_store
from offloader.store.wrappers import StoreWrapper

PAGE = 1000
MIDDLING = "bench/middling"


class GeneratedListing(StoreWrapper):
    """``inner``, whose listing of one prefix comes from a file of keys."""

    def __init__(self, inner: ObjectStore, prefix: str, keys: Path, count: int) -> None:
        super().__init__(inner)
        self.prefix, self.count = prefix, count
        self.file = keys.open("rb")

    def around(self, _request: Any, call: Any) -> Any:
        return call()

    def list(self, prefix: str, *, after: str = "", limit: int = 1000) -> ListPage:
        if prefix != self.prefix:
            return super().list(prefix, after=after, limit=limit)
        at, done = map(int, after.split()) if after else (0, 0)
        self.file.seek(at)
        take = min(PAGE, self.count - done)
        infos = tuple(
            ObjectInfo(self.file.readline().rstrip().decode(), 64 * 1024, "", 1_700_000_000_000) for _ in range(take)
        )
        done += take
        return ListPage(infos, f"{self.file.tell()} {done}" if done < self.count else None)


def write_keys(store: ObjectStore, stream: str, path: Path, objects: int, orphans: int) -> None:
    """Keys of a stream in the order of a listing: by key, so that kinds are mixed."""
    state = load_manifest(store, stream)
    prefix = stream_prefix(stream)
    noise = np.random.default_rng(5)
    halves = [(part.columns.uuid_high, part.columns.uuid_low) for part in state.segments.sealed]
    high, low = (np.concatenate(each) for each in zip(*halves, strict=True))
    order = noise.permutation(len(high))[: max(objects - 2 * orphans, 0) // 2]
    named = [UUID(int=int(high[row]) << 64 | int(low[row])) for row in order]
    left = [new_segment_uuid(state.incarnation, int(noise.integers(0, 2**63))) for _ in range(orphans // 2)]
    foreign = [uuid4() for _ in range(orphans // 2)]
    keys = sorted(f"{prefix}{uuid}{end}" for uuid in (*named, *left, *foreign) for end in ("", "-index"))
    noise.shuffle(keys)
    path.write_text("".join(f"{key}\n" for key in keys), encoding="ascii")


def peak_mb() -> float:
    """Highest resident set of this process since ``/proc/self/clear_refs`` was written, MB."""
    for line in Path("/proc/self/status").read_text(encoding="ascii").splitlines():
        if line.startswith("VmHWM:"):
            return int(line.split()[1]) * 1024 / 1e6
    raise RuntimeError("the system doesn't tell the highest resident set")


def measure(options: dict[str, Any]) -> dict[str, Any]:
    """In a process of its own."""
    inner = open_store(options["url"])
    settings = ManifestSettings(orphan_age_min=Duration("1h"))

    def reconcile(store: ObjectStore, stream: str) -> tuple[Reconciliation, Counter[str]]:
        run = Reconciliation(store, stream, clock=SystemClock(), settings=settings, delete=True)
        return run, Counter(each.outcome.value for each in run.leftovers())

    reconcile(inner, SMALL)
    stream = options["stream"]
    store = GeneratedListing(inner, stream_prefix(stream), Path(options["keys"]), options["objects"])
    before = resident_mb()
    Path("/proc/self/clear_refs").write_text("5", encoding="ascii")
    cpu, started = time.process_time(), time.perf_counter()
    run, outcomes = reconcile(store, stream)
    found = {
        "objects": options["objects"],
        "segments": options["segments"],
        "cpu_s": time.process_time() - cpu,
        "wall_s": time.perf_counter() - started,
        "peak_growth_mb": peak_mb() - before,
        "needed": run.needed[Place.SEGMENT].objects,
        "deleted": outcomes["deleted"],
        "foreign": outcomes["kept"],
    }
    cpu = time.process_time()
    for page in iter_pages(store):
        assert page.objects
    return {**found, "listing_cpu_s": time.process_time() - cpu}


def iter_pages(store: GeneratedListing) -> Any:
    """The bare listing."""
    after: str | None = ""
    while after is not None:
        page = store.list(store.prefix, after=after)
        yield page
        after = page.next_after


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--segments", type=int, default=1_000_000)
    parser.add_argument("--objects", type=int, default=1_000_000)
    parser.add_argument("--orphans", type=int, default=10_000, help="objects that are deleted; as many are foreign")
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--measure", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.measure:
        print(json.dumps(measure(json.loads(options.measure))))
        return
    with tempfile.TemporaryDirectory(dir=Path.cwd()) as directory:
        store = open_store(f"file://{directory}/store")
        build(store, SMALL, 1, 1)
        found = []
        few = options.segments // 50
        for stream, segments, objects in ((MIDDLING, few, [few]), (BIG, options.segments, [0, options.objects])):
            build(store, stream, segments, 50)
            keys = Path(directory) / f"keys-{segments}"
            write_keys(store, stream, keys, objects[-1], options.orphans * objects[-1] // options.objects)
            for count in objects:
                place = {"url": store.url, "keys": str(keys), "stream": stream, "segments": segments}
                place["objects"] = count or options.objects // 10
                done = subprocess.run(
                    [sys.executable, __file__, "--measure", json.dumps(place)],
                    capture_output=True,
                    text=True,
                    check=False,
                )
                if done.returncode:
                    sys.exit(done.stderr)
                found.append(json.loads(done.stdout))
    least, most = found[0], found[-1]
    a_segment = (most["peak_growth_mb"] - least["peak_growth_mb"]) * 1e6 / (most["segments"] - least["segments"])
    if options.json:
        print(json.dumps({"bytes_a_segment": a_segment, "runs": found}))
        return
    for run in found:
        print(
            f"{run['segments']:,} segments, {run['objects']:,} objects listed: {run['cpu_s']:.1f} s of processor time "
            f"(the generated listing alone: {run['listing_cpu_s']:.1f} s), {run['wall_s']:.1f} s; memory at most "
            f"+{run['peak_growth_mb']:.0f} MB; needed {run['needed']:,}, deleted {run['deleted']:,}, "
            f"foreign {run['foreign']:,}"
        )
    print(f"{a_segment:.0f} bytes of memory a segment")


if __name__ == "__main__":
    main()
