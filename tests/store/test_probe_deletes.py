"""The start-up probe of a writer that may not delete."""

from __future__ import annotations

import re
import uuid
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from offloader.errors import AccessDeniedError, UnsupportedError
from offloader.managed_ledger import open_managed_ledger
from offloader.manifest.boundary import delete_keys
from offloader.read.partitions import open_reader
from offloader.settings import Settings
from offloader.store.base import OVERWRITE, PROBE_PREFIX, DeleteFailure, PutMode
from offloader.store.open import open_store
from offloader.store.probe import require_conditional_puts
from offloader.testing.faulty_store import FaultyStore
from offloader.testing.store_suite import all_keys
from tests.support.fake_s3 import FakeS3, Request
from tests.support.misbehaving_servers import Answer

STREAM = "public/default/persistent/orders"


class Denying(FaultyStore):
    """Denies every delete: for each key, or for the whole request."""

    def __init__(self, *, raises: bool) -> None:
        super().__init__(open_store(f"memory://{uuid.uuid4().hex}"))
        self._raises = raises

    def delete(self, keys: Sequence[str]) -> Sequence[DeleteFailure]:
        denied = AccessDeniedError("AccessDenied: Access Denied.")
        if self._raises:
            raise denied
        return [DeleteFailure.of(key, denied) for key in keys]


@pytest.mark.parametrize("raises", [False, True])
def test_probe_passes_a_store_that_denies_deletes(*, raises: bool) -> None:
    store = Denying(raises=raises)
    assert require_conditional_puts(store).conditional
    assert all(key.startswith(PROBE_PREFIX) for key in all_keys(store))


def test_probe_that_may_not_delete_still_finds_a_create_by_etag() -> None:
    class Creating(Denying):
        """Creates an object where a put names an ETag and none is there."""

        def put(self, key: str, body: Any, *, mode: PutMode = OVERWRITE, **more: Any) -> Any:
            if mode.etag is not None and not self.inner.list(key).objects:
                mode = OVERWRITE
            return super().put(key, body, mode=mode, **more)

    with pytest.raises(UnsupportedError, match="a put with an ETag creates a missing object"):
        require_conditional_puts(Creating(raises=False))


def test_deletes_denied_by_s3_are_recognised() -> None:
    def deny(request: Request) -> Answer | None:
        keys = re.findall(r"<Key>([^<]*)</Key>", request.body.decode()) if request.is_multi_delete else ()
        rows = "".join(f"<Error><Key>{key}</Key><Code>AccessDenied</Code><Message>no</Message></Error>" for key in keys)
        return Answer(200, f"<DeleteResult>{rows}</DeleteResult>".encode()) if keys else None

    with FakeS3(deny) as server:
        store = server.open()
        [failure] = store.delete(["k"])
        assert (failure.is_denied, failure.retryable) == (True, False)
        with pytest.raises(AccessDeniedError, match="k in s3://bucket/root couldn't be deleted") as caught:
            delete_keys(store, ["k"])
        assert "s3:DeleteObject" in caught.value.hint


@pytest.mark.slow
def test_writer_that_may_not_delete_offloads_and_is_read(tmp_path: Path) -> None:
    store = Denying(raises=False)
    settings = Settings.of({"manifest": {"checkpoint_records": 1}})
    for number in range(2):
        with open_managed_ledger(
            STREAM, ledgers=f"sqlite:///{tmp_path}/ledgers.db", store=store, settings=settings
        ) as topic:
            topic.append(b"%d" % number)
            topic.offload()
    with open_reader(store, STREAM) as reader:
        assert [entry.payload for batch in reader.scan() for entry in batch.entries()] == [b"0", b"1"]
