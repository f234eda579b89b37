"""``offloader import``, and the other verbs on adopted streams."""

from __future__ import annotations

import json
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest

from offloader.store.base import ObjectStore
from offloader.store.open import open_store
from tests.cli.reading_verbs import Offloader
from tests.support.golden_bucket import GOLDEN_STREAM, golden_cases, put_golden

ENTRIES = sum(case["count"] for case in golden_cases())
STATS = {
    "ledgers": [
        {"ledgerId": case["ledger"], "entries": case["count"], "size": case["payload_bytes"], "offloaded": True}
        for case in golden_cases()
    ]
    + [{"ledgerId": 9000, "entries": 0, "size": 0, "offloaded": False}]
}
ANSWERS = {
    "/admin/v2/tenants": ["public"],
    "/admin/v2/namespaces/public": ["public/default"],
    "/admin/v2/persistent/public/default": [f"persistent://public/default/{name}" for name in ("oracle", "gone")],
    "/admin/v2/persistent/public/default/oracle/internalStats": STATS,
}


@pytest.fixture
def offloader(capsys: pytest.CaptureFixture[str]) -> Offloader:
    return Offloader(capsys)


@pytest.fixture
def bucket(tmp_path: Path) -> ObjectStore:
    return open_store(f"file://{tmp_path}/bucket")


@pytest.fixture
def url(bucket: ObjectStore) -> str:
    return bucket.url


@pytest.mark.slow
def test_adopt_prints_a_table_and_a_summary_line(offloader: Offloader, bucket: ObjectStore, url: str) -> None:
    put_golden(bucket)
    done = offloader("import", "--store", url, "--wide")
    assert (done.code, done.err) == (0, "")
    heading, row, last = done.out.splitlines()
    assert heading.split() == ["STREAM", "ADOPTED", "ALREADY", "LEFT", "OUT", "ENTRIES", "PAYLOAD", "FIRST", "LAST"]
    assert row.split() == [GOLDEN_STREAM, "4", "0", "0", f"{ENTRIES:,}", "11.9", "MiB", "1001:0", "1007:2"]
    assert last == "adopted 4 segments of 1 stream; imported before: 0"
    assert "would adopt 0 segments" in offloader("import", "--store", url, "--dry-run").out


@pytest.mark.slow
@pytest.mark.parametrize("read_only", [False, True], ids=["recorded", "read-only"])
def test_every_verb_works_on_adopted_streams(
    offloader: Offloader, bucket: ObjectStore, url: str, read_only: bool, tmp_path: Path
) -> None:
    put_golden(bucket)
    keys = {info.key for info in bucket.list("").objects}
    offloader("import", "--store", url, *(["--read-only", str(tmp_path / "notes")] if read_only else []))
    place = f"catalogue://{tmp_path}/notes" if read_only else url

    [row] = offloader("ls", "--store", place, "--json").rows
    assert (row["stream"], row["segments"], row["entries"]) == (GOLDEN_STREAM, 4, ENTRIES)
    segments = offloader("ls", GOLDEN_STREAM, "--store", place, "--json").rows
    assert [segment["data"] for segment in segments] == [case["data"]["key"] for case in golden_cases()]
    assert not any(segment["owned"] for segment in segments)
    assert offloader("read", GOLDEN_STREAM, "--store", place, "--count").out == f"{ENTRIES}\n"
    [entry] = offloader("read", GOLDEN_STREAM, "--store", place, "--from", "1001:3", "--limit", "1", "--json").rows
    assert entry["position"] == "1001:3"
    for how in ((), ("--deep",)):
        checked = offloader("verify", GOLDEN_STREAM, "--store", place, *how)
        assert checked.code == 0, checked.out + checked.err
    if read_only:
        assert {info.key for info in bucket.list("").objects} == keys


def test_json_contains_streams_problems_and_a_summary(offloader: Offloader, bucket: ObjectStore, url: str) -> None:
    put_golden(bucket)
    bucket.put("11111111-1111-4111-8000-000000000bad-ledger-1001", b"cut")
    bucket.put("11111111-1111-4111-8000-000000000bad-ledger-1001-index", b"not an index")
    bucket.put("11111111-1111-4111-8000-000000000000-ledger-1", b"half")
    bucket.put("notes.txt", b"")

    done = offloader("import", "--store", url, "--json")

    stream, problem, summary = done.rows
    assert done.code == 6
    assert (stream["what"], stream["stream"], stream["adopted"]) == ("stream", GOLDEN_STREAM, 4)
    assert (problem["what"], problem["object"]) == ("problem", "11111111-1111-4111-8000-000000000bad-ledger-1001")
    assert summary == {
        "what": "summary",
        "dry_run": False,
        "objects": 12,
        "streams": 1,
        "adopted": 4,
        "already": 0,
        "left_out": 0,
        "unmatched": 0,
        "unmatched_examples": [],
        "unfinished": 1,
        "unfinished_examples": ["11111111-1111-4111-8000-000000000000-ledger-1"],
        "foreign": 1,
        "foreign_examples": ["notes.txt"],
        "problems": 1,
    }


