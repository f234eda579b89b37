"""Options that take an amount: a plain number, or a text as in the settings file."""

from __future__ import annotations

from typing import Annotated, Any

import pytest
import typer

from offloader.cli.main import _command
from offloader.cli.options import amount

OPTIONS = {
    "seconds": amount("--it", "For so long.", "seconds", low=0.01),
    "bytes": amount("--it", "So much.", "bytes", whole=True, low=1, high=65536),
    "megabytes": amount("--it", "So much.", "megabytes"),
}


def given(unit: str, text: str) -> Any:
    """What a verb gets from ``--it TEXT``."""
    found: list[Any] = []

    def run(it: float | None = None) -> None:
        found.append(it)

    run.__annotations__["it"] = Annotated[float | None, OPTIONS[unit]]
    app = typer.Typer()
    app.command()(_command(run))
    typer.main.get_command(app).main(args=["--it", text], standalone_mode=False)
    return found[0]


@pytest.mark.parametrize(
    ("unit", "text", "value"),
    [
        *(("seconds", "30", 30.0), ("seconds", "30s", 30.0), ("seconds", "50ms", 0.05), ("seconds", "1.5h", 5400.0)),
        *(("seconds", "2e3", 2000.0), ("bytes", "100", 100), ("bytes", "4KiB", 4096), ("bytes", "0.5KiB", 512)),
        *(("megabytes", "2.5", 2.5), ("megabytes", "1MiB", 1.048576), ("megabytes", "0", 0.0)),
    ],
)
def test_a_number_and_an_amount_are_in_the_unit_of_the_option(unit: str, text: str, value: float) -> None:
    found = given(unit, text)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize(
    ("unit", "text", "why"),
    [
        ("seconds", "soon", "'soon' is neither a number of seconds nor a duration like \"30s\" (ms, s, m, h, d)"),
        ("seconds", "1MiB", "'1MiB' is neither a number of seconds"),
        ("seconds", "1ms", "'1ms' isn't a duration of at least 0.01 seconds"),
        ("seconds", "nan", "isn't a duration"),
        ("seconds", "inf", "isn't a duration"),
        ("seconds", "1e10", "'1e10' isn't a duration of at least 0.01, at most 3,153,600,000 seconds"),
        ("seconds", "99999999999999999999d", "at most 3,153,600,000 seconds"),
        ("seconds", "1e308", "isn't a duration"),
        ("megabytes", "1e308", "isn't a size of at least 0, at most 1,125,899,906,842,624 megabytes"),
        ("bytes", "64.5KiB", "'64.5KiB' isn't a size of at least 1, at most 65,536 whole bytes"),
        ("bytes", "1.5", "whole bytes"),
        ("bytes", "0", "at least 1"),
        ("bytes", "30s", "neither a number of bytes nor a size"),
        ("megabytes", "-1", "isn't a size of at least 0 megabytes"),
    ],
)
def test_invalid_amount_is_refused_with_a_valid_example(unit: str, text: str, why: str) -> None:
    with pytest.raises(typer.BadParameter) as refused:
        given(unit, text)
    assert why in str(refused.value)
