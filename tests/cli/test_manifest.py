"""``offloader manifest``."""

from __future__ import annotations

import json
import os
from contextlib import closing
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from formats.entries import Position
from formats.keys import index_key, manifest_prefix, record_key
from formats.manifest import HotReleased, Truncate
from formats.metadata.messages import OffloadContext
from offloader.cli.main import main
from offloader.ledgers.sqlite.embedded import EmbeddedLedgers
from offloader.manifest.log import load_manifest
from offloader.manifest.protection import lift_global_hold, set_global_hold
from offloader.manifest.state import offload_context
from offloader.store.base import OVERWRITE, ObjectInfo, ObjectStore
from offloader.store.local import LocalStore
from offloader.store.open import open_store
from tests.support.streams import StreamWriter, batch_of

STREAM = "public/default/persistent/orders"


@pytest.fixture(autouse=True)
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in [name for name in os.environ if name.startswith(("OFFLOADER_", "AWS_"))]:
        monkeypatch.delenv(name)


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    return open_store(f"file://{tmp_path}/store")


@pytest.fixture
def writer(store: ObjectStore) -> StreamWriter:
    writer = StreamWriter(store, STREAM)
    writer.add([batch_of(1, 0, 50)])
    writer.add([batch_of(1, 50, 50), batch_of(2, 0, 30)], closes=[1])
    return writer


