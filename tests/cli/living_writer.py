"""A process that writes a stream, for ``test_offload.py``. Not a test.

``living_writer STORE LEDGERS STREAM``: appends twenty entries, says so while its segment is open and waits for a line.
Then asks for that segment to be completed and prints the kind of error that this ends with.
"""

from __future__ import annotations

import sys

from offloader.errors import OffloaderError
from offloader.managed_ledger import open_managed_ledger
from offloader.store.open import open_store
from tests.support.waiting import PATIENCE_S, eventually


def main() -> None:
    url, ledgers, stream = sys.argv[1:]
    topic = open_managed_ledger(stream, ledgers=ledgers, store=open_store(url))
    topic.append_batch([b"entry %d" % n for n in range(20)])
    eventually(lambda: (status := topic.status()) is not None and status.offered is not None)
    print("20 entries", flush=True)
    sys.stdin.readline()
    topic.append(b"one more")
    try:
        topic.offload(timeout_s=PATIENCE_S)
    except OffloaderError as error:
        print(type(error).__name__, flush=True)
    topic.close(drain=False)


if __name__ == "__main__":
    main()
