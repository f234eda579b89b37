"""Durations and sizes in a settings file: their form, their aliases, and their former keys."""

from __future__ import annotations

import json
import pickle
from fractions import Fraction

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offloader.errors import InvalidCallError
from offloader.settings import Duration, Settings, Size
from offloader.settings.fields import DURATION, SIZE, Quantity, in_file, str_of
from offloader.settings.layered import (
    ALIASES,
    FIELDS,
    SettingsFile,
    parse_settings,
    value_of,
)

AMOUNTS = sorted(name for name, field in FIELDS.items() if "quantity" in field.metadata)


def value_in(key: str, literal: str) -> object:
    """The value of a setting that is alone in its file."""
    section, _, name = key.partition(".")
    tables = {"offload": "method = 'streaming'\n"}
    tables[section] = tables.get(section, "") + f"{name} = {literal}\n"
    text = "".join(f"[{each}]\n{lines}" for each, lines in tables.items()) + "[topics.x.offload]\nmethod = 'ledger'\n"
    return parse_settings(text, "s.toml").layers[""][ALIASES.get(key, key)]


def problem_in(key: str, literal: str) -> str:
    with pytest.raises(InvalidCallError) as refused:
        value_in(key, literal)
    return refused.value.message


def test_no_setting_has_a_unit_in_its_name() -> None:
    endings = ("_ms", "_seconds", "_minutes", "_hours", "_days", "bytes", "mbytes")
    assert not [key for key in FIELDS if key.removesuffix("_max").removesuffix("_min").endswith(endings)]
    assert all(isinstance(FIELDS[name].default, Duration | Size) for name in AMOUNTS)


@pytest.mark.parametrize(
    ("amount", "text", "plain"),
    [
        (Duration("1.5m"), "90s", 90.0),
        (Duration(0.25), "250ms", 0.25),
        (Duration("0.00001m"), "0.0006s", 0.0006),
        (Duration("never"), "never", -1.0),
        (Size("64KiB"), "64KiB", 65536),
        (Size(1), "1B", 1),
        (Size("never"), "never", -1),
    ],
)
def test_amounts_are_numbers_with_a_text(amount: Duration | Size, text: str, plain: float) -> None:
    assert (amount, str_of(amount), str(amount)) == (plain, text, str(plain))
    assert eval(repr(amount)) == amount
    copied = pickle.loads(pickle.dumps(amount))
    assert (copied, type(copied)) == (amount, type(amount))
    assert json.loads(json.dumps(amount)) == plain


def test_amounts_in_python_are_texts_or_numbers_of_seconds_and_bytes() -> None:
    given = {"drain_timeout": "2m", "deletion_lag": 5, "block_size": "64KiB", "part_size": 2**23}
    found = Settings.of({"offload": given}).offload
    assert [found.drain_timeout.minutes, found.deletion_lag] == [2, 5]
    assert [found.block_size, found.part_size.mebibytes] == [65536, 8]
    with pytest.raises(InvalidCallError) as refused:
        Settings.of({"offload": {"drain_timeout": "2", "block_size": 1.5, "deletion_lag": -2}})
    said = refused.value.message
    assert "offload.drain_timeout: '2' is not a duration" in said
    assert "offload.block_size: 1.5 is not a size" in said
    assert "offload.deletion_lag: -2 is not between 0s and 3650d, or never" in said


@pytest.mark.slow
@pytest.mark.parametrize("name", AMOUNTS)
def test_amount_needs_a_number_with_a_unit(name: str) -> None:
    key, field = name, FIELDS[name]
    quantity: Quantity = field.metadata["quantity"]
    assert value_in(key, f'"{in_file(field.default)}"') == field.default
    for bound in (field.metadata["low"], field.metadata["high"]):
        assert value_of(name, in_file(bound)) == bound
    wrong = "GiB" if quantity is DURATION else "s"
    assert f"{key}: '5{wrong}' is not a {quantity.name} like \"{quantity.example}\" (" in problem_in(key, f'"5{wrong}"')
    assert f"{key}: 5 is not a {quantity.name} like" in problem_in(key, "5")
    assert f"{key}: '5' is not a {quantity.name} like" in problem_in(key, '"5"')
    assert f"{key}: '-5{quantity.example[-1]}' is not" in problem_in(key, f'"-5{quantity.example[-1]}"')
    beyond = f"{'9' * 15}{'d' if quantity is DURATION else 'TiB'}"
    assert f"{key}: {beyond} is not between" in problem_in(key, f'"{beyond}"')


@pytest.mark.parametrize("name", [name for name in AMOUNTS if FIELDS[name].metadata["may_be_never"]])
def test_never_is_written_as_a_word(name: str) -> None:
    assert value_in(name, '"never"') == -1
    assert "is not a" in problem_in(name, "-1")


@pytest.mark.parametrize("alias", sorted(ALIASES))
def test_an_alias_is_a_number_in_the_unit_of_its_name(alias: str) -> None:
    name, unit = ALIASES[alias], FIELDS[ALIASES[alias]].metadata["alias_unit"]
    assert value_in(alias, "10") == value_of(name, f"10{unit}")
    assert f"{alias}: '10' is not a number" in problem_in(alias, '"10"')
    section, _, key = name.partition(".")
    with pytest.raises(InvalidCallError, match=f"{name} is set twice"):
        parse_settings(f"[{section}]\n{alias.partition('.')[2]} = 10\n{key} = '10{unit}'\n", "s.toml")


def test_switch_and_method_may_both_be_given_if_they_agree() -> None:
    found = parse_settings('streaming_offload = false\n[offload]\nmethod = "none"\n', "s.toml")
    assert found.layers[""] == {"offload.method": "none"}


def test_displayed_values_are_valid_in_a_settings_file() -> None:
    for each in SettingsFile().values_of("").values():
        row = each.as_json()
        assert set(row) == {"name", "value", "source"}
        if each.name in AMOUNTS:
            assert isinstance(row["value"], str)
    values = SettingsFile().values_of("")
    assert values["offload.deletion_lag"].as_json()["value"] == "4h"
    assert values["store.retry_delay_first"].as_json()["value"] == "100ms"
    assert values["retention.min_size"].as_json()["value"] == "0B"


@given(st.sampled_from([(q, unit) for q in (DURATION, SIZE) for unit in q.units]), st.floats(1e-6, 2**60))
def test_parsed_text_of_an_amount_equals_its_value(unit: tuple[Quantity, str], value: float) -> None:
    quantity, name = unit
    assert float(quantity.parse(quantity.text(value, name), name)) == value


@pytest.mark.parametrize(
    ("value", "unit", "text"),
    [
        (90, "m", "90m"),
        (60, "m", "1h"),
        (0.1, "s", "100ms"),
        (1 / 3, "m", "20s"),
        (0, "h", "0s"),
        (1500, "ms", "1500ms"),
    ],
)
def test_the_text_of_a_duration_is_short(value: float, unit: str, text: str) -> None:
    assert DURATION.text(value, unit) == text


def test_an_amount_that_must_be_whole_is_not_rounded() -> None:
    assert SIZE.parse("1.5KiB", "B") == Fraction(1536)
    assert value_in("offload.block_size", '"1.5KiB"') == 1536
    assert "1000.5B is not a whole number of B" in problem_in("offload.block_size", '"1000.5B"')
