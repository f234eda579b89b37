"""The chaos oracle: a sound run has no findings, and each kind of damage has its own."""

from __future__ import annotations

import copy
import json
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import boto3
import pytest

import offloader
from offloader.managed_ledger import open_managed_ledger
from offloader.manifest.log import ManifestLog
from offloader.retention.truncate import truncate_stream
from offloader.runtime.clock import SystemClock
from tests.independent_manifest import Manifest, read_manifest
from tests.proof.chaos.chaos_journal import Journal, JournalWriter, number_of, payload_of, read_journal
from tests.proof.chaos.chaos_oracle import S3Contents, check_stream, cold_entries, find_leaks, hot_entries

STREAM = "chaos/live"
COUNT = 300
ROOT = Path(__file__).resolve().parents[3]


class Held:
    """Objects in memory, as ``Contents``."""

    def __init__(self, objects: Mapping[str, bytes]) -> None:
        self.objects = dict(objects)

    def names(self) -> list[str]:
        return list(self.objects)

    def get(self, key: str) -> bytes:
        return self.objects[key]


@dataclass
class Ran:
    """What a run left: its objects, its database and its journal."""

    contents: Held
    database: Path
    journal: Journal

    @property
    def manifest(self) -> Manifest:
        return read_manifest(self.contents, STREAM)

    def findings(self, **how: Any) -> list[str]:
        manifest = self.manifest
        cold, problems = cold_entries(self.contents, manifest)
        hot = hot_entries(self.database, STREAM)
        return [*manifest.findings, *problems, *check_stream(manifest, cold, hot, self.journal, **how)]

    def data_keys(self) -> list[str]:
        return [
            f"{STREAM}/{segment.uuid}" for segment in sorted(self.manifest.segments.values(), key=lambda s: s.begin)
        ]


@pytest.fixture
def ran(sound: Ran, tmp_path: Path) -> Ran:
    """What a test may damage."""
    shutil.copy(sound.database, tmp_path)
    return Ran(Held(sound.contents.objects), tmp_path / sound.database.name, copy.deepcopy(sound.journal))


@pytest.fixture(scope="module")
def sound(servers: Any, one_server: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Ran]:
    """Three segments and a hot rest, written by the product; the oracle's own way through boto3 reads them."""
    place, tmp_path = servers.place(one_server), tmp_path_factory.mktemp("sound")
    journal = JournalWriter(tmp_path / "journal")
    settings = offloader.Settings.of({"ledgers": {"ledger_entries_max": 80}, "offload": {"block_size": 4096}})
    database = tmp_path / "ledgers.db"
    with (
        closing(place.open()) as store,
        open_managed_ledger(STREAM, ledgers=f"sqlite:///{database}", store=store, settings=settings) as topic,
    ):
        for first in range(0, COUNT, 50):
            numbers = range(first, first + 50)
            journal.tried(STREAM, first, 50)
            at = topic.append_batch([payload_of(STREAM, number) for number in numbers])
            batches = [(batch.ledger_id, int(entry)) for batch in at for entry in batch.entry_ids]
            journal.acked(STREAM, first, batches)
            if first in (50, 150, 250):
                topic.offload()
    client = boto3.client(
        "s3",
        endpoint_url=place.endpoint.url,
        region_name="us-east-1",
        aws_access_key_id=place.endpoint.access_key,
        aws_secret_access_key=place.endpoint.secret_key,
    )
    there = S3Contents(client, place.bucket, place.root)
    assert there.uploads([]) == []
    yield Ran(
        Held({key: there.get(key) for key in there.names()}), database, read_journal(tmp_path / "journal")[STREAM]
    )
    client.close()


@pytest.mark.process
def test_oracle_shares_no_code_with_the_product() -> None:
    """Its readers import nothing of the product either."""
    modules = ("tests.proof.chaos.chaos_oracle", "tests.independent_manifest", "tests.independent_reader")
    code = f"import sys, {', '.join(modules)}; print(*sys.modules)"
    loaded = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    names = {name.partition(".")[0] for name in loaded.stdout.split()}
    assert "tests" in names
    assert not names & {"offloader", "formats", "pyspark_offloader", "pyarrow", "pyspark"}


def only_cold(ran: Ran) -> None:
    with closing(sqlite3.connect(ran.database)) as connection:
        connection.execute("DELETE FROM chunks")
        connection.commit()


def test_a_sound_run_has_no_findings(ran: Ran) -> None:
    assert ran.findings() == []
    assert find_leaks(ran.contents.names(), [ran.manifest], []) == []
    assert len(ran.manifest.segments) >= 3
    assert len(ran.journal.acked) == COUNT
    only_cold(ran)
    assert ran.findings() == []


def test_entries_that_only_the_hot_tier_has_count(ran: Ran) -> None:
    """Without the bucket everything is still there; without both it isn't."""
    ran.contents.objects.clear()
    assert ran.findings() == []
    only_cold(ran)
    assert "lost: number 0 was acknowledged" in ran.findings()[0]


@pytest.mark.parametrize("suffix", ["", "-index"])
def test_missing_object_is_dangling_and_its_entries_lost(ran: Ran, suffix: str) -> None:
    del ran.contents.objects[ran.data_keys()[1] + suffix]
    assert [finding.split(" ")[2] for finding in ran.findings()] == ["dangling:"]
    only_cold(ran)
    found = ran.findings()
    assert "dangling" in found[0]
    assert any("lost: number" in finding for finding in found)


