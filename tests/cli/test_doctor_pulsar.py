"""``offloader doctor`` of a Pulsar cluster: the finding for each problem."""

from __future__ import annotations

import random
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from offloader.cli.main import main
from offloader.doctor import Outcome, check_compression_of_topics, check_pulsar
from offloader.errors import ErrorKind
from offloader.ledgers.pulsar.consumer import first_entries
from offloader.ledgers.pulsar.source import PulsarCluster
from offloader.runtime.clock import SystemClock
from offloader.settings import Duration
from offloader.settings.layered import read_settings_file
from offloader.store.open import open_store
from offloader.testing.manual_clock import ManualClock
from tests.formats.pulsar_entries import Sent, single_entry
from tests.ledgers.pulsar_bench import NAME, PulsarBench
from tests.support.streams import StreamWriter, batch_of
from tests.test_doctor_broker_settings import GOOD

NAMESPACE = "public/default"


@pytest.fixture
def bench() -> Iterator[PulsarBench]:
    bench = PulsarBench()
    bench.settings = replace(bench.settings, topics=(NAMESPACE,), connect_timeout=Duration(2.0))
    yield bench
    bench.close()


def found(bench: PulsarBench) -> dict[str, tuple[Outcome, str, ErrorKind | None]]:
    checks = check_pulsar(bench.settings, SystemClock())
    return {each.check: (each.outcome, each.what, each.kind) for each in checks}


def hints(bench: PulsarBench) -> str:
    return "\n".join(each.hint for each in check_pulsar(bench.settings, SystemClock()))


def test_all_is_well(bench: PulsarBench) -> None:
    bench.topic.subscribe(NAME)
    findings = found(bench)
    assert {name: each[0] for name, each in findings.items()} == {
        "pulsar broker": Outcome.OK,
        "pulsar admin": Outcome.OK,
        "pulsar topics": Outcome.OK,
        "pulsar subscriptions": Outcome.OK,
    }
    assert findings["pulsar topics"][1] == "1 topics and partitions match"


def test_a_missing_subscription_and_policies_are_warnings(bench: PulsarBench) -> None:
    bench.admin.policies[NAMESPACE] = {"subscription_expiration_time_minutes": 5}
    findings = found(bench)
    assert findings["pulsar subscriptions"][:2] == (
        Outcome.WARNING,
        "1 of 1 topics have no subscription offloader, for example persistent://public/default/orders",
    )
    outcome, what, _ = findings[f"pulsar namespace {NAMESPACE}"]
    assert (outcome, "deleted after 5 minutes" in what) == (Outcome.WARNING, True)


def test_unreachable_broker_and_admin_interface_are_problems(bench: PulsarBench) -> None:
    bench.broker.stop()
    bench.admin.is_up = False
    findings = found(bench)
    assert findings["pulsar broker"][0] is Outcome.PROBLEM
    assert findings["pulsar broker"][2] is ErrorKind.RETRY_LATER
    assert findings["pulsar admin"][0] is Outcome.PROBLEM
    assert "pulsar topics" not in findings


def test_wrong_token_and_missing_topics_are_reported(bench: PulsarBench) -> None:
    bench.broker.token = "let-me-in"
    bench.settings = replace(bench.settings, topics=("public/nowhere", "public/default/none"))
    findings = found(bench)
    assert findings["pulsar broker"][2] is ErrorKind.DENIED
    assert findings["pulsar topics"][0] is Outcome.WARNING


@pytest.mark.parametrize("status", [401, 403])
def test_token_without_permission_for_entries_is_reported_with_it(bench: PulsarBench, status: int) -> None:
    bench.fill(3)
    bench.admin.answers["/admin/v2/persistent/public/default/orders/ledger/1/entry/2"] = status, b""
    findings = found(bench)
    outcome, what, kind = findings.get("pulsar entries", (Outcome.OK, "", None))
    assert (outcome, kind) == (Outcome.PROBLEM, ErrorKind.DENIED)
    assert f"the token lacks permission to examine entries of {bench.topic.name}" in what
    assert "the action consume on namespace public/default" in hints(bench)


@pytest.mark.parametrize("answer", [(200, b"no headers"), (404, b""), (405, b""), (412, b"")])
def test_an_admin_interface_that_does_not_explain_entries_is_a_warning(
    bench: PulsarBench, answer: tuple[int, bytes]
) -> None:
    bench.fill(3)
    bench.admin.answers["/admin/v2/persistent/public/default/orders/ledger/1/entry/2"] = answer
    outcome, what, _ = found(bench).get("pulsar entries", (Outcome.OK, "", None))
    assert (outcome, "can't examine entries" in what) == (Outcome.WARNING, True)


def test_an_admin_interface_that_explains_entries_is_fine(bench: PulsarBench) -> None:
    bench.fill(2)
    bench.topic.append_marker()
    outcome, what, _ = found(bench).get("pulsar entries", (Outcome.PROBLEM, "", None))
    assert (outcome, "can examine single entries of 1 topics" in what) == (Outcome.OK, True)


