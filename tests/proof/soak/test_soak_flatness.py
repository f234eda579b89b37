"""Growing series are refused, and fluctuating ones are not."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pytest
from numpy.typing import NDArray

from tests.proof.soak.__main__ import main as soak
from tests.proof.soak.soak_flatness import SPREADS, Limit, Series, ratio, verdict_of
from tests.proof.soak.soak_load import checked, payloads_of
from tests.proof.soak.soak_sampling import summed

TIMES_S = np.arange(0.0, 3600.0)
MEMORY = Limit(0.05, 24.0)
WARM_UP_S = 900.0
#: Every two minutes another level.
SWINGS = np.repeat(np.random.default_rng(7).normal(0, 60, 30), 120)
NOISE = np.random.default_rng(7).normal(0, 20, len(TIMES_S))


def series(values: NDArray[np.float64]) -> Series:
    return Series("memory", "MiB", TIMES_S, values)


FLAT = {
    "noise": 400 + NOISE,
    "a sawtooth": 400 + 300 * (TIMES_S % 40) / 40,
    "it grows while it warms up": 400 + np.minimum(TIMES_S, WARM_UP_S - 1),
    "one peak near the end": 400 + 2000 * ((TIMES_S > 3400) & (TIMES_S < 3420)),
    "it shrinks": 400 - TIMES_S / 20,
    "few samples are there": np.where(np.arange(len(TIMES_S)) % 15, np.nan, 400 + NOISE),
    "less than is let pass": 400 + TIMES_S / 3600 * 20,
}
GROWING = {
    "slowly": 400 + TIMES_S / 3600 * 60 + NOISE,
    "below a sawtooth": 400 + TIMES_S / 3600 * 60 + 300 * (TIMES_S % 40) / 40,
    "in steps": 400 + 30 * (TIMES_S // 600),
    "in one late step": 400 + 60 * (TIMES_S > 3150) + NOISE,
    "faster and faster": 400 + 100 * (TIMES_S / 3600) ** 4,
}


@pytest.mark.parametrize("name", FLAT)
def test_fluctuating_series_is_flat(name: str) -> None:
    found = verdict_of(series(FLAT[name]), MEMORY, warm_up_s=WARM_UP_S)
    assert found.is_flat, str(found)
    assert "flat" in str(found)


@pytest.mark.parametrize("name", GROWING)
def test_growing_series_is_refused(name: str) -> None:
    found = verdict_of(series(GROWING[name]), MEMORY, warm_up_s=WARM_UP_S)
    assert not found.is_flat, str(found)
    assert "memory: GROWS" in str(found)


def test_series_that_swings_is_told_from_one_that_grows_below_the_swings() -> None:
    swinging = Limit(0.05, 24.0, SPREADS)
    assert verdict_of(series(400 + SWINGS), swinging, warm_up_s=WARM_UP_S).is_flat
    assert not verdict_of(series(400 + TIMES_S / 12 + SWINGS), swinging, warm_up_s=WARM_UP_S).is_flat
    assert not verdict_of(series(GROWING["in one late step"]), swinging, warm_up_s=WARM_UP_S).is_flat


def test_the_slope_is_that_of_the_series() -> None:
    found = verdict_of(series(400 + TIMES_S / 36), MEMORY, warm_up_s=WARM_UP_S)
    assert found.slope_per_hour == pytest.approx(100, rel=0.01)
    assert found.level == pytest.approx(462.5, abs=2)
    assert found.growth == pytest.approx(72.5, abs=2)


def test_too_few_samples_are_not_called_flat() -> None:
    short = Series("memory", "MiB", TIMES_S[:1000:100], np.full(10, 400.0))
    for warm_up_s in (0.0, 10_000.0):
        found = verdict_of(short, MEMORY, warm_up_s=warm_up_s)
        assert not found.is_flat
        assert "too few" in str(found)


def test_requests_per_byte_are_distinguished_from_more_bytes() -> None:
    """Twice as fast in the second half, with as many requests a byte; then with a tenth more of them."""
    offloaded = Series("bytes", "GiB", TIMES_S, np.cumsum(np.where(TIMES_S < 1800, 1.0, 2.0)))
    same = Series("requests", "", TIMES_S, offloaded.values * 300)
    more = Series("requests", "", TIMES_S, np.cumsum(np.where(TIMES_S < 1800, 300.0, 2 * 400.0)))
    assert verdict_of(ratio("", "", same, offloaded), Limit(0.1), warm_up_s=0).is_flat
    assert not verdict_of(ratio("", "", more, offloaded), Limit(0.1), warm_up_s=0).is_flat
    assert np.isnan(ratio("", "", same, Series("", "", TIMES_S, np.zeros(len(TIMES_S)))).values).all()


def test_readers_detect_missing_repeated_damaged_and_foreign_payloads() -> None:
    assert checked(payloads_of(3, 10, 5), 3, 10) == 15
    assert checked(payloads_of(3, 10, 5).slice(2, 2), 3, None) == 14
    for payloads, expected in ((payloads_of(3, 11, 5), 10), (payloads_of(3, 9, 5), 10), (payloads_of(2, 10, 5), 10)):
        with pytest.raises(ValueError, match="stream 3"):
            checked(payloads, 3, expected)
    damaged = payloads_of(3, 10, 5).to_pylist()
    damaged[2] = damaged[2][:500] + b"?" + damaged[2][501:]
    for each in (damaged, [*payloads_of(3, 10, 4).to_pylist(), b"short"]):
        with pytest.raises(ValueError, match="stream 3"):
            checked(pa.array(each, pa.binary()), 3, 10)


def test_metrics_are_summed_over_their_labels() -> None:
    text = b'# HELP x\noffloader_requests_total{verb="get"} 3.0\noffloader_requests_total{verb="put"} 4\n'
    assert summed(text + b"offloader_throttles_total 1.0\npython_x 9\n") == {
        "requests_total": 7.0,
        "throttles_total": 1.0,
    }


@pytest.mark.process
@pytest.mark.parametrize("wrong", [["--minutes", "-3"], ["--minutes", "0.5"], ["--streams", "0"], ["--readers", "0"]])
def test_run_without_streams_or_time_is_refused(wrong: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        soak(wrong)
    assert ended.value.code == 2
    assert "at least 1" in capsys.readouterr().err
