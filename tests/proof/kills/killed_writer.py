"""Appends and offloads, and is killed at a named storage call: ``DIRECTORY VERB KEY_PATTERN before|after [history]``.

With ``history`` everything is appended while nothing is offloaded; then the stream is switched on. The environment may
name another store than ``DIRECTORY/store`` (``KILLED_STORE``) and another stream (``KILLED_STREAM``).
"""

from __future__ import annotations

import os
import re
import signal
import sys
from dataclasses import replace
from random import Random
from typing import Any

from offloader.managed_ledger import open_managed_ledger
from offloader.settings import Settings
from offloader.store.base import ObjectStore
from offloader.store.open import open_store

STREAM = "killed/stream"
SETTINGS = Settings.of({"offload": {"block_size": 4096, "segment_size_max": "8.0MiB", "part_size": 5 * 1024 * 1024}})


#: Segments and ledgers so small that what is appended before becomes a run of its own.
#: Two at a time: a record ends two of them at most, so that there are so many records.
HISTORY_SETTINGS = Settings.of(
    {
        "offload": {
            "block_size": 1024,
            "segment_size_max": "16KiB",
            "backfill_segments_in_flight_max": 2,
        },
        "ledgers": {"ledger_size_max": 25 * 1024},
    }
)


class KillingStore:
    """``inner``, whose process gets SIGKILL at the first call of ``verb`` on a key that ``key_part`` matches.

    Args:
        when: ``before`` or ``after`` its effect; ``half``: of a delete of several keys, when half of them are gone.
    """

    def __init__(self, inner: ObjectStore, verb: str, key_part: str, when: str) -> None:
        self.inner = inner
        self.verb = verb
        self.key_part = key_part
        self.when = when

    def __getattr__(self, name: str) -> object:
        found = getattr(self.inner, name)
        if name != self.verb:
            return found

        def call(key: Any, *args: object, **options: object) -> object:
            first = key if isinstance(key, str) else key[0]
            if re.search(self.key_part, first) is None:
                return found(key, *args, **options)
            if self.when != "before":
                found(key[: len(key) // 2] if self.when == "half" else key, *args, **options)
            os.kill(os.getpid(), signal.SIGKILL)
            raise AssertionError("unreachable")

        return call


def drawn_payloads() -> list[list[bytes]]:
    """What is appended: one segment of a single PUT, one of several parts."""
    random = Random(11)
    return [[random.randbytes(size) for _ in range(15)] for size in (300, 400_000)]


def drawn_history() -> list[bytes]:
    """What is appended before anything is offloaded: eight segments or so."""
    random = Random(12)
    return [random.randbytes(random.randint(0, 300)) for _ in range(800)]


def offload_history(directory: str, store: ObjectStore) -> None:
    values = HISTORY_SETTINGS
    off = replace(values, offload=replace(values.offload, method="none"))
    with open_managed_ledger(STREAM, ledgers=f"{directory}/ledgers.db", store=store, settings=off) as topic:
        payloads = drawn_history()
        for at in range(0, len(payloads), 20):
            topic.append_batch(payloads[at : at + 20])
    open_managed_ledger(STREAM, ledgers=f"{directory}/ledgers.db", store=store, settings=values).offload()


def main() -> None:
    directory, verb, key_part, when, *history = sys.argv[1:]
    url = os.environ.get("KILLED_STORE", f"file://{directory}/store")
    store = KillingStore(open_store(url), verb, key_part, when)
    if history:
        offload_history(directory, store)  # type: ignore[arg-type]
        return
    stream = os.environ.get("KILLED_STREAM", STREAM)
    topic = open_managed_ledger(stream, ledgers=f"{directory}/ledgers.db", store=store, settings=SETTINGS)  # type: ignore[arg-type]
    for payloads in drawn_payloads():
        topic.append_batch(payloads)
        topic.offload()


if __name__ == "__main__":
    main()
