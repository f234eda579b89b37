"""``offloader doctor``: each problem is found, has a hint, and decides the exit code."""

from __future__ import annotations

import itertools
import json
from collections.abc import Iterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from offloader.cli.doctor import WIDTH_MAX, report_lines
from offloader.cli.main import main
from offloader.doctor import CheckResult, Outcome, check_store, fine, run_checks, store_answers
from offloader.errors import AccessDeniedError, ErrorKind, StoreUnavailableError, UnsupportedError
from offloader.ledgers.sqlite.embedded import EmbeddedLedgers
from offloader.managed_ledger import open_managed_ledger
from offloader.manifest.log import ManifestLog
from offloader.manifest.protection import set_global_hold, set_hold
from offloader.runtime.clock import SystemClock
from offloader.settings import Settings
from offloader.store.base import DeleteFailure, ObjectStore
from offloader.store.memory import MemoryStore
from offloader.store.open import open_store
from offloader.testing.faulty_store import Fault, FaultyStore
from offloader.testing.manual_clock import ManualClock
from tests.support.server_fixtures import S3Place

STREAM = "a/b/persistent/orders"
_names = itertools.count()
VERBS = ["put", "head and get", "list", "uploads", "list parts", "list uploads", "abort", "delete"]


def memory(clock: Any = None) -> FaultyStore:
    return FaultyStore(MemoryStore(f"doctor-{next(_names)}", "", clock or SystemClock()))


def found(store: ObjectStore, clock: Any = None, **store_settings: Any) -> dict[str, CheckResult]:
    settings = Settings.of({"store": store_settings})
    answer = store_answers(store)
    rest = check_store(store, settings, clock or SystemClock()) if answer.outcome is Outcome.OK else ()
    return {each.check: each for each in run_checks([("store", [answer]), ("store", rest)])}


def doctor(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, dict[str, dict[str, Any]]]:
    code = main(["doctor", "--json", *arguments])
    return code, {row["check"]: row for row in map(json.loads, capsys.readouterr().out.splitlines())}


def test_a_store_with_which_all_is_well(s3_place: S3Place) -> None:
    store = s3_place.open()
    findings = found(store)
    assert {each.outcome for each in findings.values()} == {Outcome.OK}
    assert list(findings) == [
        "store reachable",
        *(f"store {verb}" for verb in VERBS),
        "store conditional puts",
        "store clock",
    ]
    assert not store.list("").objects
    assert not store.list_uploads("")


@pytest.mark.slow
@pytest.mark.parametrize(
    ("verb", "check", "permission"),
    [
        ("put", "store put", "s3:PutObject"),
        ("head", "store head and get", "s3:GetObject"),
        ("complete_upload", "store uploads", "s3:PutObject"),
        ("list_parts", "store list parts", "s3:ListMultipartUploadParts"),
        ("list_uploads", "store list uploads", "s3:ListBucketMultipartUploads"),
        ("abort_upload", "store abort", "s3:AbortMultipartUpload"),
    ],
)
def test_denied_request_is_reported_with_the_missing_permission(verb: str, check: str, permission: str) -> None:
    store = memory()
    store.set_faults([Fault(call=1, calls=1, verb=verb, error=AccessDeniedError)])
    finding = found(store)[check]
    assert (finding.outcome, finding.kind, finding.hint) == (Outcome.PROBLEM, ErrorKind.DENIED, f"allow {permission}")


class Keeping(FaultyStore):
    def delete(self, keys: Sequence[str]) -> Sequence[DeleteFailure]:
        return [DeleteFailure(key, "AccessDenied", retryable=False, is_denied=True) for key in keys]


@pytest.mark.parametrize("deletes", [False, True])
def test_denied_delete_is_a_problem_only_where_cleanup_deletes(*, deletes: bool) -> None:
    store = Keeping(MemoryStore(f"doctor-{next(_names)}", "", SystemClock()))
    settings = Settings.of({"cleanup": {"delete": deletes}})
    found = {each.check: each for each in check_store(store, settings, SystemClock())}
    finding = found["store delete"]
    assert finding.outcome is (Outcome.PROBLEM if deletes else Outcome.WARNING)
    assert "allow s3:DeleteObject" in finding.hint
    assert "AccessDenied" in finding.what
    assert found["store conditional puts"].outcome is Outcome.OK


def test_unreachable_store_is_reported_once() -> None:
    store = memory()
    store.set_faults([Fault(call=1, calls=100)])
    assert list(found(store)) == ["store reachable"]


class Overwriting(FaultyStore):
    """Ignores every condition."""

    def put(self, key: str, body: Any, **given: Any) -> Any:
        given.pop("mode", None)
        return self.inner.put(key, body, **given)