def said(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = main(["manifest", *arguments])
    captured = capsys.readouterr()
    return code, captured.out, captured.err


def break_record(writer: StreamWriter) -> None:
    key = record_key(STREAM, writer.log.state.incarnation, 2)
    writer.store.put(key, writer.store.get(key)[0][:-1], mode=OVERWRITE)


def test_show_prints_facts_and_records_of_the_manifest(
    capsys: pytest.CaptureFixture[str], store: ObjectStore, writer: StreamWriter
) -> None:
    writer.log.commit([Truncate(Position(1, 10))])
    code, out, err = said(capsys, "show", STREAM, "--store", store.url, "--json", "--records", "2")
    assert (code, err) == (0, "")
    facts, *records = [json.loads(line) for line in out.splitlines()]
    assert facts["incarnation"] == str(writer.log.state.incarnation)
    assert (facts["record"], facts["epoch"], facts["segments"], facts["entries"]) == (4, 1, 2, 130)
    assert (facts["head"], facts["first"], facts["committed_end"]) == ("1:10", "1:10", "2:29")
    assert (facts["checkpoint"], facts["records_since_checkpoint"], facts["first_kept_record"]) == (None, 4, 1)
    assert [(record["record"], record["edits"]) for record in records] == [
        (4, ["truncate"]),
        (3, ["assign", "offloaded", "ledger_closed"]),
    ]
    code, out, _ = said(capsys, "show", STREAM, "--store", store.url)
    lines = dict(line.split(maxsplit=1) for line in out.splitlines())
    assert (lines["committed_end"], lines["entries"], lines["deleted"]) == ("2:29", "130", "no")


@pytest.mark.slow
def test_a_checkpoint_is_written_once_and_a_dry_run_writes_none(
    capsys: pytest.CaptureFixture[str], store: ObjectStore, writer: StreamWriter
) -> None:
    prefix = manifest_prefix(STREAM, writer.log.state.incarnation)
    before = [info.key for info in store.list(prefix).objects]
    code, out, _ = said(capsys, "checkpoint", STREAM, "--store", store.url, "--dry-run")
    assert (code, out.split(": ")[:2]) == (0, [STREAM, "would write a checkpoint of record 3"])
    assert [info.key for info in store.list(prefix).objects] == before

    for _ in range(2):
        code, out, _ = said(capsys, "checkpoint", STREAM, "--store", store.url, "--json")
        assert code == 0
        assert json.loads(out)["checkpoint"] == 3

    assert len(store.list(prefix).objects) == len(before) + 1
    code, out, _ = said(capsys, "checkpoint", STREAM, "--store", store.url, "--dry-run")
    assert "nothing to write" in out
    assert load_manifest(store, STREAM) == writer.log.state


def test_rebuild_asks_for_the_head(
    capsys: pytest.CaptureFixture[str], store: ObjectStore, writer: StreamWriter
) -> None:
    break_record(writer)
    code, _, err = said(capsys, "rebuild", STREAM, "--store", store.url)
    assert code == 2
    assert "--head first" in err


@pytest.mark.slow
def test_rebuild_dry_run_prints_the_plan_that_rebuild_then_applies(
    capsys: pytest.CaptureFixture[str], store: ObjectStore, writer: StreamWriter
) -> None:
    break_record(writer)
    store.delete([index_key(STREAM, writer.uuids[0])])
    code, _, err = said(capsys, "show", STREAM, "--store", store.url)
    assert code == 6
    assert "offloader manifest rebuild" in err

    arguments = ("rebuild", STREAM, "--store", store.url, "--head", "first")
    code, out, _ = said(capsys, *arguments, "--dry-run", "--json")
    *rows, summary = [json.loads(line) for line in out.splitlines()]
    assert [row["segment"] for row in rows] == [str(uuid) for uuid in writer.uuids]
    assert (summary["recorded"], summary["incarnation"]) == (2, None)
    assert said(capsys, "show", STREAM, "--store", store.url)[0] == 6

    code, out, err = said(capsys, *arguments)
    assert (code, err) == (0, "")
    assert "recorded 2 segments" in out
    assert "its index is rebuilt" in out
    assert load_manifest(store, STREAM).committed_end() == Position(2, 29)
    code, _, err = said(capsys, *arguments)
    assert code == 2
    assert "can be read" in err


@pytest.mark.slow
def test_expire_deletes_checkpointed_records_and_dead_incarnations(
    capsys: pytest.CaptureFixture[str], store: ObjectStore, writer: StreamWriter, tmp_path: Path
) -> None:
    arguments = ("expire", STREAM, "--store", store.url, "--apply")
    incarnation = writer.log.state.incarnation
    writer.log.checkpoint()
    dead = record_key(STREAM, UUID(int=77), 1)
    store.put(dead, b"{}")
    stranger = f"{manifest_prefix(STREAM, incarnation)}notes.txt"
    store.put(stranger, b"not ours")
    code, out, _ = said(capsys, *arguments)
    assert code == 0
    assert out.splitlines()[0] == (
        f"{STREAM}: deleted 0 records, 0 checkpoints and 0 runs, and 0 objects of 0 dead incarnations"
    ), "nothing is a day old"

    at_once = tmp_path / "at-once.toml"
    at_once.write_text("[manifest]\norphan_age_min = '0s'\n", encoding="utf-8")
    before = sorted(info.key for info in store.list("").objects)
    code, out, _ = said(capsys, *arguments[:-1], "--config", str(at_once))
    assert code == 0
    assert out.startswith(
        f"{STREAM}: would delete 3 records, 0 checkpoints and 0 runs, and 1 objects of 1 dead incarnations"
    )
    assert sorted(info.key for info in store.list("").objects) == before

    set_global_hold(store, by="ana", reason="a test", now_ms=5)
    code, _, err = said(capsys, *arguments, "--config", str(at_once))
    assert code == 2
    assert "is stopped by ana: a test" in err
    lift_global_hold(store)
    assert sorted(info.key for info in store.list("").objects) == before

    code, out, _ = said(capsys, *arguments, "--config", str(at_once), "--json")
    facts = json.loads(out)
    assert (code, facts["records"], facts["first_kept_record"], facts["unknown"]) == (0, 3, 4, [stranger])
    left = {info.key for info in store.list("").objects}
    assert dead not in left
    assert stranger in left
    assert {key for uuid in writer.uuids for key in writer.keys(uuid)} <= left
    assert load_manifest(store, STREAM) == writer.log.state


def test_expire_deletes_nothing_of_a_manifest_that_can_t_be_read(
    capsys: pytest.CaptureFixture[str], store: ObjectStore, writer: StreamWriter
) -> None:
    break_record(writer)
    before = sorted(info.key for info in store.list(f"{STREAM}/").objects)
    code, out, err = said(capsys, "expire", STREAM, "--store", store.url)
    assert (code, out) == (6, "")
    assert "offloader manifest rebuild" in err
    assert sorted(info.key for info in store.list(f"{STREAM}/").objects) == before


@pytest.mark.slow
def test_store_without_conditional_creates_is_not_written_to(
    capsys: pytest.CaptureFixture[str], store: ObjectStore, writer: StreamWriter, monkeypatch: pytest.MonkeyPatch
) -> None:
    def overwrites(self: LocalStore, key: str, body: bytes, **options: Any) -> ObjectInfo:
        return put(self, key, body, **{**options, "mode": OVERWRITE})

    put = LocalStore.put
    monkeypatch.setattr(LocalStore, "put", overwrites)
    before = sorted(info.key for info in store.list("").objects)
    for arguments in (("checkpoint",), ("expire", "--apply"), ("rebuild", "--head", "first")):
        code, _, err = said(capsys, *arguments, STREAM, "--store", store.url)
        assert code != 0
        assert "can't be written safely" in err
    assert said(capsys, "show", STREAM, "--store", store.url)[0] == 0
    assert sorted(info.key for info in store.list("").objects) == before


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "because"),
    [
        (("show", STREAM, "--head", "first"), "no such option: --head"),
        (("checkpoint", STREAM, "--records", "3"), "no such option: --records"),
        (("show", STREAM, "--dry-run"), "no such option: --dry-run"),
        (("rebuild", STREAM), "missing --head: no object records the stream's start"),
        (("rebuild", STREAM, "--head", "7"), "--head"),
        (("show", "no/such"), "isn't in"),
        (("expire", "no/such"), "isn't in"),
        (("expire", STREAM, "--head", "first"), "no such option: --head"),
        (("expire", STREAM, "--records", "3"), "no such option: --records"),
        (("show", "_bad"), "can't be used"),
    ],
)
def test_wrong_arguments_are_refused_by_name(
    capsys: pytest.CaptureFixture[str], store: ObjectStore, arguments: tuple[str, ...], because: str
) -> None:
    code, out, err = said(capsys, *arguments, "--store", store.url)
    assert code in (2, 3)
    assert out == ""
    assert because in err


