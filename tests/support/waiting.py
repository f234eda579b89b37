"""Waiting for what other threads do: until it is so, or the test fails."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

__all__ = ["PATIENCE_S", "eventually"]

#: How long a test waits for what must come. Only a test that fails waits so long, and a machine that is busy with much
#: else may need a good part of it.
PATIENCE_S = 120.0
_LOOK_S = 0.002


def eventually(is_so: Callable[[], object], *, within_s: float = PATIENCE_S) -> None:
    """Returns as soon as ``is_so()`` is true; fails when it isn't within ``within_s``."""
    deadline_s = time.monotonic() + within_s
    never = threading.Event()
    while not is_so():
        assert time.monotonic() < deadline_s, f"not so within {within_s} s"
        never.wait(_LOOK_S)