def test_broken_store_promise_is_a_problem_unless_there_is_one_writer() -> None:
    broken = Overwriting(MemoryStore(f"doctor-{next(_names)}", "", SystemClock()))
    finding = found(broken)["store conditional puts"]
    assert (finding.outcome, finding.kind) == (Outcome.PROBLEM, UnsupportedError.kind)
    finding = found(broken, single_writer=True)["store conditional puts"]
    assert finding.outcome is Outcome.WARNING


def test_clocks_that_differ_are_a_problem() -> None:
    clock = ManualClock()
    store = memory(clock)
    ahead = ManualClock()
    ahead.advance(3600)
    finding = found(store, ahead)["store"]
    assert (finding.outcome, finding.kind) == (Outcome.PROBLEM, ErrorKind.RETRY_LATER)
    assert "differ by" in finding.what


def test_failing_check_does_not_block_other_checks() -> None:
    def failing(hint: str) -> Iterator[CheckResult]:
        yield from ()
        raise StoreUnavailableError("no answer", hint=hint)

    checks = {"broker": failing("is it running?"), "store": failing(""), "disk": [fine("disk", "large")]}
    assert [(each.check, each.outcome, each.hint) for each in run_checks(checks.items())] == [
        ("broker", Outcome.PROBLEM, "is it running?"),
        ("store", Outcome.PROBLEM, ErrorKind.RETRY_LATER.advice),
        ("disk", Outcome.OK, ""),
    ]


