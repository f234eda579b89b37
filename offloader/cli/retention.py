"""``offloader retention ACTION``: who still needs a stream, and what goes.

Owns the list of actions. Must never say what one of them does: its own function's docstring does.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from offloader.cli import retention_cycle, retention_groups, retention_subscribers

__all__ = ["ACTIONS"]

#: Action -> what runs it, in the order of the help.
ACTIONS: Mapping[str, Callable[..., Any]] = {
    "explain": retention_cycle.explain_stream,
    "plan": retention_cycle.plan,
    "run": retention_cycle.run,
    "subscribers": retention_subscribers.show,
    "add": retention_subscribers.add,
    "publish": retention_subscribers.publish,
    "remove": retention_subscribers.remove,
    "groups": retention_groups.show,
    "group": retention_groups.configure,
    "ungroup": retention_groups.remove,
    "publish-checkpoint": retention_groups.publish_checkpoint,
}
