"""``offloader ls``, and the errors of verbs that open a wrong store."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from formats.entries import Position
from formats.keys import record_key
from formats.manifest import Truncate
from offloader.store.base import ObjectStore
from offloader.store.open import open_store
from tests.cli.reading_verbs import Offloader
from tests.support.streams import StreamWriter, batch_of


@pytest.fixture
def offloader(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Offloader:
    for name in [name for name in os.environ if name.startswith(("OFFLOADER_", "AWS_"))]:
        monkeypatch.delenv(name)
    return Offloader(capsys)


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return open_store(f"file://{tmp_path}/store")


@pytest.fixture
def streams(store: ObjectStore) -> list[StreamWriter]:
    """Three streams: two segments, one, none."""
    writers = [StreamWriter(store, name) for name in ("alpha", "beta", "gamma")]
    writers[0].add([batch_of(3, 0, 100)], closes=[3])
    writers[0].add([batch_of(4, 0, 50)])
    writers[1].add([batch_of(7, 5, 10)])
    return writers


def test_ls_shows_segments_entries_sizes_and_ends_of_streams(
    offloader: Offloader, store: ObjectStore, streams: list[StreamWriter]
) -> None:
    done = offloader("ls", "--store", store.url)
    assert (done.code, done.err) == (0, "")
    heading, *lines = [line.split() for line in done.out.splitlines()]
    assert heading == ["STREAM", "SEGMENTS", "ENTRIES", "PAYLOAD", "STORED", "FIRST", "LAST"]
    assert lines[0][:3] == ["alpha", "2", "150"]
    assert lines[0][-2:] == ["3:0", "4:49"]
    assert lines[1][-2:] == ["7:5", "7:14"]
    assert lines[2] == ["gamma", "0", "0", "0", "B", "0", "B", "-", "-"]


def test_as_json_each_stream_is_an_object_on_a_line(
    offloader: Offloader, store: ObjectStore, streams: list[StreamWriter]
) -> None:
    rows = offloader("ls", "--store", store.url, "--json").rows
    summary = streams[1].log.state.offloaded()[0].summary
    assert summary is not None
    assert rows[1] == {
        "stream": "beta",
        "segments": 1,
        "entries": 10,
        "payload_bytes": summary.payload_bytes,
        "object_bytes": summary.data_bytes + summary.index_bytes,
        "first": "7:5",
        "last": "7:14",
    }
    assert rows[2]["first"] is None


def test_a_prefix_a_limit_and_the_environment_choose(
    offloader: Offloader, store: ObjectStore, streams: list[StreamWriter], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OFFLOADER_STORE", store.url)
    assert [row["stream"] for row in offloader("ls", "--json").rows] == ["alpha", "beta", "gamma"]
    assert [row["stream"] for row in offloader("ls", "--prefix", "b", "--json").rows] == ["beta"]
    assert [row["stream"] for row in offloader("ls", "--limit", "2", "--json").rows] == ["alpha", "beta"]


def test_truncated_segments_do_not_count(offloader: Offloader, store: ObjectStore, streams: list[StreamWriter]) -> None:
    streams[0].log.commit([Truncate(Position(4, 10))])
    row = offloader("ls", "--prefix", "alpha", "--store", store.url, "--json").rows[0]
    assert (row["segments"], row["first"]) == (1, "4:10")


@pytest.mark.slow
def test_deleted_stream_is_in_no_list_and_no_problem(
    offloader: Offloader, store: ObjectStore, streams: list[StreamWriter], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OFFLOADER_STORE", store.url)
    assert offloader("stream", "delete", "--apply", "alpha").code == 0
    assert [row["stream"] for row in offloader("ls", "--json").rows] == ["beta", "gamma"]
    assert [row["stream"] for row in offloader("ls", "--limit", "1", "--json").rows] == ["beta"]
    status = offloader("status", "--json")
    assert (status.code, [row["stream"] for row in status.rows]) == (0, ["beta", "gamma"])
    assert offloader("status", "alpha").code == 3
    assert offloader("doctor").code == 0


def test_empty_store_is_reported(offloader: Offloader, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    done = offloader("ls", "--store", f"file://{tmp_path}/empty")
    assert (done.code, done.out) == (0, f"no streams in file://{tmp_path}/empty\n")
    assert offloader("ls", "--store", f"file://{tmp_path}/empty", "--json").out == ""


def test_damaged_manifest_is_one_error_row_and_exit_code_6(
    offloader: Offloader, store: ObjectStore, streams: list[StreamWriter]
) -> None:
    key = record_key("alpha", streams[0].log.state.incarnation, 2)
    store.put(key, store.get(key)[0][:-9] + b"deadbeef}")
    done = offloader("ls", "--store", store.url, "--json")
    assert done.code == 6
    assert [row["stream"].split()[0] for row in done.rows] == ["alpha", "beta", "gamma"]
    assert done.rows[0]["error"] == "CorruptError"
    assert "record 2" in done.rows[0]["stream"]


@pytest.mark.parametrize("verb", [["ls"], ["ls", "alpha"], ["read", "alpha"]])
class TestBadStores:
    """One line, a hint, the exit code by kind; nothing is made."""

    def test_no_store(self, offloader: Offloader, verb: list[str]) -> None:
        code, line, hint = offloader.refuses(*verb)
        assert (code, line) == (2, "no store was given")
        assert "OFFLOADER_STORE" in hint

    def test_an_unknown_scheme(self, offloader: Offloader, verb: list[str]) -> None:
        code, line, hint = offloader.refuses(*verb, "--store", "s4://bucket")
        assert (code, line) == (2, "s4://bucket: unknown store scheme 's4'")
        assert "s3://bucket/root" in hint

    def test_missing_directory_is_an_error_and_not_created(
        self, offloader: Offloader, verb: list[str], tmp_path: Path
    ) -> None:
        code, line, _ = offloader.refuses(*verb, "--store", f"file://{tmp_path}/no")
        assert (code, line) == (3, f"file://{tmp_path}/no: no such directory")
        assert not (tmp_path / "no").exists()

    @pytest.mark.slow
    def test_no_credentials(
        self, offloader: Offloader, verb: list[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        for name in ("AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"):
            monkeypatch.setenv(name, str(tmp_path / "none"))
        monkeypatch.setenv("AWS_EC2_METADATA_DISABLED", "true")
        code, line, hint = offloader.refuses(
            *verb, "--store", "s3://bucket/root", "--endpoint-url", "http://127.0.0.1:9", "--region", "us-east-1"
        )
        assert code == 8
        assert "Unable to locate credentials" in line
        assert "AWS_ACCESS_KEY_ID" in hint

    def test_a_missing_bucket(
        self, offloader: Offloader, verb: list[str], s3_place: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3_place.options["access_key"])
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", s3_place.options["secret_key"])
        monkeypatch.setenv("OFFLOADER_ENDPOINT_URL", s3_place.options["endpoint_url"])
        monkeypatch.setenv("OFFLOADER_REGION", s3_place.options["region"])
        code, line, _ = offloader.refuses(*verb, "--store", "s3://no-such-bucket-here/root")
        assert code == 3
        assert "no-such-bucket-here" in line


def test_wrong_credentials_are_denied_and_not_repeated(
    offloader: Offloader, s3_place: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """moto takes any key: there it is an empty store."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", s3_place.options["access_key"])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "wrong-and-secret")
    arguments = ["--endpoint-url", s3_place.options["endpoint_url"], "--region", "us-east-1"]
    done = offloader("ls", "--store", s3_place.url, *arguments)
    assert done.code == (0 if s3_place.server == "moto" else 8)
    assert "wrong-and-secret" not in done.out + done.err
