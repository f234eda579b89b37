"""Tends a stream, and is killed at a named storage call: ``STORES ACT [VERB KEY_PATTERN before|after|half]``.

Without a call it is what comes by next: it does the act again, to its end, in each of the stores given with commas.

Reads such calls as JSON arrays, one a line, and does each in a process of its own, one after the other. Each is a fork
of this one, which has only imported what they need: dozens of interpreters would start for longer than they run.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from formats.entries import Position
from offloader.errors import InvalidCallError, NotFoundError, OffloaderError
from offloader.gc.delete_stream import remove_stream
from offloader.gc.reconcile import StoreReconciliation
from offloader.gc.sweep import cleanup_all, undo_retirements
from offloader.manifest.log import ManifestLog
from offloader.retention.truncate import resume_topic_truncation, truncate_stream, truncate_topic
from offloader.runtime.clock import SystemClock
from offloader.settings import Settings
from offloader.store.base import ObjectStore
from offloader.store.open import open_store
from tests.proof.kills.killed_writer import KillingStore

STREAM = "killed/stream"
#: A topic of two partitions.
TOPIC = "killed/topic"
PARTITIONS = tuple(f"{TOPIC}-partition-{number}" for number in range(2))
#: What the stream begins with after the truncation.
HEAD = Position(4, 0)
#: Nothing waits for time to pass.
AT_ONCE = Settings.of(
    {"manifest": {"orphan_age_min": "0h"}, "cleanup": {"grace_period": "0h", "allow_large_delete": True}}
)


def truncate(store: ObjectStore) -> None:
    truncate_stream(ManifestLog(store, STREAM, clock=SystemClock()), HEAD, clock=SystemClock())


def clean(store: ObjectStore) -> None:
    """One round: retires, or purges and deletes what is retired."""
    for report in cleanup_all(store, clock=SystemClock(), settings_of=lambda _: AT_ONCE):
        if report.error is not None:
            raise report.error


def undo(store: ObjectStore) -> None:
    with suppress(InvalidCallError):  # it came back before the process died
        undo_retirements(ManifestLog(store, STREAM, clock=SystemClock()))


def sweep(store: ObjectStore) -> None:
    """A search for orphans."""

    def fail(_: str, error: OffloaderError) -> None:
        raise error

    run = StoreReconciliation(
        store, clock=SystemClock(), settings_of=lambda _: AT_ONCE.manifest, failed=fail, delete=True
    )
    for _ in run.leftovers():
        pass


def delete(store: ObjectStore) -> None:
    """All of the stream, with its name."""
    with suppress(NotFoundError):
        remove_stream(store, STREAM, clock=SystemClock(), settings=AT_ONCE.manifest, ignore_leases=True)
    clean(store)
    sweep(store)


def truncate_as_one(store: ObjectStore) -> None:
    """Both partitions of a topic."""
    truncate_topic(store, TOPIC, dict.fromkeys(PARTITIONS, HEAD), clock=SystemClock(), by="ana")


def resume(store: ObjectStore) -> None:
    """What the next cycle of retention does first."""
    resume_topic_truncation(store, TOPIC, clock=SystemClock())


def delete_both(store: ObjectStore) -> None:
    """A topic, with all that is kept under its name."""
    for partition in PARTITIONS:
        with suppress(NotFoundError):
            remove_stream(store, partition, clock=SystemClock(), settings=AT_ONCE.manifest, ignore_leases=True)
    clean(store)
    sweep(store)


ACTS: dict[str, Callable[[ObjectStore], None]] = {
    "truncate": truncate,
    "retire": clean,
    "purge": clean,
    "undo": undo,
    "orphans": sweep,
    "delete": delete,
    "truncate-topic": truncate_as_one,
    "resume-topic": resume,
    "delete-topic": delete_both,
}


def do(stores: str, act: str, *where: str) -> None:
    for url in stores.split(","):
        store: ObjectStore = open_store(url)
        if where:
            verb, key_part, when = where
            store = KillingStore(store, verb, key_part, when)  # type: ignore[assignment]
        ACTS[act](store)


def in_own_processes(calls: Sequence[Sequence[str]]) -> list[int]:
    """How the process of each call ended: its exit code, or the signal that killed it, negative."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.proof.kills.killed_cleanup"],
        cwd=Path(__file__).resolve().parents[3],
        input="".join(f"{json.dumps(call)}\n" for call in calls),
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    codes = [int(line) for line in done.stdout.splitlines()]
    assert [code for code in codes if code <= 0] == codes, done.stderr[-2000:]
    assert len(codes) == len(calls), done.stderr[-2000:]
    return codes


def main() -> None:
    for line in sys.stdin:
        child = os.fork()
        if child == 0:
            do(*json.loads(line))
            return
        _, status = os.waitpid(child, 0)
        print(os.waitstatus_to_exitcode(status), flush=True)


if __name__ == "__main__":
    main()
