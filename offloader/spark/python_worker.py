"""A Python process that Spark starts, which does one thing after another: it plans, or it runs tasks.

Owns what is done for the process and not for what it does. Must never do anything to a process that Spark didn't start.
"""

from __future__ import annotations

import gc
import itertools
import logging
import sys

from offloader.own_process import THREAD_SWITCH_S

__all__ = ["work_begins"]

_works = itertools.count()


def work_begins() -> None:
    """Called before a source is made, a query is planned and a task reads; does nothing outside of Spark's processes.

    After each of these PySpark collects garbage, which looks at all that was ever imported: 40 to 80 ms, as long as it
    takes to read 64 MiB. So with the second time what is there is declared permanent: the first loaded all there is to
    load, and the collection after it took its garbage. And threads take turns as in any process of ours.
    """
    started_as = getattr(sys.modules["__main__"], "__spec__", None)
    if started_as is None or started_as.name != "pyspark.daemon":
        return
    work = next(_works)
    if work == 0:
        sys.setswitchinterval(THREAD_SWITCH_S)
        # Nobody shows such lines unless Spark was told to keep what its workers log.
        logging.getLogger("offloader.spark").setLevel(logging.INFO)
    if work == 1:
        gc.freeze()
