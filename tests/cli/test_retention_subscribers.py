"""``offloader subscriber`` from the command line."""

from __future__ import annotations

from pathlib import Path

import pytest

from offloader.ledgers.sqlite.embedded import EmbeddedLedgers
from offloader.store.base import ObjectStore
from offloader.store.open import open_store
from tests.cli.reading_verbs import Offloader
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


@pytest.mark.slow
def test_a_subscriber_from_registering_to_going(offloader: Offloader) -> None:
    assert offloader("subscriber", "list", "orders").out == "stream orders has no subscribers\n"
    assert offloader("subscriber", "add", "orders", "audit").out == "audit subscribes to orders, generation 0\n"
    [row] = offloader("subscriber", "list", "orders", "--json").rows
    assert (row["activity"], row["cut"], row["lag_entries"]) == ("never published", None, 50)
    done = offloader("subscriber", "ack", "orders", "audit", "--at", "1:20")
    assert (done.code, done.out) == (0, "audit consumed orders up to 1:20\n")
    [row] = offloader("subscriber", "ack", "orders", "audit", "--at", "latest", "--json").rows
    assert row["cut"] == {"0.0": "1:50"}
    table = offloader("subscriber", "list", "orders", "--timeout", "0.001", "--wide").out.splitlines()
    # It has consumed all there is: there is nothing that it could say.
    assert table[1].split()[:5] == ["audit", "active", "1:50", "0", "0"]
    assert offloader("subscriber", "remove", "orders", "audit").out == "would remove subscriber audit of orders\n"
    removed = offloader("subscriber", "remove", "orders", "audit", "--apply")
    assert removed.out == "removed subscriber audit of orders\n"


@pytest.mark.slow
def test_subscribers_are_judged_by_the_policy_of_the_settings_file(offloader: Offloader, tmp_path: Path) -> None:
    config = tmp_path / "offloader.toml"
    config.write_text('[retention]\npolicy = "consumption"\nsubscriber_timeout = "0.00001m"\n')
    offloader("subscriber", "add", "orders", "audit")
    offloader("subscriber", "ack", "orders", "audit", "--at", "1:20")
    listed = ("subscriber", "list", "orders", "--json")
    activities = [
        offloader(*listed, *words).rows[0]["activity"]
        for words in ([], ["--config", str(config)], ["--config", str(config), "--timeout", "0"], ["--timeout", "1e-6"])
    ]
    assert activities == ["active", "timed out", "active", "timed out"]


def test_the_help_names_what_is_deleted_and_all_that_the_verb_is_for(offloader: Offloader) -> None:
    def help_of(*words: str) -> str:
        return " ".join(offloader(*words, "--help").out.split())

    assert "Delete old entries by age, size and subscribers" in help_of("retention")
    assert "hot ledgers before the new start are deleted immediately" in help_of("retention", "run")
    assert "retention.subscriber_timeout" in help_of("subscriber", "list")


@pytest.mark.slow
def test_a_partitioned_topic_takes_a_position_for_each_partition(offloader: Offloader) -> None:
    offloader("subscriber", "add", "topic", "audit", "--start", "0=1:5")
    done = offloader("subscriber", "ack", "topic", "audit", "--at", "0=1:50", "--at", "1=1:10")
    assert done.out == "audit consumed topic up to 0=1:50,1=1:10\n"
    [row] = offloader("subscriber", "list", "topic", "--json").rows
    assert (row["start"], row["lag_entries"]) == ({"0.0": "1:5"}, 40)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("arguments", "code", "line"),
    [
        (["subscriber", "ack", "orders", "nobody", "--at", "1:5"], 3, "nobody isn't registered; registered: audit"),
        (["subscriber", "ack", "orders", "audit", "--at", "1:51"], 2, "1:51 is beyond the tail 1:50"),
        (["subscriber", "ack", "orders", "audit", "--at", "1:19"], 2, "it isn't at or after 0.0=1:20"),
        (["subscriber", "ack", "orders", "audit", "--at", "3:0"], 2, "3:0 is beyond the tail"),
        (["subscriber", "ack", "orders", "audit", "--at", "0:7"], 2, "0:7 is no entry's place"),
        (["subscriber", "ack", "orders", "audit", "--at", "1=1:20"], 2, "the stream has no partition 1"),
        (["subscriber", "ack", "orders", "audit", "--at", "x=1:20"], 2, "'x' isn't a partition number"),
        (["subscriber", "ack", "orders", "audit", "--at", "1:20", "--at", "1:21"], 2, "names partition 0 twice"),
        (["subscriber", "ack", "orders", "audit", "--at", "soon"], 2, "LEDGER:ENTRY"),
        (["subscriber", "ack", "orders", "audit", "--at", "1:30", "--generation", "7"], 2, "has generation 0, not 7"),
        (["subscriber", "ack", "order", "audit", "--at", "1:30"], 3, "stream order isn't in"),
        (["subscriber", "add", "topic-partition-0", "audit"], 2, "is partition 0 of a topic"),
        (["subscriber", "add", "orders", "audit\n"], 2, "isn't a valid subscriber name"),
        (["subscriber", "add", "topic", "audit\n"], 2, "isn't a valid subscriber name"),
        (["subscriber", "add", "topic", "audit", "--start", "2=1:0"], 2, "the stream has no partition 2"),
        (["subscriber", "remove", "orders", "nobody"], 3, "nobody doesn't subscribe to stream orders"),
        (["subscriber", "list", "order"], 3, "stream order isn't in"),
    ],
)
def test_refusals_are_one_line_and_change_nothing(
    offloader: Offloader, store: ObjectStore, arguments: list[str], code: int, line: str
) -> None:
    offloader("subscriber", "add", "orders", "audit")
    offloader("subscriber", "ack", "orders", "audit", "--at", "1:20")
    before = {info.key: info.etag for info in store.list("").objects}
    found, message, _ = offloader.refuses(*arguments)
    assert (found, line in message) == (code, True), message
    assert {info.key: info.etag for info in store.list("").objects} == before


@pytest.mark.slow
def test_entries_only_in_the_hot_tier_count_with_ledgers_option(offloader: Offloader, tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/ledgers.db"
    ledgers = EmbeddedLedgers(url)
    hot = ledgers.open_stream("orders")
    for _ in range(60):
        hot.append([b"x"])
    ledger_id = hot.ledgers()[-1].ledger_id
    assert ledger_id == 1
    ledgers.close()
    offloader("subscriber", "add", "orders", "audit")
    assert offloader("subscriber", "ack", "orders", "audit", "--at", "1:55").code == 2
    assert offloader("subscriber", "ack", "orders", "audit", "--at", "1:55", "--ledgers", url).code == 0
    [row] = offloader("subscriber", "list", "orders", "--ledgers", url, "--json").rows
    assert row["lag_entries"] == 5
