"""The samples of every page that isn't in the gate run and print what they show."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.docs.worlds import GATE, WITH_SAMPLES, Part, parts_of, run_part


@pytest.mark.timeout(600)
@pytest.mark.parametrize("part", [each for page in WITH_SAMPLES if page not in GATE for each in parts_of(page)])
def test_page_samples_run_and_print_documented_output(
    part: Part, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    run_part(part, tmp_path, request)
