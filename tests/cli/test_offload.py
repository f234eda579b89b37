"""``offloader stream offload STREAM``."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from formats.entries import Position
from formats.manifest import SetMethod
from offloader.ledgers.sqlite.embedded import EmbeddedLedgers, EmbeddedStream
from offloader.manifest.log import ManifestLog, list_streams, load_manifest
from offloader.runtime.clock import SystemClock
from offloader.settings import LedgerSettings, Size
from offloader.store.open import open_store
from tests.cli.reading_verbs import Offloader
from tests.support.holding_proxy import HoldingProxy
from tests.support.readback import stored_entries
from tests.support.server_fixtures import Servers
from tests.support.waiting import PATIENCE_S

STREAM = "public/default/persistent/orders"
#: Beyond the time for which a command leaves another writer's stream alone.
LONG_AGO_MS = 3_600_000


class Bench:
    def __init__(self, directory: Path) -> None:
        self.url = f"file://{directory}/store"
        (directory / "store").mkdir()
        self.ledgers = f"sqlite:///{directory}/ledgers.db"
        self.database = EmbeddedLedgers(self.ledgers, settings=LedgerSettings(ledger_size_max=Size(2000)))
        self.source: EmbeddedStream = self.database.open_stream(STREAM)
        self.expected: list[tuple[Position, bytes]] = []
        for batch in self.source.append([f"entry {n}".encode().ljust(100, b".") for n in range(50)], 0):
            self.expected += [(entry.position, entry.payload) for entry in batch.entries()]

    def set_method(self, method: str) -> None:
        log = ManifestLog(open_store(self.url), STREAM, clock=LongAgo())
        log.open_epoch()
        log.commit([SetMethod(method)])


class LongAgo(SystemClock):
    def now_ms(self) -> int:
        return super().now_ms() - LONG_AGO_MS


@pytest.fixture
def bench(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Bench:
    made = Bench(tmp_path)
    monkeypatch.setenv("OFFLOADER_STORE", made.url)
    monkeypatch.setenv("OFFLOADER_LEDGERS", made.ledgers)
    return made


@pytest.fixture
def offloader(capsys: pytest.CaptureFixture[str], bench: Bench) -> Offloader:
    return Offloader(capsys)


def test_offload_sends_everything_and_names_verified_objects(offloader: Offloader, bench: Bench) -> None:
    (done,) = offloader("stream", "offload", STREAM, "--json").rows

    store = open_store(bench.url)
    assert stored_entries(store, STREAM) == bench.expected
    assert (done["segments"], done["objects"], done["entries"]) == (1, 2, 50)
    assert (done["committed"], done["payload_bytes"]) == ("3:9", 5000)
    (row,) = done["offloaded"]
    assert store.head(row["data"]).size_bytes + store.head(row["index"]).size_bytes == row["object_bytes"]
    bench.source.append([b"the writer wasn't disturbed"], 0)


@pytest.mark.slow
def test_second_offload_sends_only_new_entries(offloader: Offloader, bench: Bench) -> None:
    """The second run reads the committed end from the manifest and uses a read-only view of the ledgers."""
    offloader("stream", "offload", STREAM)
    [batch] = bench.source.append([b"one more"], 0)
    (done,) = offloader("stream", "offload", STREAM, "--take-over", "--json").rows
    assert (done["entries"], done["committed"]) == (1, str(batch.last))


def test_offload_prints_a_table_and_a_sentence(offloader: Offloader, bench: Bench) -> None:
    done = offloader("stream", "offload", STREAM)
    assert done.code == 0
    heading, row, sentence = done.out.splitlines()
    assert heading.split() == ["SEGMENT", "FIRST", "LAST", "ENTRIES", "PAYLOAD", "STORED"]
    assert row.split()[1:4] == ["1:0", "3:9", "50"]
    assert sentence == f"50 entries, 4.9 KiB, in 2 objects, each checked in {bench.url}; committed end 3:9"


@pytest.mark.slow
def test_nothing_to_offload_is_reported(offloader: Offloader) -> None:
    offloader("stream", "offload", STREAM)
    again = offloader("stream", "offload", STREAM)
    assert (again.code, again.out) == (0, f"nothing to offload in {STREAM}: committed end 3:9\n")
    assert offloader("stream", "offload", STREAM, "--json").rows[0]["offloaded"] == []
    assert offloader("stream", "offload", STREAM, "--dry-run").out == f"nothing to offload in {STREAM}\n"


@pytest.mark.slow
def test_until_and_size_threshold_leave_the_rest_behind(offloader: Offloader, bench: Bench) -> None:
    (done,) = offloader("stream", "offload", STREAM, "--to", "2:4", "--json", "--take-over").rows
    assert done["committed"] == "2:4"
    (done,) = offloader("stream", "offload", STREAM, "--size-threshold", "1500", "--json", "--take-over").rows
    assert done["committed"] == "2:14"
    (done,) = offloader("stream", "offload", STREAM, "--size-threshold", "100000", "--json").rows
    assert done["offloaded"] == []
    assert stored_entries(open_store(bench.url), STREAM) == bench.expected[:35]


def test_dry_run_prints_the_plan_and_writes_nothing(offloader: Offloader, bench: Bench) -> None:
    done = offloader("stream", "offload", STREAM, "--dry-run")
    assert [line.split() for line in done.out.splitlines()] == [
        ["LAYOUT", "FIRST", "LAST", "ABOUT"],
        ["V2", "1:0", "3:9", "5.5", "KiB"],
    ]
    (planned,) = offloader("stream", "offload", STREAM, "--dry-run", "--json").rows
    assert planned["segments"] == [{"layout": "V2", "first": "1:0", "last": "3:9", "bytes": 5600}]
    assert list_streams(open_store(bench.url)) == []


@pytest.mark.slow
def test_the_ledger_method_offloads_closed_ledgers(offloader: Offloader, bench: Bench) -> None:
    bench.set_method("ledger")
    planned = offloader("stream", "offload", STREAM, "--dry-run", "--json").rows[0]["segments"]
    assert [(each["layout"], each["first"], each["last"]) for each in planned] == [
        ("V1", "1:0", "1:19"),
        ("V1", "2:0", "2:19"),
    ]
    (done,) = offloader("stream", "offload", STREAM, "--json", "--size-threshold", "3000").rows
    assert [row["first"] for row in done["offloaded"]] == ["1:0"]
    (done,) = offloader("stream", "offload", STREAM, "--json", "--take-over").rows
    assert [row["first"] for row in done["offloaded"]] == ["2:0"]
    assert [s.layout for s in load_manifest(open_store(bench.url), STREAM).offloaded()] == [1, 1]


def test_progress_is_printed_to_standard_error(offloader: Offloader) -> None:
    done = offloader("stream", "offload", STREAM, "--progress", "--json")
    assert done.err == "1 of about 1 segments, 4.9 KiB: 1:0..3:9\n"
    assert len(done.rows) == 1


@pytest.mark.slow
def test_a_living_writer_keeps_its_stream_without_take_over(offloader: Offloader, bench: Bench) -> None:
    ManifestLog(open_store(bench.url), STREAM, clock=SystemClock()).open_epoch()
    code, line, hint = offloader.refuses("stream", "offload", STREAM)
    assert code == 5
    assert "is owned by" in line
    assert "--take-over" in hint
    assert offloader("stream", "offload", STREAM, "--take-over").code == 0


@pytest.mark.slow
def test_settings_file_sets_method_and_sizes(offloader: Offloader, bench: Bench, tmp_path: Path) -> None:
    config = tmp_path / "offloader.toml"
    config.write_text(f'[topics."{STREAM}".offload]\nblock_size = "300B"\n')  # the proposal's default: by ledger
    planned = offloader("stream", "offload", STREAM, "--dry-run", "--config", str(config), "--json").rows[0]["segments"]
    assert [each["layout"] for each in planned] == ["V1", "V1"]
    (done,) = offloader("stream", "offload", STREAM, "--config", str(config), "--json").rows
    assert (done["method"], done["committed"]) == ("ledger", "2:19")
    state = load_manifest(open_store(bench.url), STREAM)
    assert state.method == "ledger"
    assert all(s.summary is not None and s.summary.blocks > 5 for s in state.offloaded())

    config.write_text(f'streaming_offload = true\n[topics."{STREAM}".offload]\nblock_size = "300B"\n')
    (done,) = offloader("stream", "offload", STREAM, "--take-over", "--config", str(config), "--json").rows
    assert (done["method"], done["committed"]) == ("streaming", "3:9")
    state = load_manifest(open_store(bench.url), STREAM)
    assert (state.method, [s.layout for s in state.offloaded()]) == ("streaming", [1, 1, 2])
    assert stored_entries(open_store(bench.url), STREAM) == bench.expected

    config.write_text('[offload]\nmethod = "none"\n')
    code, line, _ = offloader.refuses("stream", "offload", STREAM, "--config", str(config))
    assert (code, line) == (2, f"stream {STREAM} isn't offloaded: its method is none ({config} [process])")
    config.write_text('[offload]\nblok_bytes = 1\nmethod = "x"\n')
    code, line, _ = offloader.refuses("stream", "offload", STREAM, "--config", str(config))
    assert (code, line.count(";")) == (2, 1)


@pytest.mark.process
def test_another_process_continues_after_the_manifests_committed_end(offloader: Offloader) -> None:
    """Nothing of it lives in the process that did it: the status is the manifest's."""
    command = [sys.executable, "-m", "offloader.cli.main", "stream", "offload", STREAM, "--to", "2:4"]
    subprocess.run(command, check=True, timeout=PATIENCE_S)
    (status,) = offloader("status", STREAM, "--json").rows
    assert (status["committed"], status["segments"]["offloaded"]) == ("2:4", 1)
    (done,) = offloader("stream", "offload", STREAM, "--take-over", "--json").rows
    assert (done["offloaded"][0]["first"], done["committed"]) == ("2:5", "3:9")


