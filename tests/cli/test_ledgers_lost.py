"""A ledger database that lacks entries that it acknowledged: what commands print, and their exit codes."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from formats.entries import Position
from offloader import open_store
from offloader.cli.main import main
from offloader.errors import ErrorKind, NotFoundError, SourceMismatchError
from offloader.ledgers.sqlite.embedded import EmbeddedLedgers
from tests.cli.reading_verbs import Offloader

STREAM = "orders"
LOST = ErrorKind.DATA_CORRUPTION.value


@pytest.fixture
def database(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A database of which an older copy was restored: it has 1:0 to 1:3, and 1:4 to 1:7 were acknowledged."""
    path, copy = tmp_path / "l.db", tmp_path / "older"
    with closing(EmbeddedLedgers(str(path))) as ledgers:
        stream = ledgers.open_stream(STREAM)
        stream.append([b"kept"] * 4)
        with closing(ledgers._database._connect()) as connection:
            connection.execute("VACUUM INTO ?", (str(copy),))
        stream.append([b"gone"] * 4)
    for each in tmp_path.glob("l.db*"):
        if each.suffix != ".acked":
            each.unlink()
    copy.rename(path)
    (tmp_path / "store").mkdir()
    monkeypatch.setenv("OFFLOADER_STORE", f"file://{tmp_path}/store")
    monkeypatch.setenv("OFFLOADER_LEDGERS", f"sqlite:///{path}")
    return path


@pytest.fixture
def offloader(capsys: pytest.CaptureFixture[str], database: Path) -> Offloader:
    return Offloader(capsys)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "code", "out"),
    [
        ([], LOST, "kept\n" * 4),
        (["--count"], LOST, "4\n"),
        (["--limit", "5"], LOST, "kept\n" * 4),
        (["--limit", "4"], 0, "kept\n" * 4),
        (["--count", "--limit", "4"], 0, "4\n"),
        (["--to", "1:2"], 0, "kept\n" * 3),
        (["--follow"], LOST, ""),
    ],
)
def test_read_fails_when_it_reaches_acknowledged_entries_that_are_missing(
    offloader: Offloader, arguments: list[str], code: int, out: str
) -> None:
    done = offloader("read", STREAM, *arguments)
    assert (done.code, done.out) == (code, out)
    assert ("entries up to 1:7 were acknowledged" in done.err) == bool(code)


def test_read_fails_when_the_whole_database_is_missing(offloader: Offloader, database: Path) -> None:
    assert main(["stream", "offload", STREAM]) == LOST
    for each in database.parent.glob("l.db*"):
        if each.suffix != ".acked":
            each.unlink()
    done = offloader("read", STREAM, "--count")
    assert (done.code, done.out) == (LOST, "4\n")


@pytest.mark.slow
def test_offload_stores_the_present_entries_and_fails(offloader: Offloader) -> None:
    planned = offloader("stream", "offload", STREAM, "--dry-run")
    assert (planned.code, "1:3" in planned.out) == (LOST, True)
    done = offloader("stream", "offload", STREAM)
    assert (done.code, "committed end 1:3" in done.out) == (LOST, True)
    assert "accept-loss" in done.err
    assert offloader("stream", "offload", STREAM).code == LOST


def test_doctor_reports_missing_acknowledged_entries_as_a_problem(offloader: Offloader) -> None:
    done = offloader("doctor", "--json")
    assert done.code == LOST
    [row] = [row for row in done.rows if row["outcome"] == "problem"]
    assert (row["check"], row["kind"]) == (f"stream {STREAM}", "data_corruption")
    assert "entries up to 1:7 were acknowledged" in row["what"]


@pytest.mark.slow
def test_commands_succeed_after_the_loss_was_accepted(offloader: Offloader) -> None:
    planned = offloader("stream", "accept-loss", STREAM)
    assert (planned.code, "would be lost" in planned.out) == (0, True)
    assert offloader("stream", "offload", STREAM).code == LOST
    assert offloader("stream", "accept-loss", STREAM, "--apply").code == 0
    assert [offloader(*words).code for words in (["read", STREAM], ["stream", "offload", STREAM], ["doctor"])] == [
        0,
        0,
        0,
    ]


@pytest.mark.slow
@pytest.mark.parametrize("method", ["streaming", "ledger"])
def test_stream_that_was_never_offloaded_is_offloaded_after_the_loss_was_accepted(
    method: str, offloader: Offloader, database: Path
) -> None:
    config = database.with_name("offloader.toml")
    config.write_text(f'[offload]\nmethod = "{method}"\n')
    assert offloader("stream", "accept-loss", STREAM, "--apply").code == 0
    with closing(EmbeddedLedgers(str(database))) as ledgers:
        stream = ledgers.open_stream(STREAM)
        stream.append([b"later"] * 2)
        stream.close_ledger()
    words = (["stream", "offload", STREAM, "--config", str(config)], ["read", STREAM], ["doctor"], ["verify", STREAM])
    done = [offloader(*each) for each in words]
    assert [each.code for each in done] == [0, 0, 0, 0], [each.err for each in done]
    assert done[1].out == "kept\n" * 4 + "later\n" * 2


def test_read_succeeds_when_the_store_has_what_the_database_lacks(offloader: Offloader, database: Path) -> None:
    whole = database.with_name("whole.db")
    with closing(EmbeddedLedgers(str(whole))) as ledgers:
        ledgers.open_stream("other").append([b"x"] * 3)
        ledgers.open_stream(STREAM).append([b"y"] * 4)
    assert offloader("stream", "offload", STREAM, "--ledgers", f"sqlite:///{whole}").code == 0
    (database.with_name("whole.db.acked")).rename(database.with_name("gone.db.acked"))
    done = offloader("read", STREAM, "--count", "--ledgers", f"sqlite:///{database.with_name('gone.db')}")
    assert (done.code, done.out) == (0, "4\n")


@pytest.mark.slow
def test_library_offloads_what_is_there_and_names_the_missing_entries(database: Path, tmp_path: Path) -> None:
    orders = open_store(f"file://{tmp_path}/store").stream(STREAM)
    with pytest.raises(SourceMismatchError, match="entries up to 1:7 were acknowledged"):
        orders.offload(str(database))
    assert [each.payload for each in orders.read(Position(1, 0), Position(1, 4))] == [b"kept"] * 4
    with pytest.raises(NotFoundError, match="mistyped"):
        orders.offload(f"{tmp_path}/mistyped.db")
    assert not (tmp_path / "mistyped.db").exists()
