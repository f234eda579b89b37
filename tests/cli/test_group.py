"""``offloader group``: reader groups, and reading as one of their readers."""

from __future__ import annotations

from contextlib import closing
from pathlib import Path

import pytest

from formats.documents import group_key
from offloader.groups.group_service import ReaderGroups, open_reader_groups
from offloader.ledgers.sqlite.embedded import EmbeddedLedgers
from offloader.retention.cuts import StreamCut
from offloader.store.base import ObjectStore
from offloader.store.open import open_store
from tests.cli.reading_verbs import Offloader
from tests.groups.bookkept_groups import open_bookkept_groups
from tests.support.streams import StreamWriter, batch_of


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> ObjectStore:
    made = open_store(f"file://{tmp_path}/store")
    monkeypatch.setenv("OFFLOADER_STORE", made.url)
    return made


@pytest.fixture
def offloader(capsys: pytest.CaptureFixture[str], store: ObjectStore) -> Offloader:
    for name in ("orders", "topic-partition-0", "topic-partition-1"):
        StreamWriter(store, name).add([batch_of(1, 0, 50)])
    return Offloader(capsys)


@pytest.fixture
def groups(store: ObjectStore) -> ReaderGroups:
    return open_reader_groups(store)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["group", "set", "no_name", "--stream", "orders"], 2, "is not a valid reader group name"),
        (["group", "set", "rg", "--stream", "orders", "--stream", "gone"], 3, "stream gone isn't in"),
        (["group", "list", "rg"], 3, "reader group rg doesn't exist"),
        (["group", "remove", "rg"], 3, "reader group rg doesn't exist"),
        (["group", "publish", "rg", "c1"], 3, "reader group rg doesn't exist"),
        (["group", "checkpoint", "rg", "c1"], 3, "reader group rg doesn't exist"),
        (["group", "join", "rg", "one"], 3, "reader group rg doesn't exist"),
        (["group", "join", "rg", "one\n", "--stream", "orders"], 2, "is not a valid reader name"),
        (["group", "join", "no_name", "one", "--stream", "orders"], 2, "is not a valid reader group name"),
        (["group", "checkpoint", "idle", "c1"], 2, "reader group idle has no readers"),
        (["group", "join", "idle", "one", "--stream", "topic"], 2, "reader group idle exists and reads orders"),
    ],
)
def test_refusals_are_one_line(offloader: Offloader, arguments: list[str], code: int, message: str) -> None:
    offloader("group", "set", "idle", "--stream", "orders")
    found, line, hint = offloader.refuses(*arguments)
    assert found == code
    assert "doesn't exist" not in line or "`offloader group set GROUP --stream STREAM`" in hint
    assert message in line


@pytest.mark.slow
def test_reader_continues_where_the_one_before_stopped(offloader: Offloader) -> None:
    first = offloader("group", "join", "rg", "one", "--stream", "orders", "--limit", "20")
    assert (first.code, first.err) == (0, "")
    second = offloader("group", "join", "rg", "two", "--limit", "30", "--json")
    assert first.out.splitlines() == [f"1:{n} ".ljust(20, ".") for n in range(20)]
    assert [row["position"] for row in second.rows] == [f"1:{n}" for n in range(20, 50)]
    assert {row["stream"] for row in second.rows} == {"orders"}
    assert [row["payload"].split()[0] for row in second.rows] == [f"1:{n}" for n in range(20, 50)]
    [row] = offloader("group", "list", "--json").rows
    assert row["readers"] == {}


@pytest.mark.slow
def test_reader_of_a_topic_reads_all_its_partitions(offloader: Offloader) -> None:
    done = offloader("group", "join", "rg", "one", "--stream", "topic", "--limit", "100", "--json")
    assert sorted({row["stream"] for row in done.rows}) == ["topic-partition-0", "topic-partition-1"]
    assert len(done.rows) == 100


@pytest.mark.slow
def test_raw_reader_writes_payloads_only(offloader: Offloader) -> None:
    done = offloader("group", "join", "rg", "one", "--stream", "orders", "--limit", "2", "--raw")
    assert done.out == "1:0 ................1:1 ................"


