"""``offloader cleanup ACTION``: deleting what no stream needs any more.

Owns the list of actions. Must never say what one of them does: its own function's docstring does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from offloader.cli.cleanup_hold import run as hold

__all__ = ["ACTIONS"]

#: Action -> what runs it, in the order of the help.
ACTIONS: Mapping[str, Callable[..., Any]] = {"hold": hold}
