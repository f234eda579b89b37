"""Settings: checked all at once, in layers, each value with its origin."""

from __future__ import annotations

import ast
import itertools
import re
from collections.abc import Mapping
from contextlib import closing
from dataclasses import fields
from pathlib import Path
from typing import Any

import pytest

from offloader.errors import InvalidCallError, NotFoundError
from offloader.ledgers.sqlite.embedded import EmbeddedLedgers
from offloader.managed_ledger import open_managed_ledger
from offloader.manifest.log import load_manifest
from offloader.settings import Settings
from offloader.settings.fields import in_file
from offloader.settings.layered import (
    AT_MOST,
    FIELDS,
    METHOD_OF,
    NEEDS_NO_METHOD,
    PROCESS_SECTIONS,
    PROCESS_SETTINGS,
    PULSARS,
    SettingsFile,
    parse_settings,
    read_settings_file,
)
from offloader.store.open import open_store
from offloader.store.rate_limit import RATES

ORDERS = "public/default/persistent/orders"
FILE = """
streaming_offload = true
[offload]
block_size = "4KiB"
[namespaces."public/default".offload]
block_size = "8KiB"
codec = "zstd"
[topics."public/default/persistent/orders"]
streaming_offload = false
[topics."public/default/persistent/orders".offload]
offload_threshold_size = "1000B"
"""


def write(directory: Path, text: str) -> str:
    path = directory / "offloader.toml"
    path.write_text(text)
    return str(path)


def problems_of(directory: Path, text: str) -> list[str]:
    with pytest.raises(InvalidCallError) as refused:
        read_settings_file(write(directory, text))
    assert refused.value.message.startswith(f"{directory}/offloader.toml: ")
    return refused.value.message.removeprefix(f"{directory}/offloader.toml: ").split("; ")


@pytest.mark.parametrize(
    ("text", "meant"),
    [
        ('[serve]\nstor = "x"', "serve.store"),
        ('[serve]\nlogLevel = "info"', "serve.log_level"),
        ('store = "x"', "serve.store"),
        ('[ofload]\ncodec = "zstd"', "offload"),
        ('[topics."a/b/persistent/c".offload]\nblok_size = "1MiB"', 'topics."a/b/persistent/c".offload.block_size'),
    ],
)
def test_misspelt_settings_are_refused_with_the_name_that_is_meant(text: str, meant: str) -> None:
    with pytest.raises(InvalidCallError, match=re.escape(f"; did you mean {meant}?")):
        parse_settings(text, "here")


def test_names_of_pulsars_settings_lead_to_settings() -> None:
    assert set(PULSARS.values()) <= set(FIELDS)


def test_settings_like_no_other_are_refused_without_a_suggestion() -> None:
    with pytest.raises(InvalidCallError) as raised:
        parse_settings("[offload]\ncolour = 1\n[xyz]\na = 1", "here")
    assert "did you mean" not in raised.value.message


def test_topic_settings_override_namespace_and_process_settings(tmp_path: Path) -> None:
    found = read_settings_file(write(tmp_path, FILE))
    orders, other, foreign = (
        found.settings_of(stream).offload for stream in (ORDERS, "public/default/persistent/other", "a/b/persistent/c")
    )
    assert (orders.method, orders.block_size, orders.codec) == ("ledger", 8192, "zstd")
    assert orders.offload_threshold_size == 1000
    assert (other.method, other.block_size, other.codec) == ("streaming", 8192, "zstd")
    assert (foreign.method, foreign.block_size, foreign.codec) == ("streaming", 4096, "none")


def test_each_value_has_its_source(tmp_path: Path) -> None:
    path = write(tmp_path, FILE)
    values = read_settings_file(path).values_of(ORDERS)
    assert values["offload.codec"].source == f"{path} [namespace public/default]"
    assert values["offload.method"].source == f"{path} [topic {ORDERS}]"
    assert values["offload.part_size"].source == "default"
    sections = [getattr(Settings(), each.name) for each in fields(Settings)]
    assert len(values) == sum(len(fields(section)) for section in sections)


def test_streaming_is_off_by_default() -> None:
    values = SettingsFile().values_of(ORDERS)
    assert values["offload.method"].value == "ledger"


