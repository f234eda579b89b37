"""What compression would save, as ``doctor`` and ``offload`` report it, against what it saves."""

from __future__ import annotations

import json
import random
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from offloader import Settings
from offloader.cli.main import main
from offloader.doctor import SAMPLES_MAX, Outcome, check_compression
from offloader.inspect.saving import READERS, SAMPLE_BYTES_MAX, measure_saving
from offloader.ledgers.sqlite.embedded import EmbeddedLedgers
from offloader.managed_ledger import open_managed_ledger
from offloader.manifest.log import load_manifest
from offloader.manifest.segment_table import SegmentRecord
from offloader.runtime.clock import SystemClock
from offloader.store.base import ObjectStore
from offloader.store.open import open_store
from offloader.testing.faulty_store import FaultyStore

STREAM = "public/default/persistent/log"


def log_lines(count: int, seed: int = 7) -> list[bytes]:
    """Lines of a web server's log."""
    chance = random.Random(seed)
    return [
        f"10.0.{chance.randrange(9)}.{chance.randrange(256)} - - [26/Nov/2026:10:{number // 60:02}:{number % 60:02} "
        f'+0000] "GET /shop/item/{chance.randrange(1000)} HTTP/1.1" 200 {chance.randrange(9000)}'.encode()
        for number in range(count)
    ]


def noise(count: int) -> list[bytes]:
    chance = random.Random(5)
    return [chance.randbytes(1000) for _ in range(count)]


def offloaded(
    store: ObjectStore, folder: Path, payloads: list[bytes], stream: str = STREAM, codec: str = "none"
) -> Any:
    settings = Settings.of({"offload": {"codec": codec, "block_size": 64 * 1024}})
    ledgers = f"sqlite:///{folder}/{stream.replace('/', '-')}-{codec}.db"
    with open_managed_ledger(stream, ledgers=ledgers, store=store, settings=settings) as topic:
        topic.append_batch(payloads, 1_700_000_000_000)
        topic.offload()
    return load_manifest(store, stream).offloaded()[-1]


def share(record: SegmentRecord) -> float:
    return record.object_bytes / record.content.payload_bytes


@pytest.mark.slow
def test_estimated_size_is_what_compression_makes_of_the_same_entries(tmp_path: Path) -> None:
    plain, packed = open_store("memory://saving-plain"), open_store("memory://saving-packed")
    lines = log_lines(20_000)
    record = offloaded(plain, tmp_path, lines)
    found = measure_saving(plain, record.object_keys(STREAM)[0], record.content, clock=SystemClock())
    assert found is not None
    assert found.now == share(record)
    wanted = share(offloaded(packed, tmp_path, lines, codec="zstd"))
    assert wanted < 0.5
    assert found.then == pytest.approx(wanted, rel=0.1)
    assert found.is_worth_it


@pytest.mark.slow
def test_sample_of_a_large_object_is_bounded(tmp_path: Path) -> None:
    store = FaultyStore(open_store("memory://saving-large"))
    record = offloaded(store, tmp_path, noise(6_000))
    assert record.content.data_bytes > SAMPLE_BYTES_MAX
    found = measure_saving(store, record.object_keys(STREAM)[0], record.content, clock=SystemClock())
    assert found is not None
    assert SAMPLE_BYTES_MAX * 0.9 < found.sample_bytes <= SAMPLE_BYTES_MAX
    assert not found.is_worth_it, "bytes without a pattern"


def test_compressed_segment_has_nothing_to_save(tmp_path: Path) -> None:
    store = open_store("memory://saving-none")
    record = offloaded(store, tmp_path, log_lines(500), codec="zstd")
    assert measure_saving(store, record.object_keys(STREAM)[0], record.content, clock=SystemClock()) is None
    assert list(check_compression(store, SystemClock())) == []


@pytest.mark.slow
def test_doctor_names_the_saving_of_the_largest_streams_and_its_cost(tmp_path: Path) -> None:
    store = open_store("memory://saving-doctor")
    for number in range(SAMPLES_MAX + 1):
        offloaded(store, tmp_path, log_lines(1_000 * (number + 1)), stream=f"logs/{number}")
    found = list(check_compression(store, SystemClock()))
    assert [each.check for each in found] == [f"compression of logs/{number}" for number in range(SAMPLES_MAX, 0, -1)]
    assert {each.outcome for each in found} == {Outcome.OK}
    assert all("% of the payload, with zstd " in each.what for each in found)
    assert all(each.hint.endswith(READERS) for each in found)


@pytest.mark.slow
def test_doctor_advises_a_codec_before_anything_is_offloaded(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    store, ledgers = f"file://{tmp_path}/store", f"sqlite:///{tmp_path}/ledgers.db"
    config = tmp_path / "offloader.toml"
    config.write_text(
        f'[serve]\nstore = "{store}"\nledgers = "{ledgers}"\n[offload]\nblock_size = "64KiB"\n'
        '[topics."logs/packed".offload]\ncodec = "zstd"\n'
    )
    doctor = ["doctor", "--config", str(config), "--json"]
    assert main(doctor) == 0, "nothing was appended yet"
    with closing(EmbeddedLedgers(ledgers)) as database:
        for name, lines in (("logs/few", 10), ("logs/packed", 5_000), ("logs/many", 5_000)):
            database.open_stream(name).append(log_lines(lines))
    capsys.readouterr()
    assert main(doctor) == 0
    found = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    [advice] = [each for each in found if each["check"].startswith("compression")]
    assert advice["check"] == "compression of logs/many", "the others are compressed, or too small to tell"
    assert advice["hint"] == f'offload.codec = "zstd" for new segments; {READERS}'
    # What is measured of the first segment, once it is there.
    record = offloaded(open_store(store), tmp_path, log_lines(5_000), stream="logs/many-again")
    later = measure_saving(
        open_store(store), record.object_keys("logs/many-again")[0], record.content, clock=SystemClock()
    )
    assert later is not None
    assert str(later).partition(" (")[0] == advice["what"].partition(" (")[0]


@pytest.mark.slow
def test_offload_reports_the_saving_of_what_it_stored(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    store, ledgers = f"file://{tmp_path}/store", f"sqlite:///{tmp_path}/ledgers.db"
    settings = Settings.of({"offload": {"method": "none"}})
    with open_managed_ledger(STREAM, ledgers=ledgers, store=open_store(store), settings=settings) as topic:
        topic.append_batch(log_lines(3_000), 1_700_000_000_000)
    config = tmp_path / "offloader.toml"
    config.write_text('[offload]\nmethod = "streaming"\n')
    words = ["stream", "offload", STREAM, "--store", store, "--ledgers", ledgers, "--config", str(config)]
    assert main(words) == 0
    last = capsys.readouterr().out.splitlines()[-1]
    assert last.startswith("compression: stored bytes are ")
    assert last.endswith(f'; offload.codec = "zstd" for new segments; {READERS}')
    with open_managed_ledger(STREAM, ledgers=ledgers, store=open_store(store), settings=settings) as topic:
        topic.append_batch(log_lines(3_000, seed=8), 1_700_000_000_000)
    assert main([*words, "--take-over", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)["zstd"]
    assert 0 < found["then"] < found["now"]
    assert found["zstd_bytes"] < found["sample_bytes"]
