"""A plan that would change nothing is not offered: the command neither asks nor names --apply."""

from __future__ import annotations

from pathlib import Path

import pytest

from offloader.store.open import open_store
from tests.cli.reading_verbs import Offloader
from tests.support.streams import StreamWriter, batch_of

pytestmark = pytest.mark.slow
OFFER = "repeat the command with --apply"


@pytest.fixture
def url(tmp_path: Path) -> str:
    store = open_store(f"file://{tmp_path}/store")
    for stream in ("orders", "prices"):
        writer = StreamWriter(store, stream)
        for ledger in (1, 2):
            writer.add([batch_of(ledger, 0, 10)], closes=[ledger])
    return store.url


@pytest.mark.parametrize(
    "words",
    [
        ["cleanup", "run"],
        ["cleanup", "run", "orders"],
        ["cleanup", "orphans"],
        ["retention", "run"],
        ["retention", "run", "orders", "prices"],
        ["manifest", "expire", "orders"],
    ],
    ids=" ".join,
)
def test_empty_plan_is_not_offered(words: list[str], url: str, capsys: pytest.CaptureFixture[str]) -> None:
    done = Offloader(capsys)(*words, "--store", url)
    assert (done.code, done.err) == (0, "")


def test_plan_with_work_is_offered(url: str, capsys: pytest.CaptureFixture[str]) -> None:
    offloader = Offloader(capsys)
    # The first stream has nothing to do, the second one has.
    kept = ["--keep-size", "1", "--store", url]
    assert OFFER in offloader("retention", "run", "orders", *kept).err
    assert OFFER in offloader("stream", "truncate", "prices", "--before", "2:0", "--store", url).err
    assert offloader("stream", "truncate", "prices", "--before", "2:0", "--store", url, "--apply").code == 0
    assert offloader("stream", "truncate", "prices", "--before", "2:0", "--store", url).err == ""
    assert OFFER in offloader("cleanup", "run", "prices", "--allow-large", "--store", url).err
    assert OFFER in offloader("cleanup", "run", "--allow-large", "--store", url).err


def test_large_plan_without_approval_and_a_held_stream_are_not_offered(
    url: str, capsys: pytest.CaptureFixture[str]
) -> None:
    offloader = Offloader(capsys)
    writer = StreamWriter(open_store(url), "mostly")
    for ledger, entries in ((1, 90), (2, 1)):
        writer.add([batch_of(ledger, 0, entries)], closes=[ledger])
    assert offloader("stream", "truncate", "mostly", "--before", "2:0", "--store", url, "--apply").code == 0
    large = offloader("cleanup", "run", "mostly", "--store", url)
    assert ("add --allow-large" in large.out, large.err) == (True, "")
    assert offloader("cleanup", "hold", "mostly", "--store", url).code == 0
    held = offloader("cleanup", "run", "mostly", "--allow-large", "--store", url)
    assert ("on hold" in held.out, held.err) == (True, "")
