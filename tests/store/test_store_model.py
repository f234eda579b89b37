"""Random calls to a store and to a dictionary give the same results."""

from __future__ import annotations

import tempfile
import uuid
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from offloader.errors import NotFoundError, PreconditionFailedError
from offloader.store.base import CREATE, ByteRange, IfMatch, ObjectStore, PartInfo
from offloader.store.open import open_store
from offloader.testing.store_suite import all_keys

KEYS = st.sampled_from(["a", "b/a", "b/c/d", "b-", "é/ü", "z"])
BODIES = st.binary(max_size=20)
METADATA = st.dictionaries(st.sampled_from(["k", "Role"]), st.sampled_from(["", "v", "two words"]), max_size=2)


class StoreModel(RuleBasedStateMachine):
    """Subclasses open the store."""

    open: Callable[[], ObjectStore]

    @initialize()
    def start(self) -> None:
        self.store = type(self).open()
        self.objects: dict[str, tuple[bytes, dict[str, str]]] = {}
        self.etags: dict[str, str] = {}
        self.stale: dict[str, str] = {}
        # In the order in which they were begun: their ids are random, and the same choices must mean the same uploads.
        self.uploads: dict[str, tuple[str, dict[int, tuple[PartInfo, bytes]]]] = {}

    def wrote(self, key: str, body: bytes, metadata: dict[str, str], etag: str) -> None:
        assert etag not in (self.etags.get(key), self.stale.get(key))
        if key in self.etags:
            self.stale[key] = self.etags[key]
        self.objects[key] = (body, {name.lower(): value for name, value in metadata.items()})
        self.etags[key] = etag

    @rule(key=KEYS, body=BODIES, metadata=METADATA)
    def overwrite(self, key: str, body: bytes, metadata: dict[str, str]) -> None:
        self.wrote(key, body, metadata, self.store.put(key, body, metadata=metadata).etag)

    @rule(key=KEYS, body=BODIES, metadata=METADATA)
    def create(self, key: str, body: bytes, metadata: dict[str, str]) -> None:
        if key in self.objects:
            with pytest.raises(PreconditionFailedError):
                self.store.put(key, body, mode=CREATE, metadata=metadata)
        else:
            self.wrote(key, body, metadata, self.store.put(key, body, mode=CREATE, metadata=metadata).etag)

    @rule(key=KEYS, body=BODIES)
    def replace_the_current_version(self, key: str, body: bytes) -> None:
        mode = IfMatch(self.etags.get(key, '"none"'))
        if key in self.objects:
            self.wrote(key, body, {}, self.store.put(key, body, mode=mode).etag)
        else:
            with pytest.raises(PreconditionFailedError):
                self.store.put(key, body, mode=mode)

    @precondition(lambda self: self.stale)
    @rule(data=st.data(), body=BODIES)
    def replace_a_stale_version(self, data: Any, body: bytes) -> None:
        key = data.draw(st.sampled_from(sorted(self.stale)))
        with pytest.raises(PreconditionFailedError):
            self.store.put(key, body, mode=IfMatch(self.stale[key]))

    @rule(keys=st.lists(KEYS, max_size=4))
    def delete(self, keys: list[str]) -> None:
        assert list(self.store.delete(keys)) == []
        for key in keys:
            self.objects.pop(key, None)
            if key in self.etags:
                self.stale[key] = self.etags.pop(key)

    @rule(key=KEYS, start=st.integers(0, 25), length=st.integers(0, 25))
    def read_a_range(self, key: str, start: int, length: int) -> None:
        if key in self.objects:
            body, metadata = self.objects[key]
            found, info = self.store.get(key, ByteRange(start, start + length))
            assert found == body[start : start + length]
            assert (info.size_bytes, info.metadata, info.etag) == (len(body), metadata, self.etags[key])
        else:
            with pytest.raises(NotFoundError):
                self.store.get(key, ByteRange(start, start + length))

    @rule(key=KEYS)
    def begin(self, key: str) -> None:
        self.uploads[self.store.begin_upload(key)] = (key, {})

    @precondition(lambda self: self.uploads)
    @rule(data=st.data(), number=st.integers(1, 4), body=BODIES)
    def send_a_part(self, data: Any, number: int, body: bytes) -> None:
        upload_id = data.draw(st.sampled_from(list(self.uploads)))
        key, parts = self.uploads[upload_id]
        parts[number] = (self.store.upload_part(key, upload_id, number, body), body)

    @precondition(lambda self: any(parts for _, parts in self.uploads.values()))
    @rule(data=st.data())
    def complete(self, data: Any) -> None:
        ready = [upload_id for upload_id, (_, parts) in self.uploads.items() if parts]
        upload_id = data.draw(st.sampled_from(ready))
        key, parts = self.uploads.pop(upload_id)
        ordered = [parts[number] for number in sorted(parts)]
        info = self.store.complete_upload(key, upload_id, [part for part, _ in ordered])
        self.wrote(key, b"".join(body for _, body in ordered), {}, info.etag)

    @precondition(lambda self: self.uploads)
    @rule(data=st.data())
    def abort(self, data: Any) -> None:
        upload_id = data.draw(st.sampled_from(list(self.uploads)))
        key, _ = self.uploads.pop(upload_id)
        self.store.abort_upload(key, upload_id)

    @invariant()
    def everything_is_as_it_should_be(self) -> None:
        if not hasattr(self, "store"):
            return
        assert all_keys(self.store, limit=2) == sorted(self.objects)
        assert {upload.upload_id: upload.key for upload in self.store.list_uploads("")} == {
            upload_id: key for upload_id, (key, _) in self.uploads.items()
        }
        for key, (body, metadata) in self.objects.items():
            found, info = self.store.get(key)
            assert (found, info.metadata, info.etag) == (body, metadata, self.etags[key])


class MemoryModel(StoreModel):
    open = staticmethod(lambda: open_store(f"memory://{uuid.uuid4().hex}"))


class LocalModel(StoreModel):
    open = staticmethod(lambda: open_store(f"file://{tempfile.mkdtemp(prefix='offloader-model-')}"))

    def teardown(self) -> None:
        import shutil
        from urllib.parse import unquote, urlsplit

        if hasattr(self, "store"):
            shutil.rmtree(unquote(urlsplit(self.store.url).path))


_BOUNDED = settings(max_examples=25, stateful_step_count=25, deadline=None)
TestMemoryModel = MemoryModel.TestCase
TestMemoryModel.settings = _BOUNDED
TestLocalModel = LocalModel.TestCase
TestLocalModel.settings = _BOUNDED