def test_remarks_name_left_out_objects_with_their_reason(
    offloader: Offloader, bucket: ObjectStore, url: str, tmp_path: Path
) -> None:
    put_golden(bucket)
    bucket.put("notes.txt", b"")
    stats = tmp_path / "stats.json"
    ledgers = [ledger for ledger in STATS["ledgers"] if ledger["ledgerId"] != 1001]
    missing = {"ledgerId": 1005, "entries": 5, "size": 5, "offloaded": False}
    stats.write_text(json.dumps({"ledgers": sorted([*ledgers, missing], key=lambda ledger: ledger["ledgerId"])}))

    out = offloader("import", "--store", url, "--internal-stats", f"persistent://public/default/oracle={stats}").out

    assert f"{GOLDEN_STREAM}: left out 11111111-1111-4111-8000-0000000003e9 1001:0: the topic has no ledger 1001" in out
    assert f"{GOLDEN_STREAM}: not in the store: ledgers 1005\n" in out
    assert f"{GOLDEN_STREAM}: 1 later segment can't be read until these ledgers are in the store\n" in out
    assert "1 object not written by Pulsar, for example notes.txt\n" in out


@pytest.mark.slow
@pytest.mark.parametrize(
    ("document", "argument"),
    [
        pytest.param(STATS, "persistent://public/default/oracle={}", id="one topic"),
        pytest.param({"partitions": {"persistent://public/default/oracle": STATS}}, "{}", id="partitions"),
        pytest.param({"public/default/oracle": STATS}, "{}", id="topics"),
    ],
)
def test_a_saved_answer_of_pulsar_names_the_topics(
    offloader: Offloader, bucket: ObjectStore, url: str, tmp_path: Path, document: object, argument: str
) -> None:
    put_golden(bucket, without=["managedledgername"])
    assert "4 ledgers of unknown topics" in offloader("import", "--store", url).out
    path = tmp_path / "stats.json"
    path.write_text(json.dumps(document))

    [row, _] = offloader("import", "--store", url, "--json", "--internal-stats", argument.format(path)).rows

    assert (row["stream"], row["adopted"]) == (GOLDEN_STREAM, 4)


class Admin(BaseHTTPRequestHandler):
    """The paths that are asked for, as a broker answers them; with a token."""

    def do_GET(self) -> None:
        if self.headers["Authorization"] != "Bearer let-me-in":
            self.send_error(401)
            return
        if self.path not in ANSWERS:
            self.send_error(404)
            return
        body = json.dumps(ANSWERS[self.path]).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, *_: object) -> None:
        """Quiet."""


@pytest.fixture
def admin_url() -> Iterator[str]:
    with ThreadingHTTPServer(("127.0.0.1", 0), Admin) as server:
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


@pytest.mark.slow
def test_adopt_sends_the_admin_token(
    offloader: Offloader, bucket: ObjectStore, url: str, admin_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    put_golden(bucket, without=["managedledgername"])
    code, line, hint = offloader.refuses("import", "--store", url, "--admin-url", admin_url)
    assert (code, line) == (8, f"{admin_url}/admin/v2/tenants returned status 401")
    assert "OFFLOADER_ADMIN_TOKEN" in hint
    monkeypatch.setenv("OFFLOADER_ADMIN_TOKEN", "let-me-in")

    [row, _] = offloader("import", "--store", url, "--json", "--admin-url", admin_url).rows

    assert (row["stream"], row["adopted"]) == (GOLDEN_STREAM, 4)


@pytest.mark.slow
def test_invalid_calls_are_refused(offloader: Offloader, bucket: ObjectStore, url: str, tmp_path: Path) -> None:
    bad = tmp_path / "bad.json"
    bad.write_text("{")
    stats = tmp_path / "stats.json"
    stats.write_text(json.dumps(STATS))
    for arguments, code, words in (
        (
            ["--read-only", str(tmp_path / "n"), "--take-ownership"],
            2,
            "--read-only and --take-ownership exclude each other",
        ),
        (["--undo"], 2, "missing STREAM: --undo needs the streams to release"),
        (["--undo", GOLDEN_STREAM, "--take-ownership"], 2, "--undo and --take-ownership exclude each other"),
        (["--undo", "orders"], 3, "stream orders isn't in"),
        (["--namespace", "public/default"], 2, "--namespace requires --admin-url"),
        (["--internal-stats", str(tmp_path / "none")], 3, "can't be read"),
        (["--internal-stats", str(bad)], 2, "isn't JSON"),
        (["--internal-stats", str(stats)], 2, "don't say whose they are"),
        (["--internal-stats", f"non-persistent://a/b/c={stats}"], 2, "is no persistent topic"),
        (["--admin-url", "broker:8080"], 2, "is not an admin URL"),
    ):
        found = offloader("import", "--store", url, *arguments)
        assert (found.code, found.out) == (code, ""), arguments
        assert words in found.err


def test_settings_of_the_store_count_as_for_every_other_verb(
    offloader: Offloader, bucket: ObjectStore, url: str, tmp_path: Path
) -> None:
    put_golden(bucket)
    config = tmp_path / "offloader.toml"
    config.write_text(f'[serve]\nstore = "{url}"\n[store]\nencryption = "AES256"\n')
    code, line, _ = offloader.refuses("import", "--config", str(config))
    assert (code, line) == (2, f"store.encryption is supported for s3:// only, not for {url}")


@pytest.mark.parametrize(("content", "code", "said"), [(None, 3, "can't be read"), ("no json", 2, "isn't JSON")])
def test_internal_statistics_that_cannot_be_used_say_how_to_make_them(
    offloader: Offloader, tmp_path: Path, content: str | None, code: int, said: str
) -> None:
    path = tmp_path / "stats.json"
    if content is not None:
        path.write_text(content)
    found, line, hint = offloader.refuses("import", "--internal-stats", str(path), "--store", f"file://{tmp_path}")
    assert (found, said in line) == (code, True)
    assert hint == "save the output of `pulsar-admin topics stats-internal TOPIC`, and name that file"
