"""One reader of a group, killed by its parent: ``STORE_URL GROUP READER JOURNAL``.

Entries count as consumed when they are in the journal. They are written there at a checkpoint, before the reader asks
for more: what it kept until then is lost with it. SIGTERM ends it, and it leaves the group.
"""

from __future__ import annotations

import os
import signal
import sys
import threading

from offloader.errors import ReaderExpiredError
from offloader.groups.group_reader import Checkpoint
from offloader.groups.group_service import open_reader_groups
from offloader.store.open import open_store


def main() -> None:
    url, group, name, journal = sys.argv[1:]
    stop = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: stop.set())
    out = os.open(journal, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    reader = open_reader_groups(open_store(url)).open(group).join(name, stop=stop)
    kept: list[str] = []

    def consume() -> None:
        os.write(out, "".join(kept).encode())
        kept.clear()

    try:
        for item in reader:
            if isinstance(item, Checkpoint):
                consume()
                continue
            stream, batch = item
            kept.append(f"epoch {stream} {reader.streams[stream]} {os.getpid()}\n")
            kept += [f"entry {stream} {entry.position}\n" for entry in batch.entries()]
        consume()
        reader.close()
    except ReaderExpiredError:
        sys.exit(5)


if __name__ == "__main__":
    main()
