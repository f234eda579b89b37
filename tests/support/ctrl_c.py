"""Ctrl-C for processes that tests start.

It doesn't change how this process does.
"""

from __future__ import annotations

import signal

__all__ = ["heed_ctrl_c"]


def heed_ctrl_c() -> None:
    """For ``preexec_fn``: shells start what runs in the background with Ctrl-C ignored, these tests among it, and what
    they start inherits that."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)
