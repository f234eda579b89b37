"""A log without the warnings that a simulation expects by the thousand.

It doesn't stay quiet after the block.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["quiet_log"]


@contextmanager
def quiet_log() -> Iterator[None]:
    """Nothing below critical is logged within the block."""
    logger = logging.getLogger("offloader")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    try:
        yield
    finally:
        logger.setLevel(level)
