"""Feeds a decoder changed inputs in a process of its own, and finds out what became of each.

One input has a limit of processor time and memory; inputs are kept that end at a place where none ended before. It
knows no decoder.

An input that kills the process (a crash in native code, a hang, memory beyond the limit) is read from the memory that
both processes share, where it was put before it was tried.
"""

from __future__ import annotations

import hashlib
import json
import mmap
import random
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import Any

from tests.proof.fuzz.fuzz_mutation import INPUT_BYTES_MAX, mutate

ROOT = Path(__file__).resolve().parents[3]
CORPUS = Path(__file__).with_name("corpus")
#: Processor seconds that one input may take.
INPUT_CPU_S_MAX = 1.0
#: What one input may add to the largest memory the process ever had.
INPUT_ALLOCATION_BYTES_MAX = 96 * 1024 * 1024
#: Address space of the process beyond what it has when it begins.
PROCESS_BYTES_MAX = 1536 * 1024 * 1024
#: Inputs that a process remembers because they ended somewhere new.
POOL_INPUTS_MAX = 4000

#: Where an input ended: the same for inputs that a decoder treats alike.
Outcome = tuple[Hashable, ...]


@dataclass(frozen=True)
class Target:
    """Something that takes bytes from strangers.

    Attributes:
        seeds: inputs that are right, or nearly.
        check: tries one; raises what must not happen.
        change: makes an input of others.
        per_s: inputs that a core tries in a second, about: of many inputs each target gets as many as take as long.
    """

    name: str
    seeds: Callable[[], list[bytes]]
    check: Callable[[bytes], Outcome]
    change: Callable[[random.Random, list[bytes]], bytes] = mutate
    per_s: int = 4000


@dataclass(frozen=True)
class Report:
    """What came of a run of one target.

    Attributes:
        inputs: tried.
        outcomes: different ones.
        kept: inputs that ended where none before did.
        failure: what must not happen; empty when nothing of it did.
        culprit: the input that did it.
    """

    target: str
    seed: int
    inputs: int
    outcomes: int
    kept: tuple[bytes, ...]
    failure: str = ""
    culprit: bytes = b""


def attempt(work: Callable[[], Any], *refusals: type[Exception]) -> tuple[Any, str]:
    """What ``work`` answers, or ``None`` and the place that refused it. Any other exception is let out."""
    try:
        return work(), ""
    except refusals as caught:
        error = caught
    assert str(error).strip(), "an error without a message"
    assert str(error).isprintable(), f"an error that can't be shown in one line: {str(error)!r}"
    cause: BaseException | None = error
    while cause is not None:
        assert not isinstance(cause, MemoryError), f"memory ran out behind {error!r}"
        cause = cause.__cause__ or cause.__context__
    return None, f"{type(error).__name__} {_place(error.__traceback__)}"


def _place(trace: TracebackType | None) -> str:
    assert trace is not None
    while trace.tb_next is not None:
        trace = trace.tb_next
    return f"{Path(trace.tb_frame.f_code.co_filename).name}:{trace.tb_lineno}"


def corpus_of(target: str) -> list[bytes]:
    """Inputs that were kept in the repository, because they once ended somewhere new or did what must not happen."""
    return [path.read_bytes() for path in sorted((CORPUS / target).glob("*")) if path.is_file()]


def name_of(data: bytes) -> str:
    """A file name for an input."""
    return hashlib.sha256(data).hexdigest()[:16]


def run(
    target: str, *, seed: int, inputs: int, seconds: float = 3600.0, least: int = 0, grown: Sequence[Path] = ()
) -> Report:
    """Tries ``inputs`` changed inputs, or as many as fit into ``seconds``, in a process of their own.

    Args:
        least: so many are tried, whatever time that takes.
        grown: folders of further inputs to begin with.
    """
    with tempfile.TemporaryDirectory() as folder:
        shared, report, errors = (Path(folder) / name for name in ("input", "report", "errors"))
        shared.write_bytes(bytes(12 + INPUT_BYTES_MAX))
        order = {"target": target, "seed": seed, "inputs": inputs, "seconds": seconds, "least": least}
        order["grown"] = [str(folder) for folder in grown]
        command = [sys.executable, "-m", "tests.proof.fuzz", "--child", json.dumps(order), str(shared), str(report)]
        with errors.open("wb") as output:
            done = subprocess.run(command, cwd=ROOT, stderr=output, timeout=seconds + 600, check=False)
        number, culprit = _shared_input(shared.read_bytes())
        said = errors.read_text(errors="replace").strip()
        if done.returncode == 0:
            found = json.loads(report.read_text())
            kept = tuple(bytes.fromhex(each) for each in found["kept"])
            return Report(target, seed, found["inputs"], found["outcomes"], kept)
        if -done.returncode == signal.SIGPROF:
            said = f"more than {INPUT_CPU_S_MAX:g} s of processor time"
        elif done.returncode < 0:
            said = f"killed by {signal.Signals(-done.returncode).name}\n{said}"
        return Report(target, seed, number, 0, (), said[-4000:] or f"exit code {done.returncode}", culprit)


def _shared_input(shared: bytes) -> tuple[int, bytes]:
    length = int.from_bytes(shared[8:12], "big")
    return int.from_bytes(shared[:8], "big"), shared[12 : 12 + length]


def child(target: Target, order: dict[str, Any], shared: Path, report: Path) -> None:
    """The process that tries inputs. Whatever must not happen ends it."""
    grown = [path.read_bytes() for folder in order["grown"] for path in sorted(Path(folder).glob(f"{target.name}-*"))]
    begin = list(dict.fromkeys([*target.seeds(), *corpus_of(target.name), *grown]))
    rng = random.Random(f"{target.name} {order['seed']}")
    outcomes: set[Outcome] = set()
    kept: list[bytes] = []
    pool = list(begin)
    with shared.open("r+b") as file:
        place = mmap.mmap(file.fileno(), 0)
    _limit_memory()
    end_s = time.monotonic() + order["seconds"]
    number = 0
    while number < order["inputs"] and (number < order["least"] or number % 64 or time.monotonic() < end_s):
        # What there is comes first, unchanged: the kept inputs are a test of their own.
        data = begin[number] if number < len(begin) else target.change(rng, pool)[:INPUT_BYTES_MAX]
        place[: 12 + len(data)] = number.to_bytes(8, "big") + len(data).to_bytes(4, "big") + data
        outcome = _tried(target, data)
        if outcome not in outcomes:
            outcomes.add(outcome)
            if number >= len(begin) and len(kept) < POOL_INPUTS_MAX:
                kept.append(data)
                pool.append(data)
        number += 1
    found = {"inputs": number, "outcomes": len(outcomes), "kept": [each.hex() for each in kept]}
    report.write_text(json.dumps(found))


def _limit_memory() -> None:
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + PROCESS_BYTES_MAX
    resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


def _tried(target: Target, data: bytes) -> Outcome:
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    signal.setitimer(signal.ITIMER_PROF, INPUT_CPU_S_MAX)  # nobody handles this signal: it ends the process
    outcome = target.check(data)
    signal.setitimer(signal.ITIMER_PROF, 0)
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * 1024
    assert grown <= INPUT_ALLOCATION_BYTES_MAX, f"memory grew by {grown} bytes"
    return outcome
