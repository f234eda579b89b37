"""``offloader stream set-source``: its words."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from offloader.ledgers.sqlite.embedded import EmbeddedLedgers
from tests.cli.reading_verbs import Offloader


@pytest.mark.slow
def test_both_databases_are_named_once(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    offloader = Offloader(capsys)
    (tmp_path / "store").mkdir()
    monkeypatch.setenv("OFFLOADER_STORE", f"file://{tmp_path}/store")
    uuids = []
    for name in ("old", "new"):
        with closing(EmbeddedLedgers(str(tmp_path / f"{name}.db"))) as ledgers:
            stream = ledgers.open_stream("orders")
            stream.append([b"x"] * 3)
            uuids.append(str(stream.source_id()))
        if name == "old":
            assert offloader("stream", "offload", "orders", "--ledgers", f"sqlite:///{tmp_path}/old.db").code == 0
    old, new = uuids
    for options, verb in (([], "would be"), (["--apply"], "is now")):
        done = offloader("stream", "set-source", "orders", "--ledgers", f"sqlite:///{tmp_path}/new.db", *options)
        assert done.out.startswith(f"orders: it is another database, {new} instead of {old}\n")
        assert f"the ledger database {verb} the stream's hot tier" in done.out
        assert (done.out.count(new), done.out.count(old)) == (1, 1)
