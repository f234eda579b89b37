"""Jobs that a Spark cluster runs over many streams; as commands: ``offloader spark backfill | export | verify``.

Owns the list of jobs. Must never start a session: who calls a job has one.
"""

from __future__ import annotations

from offloader.spark.jobs.backfill import Backfilled, backfill
from offloader.spark.jobs.export import Exported, export
from offloader.spark.jobs.verify import Scrub, verify

__all__ = ["Backfilled", "Exported", "Scrub", "backfill", "export", "verify"]
