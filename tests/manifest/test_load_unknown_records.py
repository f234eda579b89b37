"""A record that this version doesn't know is refused by name by all that reads or changes its stream."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import pytest

from formats.checked_json import opened, sealed
from formats.keys import record_key
from formats.manifest import RECORD_FORMAT
from offloader.cli.main import main
from offloader.errors import UnsupportedError
from offloader.managed_ledger import open_managed_ledger
from offloader.manifest.log import load_manifest
from offloader.read.partitions import open_reader
from offloader.store.base import ObjectStore
from offloader.store.open import open_store

STREAM = "public/default/persistent/orders"
#: Name of an edit or a field -> fields of a record with it.
UNKNOWN: dict[str, Mapping[str, Any]] = {
    "from_the_future": {"edits": [{"edit": "from_the_future", "at": 5}]},
    "until_ms": {"edits": [{"edit": "hold", "on": True, "reason": "", "until_ms": 5}]},
    "priority": {"edits": [{"edit": "resume"}], "priority": 1},
}
#: All that need the manifest of one stream.
COMMANDS = """
stream accept-loss STREAM --ledgers LEDGERS --apply
stream set-source STREAM --ledgers LEDGERS --apply
cleanup hold STREAM
cleanup orphans STREAM --apply
cleanup plan STREAM
cleanup run STREAM --allow-large --apply
cleanup undo STREAM
stream delete STREAM --apply
manifest checkpoint STREAM
manifest expire STREAM --apply
manifest rebuild STREAM --head first
manifest show STREAM
stream offload STREAM --ledgers LEDGERS --take-over
stream pause STREAM
read STREAM
stream resume STREAM
retention run STREAM --apply
ls STREAM
stream truncate STREAM --before 9:9 --take-over --apply
verify STREAM
"""
_names = count()


@dataclass(frozen=True)
class Stream:
    """A stream with one offloaded entry, in ``ledgers`` and in the store ``url``."""

    url: str
    store: ObjectStore
    ledgers: str

    def contents(self) -> dict[str, bytes]:
        return {info.key: bytes(self.store.get(info.key)[0]) for info in self.store.list("").objects}

    def add_record(self, changes: Mapping[str, Any]) -> str:
        """Creates the next record, with these fields; its key."""
        state = load_manifest(self.store, STREAM)
        newest = record_key(STREAM, state.incarnation, state.record_id)
        body = opened(bytes(self.store.get(newest)[0]), RECORD_FORMAT)
        writer = {**body["writer"], "nonce": "0" * 32}
        number = state.record_id + 1
        key = record_key(STREAM, state.incarnation, number)
        new = {"format": RECORD_FORMAT, "record_id": number, "previous_nonce": body["writer"]["nonce"]}
        self.store.put(key, sealed({**body, **new, "writer": writer, **changes}))
        return key


@pytest.fixture
def stream(tmp_path: Path) -> Stream:
    url = f"memory://unknown-records-{next(_names)}"
    made = Stream(url, open_store(url), f"sqlite:///{tmp_path}/ledgers.db")
    with open_managed_ledger(STREAM, ledgers=made.ledgers, store=made.store) as topic:
        topic.append(b"offloaded")
        topic.offload()
    return made


@pytest.mark.slow
@pytest.mark.parametrize("name", UNKNOWN)
def test_unknown_record_is_refused_by_name_and_nothing_is_changed(
    stream: Stream, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    key = stream.add_record(UNKNOWN[name])
    before = stream.contents()
    named = rf"unknown (edit|field).*{name}"
    with pytest.raises(UnsupportedError, match=named) as caught:
        open_managed_ledger(STREAM, ledgers=stream.ledgers, store=stream.store)
    assert key in str(caught.value)
    with pytest.raises(UnsupportedError, match=named) as caught:
        open_reader(stream.store, STREAM)
    assert key in str(caught.value)
    words_of = {"STREAM": STREAM, "LEDGERS": stream.ledgers}
    for line in COMMANDS.strip().splitlines():
        code = main([*(words_of.get(word, word) for word in line.split()), "--store", stream.url])
        said = capsys.readouterr().err
        assert code == UnsupportedError.kind.value, (line, said)
        assert key in said, line
        assert name in said, line
    assert stream.contents() == before

    stream.store.delete([key])
    with open_reader(stream.store, STREAM) as reader:
        assert [bytes(entry.payload) for batch in reader.scan() for entry in batch.entries()] == [b"offloaded"]
