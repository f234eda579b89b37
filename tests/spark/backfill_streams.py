"""A program of its own: backfills streams, some of its tasks hang for ever; tests kill it.

Arguments: URL of the store, of the ledger database, a folder to count tasks in, JSON of ``MisbehavingLedgers``' plan.
"""

from __future__ import annotations

import json
import sys
from functools import partial
from pathlib import Path

from offloader.spark import local_session
from offloader.spark.jobs import backfill
from tests.spark.hot_tier import MisbehavingLedgers, settings_of


def main(store: str, ledgers: str, folder: str, plan: str) -> None:
    spark = local_session("offloader backfill test", cores=2, config={"spark.driver.memory": "512m"})
    open_hot = partial(MisbehavingLedgers, folder=Path(folder), **json.loads(plan))
    backfill(spark, ["*"], {"store": store}, ledgers=ledgers, config=settings_of(), open_hot=open_hot)


if __name__ == "__main__":
    main(*sys.argv[1:])