@pytest.mark.slow
def test_waiting_streams_are_reported_with_the_reason(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url, ledgers = f"file://{tmp_path}/store", f"sqlite:///{tmp_path}/ledgers.db"
    store = open_store(url)
    names = {"paused": f"{STREAM}-paused", "none": f"{STREAM}-none", "late": f"{STREAM}-late", "held": f"{STREAM}-held"}
    for name in names.values():
        with open_managed_ledger(name, ledgers=ledgers, store=store) as topic:
            topic.append(b"x")
            topic.offload()
            if name == names["paused"]:
                topic.pause()
            if name != names["held"]:
                topic.append(b"y")
            if name in (names["late"], names["none"]):
                topic.close(drain=False)
    set_hold(store, names["held"], on=True, reason="audit", clock=SystemClock())
    set_global_hold(store, by="me", reason="audit", now_ms=0)
    fresh = f"{STREAM}-fresh"
    database = EmbeddedLedgers(ledgers)
    database.open_stream(fresh).append([b"x"] * 3)
    database.close()
    config = tmp_path / "offloader.toml"
    config.write_text(
        f'streaming_offload = true\n[serve]\nstore = "{url}"\nledgers = "{ledgers}"\n'
        "[offload]\ntakeover_after = '10ms'\nsegment_age_max = '6ms'\n"
        f'[topics."{names["none"]}".offload]\nmethod = "none"\n'
    )
    code, rows = doctor(capsys, "--config", str(config))
    assert code == 0, "warnings are no failure"
    said = {name: rows[f"stream {stream}"]["what"] for name, stream in names.items()}
    assert said["paused"] == "paused, with a backlog of 1 entries"
    assert said["none"] == "its method is none, with a backlog of 1 entries"
    assert said["late"].startswith("no manifest record for ")
    assert said["held"] == "on hold: nothing is deleted from it"
    assert rows[f"stream {fresh}"]["what"] == "never offloaded, with a backlog of 3 entries"
    assert rows["store deletion"]["what"] == "a hold by me stops all deletion (audit)"
    assert rows["ledger database"]["what"].endswith("ledgers.db has 5 streams")


@pytest.mark.slow
def test_damaged_manifest_and_missing_folder_are_problems(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    url = f"file://{tmp_path}/store"
    store = open_store(url)
    log = ManifestLog(store, STREAM, clock=SystemClock())
    log.open_epoch()
    for info in store.list(f"{STREAM}/manifest/").objects:
        store.put(info.key, b"damaged")
    config = tmp_path / "offloader.toml"
    config.write_text(
        f'[serve]\nledgers = "sqlite:///{tmp_path}/nowhere/ledgers.db"\n'
        f'[telemetry]\nstatus_file = "{tmp_path}/nowhere/status.json"\n'
    )
    code, rows = doctor(capsys, "--config", str(config), "--store", url)
    assert {name: row["kind"] for name, row in rows.items() if row["outcome"] == "problem"} == {
        "ledger database": "denied",
        "status file": "denied",
        f"stream {STREAM}": "data_corruption",
    }
    assert code == ErrorKind.DENIED.value, "the first one's"


def test_reading_only_leaves_the_store_untouched(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "store").mkdir()
    code, rows = doctor(capsys, "--store", f"file://{tmp_path}/store", "--read-only")
    assert (code, list((tmp_path / "store").iterdir())) == (0, [])
    assert "store put" not in rows
    assert main(["doctor"]) == 2
    assert "no store was given" in capsys.readouterr().err


def test_unsafe_listeners_are_a_problem(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    config, store = tmp_path / "offloader.toml", f"file://{tmp_path}"
    config.write_text('[http]\nlisten = ":8750"\n')
    code, rows = doctor(capsys, "--config", str(config), "--store", store, "--read-only")
    assert (code, rows["access"]["kind"]) == (2, "invalid_request")
    config.write_text('[http]\nlisten = ":8750"\n[access]\nanonymous = "read"\n')
    code, rows = doctor(capsys, "--config", str(config), "--store", store, "--read-only")
    assert (code, rows["http.listen"]["what"]) == (
        0,
        "unauthenticated callers that reach 0.0.0.0:8750 have the role read",
    )
    config.write_text('[flight]\nlisten = "127.0.0.1:8815"\n')
    code, rows = doctor(capsys, "--config", str(config), "--store", store, "--read-only")
    assert (code, rows["flight.listen"]["outcome"]) == (0, "ok")


@pytest.mark.slow
def test_a_ledger_database_that_the_manifest_does_not_know_is_a_problem(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url, ledgers = f"file://{tmp_path}/store", f"sqlite:///{tmp_path}/ledgers.db"
    with open_managed_ledger(STREAM, ledgers=ledgers, store=open_store(url)) as topic:
        topic.append(b"x")
        topic.offload()
    for path in tmp_path.glob("ledgers.db*"):
        path.unlink()
    database = EmbeddedLedgers(ledgers)
    database.open_stream(STREAM).append([b"y"])
    database.close()
    config = tmp_path / "offloader.toml"
    config.write_text(f'streaming_offload = true\n[serve]\nstore = "{url}"\nledgers = "{ledgers}"\n')

    code, rows = doctor(capsys, "--config", str(config))

    assert code != 0
    assert rows[f"stream {STREAM}"]["outcome"] == "problem"
    assert "another database" in rows[f"stream {STREAM}"]["what"]
    assert f"offloader stream set-source {STREAM}" in rows[f"stream {STREAM}"]["hint"]


@pytest.mark.slow
def test_report_fits_a_hundred_columns_and_loses_no_word(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Problems, warnings and what is fine, of a store with long names, beside what ``--json`` says."""
    long = f"tenant-{'x' * 60}/namespace-{'y' * 60}/persistent/topic-{'z' * 60}"
    with closing(EmbeddedLedgers(str(tmp_path / "ledgers.db"))) as database:
        for name in (long, STREAM):
            database.open_stream(name).append([b"one"])
    config = tmp_path / "offloader.toml"
    config.write_text(
        f'[serve]\nstore = "file://{tmp_path}/store"\nledgers = "sqlite:///{tmp_path}/ledgers.db"\n'
        f'[telemetry]\nstatus_file = "{tmp_path}/{"folder" * 20}/status.json"\n[http]\nlisten = ":8750"\n'
        "[store]\nconnections_max = 1024\n"
    )
    main(["doctor", "--config", str(config), "--json"])
    rows = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    main(["doctor", "--config", str(config)])
    lines = capsys.readouterr().out.splitlines()
    assert {row["outcome"] for row in rows} >= {"ok", "problem", "warning"}
    assert max(map(len, lines)) <= WIDTH_MAX
    shown = "".join("".join(lines).split())
    for row in rows:
        assert "".join(f"{row['check']}:".split()) in shown
        assert "".join((row["hint"] or "").split()) in shown
        assert "".join(row["what"].split()) in shown or any(each.isdigit() for each in row["what"]), row["what"]


def test_each_line_of_an_unreachable_store_fits(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "nothing")
    code = main(["doctor", "--store", f"s3://{'b' * 63}/{'root' * 30}", "--endpoint-url", "http://127.0.0.1:1"])
    lines = capsys.readouterr().out.splitlines()
    assert code == ErrorKind.RETRY_LATER.value
    assert max(map(len, lines)) <= WIDTH_MAX
    assert "connection refused" in " ".join(" ".join(lines).split())


@pytest.mark.parametrize("width", [40, 100])
def test_finding_is_wrapped_below_itself(width: int) -> None:
    found = CheckResult(check="store put", outcome=Outcome.WARNING, what="word " * 40, hint="do this " * 40)
    lines = report_lines(found, width)
    assert lines[0].startswith("warning  store put: word")
    assert max(map(len, lines)) <= width
    assert sum(line.startswith("         -> ") for line in lines) == 1
    assert all(line.startswith(" " * 9) for line in lines[1:])
