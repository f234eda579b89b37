"""``offloader retention plan`` and ``truncate`` where brokers read the cold tier: they ask which ledgers are listed."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from formats.entries import Position
from offloader.manifest.log import load_manifest
from offloader.store.base import ObjectStore
from offloader.store.open import open_store
from tests.cli.reading_verbs import Offloader
from tests.ledgers.pulsar_bench import PulsarBench
from tests.support.streams import StreamWriter, batch_of

STREAM = "public/default/persistent/orders"


@pytest.fixture
def bench() -> Iterator[PulsarBench]:
    bench = PulsarBench()
    yield bench
    bench.close()


@pytest.fixture
def store(tmp_path: Path) -> ObjectStore:
    made = open_store(f"file://{tmp_path}/store")
    writer = StreamWriter(made, STREAM)
    for ledger_id in (1, 2, 3):
        writer.add([batch_of(ledger_id, 0, 10)], closes=[ledger_id])
    return made


@pytest.fixture
def config(bench: PulsarBench, store: ObjectStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    file = tmp_path / "offloader.toml"
    file.write_text(
        f'[serve]\nstore = "{store.url}"\n[pulsar]\nadmin_url = "{bench.admin.url}"\nbroker_plugin = true\n'
        "follow_broker_trim = true\n"
    )
    monkeypatch.setenv("OFFLOADER_STORE", store.url)
    for _ in range(3):
        bench.fill(10)
        bench.topic.roll()
    bench.topic.expire(2)
    return file


@pytest.fixture
def offloader(capsys: pytest.CaptureFixture[str]) -> Offloader:
    return Offloader(capsys)


def test_plan_names_the_listed_ledger(offloader: Offloader, config: Path) -> None:
    [row] = offloader("retention", "plan", "--config", str(config), "--json").rows
    assert row["broker"][0] == "the broker still lists ledger 2"
    assert "isn't followed further" in row["broker"][1]


@pytest.mark.slow
def test_truncation_past_a_listed_ledger_is_refused_by_name(
    offloader: Offloader, config: Path, store: ObjectStore, bench: PulsarBench
) -> None:
    refused = offloader("stream", "truncate", "--apply", STREAM, "--before", "3:0", "--config", str(config))
    assert refused.code != 0
    assert "the broker still lists ledger 2" in refused.err
    assert "--force" in refused.err
    assert load_manifest(store, STREAM).head is None
    assert offloader("stream", "truncate", "--apply", STREAM, "--before", "2:0", "--config", str(config)).code == 0
    assert load_manifest(store, STREAM).head == Position(2, 0)
    bench.admin.is_up = False
    unknown = offloader("stream", "truncate", "--apply", STREAM, "--before", "3:0", "--config", str(config))
    assert unknown.code != 0
    assert "the ledgers that its broker lists are unknown" in unknown.err
    assert (
        offloader("stream", "truncate", "--apply", STREAM, "--before", "3:0", "--config", str(config), "--force").code
        == 0
    )
    assert load_manifest(store, STREAM).head == Position(3, 0)