def test_a_flipped_bit_is_noticed(ran: Ran) -> None:
    key = ran.data_keys()[0]
    body = bytearray(ran.contents.objects[key])
    body[len(body) // 2] ^= 1
    ran.contents.objects[key] = bytes(body)
    assert "isn't what the manifest says" in ran.findings()[0]


def test_segment_committed_twice_is_reported(ran: Ran) -> None:
    manifest = ran.manifest
    first = next(iter(manifest.segments.values()))
    manifest.segments["copy"] = replace(first, uuid="copy")
    for suffix in ("", "-index"):
        ran.contents.objects[f"{STREAM}/copy{suffix}"] = ran.contents.objects[f"{STREAM}/{first.uuid}{suffix}"]
    assert any("twice" in finding for finding in cold_entries(ran.contents, manifest)[1])


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (lambda entries: entries.update({(9, 0): payload_of(STREAM, 7)}), "twice or out of order: number 7 at (9, 0)"),
        (lambda entries: entries.update({(9, 0): b"something"}), "(9, 0) holds what nobody appended"),
        (lambda entries: entries.update({(9, 0): payload_of(STREAM, COUNT)}), f"number {COUNT} at (9, 0) was never"),
        (lambda entries: entries.pop(sorted(entries)[7]), "lost: number 7 was acknowledged"),
        (lambda entries: entries.pop(sorted(entries)[7]), "lost: 1:7 isn't there"),
    ],
)
def test_repeated_wrong_and_missing_entries_are_reported(ran: Ran, change: Any, said: str) -> None:
    entries, _ = cold_entries(ran.contents, ran.manifest)
    change(entries)
    found = check_stream(ran.manifest, entries, {}, ran.journal)
    assert any(said in finding for finding in found), found


def test_tiers_that_disagree_are_noticed(ran: Ran) -> None:
    cold, _ = cold_entries(ran.contents, ran.manifest)
    found = check_stream(ran.manifest, cold, {(1, 0): b"else"}, ran.journal)
    assert found == [f"{STREAM}: (1, 0) isn't the same in both tiers"]


def test_refused_entry_found_in_store_is_reported(ran: Ran) -> None:
    ran.journal.refused.add(3)
    assert "its call said that nothing was written" in ran.findings()[0]


def test_oracle_accepts_only_heads_that_retention_may_set(ran: Ran, servers: Any, one_server: str) -> None:
    manifest = ran.manifest
    cold, _ = cold_entries(ran.contents, manifest)
    manifest.head = sorted(cold)[200]
    assert "lies before the head" in check_stream(manifest, cold, {}, ran.journal)[0]
    assert check_stream(manifest, cold, {}, ran.journal, kept_bytes_min=100 * 300) == []
    assert "retention left 30000 bytes" in check_stream(manifest, cold, {}, ran.journal, kept_bytes_min=30_001)[0]


def test_records_are_checked_one_by_one(ran: Ran) -> None:
    records = sorted(key for key in ran.contents.names() if key.endswith(".json"))
    whole = dict(ran.contents.objects)
    del ran.contents.objects[records[1]]
    assert "record 2 is missing, record 3 is there" in ran.manifest.findings[0]
    ran.contents.objects = {**whole, records[1]: whole[records[1]].replace(b'"epoch":1', b'"epoch":2')}
    assert "record 2 is damaged" in ran.manifest.findings[0]


@pytest.mark.parametrize("key", ["0" * 8 + "-0000-8000-8000-" + "0" * 12, "leases/x", "retention/deleting/x", "other"])
def test_unreferenced_objects_and_uploads_are_leaked(ran: Ran, key: str) -> None:
    keys = [*ran.contents.names(), f"{STREAM}/{key}"]
    assert find_leaks(keys, [ran.manifest], []) == [f"leaked: {STREAM}/{key}"]
    assert find_leaks([], [ran.manifest], ["a"]) == ["leaked: an unfinished upload of a"]


def test_object_of_purged_segment_is_leaked_and_marked_purged(ran: Ran) -> None:
    manifest, key = ran.manifest, ran.data_keys()[0]
    uuid = key.rpartition("/")[2]
    del manifest.segments[uuid]
    manifest.purged.add(uuid)
    assert find_leaks([key], [manifest], []) == [f"leaked: {key} (purged)"]


def test_independent_reader_sees_head_of_truncated_stream(servers: Any, one_server: str, tmp_path: Path) -> None:
    place = servers.place(one_server)
    with closing(place.open()) as store:
        with open_managed_ledger(STREAM, ledgers=f"sqlite:///{tmp_path}/l.db", store=store) as topic:
            topic.append_batch([payload_of(STREAM, number) for number in range(20)])
            topic.offload()
        log = ManifestLog(store, STREAM, clock=SystemClock())
        truncate_stream(log, offloader.Position(1, 5), clock=SystemClock())
        keys = [info.key for info in store.list("").objects]
        objects = Held({key: store.get(key)[0] for key in keys})
    found = read_manifest(objects, STREAM)
    assert (found.head, found.last, found.findings) == ((1, 5), (1, 19), [])


def test_payloads_and_journals_round_trip(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    assert read_journal(path)[STREAM].next_number == 0
    journal = JournalWriter(path)
    journal.tried(STREAM, 5, 2)
    journal.acked(STREAM, 5, [(1, 0), (1, 1)])
    journal.tried(STREAM, 7, 1)
    journal.refused(STREAM, 7, 1)
    path.write_bytes(path.read_bytes() + b"acked chaos/live 7")
    found = read_journal(path)[STREAM]
    assert (found.tried, found.acked, found.refused) == ({5, 6, 7}, {5: (1, 0), 6: (1, 1)}, {7})
    assert found.next_number == 8
    assert len(payload_of(STREAM, 5)) == 300
    assert number_of(STREAM, payload_of(STREAM, 5)) == 5
    assert number_of(STREAM, payload_of("chaos/short", 5)) is None
    assert number_of(STREAM, b"5") is None
    assert json.dumps(sorted(found.tried)) == "[5, 6, 7]"
