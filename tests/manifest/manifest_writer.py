"""One writer of ``test_manifest_processes.py``, in a process of its own. Not a test.

Reads one JSON line with the store; says ``ready``; waits for a line; then takes the stream and commits until it is
fenced or done, printing the ledger of each commit it was told of, and how it ended as one JSON line.
"""

from __future__ import annotations

import json
import sys

from formats.manifest import LedgerClosed
from offloader.errors import FencedError
from offloader.manifest.log import ManifestLog
from offloader.runtime.clock import SystemClock
from offloader.settings import ManifestSettings
from offloader.store.open import open_store

#: A first writer that is never stopped ends here, and the test fails.
COMMITS_MAX = 5000


def main() -> None:
    task = json.loads(sys.stdin.readline())
    store = open_store(task["url"], **task["options"])
    settings = ManifestSettings(checkpoint_records=task["checkpoint_records"])
    log = ManifestLog(store, task["stream"], clock=SystemClock(), settings=settings)
    log.load(create=True)
    print("ready", flush=True)
    sys.stdin.readline()
    epoch = log.open_epoch()
    committed, fenced = list[int](), False
    # The first one goes on until it is stopped: it is the second one's work that has to come to an end.
    limit = COMMITS_MAX if epoch == 1 else task["commits"]
    try:
        while len(committed) < limit:
            ledger_id = epoch * 10_000 + len(committed)
            log.commit([LedgerClosed(ledger_id, 9)])
            committed.append(ledger_id)
            print(ledger_id, flush=True)
    except FencedError:
        fenced = True
    print(json.dumps({"epoch": epoch, "fenced": fenced}), flush=True)


if __name__ == "__main__":
    main()
