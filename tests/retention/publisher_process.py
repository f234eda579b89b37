"""One publisher of ``test_publish_processes.py``, in a process of its own. Not a test.

Reads one JSON line with the store; says ``ready``; waits for a line; then registers its subscribers and publishes for
them in turn, and prints what it was told as one JSON line.
"""

from __future__ import annotations

import json
import sys

from formats.entries import Position
from offloader.retention.subscribers import open_retention
from offloader.store.open import open_store


def main() -> None:
    task = json.loads(sys.stdin.readline())
    retention = open_retention(open_store(task["url"], **task["options"]), task["stream"])
    print("ready", flush=True)
    sys.stdin.readline()
    told = {}
    for name in task["names"]:
        retention.add(name)
    for entry in range(task["entries"]):
        for name in task["names"]:
            told[name] = str(retention.publish(name, Position(1, entry)).cut)
    print(json.dumps(told), flush=True)


if __name__ == "__main__":
    main()
