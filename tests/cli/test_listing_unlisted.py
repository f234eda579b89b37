"""Commands that begin with the catalogue name a stream whose entry is lost, and exit with 6."""

from __future__ import annotations

from itertools import count

import pytest

from formats.entries import EntryBatch
from formats.keys import catalog_key
from offloader.errors import ErrorKind
from offloader.store.open import open_store
from tests.cli.reading_verbs import Offloader
from tests.support.streams import StreamWriter

_names = count()


@pytest.fixture
def url() -> str:
    """A store with the streams ``kept`` and ``lost``, of which the latter has no entry any more."""
    store = open_store(f"memory://unlisted-commands-{next(_names)}")
    for name in ("kept", "lost"):
        StreamWriter(store, name).add([EntryBatch.build(1, 0, [b"x"], [1_000])])
    store.delete([catalog_key("lost")])
    return store.url


@pytest.fixture
def offloader(capsys: pytest.CaptureFixture[str]) -> Offloader:
    return Offloader(capsys)


@pytest.mark.parametrize("command", ["ls", "status", "doctor", "cleanup orphans"])
def test_stream_without_a_catalogue_entry_is_named(command: str, url: str, offloader: Offloader) -> None:
    done = offloader(*command.split(), "--store", url)
    assert done.code == ErrorKind.DATA_CORRUPTION.value
    assert "no catalogue entry" in " ".join((done.out + done.err).split())
    assert "lost" in done.out + done.err


def test_limit_and_prefix_of_ls_count_it(url: str, offloader: Offloader) -> None:
    assert [row["stream"] for row in offloader("ls", "--store", url, "--limit", "1", "--json").rows] == ["kept"]
    only = offloader("ls", "--prefix", "lo", "--store", url, "--json")
    assert [row["error"] for row in only.rows] == ["CorruptError"]
    assert offloader("ls", "kept", "--store", url).code == 0
