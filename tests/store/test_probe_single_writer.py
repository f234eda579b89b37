"""Stores without conditional writes: refused by name, and written by a single writer that looks first."""

from __future__ import annotations

import uuid
from pathlib import Path
from typing import Any

import pytest

import offloader
from offloader.errors import AccessDeniedError, PreconditionFailedError, UnsupportedError
from offloader.managed_ledger import open_managed_ledger
from offloader.read.partitions import open_reader
from offloader.settings import Settings, StoreSettings
from offloader.store.base import CREATE, OVERWRITE, IfMatch, PutMode, StoreOptions
from offloader.store.memory import MemoryStore
from offloader.store.open import open_store, stack
from offloader.store.probe import require_conditional_puts
from offloader.store.wrappers import requests_of
from offloader.testing.faulty_store import FaultyStore
from tests.support.fake_s3 import FakeS3, Request, refused
from tests.support.misbehaving_servers import Answer

STREAM = "public/default/persistent/orders"
ALONE = StoreSettings(single_writer=True, retries_max=0)


def not_implemented(request: Request) -> Answer | None:
    if request.method == "PUT" and {"if-none-match", "if-match"} & request.headers.keys():
        return refused(501, "NotImplemented", "A header you provided implies functionality that is not implemented")
    return None


class Refusing(FaultyStore):
    """Refuses every condition, as a server with 501 does, or ignores it."""

    def __init__(self, *, ignores: bool = False) -> None:
        super().__init__(MemoryStore(uuid.uuid4().hex, "", offloader.runtime.clock.SystemClock()))
        self.ignores = ignores

    def put(self, key: str, body: Any, *, mode: PutMode = OVERWRITE, **more: Any) -> Any:
        if mode != OVERWRITE and not self.ignores:
            raise UnsupportedError("put failed: NotImplemented")
        return super().put(key, body, **more)


@pytest.mark.slow
def test_store_that_answers_501_to_conditions_is_refused_by_name() -> None:
    with FakeS3(not_implemented) as server:
        with pytest.raises(UnsupportedError, match=r"conditional writes are not supported: .*NotImplemented") as caught:
            require_conditional_puts(server.open())
        assert "store.single_writer" in caught.value.hint
        assert str(caught.value).count("NotImplemented") == 1
        assert server.objects == {}


@pytest.mark.slow
def test_store_that_refuses_every_write_is_not_said_to_lack_conditions() -> None:
    with FakeS3(lambda request: refused(501, "NotImplemented") if request.method == "PUT" else None) as server:
        with pytest.raises(UnsupportedError) as caught:
            require_conditional_puts(server.open(), single_writer=True)
        assert "conditional" not in str(caught.value)
    with FakeS3(lambda request: refused(403, "AccessDenied") if request.method == "PUT" else None) as server:
        with pytest.raises(AccessDeniedError) as denied:
            require_conditional_puts(server.open())
        assert "single_writer" not in denied.value.hint


@pytest.mark.parametrize("ignores", [False, True])
@pytest.mark.parametrize("is_opened_so", [False, True])
def test_single_writer_looks_before_it_writes(*, ignores: bool, is_opened_so: bool) -> None:
    """A successor still finds what was there: of a commit of an earlier process, for example."""
    store = stack(Refusing(ignores=ignores), StoreOptions(settings=ALONE if is_opened_so else StoreSettings()))
    [problem, *_] = require_conditional_puts(store, single_writer=True).problems
    assert ("not supported" in problem) is not ignores
    etag = store.put("k", b"1", mode=CREATE).etag
    with pytest.raises(PreconditionFailedError):
        store.put("k", b"2", mode=CREATE)
    with pytest.raises(PreconditionFailedError):
        store.put("absent", b"2", mode=IfMatch(etag))
    assert store.put("k", b"2", mode=IfMatch(etag)).etag != etag
    with pytest.raises(PreconditionFailedError):
        store.put("k", b"3", mode=IfMatch(etag))
    assert store.get("k")[0] == b"2"
    with pytest.raises(UnsupportedError, match="can't be written safely"):
        require_conditional_puts(store)


def test_process_that_does_not_probe_looks_first_where_the_store_refuses() -> None:
    """An executor of Spark, for example."""
    store = stack(Refusing(), StoreOptions(settings=ALONE))
    store.put("k", b"1", mode=CREATE)
    with pytest.raises(PreconditionFailedError):
        store.put("k", b"2", mode=CREATE)


def test_store_that_keeps_conditions_is_not_asked_first() -> None:
    store = open_store(f"memory://{uuid.uuid4().hex}", settings=ALONE)
    require_conditional_puts(store, single_writer=True)
    before = requests_of(store).get("head")
    store.put("k", b"1", mode=CREATE)
    assert requests_of(store).get("head") == before


@pytest.mark.slow
def test_single_writer_offloads_restarts_and_is_read(tmp_path: Path) -> None:
    settings = Settings.of({"store": {"single_writer": True}})
    with FakeS3(not_implemented) as server:
        for number in range(2):
            with open_managed_ledger(
                STREAM,
                ledgers=f"sqlite:///{tmp_path}/ledgers.db",
                store=server.open(settings=StoreSettings()),
                settings=settings,
            ) as topic:
                topic.append(b"%d" % number)
                topic.offload()
        with open_reader(server.open(), STREAM) as reader:
            assert [entry.payload for batch in reader.scan() for entry in batch.entries()] == [b"0", b"1"]
