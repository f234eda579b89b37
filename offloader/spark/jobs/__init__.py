"""Jobs that a Spark cluster runs over many streams: ``export`` and ``verify``; as commands: ``offloader spark ...``.

Owns the list of jobs. Must never start a session: who calls a job has one.
"""

from __future__ import annotations

from offloader.spark.jobs.export import Exported, export
from offloader.spark.jobs.verify import Scrub, verify

__all__ = ["Exported", "Scrub", "export", "verify"]
