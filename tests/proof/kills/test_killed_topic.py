"""kill -9 while a partitioned topic is truncated or deleted; another process continues."""

from __future__ import annotations

import shutil
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from offloader.manifest.boundary import listed
from offloader.manifest.catalog import read_intent
from offloader.manifest.log import load_manifest
from offloader.retention.subscribers import open_retention
from offloader.runtime.clock import SystemClock
from offloader.store.base import ObjectStore
from offloader.store.open import open_store
from tests.proof.kills.killed_cleanup import HEAD, PARTITIONS, TOPIC, in_own_processes, truncate_as_one
from tests.support.streams import StreamWriter, batch_of

pytestmark = pytest.mark.process

INTENT, RECORD = "retention/truncation", r"-partition-{}/manifest/.*/[0-9]{{20}}\.json$"
TRUNCATIONS = [
    ("put", INTENT, "before"),
    ("put", INTENT, "after"),
    ("put", RECORD.format(0), "after"),
    ("put", RECORD.format(1), "before"),
    ("put", RECORD.format(1), "after"),
]
DELETIONS = [
    ("delete", "-partition-0/manifest/", "half"),
    ("put", "_catalog/killed/topic-partition-1", "after"),
    ("put", "killed/topic/retention/topic", "after"),
    ("put", "killed/topic/retention/trunc", "after"),
]


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A topic that was truncated once, with a subscriber."""
    directory = tmp_path_factory.mktemp("topic")
    store = open_store(f"file://{directory}")
    for partition in PARTITIONS:
        writer = StreamWriter(store, partition)
        for ledger in range(1, 6):
            writer.add([batch_of(ledger, 0, 10)], closes=[ledger])
    open_retention(store, TOPIC).add("ana")
    store.close()
    return directory


@pytest.fixture(scope="module")
def stores(made: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[tuple[str, ...], ObjectStore]]:
    """After each kill, and after another process came by twice."""
    base, urls = tmp_path_factory.mktemp("killed"), dict[tuple[str, ...], str]()
    for act, after, kills in (
        ("truncate-topic", "resume-topic", TRUNCATIONS),
        ("delete-topic", "delete-topic", DELETIONS),
    ):
        for kill in kills:
            directory = base / str(len(urls))
            shutil.copytree(made, directory)
            urls[act, *kill] = f"file://{directory}"
            if act == "delete-topic":
                with_intent = open_store(urls[act, *kill])
                truncate_as_one(with_intent)
                with_intent.close()

        ended = in_own_processes([(urls[act, *kill], act, *kill) for kill in kills])
        assert {kill: code for kill, code in zip(kills, ended, strict=True) if code != -signal.SIGKILL} == {}
        mine = ",".join(url for (of, *_), url in urls.items() if of == act)
        assert in_own_processes([(mine, after)] * 2) == [0, 0]
    found = {kill: open_store(url) for kill, url in urls.items()}
    yield found
    for store in found.values():
        store.close()


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kill", TRUNCATIONS, ids="-".join)
def test_a_topic_is_truncated_wholly_or_not_at_all(
    kill: tuple[str, str, str], stores: dict[tuple[str, ...], ObjectStore]
) -> None:
    store = stores["truncate-topic", *kill]
    heads = {load_manifest(store, partition).head for partition in PARTITIONS}
    assert heads == ({None} if kill == TRUNCATIONS[0] else {HEAD})
    intent = read_intent(store, TOPIC)[0]
    assert intent is None or intent.is_done
    assert open_retention(store, TOPIC).registry().names() == ["ana"]


@pytest.mark.timeout(600)
@pytest.mark.parametrize("kill", DELETIONS, ids="-".join)
def test_killed_topic_deletion_leaves_nothing_in_the_end(
    kill: tuple[str, str, str], stores: dict[tuple[str, ...], ObjectStore]
) -> None:
    store = stores["delete-topic", *kill]
    assert [info.key for info in listed(store, "") if "topic" in info.key] == []
    StreamWriter(store, PARTITIONS[0], clock=SystemClock())
    assert open_retention(store, TOPIC).registry().names() == []
