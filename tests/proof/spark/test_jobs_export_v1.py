"""The job ``export`` with format v1 between buckets of a real server."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any
from uuid import uuid4

import pytest

from formats.metadata.messages import OffloadContext, PulsarLedger
from offloader.errors import UnsupportedError
from offloader.read.reader import read_offloaded
from offloader.spark.jobs import export_v1
from offloader.store.open import open_store
from services.servers import make_bucket
from tests.support.ledger_records import record_of
from tests.support.streams import StreamWriter, batch_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.java
STREAM = "shop/eu/persistent/orders"


def test_ledgers_go_to_the_root_of_the_recorded_bucket(
    spark: SparkSession, servers: Any, one_server: str, tmp_path: Path
) -> None:
    place = servers.place(one_server)
    bucket = f"brokers-{uuid4().hex[:12]}"
    make_bucket(place.endpoint, bucket)
    writer = StreamWriter(place.open(), STREAM)
    for ledger in (1, 2):
        writer.add([batch_of(ledger, 0, 100, size=1000)], closes=[ledger])
    contexts = {
        ledger: OffloadContext(uuid=uuid4(), complete=True, driver_name="offloader", driver_metadata={"bucket": name})
        for ledger, name in ((1, bucket), (2, "elsewhere"))
    }
    record = [PulsarLedger(ledger_id=each, entries=100, size_bytes=100_000, context=contexts[each]) for each in (1, 2)]
    (tmp_path / "record").write_bytes(record_of(record))
    options = {
        "store": place.url,
        "endpointUrl": place.endpoint.url,
        "region": "us-east-1",
        "accessKey": place.endpoint.access_key,
        "secretKey": place.endpoint.secret_key,
    }
    target = open_store(f"s3://{bucket}", **place.options)
    for written in (True, False):
        [done] = export_v1(spark, [STREAM], options, to=f"s3://{bucket}", broker_record=str(tmp_path / "record"))
        own, other = done.ledgers
        assert (own.error, own.written) == (None, written)
        assert isinstance(other.error, UnsupportedError)
        assert "names bucket elsewhere" in other.error.message
    assert len(target.list("").objects) == 2
    read = read_offloaded(target, 1, contexts[1], {}).read(0, 99)
    assert [each.payload for each in read] == [each.payload for each in writer.entries if each.ledger_id == 1]
