"""Compacts a stream and is killed at a named storage call: ``DIRECTORY VERB KEY_PATTERN before|after``."""

from __future__ import annotations

import sys
from pathlib import Path

from offloader.settings import Settings
from offloader.store.base import ObjectStore
from offloader.store.open import open_store
from offloader.write.offloader import LedgerOffloader
from tests.proof.kills.killed_writer import STREAM, KillingStore
from tests.support.streams import StreamWriter, batch_of

#: Records of the written stream, all of epoch 1.
RECORDS_BEFORE = 3


def written_stream(directory: Path) -> StreamWriter:
    """Two closed ledgers that share a segment, and an open one."""
    writer = StreamWriter(open_store(f"file://{directory}/store"), STREAM)
    writer.add([batch_of(1, 0, 60), batch_of(2, 0, 5)], closes=[1])
    writer.add([batch_of(2, 5, 60), batch_of(3, 0, 5)], closes=[2])
    return writer


def compact(store: ObjectStore) -> None:
    """Merges the two segments."""
    offloader = LedgerOffloader(store, Settings())
    offloader.history.compact(STREAM)
    offloader.close()


def main() -> None:
    directory, verb, key_part, when = sys.argv[1:]
    compact(KillingStore(open_store(f"file://{directory}/store"), verb, key_part, when))  # type: ignore[arg-type]


if __name__ == "__main__":
    main()