@pytest.mark.slow
def test_doctor_command_runs_the_pulsar_checks(
    bench: PulsarBench, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    config = tmp_path / "offloader.toml"
    config.write_text(
        f'[serve]\nstore = "file://{tmp_path}/store"\n'
        f'[pulsar]\nservice_url = "{bench.broker.url}"\nadmin_url = "{bench.admin.url}"\ntopics = ["{NAMESPACE}"]\n'
    )
    for entry in log_lines(1500):
        bench.topic.append(entry)
    code = main(["doctor", "--config", str(config)])
    out = capsys.readouterr().out
    assert code == 0, out
    assert "compression of public/default/persistent/orders: stored bytes are " in " ".join(out.split())
    assert "pulsar broker" in out
    assert "answers and grants access" in " ".join(out.split())


def plugin_findings(bench: PulsarBench) -> list[tuple[Outcome, str, str]]:
    bench.settings = replace(bench.settings, broker_plugin=True)
    checks = check_pulsar(bench.settings, SystemClock())
    return [(each.outcome, each.what, each.hint) for each in checks if each.check == "pulsar broker plugin"]


def log_lines(count: int) -> list[bytes]:
    """Messages that compress well, as a topic of logs has them."""
    return [
        single_entry(Sent(value=b'{"level": "info", "path": "/orders/%d", "message": "order was accepted"}' % number))
        for number in range(count)
    ]


@pytest.mark.slow
def test_compression_of_topics_is_measured_before_anything_is_offloaded(tmp_path: Path) -> None:
    names = [f"persistent://public/default/{name}" for name in ("logs", "noise", "few", "stored", "packed", "empty")]
    bench = PulsarBench(*names)
    logs, noise, few, stored, packed, _ = bench.topics.values()
    for topic in (logs, stored, packed):
        for entry in log_lines(1500):
            topic.append(entry)
    generator = random.Random(1)
    for _ in range(20):
        noise.append(single_entry(Sent(value=generator.randbytes(8192))))
    few.append(single_entry(Sent(value=b"short")))
    try:
        store = open_store(f"file://{tmp_path}/store")
        StreamWriter(store, "public/default/persistent/stored").add([batch_of(1, 0, 10)])
        config = tmp_path / "offloader.toml"
        config.write_text(
            f'[pulsar]\nservice_url = "{bench.broker.url}"\nadmin_url = "{bench.admin.url}"\n'
            f'topics = ["{NAMESPACE}"]\n[topics."public/default/persistent/packed".offload]\ncodec = "zstd"\n'
        )
        found = list(check_compression_of_topics(store, read_settings_file(str(config)), SystemClock()))
        assert {each.check for each in found} == {
            "compression of public/default/persistent/logs",
            "compression of public/default/persistent/noise",
        }
        hints = {each.check.rpartition("/")[2]: each.hint for each in found}
        assert hints["logs"].startswith('offload.codec = "zstd"')
        assert hints["noise"] == ""
        assert all("% of the payload, with zstd " in each.what for each in found)
        # The reader is gone, and nothing is kept for it.
        assert all(not topic.stats()["subscriptions"] for topic in bench.topics.values())
    finally:
        bench.close()


@pytest.mark.slow
def test_sample_of_a_topic_is_bounded_in_bytes_and_time(bench: PulsarBench) -> None:
    for entry in log_lines(400):
        bench.topic.append(entry)
    with PulsarCluster(bench.settings) as cluster:
        sample = first_entries(cluster.client, bench.topic.name, bytes_max=10_000, wait_s=60, clock=SystemClock())
        assert 10_000 <= sum(each.payload_bytes for each in sample) < 30_000
        assert sample[0].first == bench.topic.entries[0][0]
        # Entries that are listed and never given end with the clock.
        bench.topic.lost = {position for position, _, _ in bench.topic.entries}
        clock = ManualClock()
        assert first_entries(cluster.client, bench.topic.name, bytes_max=10_000, wait_s=60, clock=clock) == []
        assert sum(clock.waits_s) == 60


def test_broker_with_the_plugin_is_fine(bench: PulsarBench) -> None:
    bench.admin.settings = GOOD
    assert {outcome for outcome, _, _ in plugin_findings(bench)} == {Outcome.OK}
    assert any("the broker is version 4.0.7" in what for _, what, _ in plugin_findings(bench))


def test_broker_with_another_driver_is_a_problem_with_a_hint(bench: PulsarBench) -> None:
    bench.admin.settings = {**GOOD, "managedLedgerOffloadDriver": "aws-s3", "offloadersDirectory": ""}
    wrong = [(what, hint) for outcome, what, hint in plugin_findings(bench) if outcome is Outcome.PROBLEM]
    assert len(wrong) == 2
    assert wrong[0][0].startswith(f"{bench.admin.url}: managedLedgerOffloadDriver is aws-s3")
    assert "managedLedgerOffloadDriver=offloader" in wrong[0][1]


@pytest.mark.parametrize("status", [401, 403])
def test_settings_that_only_a_superuser_may_read_are_a_warning(bench: PulsarBench, status: int) -> None:
    bench.admin.answers["/admin/v2/brokers/configuration/runtime"] = status, b""
    [(outcome, what, hint)] = [each for each in plugin_findings(bench) if each[0] is not Outcome.OK]
    assert (outcome, f"returned status {status}" in what, "only a superuser" in hint) == (Outcome.WARNING, True, True)


def test_policy_of_a_namespace_with_another_driver_is_a_problem(bench: PulsarBench) -> None:
    policy = {"managedLedgerOffloadDriver": "aws-s3", "managedLedgerOffloadThresholdInBytes": 0}
    bench.admin.policies[NAMESPACE] = {"offload_policies": policy}
    assert "stored twice" in found(bench)[f"pulsar namespace {NAMESPACE}"][1]
    bench.settings = replace(bench.settings, broker_plugin=True)
    outcome, what, _ = found(bench)[f"pulsar namespace {NAMESPACE}"]
    assert (outcome, "has the driver aws-s3" in what) == (Outcome.PROBLEM, True)


def test_without_the_plugin_no_settings_of_a_broker_are_read(bench: PulsarBench) -> None:
    assert "pulsar broker plugin" not in found(bench)
    assert bench.admin.of("GET", "/runtime") == []
