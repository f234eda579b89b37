"""Spark as users start it: an interpreter that isn't on PATH, spark-submit, a session of their own, temporary views."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pyspark
import pytest

from offloader.store.open import open_store
from tests.support.bare_path import run
from tests.support.streams import StreamWriter, batch_of

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

ROOT = Path(__file__).resolve().parents[3]
STREAM = "public/default/persistent/orders"
COUNT = 'df.groupBy("ledger_id").count().show()'
#: Between the outputs of two sessions.
END = "--end--"
#: A session made without this package.
OWN = "from pyspark.sql import SparkSession\nspark = SparkSession.builder.master('local[1]').getOrCreate()\n"


@pytest.fixture
def store_url(tmp_path: Path) -> str:
    writer = StreamWriter(open_store(f"file://{tmp_path}/store"), STREAM)
    writer.add([batch_of(5, 0, 40)], closes=[5])
    return writer.store.url


def readme_lines() -> str:
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    (code,) = re.findall(r"^```python spark\n(.*?)^```$", text, re.M | re.S)
    return str(code)


def counted(printed: str) -> bool:
    return re.search(r"^\|\s*5\|\s*40\|$", printed, re.M) is not None


@pytest.mark.java
def test_readme_lines_work_with_spark_submit(tmp_path: Path, store_url: str) -> None:
    """Beside a session that was made without this package, which comes first: later ones find what it has left."""
    lines = re.sub(r"^store = .*$", f"store = {store_url!r}", readme_lines(), flags=re.M)
    made, _, query = lines.replace("public/default/persistent/orders", STREAM).partition("df =")
    program = tmp_path / "program.py"
    text = f"store = {store_url!r}\n"
    for session in (OWN, made):
        text += f"{session}df ={query}\nspark.stop()\nprint({END!r})\n"
    program.write_text(text)
    submit = Path(pyspark.__file__).parent / "bin" / "spark-submit"
    done = run([str(submit), "--master", "local[1]", str(program)], tmp_path, PYSPARK_PYTHON=sys.executable)
    own, readme, rest = done.stdout.split(END)
    assert counted(own), done.stderr
    assert counted(readme), done.stderr
    assert rest.strip() == ""


@pytest.mark.java
def test_register_names_the_interpreter_that_lacks_the_package(tmp_path: Path) -> None:
    program = f"{OWN}from offloader.spark import register\nregister(spark)\n"
    done = run([sys.executable, "-c", program], tmp_path)
    assert done.returncode
    assert f"Spark's workers run {tmp_path}/programs/python3, which can't import offloader" in done.stderr
    assert f"export PYSPARK_PYTHON={sys.executable}" in done.stderr


def test_temporary_views_are_made_of_a_data_frame_and_in_sql(spark: SparkSession, orders: StreamWriter) -> None:
    options = {"store": orders.store.url, "stream": orders.stream}
    spark.read.format("offloader").options(**options).load().createOrReplaceTempView("plain_frame")
    listed = ", ".join(f"{name} '{value}'" for name, value in options.items())
    spark.sql(f"CREATE OR REPLACE TEMPORARY VIEW plain_sql USING offloader OPTIONS ({listed})")
    query = "SELECT ledger_id, count(*) AS entries FROM {} WHERE ledger_id < 10 GROUP BY ledger_id ORDER BY ledger_id"
    found = [[tuple(row) for row in spark.sql(query.format(view)).collect()] for view in ("plain_frame", "plain_sql")]
    assert found == [[(3, 250), (4, 100), (7, 60), (9, 40)]] * 2
