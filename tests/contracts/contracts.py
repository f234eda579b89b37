"""Which contracts there are, where their snapshots lie, and how the two differ."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from pathlib import Path

from tests.contracts.command_line import command_line
from tests.contracts.error_kinds import error_kinds
from tests.contracts.flight_messages import flight_messages
from tests.contracts.http_interface import http_interface
from tests.contracts.json_output import json_output
from tests.contracts.log_events import log_events
from tests.contracts.metric_names import metric_names
from tests.contracts.python_names import python_names
from tests.contracts.setting_keys import setting_keys
from tests.contracts.spark_source import spark_source

__all__ = ["CONTRACTS", "REWRITE", "SNAPSHOTS", "difference", "rewrite", "snapshot_of"]

SNAPSHOTS = Path(__file__).parent / "snapshots"
#: What writes all snapshots anew.
REWRITE = "./dev contracts"
#: Contract -> what the product says now, as a text with a line for each promise.
CONTRACTS: Mapping[str, Callable[[], str]] = {
    "command-line": command_line,
    "errors": error_kinds,
    "flight": flight_messages,
    "http": http_interface,
    "json-output": json_output,
    "log-events": log_events,
    "metrics": metric_names,
    "python": python_names,
    "settings": setting_keys,
    "spark": spark_source,
}


def snapshot_of(name: str) -> Path:
    return SNAPSHOTS / f"{name}.txt"


def difference(name: str, live: str) -> str:
    """A unified diff of the snapshot and what the product says now; empty: they are the same."""
    path = snapshot_of(name)
    kept = path.read_text(encoding="utf-8") if path.exists() else ""
    names = f"{path.name} as it was reviewed", f"{path.name} as it is now"
    lines = difflib.unified_diff(kept.splitlines(), live.splitlines(), *names, lineterm="")
    return "\n".join(lines)


def rewrite() -> list[str]:
    """Writes every snapshot that differs, and removes those without a contract; their names."""
    SNAPSHOTS.mkdir(exist_ok=True)
    changed = []
    for name, live in CONTRACTS.items():
        text = live()
        if difference(name, text):
            snapshot_of(name).write_text(text, encoding="utf-8")
            changed.append(name)
    for path in SNAPSHOTS.glob("*.txt"):
        if path.stem not in CONTRACTS:
            path.unlink()
            changed.append(path.stem)
    return changed
