"""Appends and offloads, and is killed at a named storage call: ``DIRECTORY VERB KEY_PATTERN before|after``."""

from __future__ import annotations

import os
import re
import signal
import sys
from random import Random

from offloader.managed_ledger import open_managed_ledger
from offloader.settings import Settings
from offloader.store.base import ObjectStore, open_store

STREAM = "killed/stream"
SETTINGS = Settings.of(
    {"offload": {"block_bytes": 4096, "max_size_per_offload_segment_mbytes": 8.0, "part_bytes": 5 * 1024 * 1024}}
)


class KillingStore:
    """``inner``, whose process gets SIGKILL at the first call of ``verb`` on a key that ``key_part`` matches."""

    def __init__(self, inner: ObjectStore, verb: str, key_part: str, when: str) -> None:
        self.inner = inner
        self.verb = verb
        self.key_part = key_part
        self.when = when

    def __getattr__(self, name: str) -> object:
        found = getattr(self.inner, name)
        if name != self.verb:
            return found

        def call(key: str, *args: object, **options: object) -> object:
            if re.search(self.key_part, key) is None:
                return found(key, *args, **options)
            if self.when == "after":
                found(key, *args, **options)
            os.kill(os.getpid(), signal.SIGKILL)
            raise AssertionError("unreachable")

        return call


def drawn_payloads() -> list[list[bytes]]:
    """What is appended: one segment of a single PUT, one of several parts."""
    random = Random(11)
    return [[random.randbytes(size) for _ in range(15)] for size in (300, 400_000)]


def main() -> None:
    directory, verb, key_part, when = sys.argv[1:]
    store = KillingStore(open_store(f"file://{directory}/store"), verb, key_part, when)
    topic = open_managed_ledger(STREAM, ledgers=f"{directory}/ledgers.db", store=store, settings=SETTINGS)  # type: ignore[arg-type]
    for payloads in drawn_payloads():
        topic.append_batch(payloads)
        topic.offload()


if __name__ == "__main__":
    main()
