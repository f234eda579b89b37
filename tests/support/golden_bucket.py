"""The golden objects in a store, as Pulsar left them: at its root, with their metadata."""

from __future__ import annotations

import gzip
import hashlib
import json
import struct
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from formats.entries import Entry
from offloader.store.base import ObjectStore

__all__ = ["GOLDEN_STREAM", "golden_cases", "golden_digest", "put_golden"]

_FOLDER = Path(__file__).parents[1] / "formats" / "golden"
#: Whose all golden V1 objects are.
GOLDEN_STREAM = "public/default/persistent/oracle"


def golden_cases(layout: str = "v1") -> list[Mapping[str, Any]]:
    """The descriptions of the golden objects, ``v1`` or ``v2`` (there a case has ``segments``)."""
    cases: list[Mapping[str, Any]] = json.loads((_FOLDER / layout / "manifest.json").read_text())
    return cases


def put_golden(
    store: ObjectStore,
    cases: Iterable[Mapping[str, Any]] | None = None,
    *,
    layout: str = "v1",
    metadata: Mapping[str, str] | None = None,
    without: Iterable[str] = (),
) -> None:
    """Puts the two objects of each case.

    Args:
        cases: with ``data`` and ``index``; default: all of V1.
        metadata: in place of what Pulsar wrote there, by name.
        without: names of user metadata to leave out.
    """
    for case in golden_cases() if cases is None else cases:
        for role in ("data", "index"):
            described = case[role]
            path = _FOLDER / layout / described["key"]
            packed = path.with_name(f"{path.name}.gz")
            body = path.read_bytes() if path.exists() else gzip.decompress(packed.read_bytes())
            user = {**described["userMetadata"], **(metadata or {})}
            store.put(described["key"], body, metadata={n: v for n, v in user.items() if n not in set(without)})


def golden_digest(entries: Iterable[Entry]) -> str:
    """The digest that the descriptions give of a ledger's entries."""
    digest = hashlib.sha256()
    for entry in entries:
        digest.update(struct.pack(">qi", entry.position.entry_id, len(entry.payload)) + entry.payload)
    return digest.hexdigest()
