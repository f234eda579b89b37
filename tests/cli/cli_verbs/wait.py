"""A verb that waits for Ctrl-C."""

import signal


def run(code: int = 0) -> int:
    """Wait, or answer an exit code."""
    if code:
        return code
    print("waiting", flush=True)
    while True:
        signal.pause()
