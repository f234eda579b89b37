"""Pulsar's and PIP-76's own names of settings, in a settings file."""

from __future__ import annotations

import json
from typing import Any

import pytest

from offloader.errors import InvalidCallError
from offloader.settings import Duration, Size
from offloader.settings.layered import FIELDS, parse_settings
from offloader.settings.pulsar_names import REFUSED, TRANSLATED

VALUES: dict[str, tuple[str, Any]] = {
    "maxSizePerOffloadSegmentMbytes": ("512", Size("512MiB")),
    "maxOffloadSegmentRolloverTimeMinutes": ("60", Duration("1h")),
    "managedLedgerOffloadThresholdInBytes": ("1099511627776", 2**40),
    "managedLedgerOffloadAutoTriggerSizeThresholdBytes": ("1073741824", 2**30),
    "managedLedgerOffloadThresholdInSeconds": ("2592000", 2_592_000),
    "managedLedgerOffloadDeletionLagMs": ("14400000", Duration("4h")),
    "managedLedgerOffloadDeletionLagInMillis": ("90000", Duration("90s")),
    "managedLedgerOffloadedReadPriority": ('"TIERED_STORAGE_FIRST"', "tiered-storage-first"),
    "managedLedgerDataReadPriority": ('"bookkeeper-first"', "bookkeeper-first"),
    "managedLedgerOffloadServiceEndpoint": ('"http://minio:9000"', "http://minio:9000"),
    "s3ManagedLedgerOffloadServiceEndpoint": ('"https://s3.example.org"', "https://s3.example.org"),
    "managedLedgerOffloadRegion": ('"eu-west-1"', "eu-west-1"),
    "s3ManagedLedgerOffloadRegion": ('"eu-west-3"', "eu-west-3"),
}
#: As `pulsar-admin namespaces get-offload-policies` prints them.
POLICIES = """{
  "offloadersDirectory" : "./offloaders",
  "managedLedgerOffloadDriver" : "aws-s3",
  "managedLedgerOffloadMaxThreads" : 2,
  "managedLedgerOffloadPrefetchRounds" : 1,
  "managedLedgerOffloadThresholdInBytes" : -1,
  "managedLedgerOffloadThresholdInSeconds" : -1,
  "managedLedgerOffloadDeletionLagInMillis" : 14400000,
  "managedLedgerOffloadedReadPriority" : "TIERED_STORAGE_FIRST",
  "s3ManagedLedgerOffloadBucket" : "cold",
  "s3ManagedLedgerOffloadServiceEndpoint" : "http://minio:9000",
  "s3ManagedLedgerOffloadRegion" : "eu-west-1",
  "s3ManagedLedgerOffloadMaxBlockSizeInBytes" : 67108864,
  "s3ManagedLedgerOffloadReadBufferSizeInBytes" : 1048576,
  "s3ManagedLedgerOffloadRoleSessionName" : "pulsar-s3-offload"
}"""


def test_every_name_has_a_value_here() -> None:
    assert set(VALUES) == set(TRANSLATED)


@pytest.mark.parametrize("in_section", [True, False])
@pytest.mark.parametrize("name", VALUES)
def test_name_sets_the_setting_in_its_unit(name: str, in_section: bool) -> None:
    text, wanted = VALUES[name]
    section, _, setting = TRANSLATED[name][0].partition(".")
    method = "ledger" if "hreshold" in name else "streaming"
    place = f"[{section}]\n" if in_section and section != "offload" else ""
    line = f"{name} = {text}\n"
    head = f"[offload]\nmethod = '{method}'\n"
    table = f"{head}{place}{line}" if in_section else f"{line}{head}"
    settings = parse_settings(table, "s.toml").settings_of("public/default/persistent/a")
    assert getattr(getattr(settings, section), setting) == wanted


