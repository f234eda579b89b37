"""What a broker's settings mean for the plugin: each wrong one is named with what to do."""

from __future__ import annotations

import pytest

from offloader.doctor import namespace_findings, settings_findings, version_finding
from offloader.errors import InvalidCallError
from offloader.settings.layered import parse_settings

GOOD = {
    "managedLedgerOffloadDriver": "offloader",
    "offloadersDirectory": "/pulsar/offloaders",
    "managedLedgerOffloadServiceEndpoint": "http://sidecar:8081",
    "managedLedgerDataReadPriority": "bookkeeper-first",
    "managedLedgerOffloadAutoTriggerSizeThresholdBytes": "0",
    "managedLedgerOffloadDeletionLagMs": "14400000",
    "brokerEntryMetadataInterceptors": "[]",
    "brokerEntryPayloadProcessors": "[]",
}


def test_good_settings_have_no_hint() -> None:
    assert [each for each in settings_findings(GOOD) if each.hint] == []


def test_setting_that_the_broker_does_not_report_is_not_guessed() -> None:
    reported = {name: value for name, value in GOOD.items() if name != "managedLedgerOffloadServiceEndpoint"}
    assert [each for each in settings_findings(reported) if each.hint] == []


@pytest.mark.parametrize(
    ("name", "value", "is_problem", "said"),
    [
        ("managedLedgerOffloadDriver", "", True, "managedLedgerOffloadDriver is not set"),
        ("managedLedgerOffloadDriver", "aws-s3", True, "managedLedgerOffloadDriver is aws-s3"),
        ("offloadersDirectory", "", True, "offloadersDirectory is not set"),
        ("managedLedgerOffloadServiceEndpoint", "null", False, "managedLedgerOffloadServiceEndpoint is not set"),
        ("brokerEntryPayloadProcessors", "[com.example.Masking]", True, "brokerEntryPayloadProcessors is [com."),
        ("managedLedgerDataReadPriority", "", False, "is tiered-storage-first"),
        ("managedLedgerOffloadAutoTriggerSizeThresholdBytes", "-1", False, "starts no offloads"),
        ("managedLedgerOffloadAutoTriggerSizeThresholdBytes", "1000", False, "keeps that much"),
        ("managedLedgerOffloadDeletionLagMs", "", False, "BookKeeper keeps every offloaded ledger"),
    ],
)
def test_each_wrong_setting_is_named(name: str, value: str, is_problem: bool, said: str) -> None:
    [found] = [each for each in settings_findings({**GOOD, name: value}) if each.hint]
    assert (found.is_problem, said in found.what) == (is_problem, True), found


@pytest.mark.parametrize(("exposed", "is_wrong"), [("true", False), ("false", True), ("", True)])
def test_entry_metadata_has_to_be_exposed_where_brokers_add_it(exposed: str, is_wrong: bool) -> None:
    settings = {
        **GOOD,
        "brokerEntryMetadataInterceptors": "[org.apache.pulsar.common.intercept.AppendIndexMetadataInterceptor]",
        "exposingBrokerEntryMetadataToClientEnabled": exposed,
    }
    wrong = [each for each in settings_findings(settings) if each.is_problem]
    assert [("exposingBrokerEntryMetadataToClientEnabled" in each.hint) for each in wrong] == [True] * is_wrong


@pytest.mark.parametrize(
    ("policies", "count"),
    [
        ({}, 0),
        ({"offload_policies": None}, 0),
        ({"offload_policies": {"managedLedgerOffloadDriver": None}}, 0),
        ({"offload_policies": {"managedLedgerOffloadDriver": "offloader"}}, 0),
        ({"offload_policies": {"managedLedgerOffloadDriver": "aws-s3"}}, 1),
    ],
)
def test_policy_with_another_driver_is_a_problem(policies: dict[str, object], count: int) -> None:
    assert [each.is_problem for each in namespace_findings(policies)] == [True] * count


@pytest.mark.parametrize(
    ("version", "is_tried"),
    [
        ("3.0.7", True),
        ("4.0.7", True),
        ("4.2.4", True),
        ("4.1.0-SNAPSHOT", True),
        ("5.0.0-M1", True),
        ("2.11.4", False),
        ("5.1.0", False),
    ],
)
def test_version_outside_the_tried_ones_is_said(version: str, is_tried: bool) -> None:
    found = version_finding(version)
    assert (not found.is_problem, found.hint == "") == (True, is_tried)
    assert version_finding("").hint != ""


def test_following_a_trim_without_the_plugin_is_refused() -> None:
    with pytest.raises(InvalidCallError, match="follow_broker_trim: has no effect"):
        parse_settings("[pulsar]\nfollow_broker_trim = true\n", "offloader.toml")
    parse_settings("[pulsar]\nbroker_plugin = true\nfollow_broker_trim = true\n", "offloader.toml")
