"""A Python worker of Spark, which runs one task after another.

Owns what is done for the process and not for a task. Must never do anything to a process that isn't such a worker.
"""

from __future__ import annotations

import gc
import itertools

from pyspark import TaskContext

__all__ = ["task_begins"]

_tasks = itertools.count()


def task_begins() -> None:
    """Called by each task before it reads; does nothing outside of Spark's workers.

    After every task PySpark collects garbage, which looks at all that was ever imported: 40 to 80 ms, as long as it
    takes to read 64 MiB. So with the second task what is there is declared permanent: the first one loaded all there is
    to load, and the collection after it took its garbage.
    """
    if TaskContext.get() is not None and next(_tasks) == 1:
        gc.freeze()
