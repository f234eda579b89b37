"""Simulated worlds of the tests share what is computed of equal bytes, as those of ``./dev soak`` do."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.simulation.remembered_decoding import decoding_remembered


@pytest.fixture(scope="module", autouse=True)
def _decoding_remembered() -> Iterator[None]:
    with decoding_remembered():
        yield
