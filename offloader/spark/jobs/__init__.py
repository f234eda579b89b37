"""Spark jobs over many streams; as commands: ``offloader spark backfill | compact | export | rebuild | verify``.

The caller provides the session.
"""

from __future__ import annotations

from offloader.spark.jobs.backfill import Backfilled, backfill
from offloader.spark.jobs.compact import Compacted, compact
from offloader.spark.jobs.export import Exported, export
from offloader.spark.jobs.export_v1 import ExportedV1, export_v1
from offloader.spark.jobs.rebuild import Rebuilt, rebuild
from offloader.spark.jobs.verify import Scrub, verify
from offloader.spark.options import AvroValues, JsonValues

__all__ = [
    "AvroValues",
    "Backfilled",
    "Compacted",
    "Exported",
    "ExportedV1",
    "JsonValues",
    "Rebuilt",
    "Scrub",
    "backfill",
    "compact",
    "export",
    "export_v1",
    "rebuild",
    "verify",
]
