"""Spark reads through fsspec what was written through a store's own driver, without the option ``relocate``."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from offloader.store.open import open_store
from tests.spark.reading import entries_in, load
from tests.support.server_fixtures import S3Place
from tests.support.streams import StreamWriter, batch_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.java
STREAM = "shop/orders"


def test_directory_is_read_through_fsspec(spark: SparkSession, tmp_path: Path) -> None:
    writer = StreamWriter(open_store(f"file://{tmp_path}"), STREAM)
    writer.add([batch_of(1, 0, 40)])
    assert entries_in(load(spark, writer, store=f"fsspec+file://{tmp_path}")) == writer.entries


def test_bucket_is_read_through_s3fs(spark: SparkSession, s3_place: S3Place) -> None:
    writer = StreamWriter(s3_place.open(), STREAM)
    writer.add([batch_of(1, 0, 40)])
    frame = load(
        spark,
        writer,
        store=f"fsspec+{s3_place.url}",
        endpointUrl=s3_place.options["endpoint_url"],
        accessKey=s3_place.options["access_key"],
        secretKey=s3_place.options["secret_key"],
    )
    assert entries_in(frame) == writer.entries