def test_method_in_a_later_layer_overrides_the_switch(tmp_path: Path) -> None:
    text = f'streaming_offload = true\n[topics."{ORDERS}".offload]\nmethod = "none"\n'
    values = read_settings_file(write(tmp_path, text)).values_of(ORDERS)
    assert values["offload.method"].value == "none"


def test_unknown_names_and_invalid_values_are_all_reported_at_once(tmp_path: Path) -> None:
    text = f"""
    streaming_offload = "yes"
    ofload = 1
    [offload]
    block_size = "1B"
    blok_bytes = 5
    [unheard]
    of = 1
    [topics."{ORDERS}".offload]
    codec = "rar"
    """
    assert problems_of(tmp_path, text) == [
        "streaming_offload: 'yes' is neither true nor false",
        "ofload: no such setting",
        "offload.block_size: 1B is not between 256B and 1GiB",
        "offload.blok_bytes: no such setting",
        "unheard: no such section (sections: " + ", ".join(Settings.__dataclass_fields__) + ")",
        f"topics.\"{ORDERS}\".offload.codec: 'rar' is none of none, zstd",
    ]


def test_contradictions_and_settings_without_effect_are_all_reported_at_once(tmp_path: Path) -> None:
    text = f"""
    streaming_offload = true
    [offload]
    method = "ledger"
    entry_size_max = "200000B"
    offload_buffer_size_max = "100000B"
    [namespaces."a/b"]
    streaming_offload = true
    [namespaces."a/b".offload]
    offload_threshold_size = "5B"
    [topics."{ORDERS}".offload]
    drain_timeout = "5s"
    """
    assert problems_of(tmp_path, text) == [
        "streaming_offload = true contradicts offload.method = 'ledger'",
        'namespaces."a/b".offload.offload_threshold_size: has no effect, only the method ledger uses it',
        f'topics."{ORDERS}".offload.drain_timeout: has no effect, only the method streaming uses it',
        "offload.entry_size_max = 200000B is above offload.offload_buffer_size_max = 100000B",
    ]


def test_invalid_and_inconsistent_settings_are_reported_together(tmp_path: Path) -> None:
    text = f"""
    [offload]
    block_size = "1B"
    [store]
    retry_delay_first = "20s"
    [limits]
    requests_per_s = 10
    slowdown_requests_per_s_min = 20
    [topics."{ORDERS}".offload]
    method = "none"
    codec = "zstd"
    entry_size_max = "1000B"
    drain_timeout = "5s"
    """
    assert problems_of(tmp_path, text) == [
        "offload.block_size: 1B is not between 256B and 1GiB",
        f'topics."{ORDERS}".offload.codec: has no effect, the method is none',
        f'topics."{ORDERS}".offload.drain_timeout: has no effect, only the method streaming uses it',
        "store.retry_delay_first = 20s is above store.retry_delay_max = 10s",
        "limits.slowdown_requests_per_s_min = 20 is above limits.requests_per_s = 10",
    ]


def test_a_wrong_method_is_not_called_the_cause_of_other_problems(tmp_path: Path) -> None:
    text = '[offload]\nmethod = "strem"\non_gap = "record"\n'
    assert problems_of(tmp_path, text) == ["offload.method: 'strem' is none of streaming, ledger, none"]


def _metadata(section: str, name: str) -> Mapping[str, Any]:
    [found] = [each.metadata for each in fields(getattr(Settings(), section)) if each.name == name]
    return found


@pytest.mark.parametrize(("key", "limit"), AT_MOST)
def test_each_pair_that_must_fit_is_checked_in_both_directions(tmp_path: Path, key: str, limit: str) -> None:
    """The larger one is set at the top; the setting that makes it too large may be set there or below."""
    (section, name), (other, most) = key.split("."), limit.split(".")
    high, low = _metadata(section, name), _metadata(other, most)
    small = max(low["low"], 1)
    large = min(high["high"], max(small * 2, high["low"] * 2, 1))
    kind = type(low["low"])  # a number, a duration or a size
    above, bound = in_file(kind(large)), in_file(kind(small))
    tables = {section: f"{key.partition('.')[2]} = {above!r}\n"}
    tables[other] = tables.get(other, "") + f"{limit.partition('.')[2]} = {bound!r}\n"
    text = "streaming_offload = true\n" + "".join(f"[{each}]\n{lines}" for each, lines in tables.items())
    above, bound = (each if isinstance(each, str) else f"{each:g}" for each in (above, bound))
    assert f"{key} = {above} is above {limit} = {bound}" in problems_of(tmp_path, text)


