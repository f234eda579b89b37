"""Tends a stream, and is killed at a named storage call: ``STORE ACT [VERB KEY_PATTERN before|after|half]``.

Without a call it is what comes by next: it does the act again, to its end, in each of the stores given with commas.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import suppress

from formats.entries import Position
from offloader.errors import InvalidCall, NotFound, OffloaderError
from offloader.gc.delete_stream import remove_stream
from offloader.gc.reconcile import StoreReconciliation
from offloader.gc.sweep import cleanup_all, undo_retirements
from offloader.manifest.log import ManifestLog
from offloader.retention.truncate import resume_topic_truncation, truncate_stream, truncate_topic
from offloader.runtime.clock import SystemClock
from offloader.settings import Settings
from offloader.store.base import ObjectStore
from offloader.store.open import open_store
from tests.write.killed_writer import KillingStore

STREAM = "killed/stream"
#: A topic of two partitions.
TOPIC = "killed/topic"
PARTITIONS = tuple(f"{TOPIC}-partition-{number}" for number in range(2))
#: What the stream begins with after the truncation.
HEAD = Position(4, 0)
#: Nothing waits for time to pass.
AT_ONCE = Settings.of(
    {"manifest": {"orphan_age_hours_min": 0}, "cleanup": {"grace_hours": 0, "allow_large_delete": True}}
)


def truncate(store: ObjectStore) -> None:
    truncate_stream(ManifestLog(store, STREAM, clock=SystemClock()), HEAD, clock=SystemClock())


def clean(store: ObjectStore) -> None:
    """One round: retires, or purges and deletes what is retired."""
    for report in cleanup_all(store, clock=SystemClock(), settings_of=lambda _: AT_ONCE):
        if report.error is not None:
            raise report.error


def undo(store: ObjectStore) -> None:
    with suppress(InvalidCall):  # it came back before the process died
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
    with suppress(NotFound):
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
        with suppress(NotFound):
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


def main() -> None:
    stores, act, *where = sys.argv[1:]
    for url in stores.split(","):
        store: ObjectStore = open_store(url)
        if where:
            verb, key_part, when = where
            store = KillingStore(store, verb, key_part, when)  # type: ignore[assignment]
        ACTS[act](store)


if __name__ == "__main__":
    main()
