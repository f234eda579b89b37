"""``offloader cleanup ACTION``: deleting what no stream needs any more.

Owns the list of actions. Must never say what one of them does: its own function's docstring does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from offloader.cli import cleanup_audit, cleanup_hold, cleanup_orphans, cleanup_run, cleanup_undo

__all__ = ["ACTIONS"]

#: Action -> what runs it, in the order of the help.
ACTIONS: Mapping[str, Callable[..., Any]] = {
    "plan": cleanup_run.plan,
    "run": cleanup_run.run,
    "undo": cleanup_undo.run,
    "orphans": cleanup_orphans.run,
    "hold": cleanup_hold.run,
    "audit": cleanup_audit.run,
}
