"""``offloader read --follow``: from the hot tier where there is one, and how it ends."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from offloader.managed_ledger import open_managed_ledger
from offloader.settings import Settings
from offloader.store.open import open_store
from tests.cli.reading_verbs import Offloader
from tests.support.ctrl_c import heed_ctrl_c
from tests.support.streams import StreamWriter, batch_of
from tests.support.waiting import PATIENCE_S


@pytest.mark.slow
def test_entries_that_are_not_offloaded_are_followed_from_the_ledger_database(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    ledgers, store = f"sqlite:///{tmp_path}/ledgers.db", open_store(f"file://{tmp_path}/store", create=True)
    settings = Settings.of({"offload": {"method": "streaming"}})
    with open_managed_ledger("orders", ledgers=ledgers, store=store, settings=settings) as topic:
        topic.append_batch([b"a", b"b"])
        topic.offload()
        topic.append(b"c")
        timer = threading.Timer(0.2, lambda: topic.append(b"d"))
        timer.start()
        named = ("read", "orders", "--store", store.url)
        done = Offloader(capsys)(*named, "--ledgers", ledgers, "--follow", "--limit", "4")
        timer.join()
        assert (done.code, done.out.splitlines(), done.err) == (0, ["a", "b", "c", "d"], "")
        cold = Offloader(capsys)(*named)
        assert cold.out.splitlines() == ["a", "b"]


@pytest.mark.slow
@pytest.mark.parametrize("options", [(), ("--follow", "--limit", "4"), ("--count",)])
def test_entries_of_another_ledger_database_are_not_read_as_the_streams(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, options: tuple[str, ...]
) -> None:
    store = open_store(f"file://{tmp_path}/store", create=True)
    for name, place, entries in (("own", store.url, 2), ("other", f"file://{tmp_path}/else", 5)):
        other = open_store(place, create=True)
        with open_managed_ledger("orders", ledgers=f"sqlite:///{tmp_path}/{name}.db", store=other) as topic:
            topic.append_batch([b"%d of %s" % (number, name.encode()) for number in range(entries)])
            topic.offload()
    read = ("read", "orders", "--store", store.url, "--ledgers", f"sqlite:///{tmp_path}/other.db", *options)
    done = Offloader(capsys)(*read)
    assert (done.code, done.out) == (6, "")
    assert "this hot tier isn't the one recorded in its manifest: it is another database" in done.err


def follower(url: str) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-m", "offloader", "read", "orders", "--follow", "--store", url],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env={**os.environ},
        preexec_fn=heed_ctrl_c,
    )


@pytest.fixture
def url(tmp_path: Path) -> str:
    writer = StreamWriter(open_store(f"file://{tmp_path}/store", create=True), "orders")
    writer.add([batch_of(3, 0, 1)])
    return writer.store.url


NOTES = [
    "note: stream orders: following offloaded entries only: up to 3:0 now, published ",
    "note: newer entries appear after they are offloaded; with --ledgers, before",
]


@pytest.mark.process
def test_ctrl_c_ends_following_with_one_line(url: str) -> None:
    with follower(url) as process:
        assert process.stdout is not None
        assert process.stdout.readline().startswith("3:0")
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=PATIENCE_S)
    lines = err.splitlines()
    assert (process.returncode, out, lines[-1]) == (130, "", "offloader: interrupted")
    assert [line.startswith(note) for line, note in zip(lines, NOTES, strict=False)] == [True, True]
    assert len(lines) == 3


@pytest.mark.process
def test_following_ends_when_the_reader_of_its_output_has_gone(url: str) -> None:
    """Nothing new comes: only the pipe says so."""
    with follower(url) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        process.stdout.readline()
        process.stdout.close()
        code = process.wait(timeout=PATIENCE_S)
        said = process.stderr.read().splitlines()
    assert code == 141
    assert len(said) == 2