def context_of(capsys: pytest.CaptureFixture[str], store: ObjectStore, ledger: int, *more: str) -> dict[str, Any]:
    code, out, _ = said(capsys, "context", STREAM, str(ledger), "--store", store.url, "--json", *more)
    assert code == 0
    found: dict[str, Any] = json.loads(out)
    return found


def test_context_of_a_ledger_lists_its_segments(
    capsys: pytest.CaptureFixture[str], store: ObjectStore, writer: StreamWriter
) -> None:
    found = context_of(capsys, store, 1)
    assert [(each["uuid"], each["end_entry_id"]) for each in found["segments"]] == [
        (str(writer.uuids[0]), 49),
        (str(writer.uuids[1]), 99),
    ]
    assert (found["uuid"], found["complete"], found["bookkeeper_deleted"]) == (str(writer.uuids[0]), False, False)
    code, out, _ = said(capsys, "context", STREAM, "2", "--store", store.url)
    assert code == 0
    assert "bookkeeper_deleted  no" in out
    code, _, err = said(capsys, "context", STREAM, "7", "--store", store.url)
    assert (code, "no segment has entries of ledger 7" in err) == (3, True)


def test_context_names_released_ledgers_as_deleted(
    capsys: pytest.CaptureFixture[str], store: ObjectStore, writer: StreamWriter
) -> None:
    writer.log.commit([HotReleased((1,))])
    for ledger, is_deleted in ((1, True), (2, False)):
        found = context_of(capsys, store, ledger)
        flags = [found["bookkeeper_deleted"], *(each["bookkeeper_deleted"] for each in found["segments"])]
        assert set(flags) == {is_deleted}


def test_context_takes_the_hot_tiers_word(
    capsys: pytest.CaptureFixture[str], store: ObjectStore, writer: StreamWriter, tmp_path: Path
) -> None:
    url = f"sqlite:///{tmp_path}/ledgers.db"
    with closing(EmbeddedLedgers(url)) as database:
        database.open_stream(STREAM).append([b"one"])
        [ledger] = database.view_stream(STREAM).ledgers()
    assert writer.uuids
    for number in (1, 2):
        found = context_of(capsys, store, number, "--ledgers", url)
        assert found["bookkeeper_deleted"] is (number != ledger.ledger_id)


@pytest.mark.parametrize(("numbers", "proposed"), [("pulsar", False), ("pip-76", True)])
def test_context_is_written_as_protobuf(
    capsysbinary: pytest.CaptureFixture[bytes], store: ObjectStore, writer: StreamWriter, numbers: str, proposed: bool
) -> None:
    assert main(["manifest", "context", STREAM, "1", "--store", store.url, "--proto", numbers]) == 0
    found = OffloadContext.decode(capsysbinary.readouterr().out, proposed=proposed)
    assert found == offload_context(load_manifest(store, STREAM), 1)
    assert [each.uuid for each in found.segments] == writer.uuids