def test_names_hold_for_a_namespace_and_a_topic() -> None:
    found = parse_settings(
        'streamingOffload = true\n[namespaces."t/n"]\nmaxSizePerOffloadSegmentMbytes = 7\n'
        '[topics."persistent://t/n/a"]\nmaxSizePerOffloadSegmentMbytes = 9\n',
        "s.toml",
    )
    sizes = [
        found.settings_of(f"t/{name}").offload.segment_size_max.mebibytes
        for name in ("other/persistent/a", "n/persistent/b", "n/persistent/a")
    ]
    assert sizes == [1024.0, 7.0, 9.0]


@pytest.mark.parametrize(("switch", "method"), [("true", "streaming"), ("false", "ledger")])
@pytest.mark.parametrize("place", ["[offload]\n", ""])
def test_switch_of_offload_policies_chooses_the_method(switch: str, method: str, place: str) -> None:
    found = parse_settings(f"{place}streamingOffload = {switch}\n", "s.toml")
    assert found.settings_of("a").offload.method == method


def test_negative_lag_and_threshold_mean_never() -> None:
    text = (
        "managedLedgerOffloadDeletionLagInMillis = -1\nmanagedLedgerOffloadThresholdInBytes = -1\n"
        "[offload]\nmethod = 'ledger'\n"
    )
    found = parse_settings(text, "s.toml").settings_of("a").offload
    assert [found.deletion_lag, found.offload_threshold_size] == [-1, -1]


def test_policies_of_a_namespace_are_translated_or_refused_by_name() -> None:
    policies = json.loads(POLICIES)
    lines = "".join(f"{name} = {json.dumps(value)}\n" for name, value in policies.items())
    with pytest.raises(InvalidCallError) as refused:
        parse_settings(f"{lines}[offload]\nmethod = 'ledger'\n", "s.toml")
    said = str(refused.value)
    for name in policies:
        assert (f"{name}: is a Pulsar setting" in said) == (name in REFUSED), name
    accepted = "".join(line + "\n" for line in lines.splitlines() if line.split(" = ")[0] in TRANSLATED)
    found = parse_settings(f"{accepted}[offload]\nmethod = 'ledger'\n", "s.toml").settings_of("")
    assert (found.serve.endpoint_url, found.serve.region) == ("http://minio:9000", "eu-west-1")


@pytest.mark.parametrize("name", REFUSED)
def test_refusal_names_an_existing_setting_or_what_to_do(name: str) -> None:
    instead = REFUSED[name]
    assert " " in instead or instead in FIELDS
    with pytest.raises(InvalidCallError, match=instead.split("(")[0].strip()):
        parse_settings(f"[offload]\n{name} = 'x'\n", "s.toml")


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ('[offload]\nmethod = "ledger"\nstreamingOffload = true\n', "streamingOffload = true contradicts"),
        ("[offload]\nmaxSizePerOffloadSegmentMbytes = 1\nsegment_size_max = '2MiB'\n", "is set twice"),
        ("maxSizePerOffloadSegmentMbytes = 1\n[offload]\nmaxSizePerOffloadSegmentMbytes = 2\n", "is set twice"),
        ("[offload]\nmanagedLedgerOffloadDeletionLagMs = true\n", "managedLedgerOffloadDeletionLagMs"),
        ("[read]\nmanagedLedgerOffloadedReadPriority = 3\n", "managedLedgerOffloadedReadPriority"),
        ("managedLedgerOffloadServiceEndpoint = 'minio:9000'\n", "has no scheme"),
        ('[namespaces."a/b"]\nmanagedLedgerOffloadRegion = "x"\n', "applies to the whole process"),
        (
            '[topics."persistent://t/n/a".offload]\nmethod = "ledger"\n[topics."t/n/persistent/a".offload]\n',
            "is given twice",
        ),
    ],
)
def test_contradictions_are_refused(text: str, message: str) -> None:
    with pytest.raises(InvalidCallError, match=message):
        parse_settings(text, "s.toml")


def test_topics_table_may_have_the_topics_name() -> None:
    text = 'streaming_offload = true\n[topics."persistent://public/default/a/b".offload]\nsegment_age_max = "1m"\n'
    settings = parse_settings(text, "s.toml").settings_of("public/default/persistent/a/b")
    assert settings.offload.segment_age_max.minutes == 1.0
