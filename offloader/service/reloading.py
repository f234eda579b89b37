"""What of a changed settings file a running process can obey.

Owns that judgement; pure. Must never let a setting look as if it were in force when it isn't.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from offloader.effective_settings import PROCESS_SECTIONS, PROCESS_SETTINGS, STREAMING, SettingsFile

__all__ = ["Reloaded", "is_live", "reloaded"]

#: Settings of the process that whoever reads them asks for each time.
ASKED_EACH_TIME = frozenset(
    {
        "pulsar.exclude",
        "pulsar.on_gap",
        "pulsar.subscribers_seconds",
        "pulsar.topics",
        "pulsar.topics_seconds",
        "serve.follow_seconds",
        "serve.log_level",
        "serve.restart_seconds_max",
        "serve.stop_seconds_max",
        "serve.streams",
        "serve.streams_max",
    }
)
#: Sections of streams that are read when something is opened which stays open.
FIXED_SECTIONS = frozenset({"ledgers"})


@dataclass(frozen=True, slots=True)
class Reloaded:
    """What came of a new file.

    Attributes:
        file: the settings in force from here on: the new ones, but what can't change is as it was.
        changed: what changed, ``[topic a/b/c] offload.codec``.
        needs_restart: what would have to, likewise.
    """

    file: SettingsFile
    changed: tuple[str, ...]
    needs_restart: tuple[str, ...]


def reloaded(old: SettingsFile, new: SettingsFile) -> Reloaded:
    """What of ``new`` counts in a process that runs by ``old``."""
    changed: list[str] = []
    fixed: list[str] = []
    layers: dict[str, dict[str, Any]] = {}
    for scope in sorted({*old.layers, *new.layers}):
        before: Mapping[str, Any] = old.layers.get(scope, {})
        after: Mapping[str, Any] = new.layers.get(scope, {})
        kept = dict(after)
        for name in sorted({*before, *after}):
            if name in before and name in after and before[name] == after[name]:
                continue
            if is_live(name):
                changed.append(_place(scope, name))
                continue
            fixed.append(_place(scope, name))
            kept.pop(name, None)
            if name in before:
                kept[name] = before[name]
        layers[scope] = kept
    return Reloaded(SettingsFile(new.name, layers), tuple(changed), tuple(fixed))


def is_live(name: str) -> bool:
    """Whether a running process obeys another value of a setting."""
    section = name.partition(".")[0]
    if name == STREAMING or name in ASKED_EACH_TIME:
        return True
    return section not in PROCESS_SECTIONS | FIXED_SECTIONS and name not in PROCESS_SETTINGS


def _place(scope: str, name: str) -> str:
    kind, _, inner = scope.partition(".")
    return f"[{kind[:-1]} {inner}] {name}" if kind else name