@pytest.mark.process
def test_living_writers_stream_is_refused_or_taken_with_its_open_segment(
    offloader: Offloader, bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer has entries in a segment that isn't closed. By hand, it is completed; the writer learns of it."""
    url, ledgers = bench.url, f"sqlite:///{tmp_path}/living.db"
    monkeypatch.setenv("OFFLOADER_LEDGERS", ledgers)
    command = [sys.executable, "-m", "tests.cli.living_writer", url, ledgers, STREAM]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as writer:
        try:
            assert writer.stdin is not None
            assert writer.stdout is not None
            assert writer.stdout.readline() == "20 entries\n"
            code, line, hint = offloader.refuses("stream", "offload", STREAM)
            assert code == 5
            assert line.startswith(f"stream {STREAM} is owned by ")
            assert f"/{writer.pid}" in line
            assert "--take-over" in hint
            assert load_manifest(open_store(url), STREAM).committed_end() is None

            (done,) = offloader("stream", "offload", STREAM, "--take-over", "--json").rows
            assert (done["entries"], done["segments"]) == (20, 1)
            entries = [payload for _, payload in stored_entries(open_store(url), STREAM)]
            assert entries == [b"entry %d" % n for n in range(20)]
            writer.stdin.write("\n")
            writer.stdin.flush()
            assert writer.stdout.readline() == "FencedError\n"
        finally:
            writer.kill()


def test_invalid_calls_are_refused_before_anything_is_written(
    offloader: Offloader, bench: Bench, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert offloader.refuses("stream", "offload", "nobody")[0] == 3
    assert offloader.refuses("stream", "offload", STREAM, "--to", "soon")[0] == 2
    bench.set_method("none")
    assert "method is none" in offloader.refuses("stream", "offload", STREAM)[1]
    monkeypatch.delenv("OFFLOADER_LEDGERS")
    assert offloader.refuses("stream", "offload", STREAM)[:2] == (2, "no ledger database was given")


class HoldingProbe(HoldingProxy):
    """Keeps the probe's writes until the catalogue has been read, and notes the other requests."""

    def __init__(self, endpoint_url: str) -> None:
        super().__init__(endpoint_url)
        self._read = threading.Event()
        self.noted: list[str] = []

    def _sent(self, request: bytes) -> bytes:
        method, target, _ = request.decode("latin-1").split(" ", 2)
        if "/_probe/" in target:
            assert self._read.wait(PATIENCE_S), "the catalogue was to be read meanwhile"
        elif not (method == "POST" and target.endswith("?delete")):
            self.noted.append(f"{method} {target}")
            if "/_catalog/" in target:
                self._read.set()
        return super()._sent(request)


def test_unknown_topic_is_named_as_unknown(offloader: Offloader, bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    offloader("stream", "offload", STREAM)
    monkeypatch.delenv("OFFLOADER_LEDGERS")
    for name in (f"{STREAM}x", "persistent://public/default/nothing"):
        code, line, hint = offloader.refuses("stream", "offload", name)
        assert (code, line.endswith(f" isn't in {bench.url}")) == (3, True), line
        assert STREAM in hint
        assert "--ledgers" in hint


def test_stream_is_looked_at_while_the_store_is_probed_and_the_database_knows_its_name(
    offloader: Offloader, bench: Bench, servers: Servers, monkeypatch: pytest.MonkeyPatch
) -> None:
    place = servers.place("moto")
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", place.endpoint.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", place.endpoint.secret_key)
    with HoldingProbe(place.endpoint.url) as proxy:
        assert offloader("stream", "offload", STREAM, "--store", place.url, "--endpoint-url", proxy.url).code == 0
    assert stored_entries(place.open(), STREAM) == bench.expected
    assert all(each.split("?")[0].endswith(f"/_catalog/{STREAM}") for each in proxy.noted[:2])


@pytest.mark.slow
@pytest.mark.parametrize("section", ["serve", "flight"])
def test_settings_file_names_the_ledger_database(
    offloader: Offloader, bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, section: str
) -> None:
    monkeypatch.delenv("OFFLOADER_STORE")
    monkeypatch.delenv("OFFLOADER_LEDGERS")
    store = f'[serve]\nstore = "{bench.url}"\n'
    config = tmp_path / "offloader.toml"
    config.write_text(store + ("[flight]\n" if section == "flight" else "") + f'ledgers = "{bench.ledgers}"\n')
    done = offloader("stream", "offload", STREAM, "--config", str(config), "--json")
    assert done.code == 0, done.err
    assert [(row["entries"], row["committed"]) for row in done.rows] == [(40, "2:19")]
    assert stored_entries(open_store(bench.url), STREAM) == bench.expected[:40]


def test_database_of_the_options_wins_over_the_settings_file(
    offloader: Offloader, bench: Bench, tmp_path: Path
) -> None:
    config = tmp_path / "offloader.toml"
    config.write_text(f'[serve]\nledgers = "sqlite:///{tmp_path}/other.db"\n')
    (done,) = offloader("stream", "offload", STREAM, "--config", str(config), "--json").rows
    assert done["entries"] == 40


@pytest.mark.slow
def test_settings_file_without_one_ledger_database_is_refused(
    offloader: Offloader, bench: Bench, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    offloader("stream", "offload", STREAM)
    monkeypatch.delenv("OFFLOADER_LEDGERS")
    config = tmp_path / "offloader.toml"
    config.write_text("")
    code, line, hint = offloader.refuses("stream", "offload", STREAM, "--config", str(config))
    assert (code, line) == (2, f"no ledger database was given: the settings file {config} has no serve.ledgers")
    assert "--ledgers sqlite:///FILE" in hint
    other = f"sqlite:///{tmp_path}/other.db"
    config.write_text(f'[serve]\nledgers = "{bench.ledgers}"\n[flight]\nledgers = "{other}"\n')
    code, line, hint = offloader.refuses("stream", "offload", STREAM, "--config", str(config))
    assert (code, line.partition(": ")[2]) == (
        2,
        f"the settings file {config} has two, serve.ledgers and flight.ledgers",
    )
    assert (bench.ledgers in hint, other in hint) == (True, True)
    config.write_text(f'[serve]\nledgers = "{other}"\n')
    code, line, _ = offloader.refuses("stream", "offload", STREAM, "--config", str(config))
    assert (code, "other.db" in line) == (3, True)


def test_pattern_that_is_no_streams_name_makes_no_store(offloader: Offloader, bench: Bench, tmp_path: Path) -> None:
    code, _, hint = offloader.refuses(
        "stream", "offload", "public/default/persistent/or*", "--store", f"file://{tmp_path}/new"
    )
    assert (code, bool(hint)) == (3, True)
    assert not (tmp_path / "new").exists()