def test_setting_of_one_method_is_valid_if_a_stream_below_uses_it(tmp_path: Path) -> None:
    text = f'[offload]\non_gap = "record"\n[topics."{ORDERS}"]\nstreaming_offload = true\n'
    assert read_settings_file(write(tmp_path, text)).settings_of(ORDERS).offload.on_gap == "record"


def test_process_wide_setting_is_refused_in_a_section_for_streams(tmp_path: Path) -> None:
    text = f"""
    [topics."{ORDERS}".store]
    retries_max = 3
    [namespaces."a/b".offload]
    workers_max = 3
    """
    assert problems_of(tmp_path, text) == [
        'namespaces."a/b".offload.workers_max: applies to the whole process, set it at the top level of the file',
        f'topics."{ORDERS}".store.retries_max: applies to the whole process, set it at the top level of the file',
    ]


def test_missing_file_and_invalid_toml_are_reported(tmp_path: Path) -> None:
    with pytest.raises(NotFoundError, match="doesn't exist"):
        read_settings_file(str(tmp_path / "none.toml"))
    with pytest.raises(InvalidCallError, match=r"isn't TOML: .*line 1"):
        read_settings_file(write(tmp_path, "a = = b"))


@pytest.mark.parametrize("text", ["a = " + "9" * 5000, "a = " + "[" * 5000], ids=["a number of 5000 digits", "nested"])
def test_toml_that_no_parser_takes_is_refused_like_any_other_that_is_none(tmp_path: Path, text: str) -> None:
    with pytest.raises(InvalidCallError, match="isn't TOML"):
        read_settings_file(write(tmp_path, text))


def test_settings_from_mappings_report_everything_at_once() -> None:
    with pytest.raises(InvalidCallError, match="nothing was changed") as refused:
        Settings.of({"offload": {"block_size": True, "x": 1}, "y": {}}, origin="here")
    assert refused.value.message == (
        'here: offload.block_size: True is not a size like "64MiB" (B, KiB, MiB, GiB, TiB, KB, MB, GB, TB); '
        "offload.x: no such setting; y: no such section "
        f"(sections: {', '.join(Settings.__dataclass_fields__)})"
    )


@pytest.mark.slow
def test_a_stream_takes_its_settings_from_a_file(tmp_path: Path) -> None:
    config = write(tmp_path, FILE + "[ledgers]\nledger_entries_max = 5\n")
    ledgers = f"sqlite:///{tmp_path}/ledgers.db"
    store = open_store(f"file://{tmp_path}/store")
    with open_managed_ledger(ORDERS, ledgers=ledgers, store=store, settings=config) as topic:
        assert topic.method == "ledger"
        topic.append_batch([b"x" * 100] * 12)
        topic.offload()
        assert [info.entries for info in topic.ledgers()] == [5, 5, 2]
        assert [s.layout for s in load_manifest(store, ORDERS).offloaded()] == [1, 1]
    with pytest.raises(NotFoundError, match="doesn't exist"):
        open_managed_ledger(ORDERS, ledgers=ledgers, store=store, settings=tmp_path / "none.toml")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("values", "named"),
    [
        ({"store": {"retries_max": 3}}, "settings `store` have no effect"),
        ({"limits": {"requests_per_s": 300}}, "settings `limits` have no effect"),
        ({"ledgers": {"ledger_entries_max": 3}}, "settings ledgers have no effect"),
    ],
)
def test_settings_ignored_by_an_already_opened_store_are_refused(
    tmp_path: Path, values: dict[str, dict[str, int]], named: str
) -> None:
    store = open_store(f"file://{tmp_path}/store")
    settings = Settings.of(values)
    with closing(EmbeddedLedgers(str(tmp_path / "ledgers.db"))) as database:
        with pytest.raises(InvalidCallError, match=named):
            open_managed_ledger(ORDERS, ledgers=database, store=store, settings=settings)
        obeying = open_store(f"file://{tmp_path}/store", settings=settings.store, limits=settings.limits)
        with closing(EmbeddedLedgers(str(tmp_path / "other.db"), settings=settings.ledgers)) as other:
            open_managed_ledger(ORDERS, ledgers=other, store=obeying, settings=settings).close()


