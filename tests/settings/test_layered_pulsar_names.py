"""Pulsar's and PIP-76's own names of settings, in a settings file."""

from __future__ import annotations

from typing import Any

import pytest

from offloader.errors import InvalidCall
from offloader.settings.layered import PULSAR_NAMES, parse_settings

VALUES: dict[str, tuple[str, Any]] = {
    "offload.maxSizePerOffloadSegmentMbytes": ("512", 512.0),
    "offload.maxOffloadSegmentRolloverTimeMinutes": ("60", 60.0),
    "offload.managedLedgerOffloadThresholdInBytes": ("1099511627776", 2**40),
    "offload.managedLedgerOffloadAutoTriggerSizeThresholdBytes": ("1073741824", 2**30),
    "offload.managedLedgerOffloadThresholdInSeconds": ("2592000", 2_592_000),
    "offload.managedLedgerOffloadDeletionLagMs": ("14400000", 240.0),
    "offload.managedLedgerOffloadDeletionLagInMillis": ("90000", 1.5),
    "read.managedLedgerOffloadedReadPriority": ('"TIERED_STORAGE_FIRST"', "tiered-storage-first"),
    "read.managedLedgerDataReadPriority": ('"bookkeeper-first"', "bookkeeper-first"),
}


def test_every_name_has_a_value_here() -> None:
    assert set(VALUES) == set(PULSAR_NAMES)


@pytest.mark.parametrize("name", VALUES)
def test_name_sets_the_setting_in_its_unit(name: str) -> None:
    text, wanted = VALUES[name]
    section, _, key = name.partition(".")
    setting = PULSAR_NAMES[name][0].partition(".")[2]
    method = 'method = "ledger"' if "hreshold" in name else 'method = "streaming"'
    table = f"[offload]\n{method}\n{key} = {text}\n" if section == "offload" else f"[{section}]\n{key} = {text}\n"
    settings = parse_settings(table, "s.toml").settings_of("public/default/persistent/a")
    assert getattr(getattr(settings, section), setting) == wanted


@pytest.mark.parametrize(("switch", "method"), [("true", "streaming"), ("false", "ledger")])
def test_switch_of_offload_policies_chooses_the_method(switch: str, method: str) -> None:
    found = parse_settings(f"[offload]\nstreamingOffload = {switch}\n", "s.toml")
    assert found.settings_of("a").offload.method == method


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[offload]\nmethod = "ledger"\nstreamingOffload = true\n', "streamingOffload = true contradicts"),
        ("[offload]\nmaxSizePerOffloadSegmentMbytes = 1\nsegment_size_max = '2MiB'\n", "is set twice"),
        ("[offload]\nmanagedLedgerOffloadDeletionLagMs = true\n", "managedLedgerOffloadDeletionLagMs"),
        ("[read]\nmanagedLedgerOffloadedReadPriority = 3\n", "managedLedgerOffloadedReadPriority"),
        (
            '[topics."persistent://t/n/a".offload]\nmethod = "ledger"\n[topics."t/n/persistent/a".offload]\n',
            "is there twice",
        ),
    ],
)
def test_contradictions_are_refused(text: str, message: str) -> None:
    with pytest.raises(InvalidCall, match=message):
        parse_settings(text, "s.toml")


def test_topics_table_may_have_the_topics_name() -> None:
    text = 'streaming_offload = true\n[topics."persistent://public/default/a/b".offload]\nsegment_age_max = "1m"\n'
    settings = parse_settings(text, "s.toml").settings_of("public/default/persistent/a/b")
    assert settings.offload.max_offload_segment_rollover_time_minutes == 1.0