@pytest.mark.slow
def test_reader_reads_and_publishes_entries_that_are_not_offloaded_yet(offloader: Offloader, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/ledgers.db"
    with closing(EmbeddedLedgers(url)) as ledgers:
        hot = ledgers.open_stream("orders")
        for number in range(60):
            hot.append([b"hot %d" % number])
    offloader("group", "set", "rg", "--stream", "orders", "--type", "automatic", "--checkpoint-every", "0")
    done = offloader("group", "join", "rg", "one", "--limit", "55", "--ledgers", url)
    assert done.out.splitlines()[48:] == [
        "1:48 ...............",
        "1:49 ...............",
        *[f"hot {n}" for n in range(50, 55)],
    ]
    done = offloader("group", "join", "rg", "one", "--limit", "5", "--ledgers", url)
    assert done.out.splitlines() == [f"hot {n}" for n in range(55, 60)]


@pytest.mark.slow
def test_published_checkpoint_moves_the_subscriber(offloader: Offloader, groups: ReaderGroups) -> None:
    assert offloader("group", "list").out == "no reader groups\n"
    done = offloader("group", "set", "rg", "--stream", "orders", "--type", "manual", "--checkpoint-every", "0")
    assert (done.code, done.out) == (0, "rg reads orders; retention manual\n")
    with groups.open("rg").join("one") as reader:
        next(reader)
        done = offloader("group", "checkpoint", "rg", "c1")
        assert done.out == "checkpoint c1 of rg waits for 1 readers\n"
        assert "one (1)" in offloader("group", "list", "--wide").out
        code, line, _ = offloader.refuses("group", "publish", "rg", "c1")
        assert (code, line) == (2, "checkpoint c1 of reader group rg waits for one")
    done = offloader("group", "publish", "rg", "c1")
    assert done.out == "rg consumed all entries before checkpoint c1\n"
    [row] = offloader("group", "list", "--json").rows
    assert (row["published"], row["owed"]) == ({"orders": {"0": "1:19"}}, [])
    [subscriber] = offloader("subscriber", "list", "orders", "--json").rows
    assert (subscriber["subscriber"], subscriber["lag_entries"]) == ("rg", 31)


@pytest.mark.slow
def test_checkpoint_that_is_not_kept_is_not_published(offloader: Offloader, groups: ReaderGroups) -> None:
    offloader("group", "set", "rg", "--stream", "orders", "--type", "manual")
    with groups.open("rg").join("one") as reader:
        next(reader)
        offloader("group", "checkpoint", "rg", "c1", "--no-keep")
    code, line, _ = offloader.refuses("group", "publish", "rg", "c1")
    assert (code, line) == (2, "checkpoint c1 of reader group rg was not kept, so it can't be published")


@pytest.mark.slow
def test_group_is_changed_and_removed(offloader: Offloader) -> None:
    offloader("group", "set", "rg", "--stream", "orders", "--stream", "topic", "--type", "manual")
    [changed] = offloader("group", "set", "rg", "--stream", "topic", "--type", "automatic", "--json").rows
    assert (changed["generation"], changed["streams"], changed["type"]) == (1, ["topic"], "automatic")
    [same] = offloader("group", "set", "rg", "--stream", "topic", "--type", "automatic", "--json").rows
    assert same["generation"] == 1
    assert offloader("subscriber", "list", "orders").out == "stream orders has no subscribers\n"
    assert offloader("group", "remove", "rg").out.startswith("would remove group rg of ")
    assert offloader("group", "remove", "rg", "--apply").out == "removed group rg\n"
    assert offloader("subscriber", "list", "topic").out == "stream topic has no subscribers\n"


@pytest.mark.slow
def test_damaged_reader_group_hides_no_other(offloader: Offloader, store: ObjectStore) -> None:
    for name in ("bad", "rg"):
        offloader("group", "set", name, "--stream", "orders")
    store.put(group_key("bad"), b"{}")
    listed = offloader("group", "list")
    assert (listed.code, [line.split()[0] for line in listed.out.splitlines()]) == (6, ["GROUP", "bad", "rg"])
    assert "_groups/bad in " in listed.err
    damaged, sound = offloader("group", "list", "--json").rows
    assert (damaged["group"], "_groups/bad" in damaged["error"]) == ("bad", True)
    assert (sound["group"], sound["streams"]) == ("rg", ["orders"])
    assert offloader("group", "list", "bad").code == 6
    assert offloader("group", "join", "bad", "one").code == 6


@pytest.mark.slow
def test_refused_publish_of_a_group_is_an_error(offloader: Offloader, store: ObjectStore) -> None:
    offloader("group", "set", "rg", "--stream", "orders", "--type", "manual")
    groups = open_bookkept_groups(store)
    groups.add_reader("rg", "r")
    for name, entry in (("c1", 10), ("c2", 20)):
        groups.initiate_checkpoint("rg", name)
        groups.reach_checkpoint("rg", name, "r", {"orders": StreamCut.of({"0.0": f"1:{entry}"})})
        groups.pass_checkpoint("rg", name, "r")
    offloader("group", "publish", "rg", "c2")
    done = offloader("group", "publish", "rg", "c1")
    assert "refused by orders: the cut 0.0=1:10 of subscriber rg: it isn't at or after 0.0=1:20" in done.out
