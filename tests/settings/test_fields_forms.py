"""Durations and sizes in a settings file: their form, their aliases, and their former keys."""

from __future__ import annotations

from fractions import Fraction
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from offloader.errors import InvalidCallError
from offloader.settings import Settings
from offloader.settings.fields import DURATION, SIZE, Quantity
from offloader.settings.layered import (
    ALIASES,
    FIELDS,
    SETTINGS,
    SettingsFile,
    key_of,
    parse_settings,
    read_settings_file,
    shown,
    value_of,
)

AMOUNTS = sorted(name for name, field in FIELDS.items() if "quantity" in field.metadata)


def value_in(key: str, literal: str) -> object:
    """The value of a setting that is alone in its file."""
    section, _, name = key.partition(".")
    tables = {"offload": "method = 'streaming'\n"}
    tables[section] = tables.get(section, "") + f"{name} = {literal}\n"
    text = "".join(f"[{each}]\n{lines}" for each, lines in tables.items()) + "[topics.x.offload]\nmethod = 'ledger'\n"
    return parse_settings(text, "s.toml").layers[""][SETTINGS.get(key, key)]


def problem_in(key: str, literal: str) -> str:
    with pytest.raises(InvalidCallError) as refused:
        value_in(key, literal)
    return refused.value.message


def test_every_amount_of_the_settings_is_a_duration_or_a_size() -> None:
    endings = ("_s", "_ms", "_seconds", "_minutes", "_hours", "_days", "bytes", "mbytes")
    amounts = {
        name
        for name in FIELDS
        if name.removesuffix("_max").removesuffix("_min").endswith(endings) and not name.endswith("_per_s")
    }
    rates = {name for name in amounts if name.removesuffix("_min").endswith("_per_s")}
    assert set(AMOUNTS) == amounts - rates
    assert not [key for key in SETTINGS if key.removesuffix("_max").removesuffix("_min").endswith(endings[1:])]
    assert len(SETTINGS) == len(FIELDS)


@pytest.mark.slow
@pytest.mark.parametrize("name", AMOUNTS)
def test_amount_needs_a_number_with_a_unit(name: str) -> None:
    key, field = key_of(name), FIELDS[name]
    quantity: Quantity = field.metadata["quantity"]
    assert value_in(key, f'"{shown(name, field.default)}"') == field.default
    for bound in (max(field.metadata["low"], 0), field.metadata["high"]):
        assert value_of(name, shown(name, bound)) == bound
    wrong = "GiB" if quantity is DURATION else "s"
    assert f"{key}: '5{wrong}' is not a {quantity.name} like \"{quantity.example}\" (" in problem_in(key, f'"5{wrong}"')
    assert f"{key}: 5 is not a {quantity.name} like" in problem_in(key, "5")
    assert f"{key}: '5' is not a {quantity.name} like" in problem_in(key, '"5"')
    assert f"{key}: '-5{quantity.example[-1]}' is not" in problem_in(key, f'"-5{quantity.example[-1]}"')
    beyond = f"{'9' * 15}{'d' if quantity is DURATION else 'TiB'}"
    assert f"{key}: {beyond} is not between" in problem_in(key, f'"{beyond}"')


@pytest.mark.parametrize("name", [name for name in AMOUNTS if FIELDS[name].metadata["may_be_never"]])
def test_never_is_written_as_a_word(name: str) -> None:
    assert value_in(key_of(name), '"never"') == -1
    assert shown(name, -1) == "never"
    assert "is not a" in problem_in(key_of(name), "-1")


ATTRIBUTES = sorted(name for name in FIELDS if key_of(name) != name and name not in ALIASES)


@pytest.mark.slow
@pytest.mark.parametrize("name", ATTRIBUTES)
def test_an_attributes_name_in_a_file_is_an_error_with_the_key(name: str, tmp_path: Path) -> None:
    section, _, attribute = name.partition(".")
    path = tmp_path / "offloader.toml"
    path.write_text(f"[{section}]\n{attribute} = 1\n")
    with pytest.raises(InvalidCallError, match=f"{name}: no such setting; did you mean {key_of(name)}?"):
        read_settings_file(str(path))


@pytest.mark.parametrize("alias", sorted(ALIASES))
def test_an_alias_is_a_number_in_the_unit_of_its_name(alias: str) -> None:
    assert value_in(alias, "10") == 10
    assert f"{alias}: '10' is not a" in problem_in(alias, '"10"')
    section, _, name = alias.partition(".")
    key = key_of(alias).partition(".")[2]
    with pytest.raises(InvalidCallError, match=f"{key_of(alias)} is set twice"):
        parse_settings(f"[{section}]\n{name} = 10\n{key} = {shown(alias, 10)!r}\n", "s.toml")


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
    assert values["offload.deletion_lag_minutes"].as_json()["value"] == "4h"
    assert values["store.retry_delay_first_s"].as_json()["value"] == "100ms"
    assert values["retention.min_mbytes"].as_json()["value"] == "0B"


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


def test_python_keeps_its_names_and_numbers() -> None:
    assert Settings.of({"offload": {"deletion_lag_minutes": 5}}).offload.deletion_lag_minutes == 5
    with pytest.raises(InvalidCallError, match="deletion_lag: no such setting"):
        Settings.of({"offload": {"deletion_lag": "5m"}})
