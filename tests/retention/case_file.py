"""The file of retention cases and how its values are read; ``OFFLOADER_RETENTION_CASES`` names another one."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import Any

from offloader.retention.cuts import SegmentId, StreamCut
from tests.retention.lineages import ScalableLineage

OWN = Path(__file__).with_name("retention_cases.json")


@cache
def case_file() -> dict[str, Any]:
    """Suite -> cases."""
    path = Path(os.environ.get("OFFLOADER_RETENTION_CASES") or OWN)
    value: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    return value


def suite(name: str) -> list[tuple[str, dict[str, Any]]]:
    """The cases of a suite, each with a name for it."""
    found = []
    for number, case in enumerate(case_file().get(name, ())):
        found.append((f"{number}-{case.get('id') or case.get('layout') or ''}", case))
    return found


def target(case: Mapping[str, Any]) -> Any:
    """What is to come out: what the exact model says where Pravega deviates from it."""
    return case["ideal"] if "ideal" in case else case["expect"]


def segments(names: Any) -> list[SegmentId]:
    return [SegmentId.parse(name) for name in names]


def lineage(layout: Mapping[str, Any]) -> ScalableLineage:
    """The stream of a layout, or of a case of ``random_exact``."""
    return ScalableLineage.build(
        {SegmentId.parse(name): (low, high) for name, (low, high) in layout["segments"].items()},
        [segments(epoch) for epoch in layout["epochs"]],
        {SegmentId.parse(name): size for name, size in layout.get("sealed_size", {}).items()},
    )


@cache
def layout(name: str) -> ScalableLineage:
    return lineage(case_file()["layouts"][name])


def cut(offsets: Mapping[str, int]) -> StreamCut:
    return StreamCut.of(offsets)
