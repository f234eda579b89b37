"""``./dev soak``: simulations by the thousand, and one of them again.

It doesn't decide what is right: ``tests.proof.simulation.simulation`` does.
"""

from __future__ import annotations

import argparse
import faulthandler
import gc
import itertools
import os
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor

from tests.proof.simulation.maintained_simulation import simulate_maintained
from tests.proof.simulation.simulation import InvariantBroken, simulate
from tests.proof.simulation.topic_simulation import simulate_topic

__all__ = ["broken_seeds", "main"]

#: Seeds that one worker process takes at once.
CHUNK_SEEDS = 50
#: A seed that takes longer waits for something that never comes: the process shows where, and ends.
SEED_S_MAX = 900
#: One in so many seeds is also run as a world that is tended, and as one of a topic: they take much longer.
TENDED_EVERY, TOPIC_EVERY = 4, 8


def broken_seeds(seeds: range, *, processes: int = 1, world: str = "") -> Iterator[tuple[int, str]]:
    """Runs all ``seeds``; the broken ones and what was wrong, as they are found.

    Args:
        processes: how many run at once; 1: in this process.
        world: ``tended``: those in which a stream is also truncated, swept and deleted; ``topic``: those in which a
            topic of partitions has subscribers and reader groups.
    """
    broken_of = {"": _broken_written, "tended": _broken_maintained, "topic": _broken_topics}[world]
    chunks = [seeds[start : start + CHUNK_SEEDS] for start in range(0, len(seeds), CHUNK_SEEDS)]
    if processes == 1:
        yield from itertools.chain.from_iterable(map(broken_of, chunks))
        return
    with ProcessPoolExecutor(processes) as pool:
        yield from itertools.chain.from_iterable(pool.map(broken_of, chunks))


def _broken_written(seeds: range) -> list[tuple[int, str]]:
    return _broken_of(seeds, simulate, "")


def _broken_maintained(seeds: range) -> list[tuple[int, str]]:
    return _broken_of(seeds, simulate_maintained, "--maintained ")


def _broken_topics(seeds: range) -> list[tuple[int, str]]:
    return _broken_of(seeds, simulate_topic, "--topic ")


def _broken_of(seeds: range, run: Callable[[int], object], option: str) -> list[tuple[int, str]]:
    found = []
    gc.set_threshold(50_000, 20, 20)  # a world's garbage is small: collecting it took a fifth of the time
    for seed in seeds:
        faulthandler.dump_traceback_later(SEED_S_MAX, exit=True, file=sys.__stderr__ or sys.stderr)
        try:
            run(seed)
        except InvariantBroken as broken:
            found.append((seed, str(broken)))
        except Exception as error:
            found.append((seed, f"{type(error).__name__}: {error}; again: ./dev soak {option}--seed {seed}"))
    faulthandler.cancel_dump_traceback_later()
    return found


def _say(line: str) -> None:
    sys.stdout.write(f"{line}\n")
    sys.stdout.flush()


def main(arguments: list[str] | None = None) -> int:
    """The command; its exit code: 0, or 1 when a seed broke an invariant."""
    parser = argparse.ArgumentParser(prog="./dev soak", description=__doc__)
    parser.add_argument("--seeds", type=int, default=10_000, help="how many (default: 10,000)")
    parser.add_argument("--first", type=int, default=0, help="the first of them")
    parser.add_argument("--seed", type=int, help="run this one alone")
    parser.add_argument("--maintained", action="store_true", help="only worlds with retention and cleanup, every seed")
    parser.add_argument("--topic", action="store_true", help="only worlds of a topic with partitions, of every seed")
    parser.add_argument("--crash-call", type=int, help="with --seed: the first process dies at that storage call")
    parser.add_argument("--crash-after", action="store_true", help="... after it took effect")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args(arguments)
    if options.seed is not None:
        try:
            if options.topic:
                digest = simulate_topic(options.seed)
            else:
                run = simulate_maintained if options.maintained else simulate
                digest = run(options.seed, crash_call=options.crash_call, crash_after=options.crash_after)
        except InvariantBroken as broken:
            _say(str(broken))
            return 1
        _say(f"seed {options.seed}: all invariants hold; trace {digest[:16]}")
        return 0
    seeds = range(options.first, options.first + options.seeds)
    count = 0
    if options.maintained or options.topic:
        worlds = [(seeds, "topic" if options.topic else "tended")]
    else:
        worlds = [(seeds, ""), (seeds[::TENDED_EVERY], "tended"), (seeds[::TOPIC_EVERY], "topic")]
    for some, world in worlds:
        for _, what in broken_seeds(some, processes=options.processes, world=world):
            count += 1
            _say(what)
    _say(f"{options.seeds} seeds, {count} broken")
    return 1 if count else 0


if __name__ == "__main__":
    sys.exit(main())
