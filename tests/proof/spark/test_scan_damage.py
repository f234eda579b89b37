"""Errors of a task that reads a damaged object: enough to locate it."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from offloader.store.open import open_store
from tests.spark.reading import load
from tests.support.streams import StreamWriter, batch_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

pytestmark = pytest.mark.java


@pytest.fixture
def writer(tmp_path: Path) -> StreamWriter:
    made = StreamWriter(open_store(f"file://{tmp_path}/store"))
    for ledger_id in (1, 2, 3):
        made.add([batch_of(ledger_id, 0, 100, size=100)], closes=[ledger_id])
    return made


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1000])


def cut_to_nothing(path: Path) -> None:
    path.write_bytes(b"")


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[-40] ^= 1
    path.write_bytes(content)


def replace_by_another(path: Path) -> None:
    path.write_bytes(bytes(len(path.read_bytes())))


MISSING = r"is missing from file:///.*, but the manifest records segment .* at 2:0\.\.2:99 "


@pytest.mark.parametrize(
    ("damage", "of_index", "expected"),
    [
        (cut, False, r": expected 13620 bytes, found 12620 "),
        (cut_to_nothing, False, r": expected 13620 bytes, found 0 "),
        # All its blocks are wrong: which of its tasks is heard first is open.
        (replace_by_another, False, r"bytes \d+\.\.\d+: .* expected fbdbabcb or 26a66d32, found 00000000"),
        (Path.unlink, False, MISSING),
        (cut_to_nothing, True, r": expected \d+ bytes, found 0 "),
        (flip, True, r"bytes 0\.\.\d+: expected CRC-32C [0-9a-f]{8} \(from the manifest\), found [0-9a-f]{8} "),
        (Path.unlink, True, MISSING),
    ],
)
def test_the_failure_names_stream_object_place_expected_and_found(
    spark: SparkSession,
    writer: StreamWriter,
    tmp_path: Path,
    damage: Callable[[Path], object],
    of_index: bool,
    expected: str,
) -> None:
    from pyspark.errors import PySparkException

    key = writer.keys(writer.uuids[1])[of_index]
    damage(tmp_path / "store" / key)
    frame = load(spark, writer, splitBytes="4000")
    with pytest.raises(PySparkException) as caught:
        frame.selectExpr("sum(length(payload))").collect()
    line = next(line for line in str(caught.value).splitlines() if line.startswith("offloader.errors."))
    assert writer.stream in line
    assert key in line
    assert re.search(expected, line), line
    assert load(spark, writer, stop="1:100").count() == 100, "others are read as before"
