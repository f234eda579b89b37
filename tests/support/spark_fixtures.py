"""One Spark session for all tests of a process, and a stream on disk for it to read."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import TYPE_CHECKING

import pytest

from formats.entries import EntryBatch, Position
from formats.segment import Codec
from formats.summary import Layout
from offloader.store.open import open_store
from tests.support.quick import needs
from tests.support.streams import BASE_MS, StreamWriter, batch_of, random_batch

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ORDERS = "public/default/persistent/orders"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Gives tests of Spark more time: a query takes long on a busy machine."""
    for item in items:
        if "spark" in item.path.parent.parts and item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(600))


@pytest.fixture(scope="session")
@needs("java")
def spark(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SparkSession]:
    from offloader.spark import local_session

    warehouse = {"spark.sql.warehouse.dir": f"file://{tmp_path_factory.mktemp('warehouse')}"}
    session = local_session("offloader tests", cores=2, config=warehouse)
    yield session
    session.stop()


@pytest.fixture(scope="session")
def orders(tmp_path_factory: pytest.TempPathFactory) -> StreamWriter:
    """Every kind of segment: V1 and V2, plain and extended, compressed, unknown times, a ledger in two segments."""
    writer, chance = StreamWriter(open_store(f"file://{tmp_path_factory.mktemp('store')}"), ORDERS), random.Random(1)
    writer.add([batch_of(3, 0, 200)])
    writer.add([batch_of(3, 200, 50), random_batch(chance, 4, 0, 100, 300)], closes=[3, 4])
    writer.add([batch_of(7, 0, 60), batch_of(9, 0, 40)], closes=[7, 9], extension=False)
    writer.add([EntryBatch.build(10, 0, [b"\x00" * 500] * 80, BASE_MS + 777)], codec=Codec.ZSTD, closes=[10])
    writer.add([batch_of(12, 0, 90)], layout=Layout.V1, closes=[12])
    writer.add([batch_of(14, 0, 30)], layout=Layout.V1, extension=False, closes=[14])
    assert writer.log.state.committed_end() == Position(14, 29)
    return writer
