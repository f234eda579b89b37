"""A verb that waits for Ctrl-C."""

import threading


def run(code: int = 0) -> int:
    """Wait, or answer an exit code."""
    if code:
        return code
    print("waiting", flush=True)
    never = threading.Event()
    while True:  # a signal that comes just before an endless wait wouldn't end it
        never.wait(0.1)
