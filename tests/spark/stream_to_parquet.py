"""A program of its own: streams into Parquet until nothing is left, with a checkpoint; tests kill it.

Arguments: the source's options as JSON, the checkpoint directory, the directory of the Parquet files.
"""

from __future__ import annotations

import json
import sys

from offloader.spark import local_session


def main(options_json: str, checkpoint: str, target: str) -> None:
    spark = local_session("offloader stream test", cores=2, config={"spark.driver.memory": "512m"})
    frame = spark.readStream.format("offloader").options(**json.loads(options_json)).load()
    query = (
        frame.writeStream.format("parquet")
        .option("checkpointLocation", checkpoint)
        .trigger(processingTime="0 seconds")
        .start(target)
    )
    query.awaitTermination()


if __name__ == "__main__":
    main(*sys.argv[1:])
