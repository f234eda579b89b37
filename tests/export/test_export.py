"""``Stream.export`` to a table, a topic and V1 objects: the same work as the commands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
import pytest

import offloader
from formats.entries import Position
from offloader import iceberg
from offloader.errors import InvalidCallError, NotFoundError
from offloader.manifest.topic_layouts import record_layout
from offloader.read.reader import read_offloaded
from tests.cli.reading_verbs import Offloader
from tests.cli.test_export_v1 import STREAM as EXPORTED
from tests.cli.test_export_v1 import Export
from tests.read.test_partitions_segments import ORDER, PLACE, TIMES, TOPIC, end, layout_of, stream_of, write
from tests.support.pulsar_broker import FakeBroker
from tests.support.pulsar_producers import FakeProducers
from tests.support.pulsar_topics import FakeTopic
from tests.support.replaying import STREAM, TARGET, Place, entries_of, write_stream
from tests.support.streams import StreamWriter, batch_of

pytestmark = pytest.mark.slow


def test_iceberg_table_gets_new_entries_once_and_protects_the_others(tmp_path: Path) -> None:
    store = offloader.open_store(f"file://{tmp_path}/store")
    writer = StreamWriter(store.objects, "orders")
    writer.add([batch_of(1, 0, 10)])
    export = store.stream("orders").export
    catalog = f"sqlite:///{tmp_path}/catalog.db"
    where: dict[str, Any] = {"catalog": catalog, "warehouse": f"file://{tmp_path}/warehouse"}
    [done] = export.iceberg("lake.entries", **where, subscriber="lake")
    assert [each.entries for each in done.ranges] == [10]
    assert store.stream("orders").retention().registry().names() == ["lake"]
    table = iceberg.open_table("lake.entries", catalog=catalog)
    assert export.iceberg(table)[0].ranges == ()
    writer.add([batch_of(1, 10, 5)])
    assert [each.entries for each in export.iceberg(table)[0].ranges] == [5]
    assert table.scan().to_arrow().num_rows == 15


def test_topic_gets_a_range_and_a_repeated_replay_sends_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    store = offloader.open_store(f"file://{tmp_path}/store")
    with FakeBroker({}) as broker:
        topic = FakeTopic(broker, TARGET)
        incarnation = write_stream(store.objects, entries_of({7: 40}))
        place = Place(store.objects, incarnation, broker, topic, FakeProducers(broker, topic), tmp_path)
        export = store.stream(STREAM).export
        given: dict[str, Any] = {"service_url": broker.url, "start": Position(7, 10), "stop": Position(7, 13)}
        [planned] = export.pulsar(TARGET, **given, dry_run=True)
        assert (planned.first, planned.last, planned.to_send) == (Position(7, 10), Position(7, 12), 3)
        assert place.arrived == []
        [done] = export.pulsar(TARGET, **given)
        assert (done.result.sent, done.result.entries) == (Position(7, 12), 3)
        [again] = export.pulsar(TARGET, **given)
        assert (again.to_send, again.result.entries) == (0, 0)
        assert place.arrived == [Position(7, number) for number in (10, 11, 12)]
        with pytest.raises(InvalidCallError, match="exclude each other"):
            export.pulsar(TARGET, service_url=broker.url, start=Position(7, 0), since="-1h")


def test_v1_objects_are_written_and_a_ledger_that_is_missing_is_named(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    made = Export(tmp_path, Offloader(capsys))
    recorded = [made.recorded(each) for each in (3, 4)]
    export = offloader.Store(made.writer.store).stream(EXPORTED).export
    planned = export.v1(made.target_url, made.save(recorded), dry_run=False)
    assert [(each.ledger.ledger_id, each.written) for each in planned] == [(3, True), (4, True)]
    for each in recorded:
        assert each.context is not None
        found = read_offloaded(made.target, each.ledger_id, each.context, {})
        assert [entry.payload for entry in found.read(0, found.last_entry_id)] == made.payloads(each.ledger_id)
    absent = made.save([*recorded, made.recorded(3, ledger_id=9)])
    with pytest.raises(NotFoundError, match="1 of 3 ledgers aren't exported: 9"):
        export.v1(made.target_url, absent)
    with pytest.raises(InvalidCallError, match="needs one record"):
        export.v1(made.target_url, {0: absent})


def test_scalable_topic_is_exported_with_all_its_segments(tmp_path: Path) -> None:
    store = offloader.open_store(f"file://{tmp_path}/store")
    record_layout(store.objects, PLACE, layout_of(3))
    for number in TIMES:
        write(store.objects, number)
        end(store.objects, *({number} - {3}))
    topic = store.stream(TOPIC)
    topic.retention().add("lake")
    catalog = f"sqlite:///{tmp_path}/catalog.db"
    done = topic.export.iceberg(
        "lake.entries", catalog=catalog, warehouse=f"file://{tmp_path}/warehouse", subscriber="lake"
    )
    rows = iceberg.open_table("lake.entries", catalog=catalog).scan().to_arrow()
    files = topic.export.parquet(f"file://{tmp_path}/parquet")
    assert [each.stream for each in done] == [each.stream for each in files] == [stream_of(each) for each in TIMES]
    assert sorted(payload.decode() for payload in rows["payload"].to_pylist()) == sorted(ORDER)
    assert pq.read_table(tmp_path / "parquet").num_rows == len(ORDER)
    cut = topic.retention().registry().subscribers["lake"].cut
    assert cut is not None
    assert cut.as_json() == {f"{each}.0": f"{each}:2" for each in TIMES}