#: What is called settings, in expressions.
SETTINGS = re.compile(r"settings(\.\w+)?$|^chosen$|^serve$|self\._serve$|settings_of\((\w+|'')\)\.\w+$")


@pytest.mark.slow
def test_every_setting_is_read_somewhere_and_described() -> None:
    """A setting must not be unused.

    Rates are read by their names, see ``store.rate_limit.RATES``, and so are limits, see ``retention.policies``.
    """
    read = set(RATES)
    limits = itertools.product(("", "fallback_"), ("min", "max"), ("size", "age"))
    read |= {f"{prefix}{which}_{unit}" for prefix, which, unit in limits}
    for path in (Path(__file__).parents[2] / "offloader").rglob("*.py"):
        if "settings" in path.parts:
            continue
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
            # Of something that is called settings: other values may have attributes of the same name.
            if isinstance(node, ast.Attribute) and re.search(SETTINGS, ast.unparse(node.value)):
                read.add(node.attr)
    sections = {each.name: fields(getattr(Settings(), each.name)) for each in fields(Settings)}
    assert [f"{s}.{each.name}" for s, all_of in sections.items() for each in all_of if each.name not in read] == []
    assert all(each.metadata["doc"] for all_of in sections.values() for each in all_of)


def test_every_named_setting_exists() -> None:
    """Otherwise a rule for a renamed setting would be unused."""
    known = set(SettingsFile().values_of(""))
    named = {*METHOD_OF, *NEEDS_NO_METHOD, *PROCESS_SETTINGS, *(name for pair in AT_MOST for name in pair)}
    assert named <= known
    assert {each.name for each in fields(Settings)} >= PROCESS_SECTIONS


@pytest.mark.parametrize(
    ("scope", "why"),
    [
        ('topics."persistent://a/orders"', "an empty level"),
        ('topics."a/b/persistent/orders/"', "an empty level"),
        ('namespaces."public"', "a namespace is TENANT/NAMESPACE, such as public/default"),
        ('namespaces."persistent://public/default"', "a namespace is TENANT/NAMESPACE, such as public/default"),
        ('namespaces."public/"', "a namespace is TENANT/NAMESPACE, such as public/default"),
    ],
)
def test_settings_for_a_name_that_no_stream_can_have_are_refused(tmp_path: Path, scope: str, why: str) -> None:
    [problem] = problems_of(tmp_path, f"[{scope}.cleanup]\ndelete = false\n[cleanup]\ndelete = true\n")
    assert problem.startswith(f"{scope}: has no effect, ")
    assert why in problem


def test_settings_of_a_topic_count_for_its_partitions_and_those_of_a_partition_before_them(tmp_path: Path) -> None:
    text = f"""
    streaming_offload = true
    [cleanup]
    delete = true
    [topics."{ORDERS}".cleanup]
    delete = false
    grace_period = "2h"
    [topics."{ORDERS}-partition-1".cleanup]
    grace_period = "3h"
    """
    found = read_settings_file(write(tmp_path, text))
    partitions = [found.settings_of(f"{ORDERS}-partition-{number}").cleanup for number in range(2)]
    assert [(each.delete, each.grace_period.hours) for each in partitions] == [(False, 2), (False, 3)]
    assert found.values_of(f"{ORDERS}-partition-0")["cleanup.delete"].source.endswith(f"[topic {ORDERS}]")
    assert found.settings_of(f"{ORDERS}-partition-x").cleanup.delete


def test_settings_of_a_scalable_topic_count_for_its_segments(tmp_path: Path) -> None:
    text = """
    [topics."topic://public/default/orders".retention]
    keep = "7d"

    [topics."public/default/segment/orders/0000-7fff-1".retention]
    keep = "1d"
    """
    found = read_settings_file(write(tmp_path, text))
    names = ("topic/orders", "segment/orders/8000-ffff-2", "segment/orders/0000-7fff-1", "persistent/orders")
    days = [found.settings_of(f"public/default/{name}").retention.keep / 86400 for name in names]
    assert days == [7, 7, 1, 0]
