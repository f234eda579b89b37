"""Opening a store: valid URLs, imports, and writes refused by a read-only store."""

from __future__ import annotations

import itertools
import subprocess
import sys
import uuid
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from fsspec import register_implementation
from fsspec.implementations.local import LocalFileSystem

from formats.entries import Pieces, views_of
from offloader.errors import InvalidCallError, NotFoundError, OffloaderError, StoreUnavailableError, UnsupportedError
from offloader.settings import Duration, StoreSettings
from offloader.store.base import CREATE, OVERWRITE, ByteRange, IfMatch, PutMode, StoreOptions
from offloader.store.open import open_store
from offloader.store.probe import CREATES, ETAGS, probe_conditional_puts, require_conditional_puts
from offloader.store.s3_bodies import BodyReader, sendable
from offloader.store.wrappers import requests_of
from offloader.testing.faulty_store import Fault, FaultyStore
from offloader.testing.store_suite import all_keys
from tests.support.misbehaving_servers import silent_server
from tests.support.waiting import PATIENCE_S


@pytest.mark.parametrize(
    ("url", "problem"),
    [
        ("", "not a store URL"),
        ("offloader-demo/store", "not a store URL"),
        ("file:/store", "not a store URL"),
        ("file://store/here", "has no absolute path"),
        ("s3://", "has no bucket name"),
        ("s3:///root", "has no bucket name"),
        ("s3://bucket/a//b", "can't be a store's root"),
        ("s3://bucket/../b", "can't be a store's root"),
        ("s3://bucket?region=x", "contains a query or a fragment"),
        ("file:///some/where#else", "contains a query or a fragment"),
        ("s3://[bucket", "can't be parsed"),
        ("memory://", "has no name"),
        ("nope://bucket", "unknown store scheme 'nope'"),
    ],
)
def test_invalid_url_is_refused_with_a_hint(url: str, problem: str) -> None:
    with pytest.raises(InvalidCallError, match=problem) as caught:
        open_store(url)
    assert caught.value.hint
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("url", ["s3://AKIA:hunter2@bucket/root", "memory://user:hunter2@name"])
def test_url_with_credentials_is_refused_without_repeating_them(url: str) -> None:
    with pytest.raises(InvalidCallError) as caught:
        open_store(url)
    assert "hunter2" not in str(caught.value)


def test_remote_url_error_shows_no_credentials() -> None:
    with pytest.raises(StoreUnavailableError) as caught:
        open_store("ftp://user:hunter2@127.0.0.1:9/root")
    assert "hunter2" not in str(caught.value)


@pytest.mark.parametrize(("url", "package", "module"), [("gs://b/r", "gcsfs", "gcs"), ("az://b/r", "adlfs", "azure")])
def test_a_missing_package_is_named(monkeypatch: pytest.MonkeyPatch, url: str, package: str, module: str) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    monkeypatch.delitem(sys.modules, f"offloader.store.clouds.{module}", raising=False)
    with pytest.raises(UnsupportedError, match=package) as caught:
        open_store(url)
    assert f"'.[{module}]'" in caught.value.hint


def test_a_missing_package_of_another_file_system_is_named() -> None:
    with pytest.raises(UnsupportedError, match="dropbox://box") as caught:
        open_store("dropbox://box/root")
    assert "install" in caught.value.hint


@pytest.mark.slow
@pytest.mark.parametrize("endpoint", ["not a url", "127.0.0.1:9000", "http://"])
def test_invalid_endpoint_is_refused(endpoint: str) -> None:
    with pytest.raises(InvalidCallError):
        open_store("s3://bucket", endpoint_url=endpoint)


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["s3", "gs", "az", "file", "memory", "catalogue", "nope"])
@pytest.mark.parametrize(
    "rest",
    [
        "://bucket/root?secret=hunter2",
        "://bucket/root#hunter2",
        "://bucket/ro@ot?hunter2@x",
        "://key:hunter2@bucket/root",
        "://key:hunter2@bucket/root?hunter2",
        "://[key:hunter2@bucket",
        "://?hunter2",
        ":key:hunter2@bucket/root",
        ":/bucket/root?hunter2",
    ],
)
def test_possible_secret_in_a_url_is_never_repeated(scheme: str, rest: str) -> None:
    with pytest.raises(OffloaderError) as caught:
        open_store(scheme + rest)
    assert "hunter2" not in str(caught.value)
    assert caught.value.__cause__ is None or "hunter2" not in str(caught.value.__cause__)


def test_options_never_show_keys() -> None:
    options = StoreOptions(access_key="AKIA", secret_key="hunter2", session_token="hunter3")
    assert "AKIA" not in repr(options)
    assert "hunter" not in repr(options)


def test_memory_stores_of_one_name_are_shared_by_root() -> None:
    name = uuid.uuid4().hex
    open_store(f"memory://{name}/a").put("k", b"1")
    assert open_store(f"memory://{name}/a").get("k")[0] == b"1"
    assert open_store(f"memory://{name}").get("a/k")[0] == b"1"
    with pytest.raises(NotFoundError):
        open_store(f"memory://{name}/b").get("k")


LOADED = """
import sys
from offloader.store.open import open_store
open_store(sys.argv[1])
print(*(name for name in ("boto3", "botocore", "fsspec", "s3fs") if name in sys.modules))
"""


@pytest.mark.process
@pytest.mark.parametrize("url", ["memory://x", "file://{}"])
def test_a_store_without_an_sdk_loads_none(url: str, tmp_path: Path) -> None:
    command = [sys.executable, "-c", LOADED, url.format(tmp_path)]
    assert subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S, check=True).stdout.split() == []


WRITES = {
    "put": lambda store: store.put("k", b"new"),
    "create": lambda store: store.put("n", b"new", mode=CREATE),
    "delete": lambda store: store.delete(["k"]),
    "begin": lambda store: store.begin_upload("k"),
    "part": lambda store: store.upload_part("k", "u", 1, b""),
    "complete": lambda store: store.complete_upload("k", "u", []),
    "abort": lambda store: store.abort_upload("k", "u"),
}


@pytest.mark.parametrize("name", WRITES)
def test_a_store_opened_for_reading_refuses_every_write(name: str) -> None:
    url = f"memory://{uuid.uuid4().hex}"
    open_store(url).put("k", b"old")
    store = open_store(url, read_only=True)
    with pytest.raises(UnsupportedError, match="opened for reading"):
        WRITES[name](store)
    assert store.get("k")[0] == b"old"
    assert (store.head("k").size_bytes, all_keys(store), list(store.list_uploads(""))) == (3, ["k"], [])
    assert store.driver_metadata["managedLedgerOffloadDriver"] == "memory"
    store.close()


@pytest.mark.parametrize("name", WRITES)
def test_other_fsspec_file_system_is_read_only_with_a_reason(name: str, tmp_path: Path) -> None:
    open_store(f"file://{tmp_path}").put("a/k", b"0123456789")
    store = open_store(f"fsspec+file://{tmp_path}")
    assert store.get("a/k")[0] == b"0123456789"
    assert store.list("a/").objects[0].key == "a/k"
    with pytest.raises(UnsupportedError, match="two concurrent writers could both succeed") as caught:
        WRITES[name](store)
    assert "s3://" in caught.value.hint
    with pytest.raises(NotFoundError):
        store.list_parts("k", "u")


def test_reads_through_fsspec_answer_what_the_directory_holds(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    for number in range(7):
        (tmp_path / f"a/{number}").write_bytes(bytes(range(number * 10)))
    (tmp_path / "a-b").write_bytes(b"x")
    written, read = (open_store(f"{scheme}://{tmp_path}", read_only=True) for scheme in ("file", "fsspec+file"))
    for start, stop in ((0, 0), (0, 60), (59, 61), (60, 61), (5, 9)):
        assert read.get("a/6", ByteRange(start, stop))[0] == written.get("a/6", ByteRange(start, stop))[0]
    assert read.get("a/6", ByteRange(5, 9))[1].size_bytes == 60
    for prefix, after in (("", ""), ("a", "a/2"), ("a/", "a/6"), ("none/", "")):
        for limit in (1, 3, 1000):
            expected = written.list(prefix, after=after, limit=limit)
            page = read.list(prefix, after=after, limit=limit)
            assert [(info.key, info.size_bytes) for info in page.objects] == [
                (info.key, info.size_bytes) for info in expected.objects
            ]
            assert page.next_after == expected.next_after
    for key in ("absent", "a"):
        with pytest.raises(NotFoundError):
            read.head(key)
    assert list(read.list_uploads("")) == []


class HalfListed(LocalFileSystem):  # type: ignore[misc]  # fsspec has no types
    """Says of one folder that it can't be listed now."""

    protocol = "half"

    def ls(self, path: str, detail: bool = False, **more: Any) -> Any:
        if path.endswith("/b"):
            raise OSError("no answer")
        return super().ls(path, detail=detail, **more)


@pytest.mark.slow
def test_unlistable_folder_is_not_taken_for_empty(tmp_path: Path) -> None:
    register_implementation("half", HalfListed, clobber=True)
    for name in ("a/1", "a/b/2", "c"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    store = open_store(f"half://{tmp_path}", settings=StoreSettings(retries_max=0))
    for prefix in ("", "a/", "a/b/"):
        with pytest.raises(StoreUnavailableError, match="no answer"):
            store.list(prefix)
    assert [info.key for info in store.list("none/").objects] == []
    (tmp_path / "a/b").rename(tmp_path / "a/d")
    assert all_keys(store) == ["a/1", "a/d/2", "c"]


class Replaced(LocalFileSystem):  # type: ignore[misc]  # fsspec has no types
    """A file is replaced by a longer one between the request for its size and the one for its bytes, once."""

    protocol = "replaced"
    bodies: ClassVar[list[bytes]] = []

    def cat_file(self, path: str, **more: Any) -> Any:
        if self.bodies:
            Path(path).write_bytes(self.bodies.pop())
        return super().cat_file(path, **more)


def test_object_that_is_replaced_while_it_is_read_through_fsspec_comes_whole(tmp_path: Path) -> None:
    register_implementation("replaced", Replaced, clobber=True)
    (tmp_path / "k").write_bytes(b"old")
    Replaced.bodies = [b"new and longer"]
    store = open_store(f"replaced://{tmp_path}", settings=StoreSettings(retry_delay_first=Duration(0.001)))
    body, info = store.get("k")
    assert (body, info.size_bytes) == (b"new and longer", 14)


def test_s3_is_readable_through_fsspec_too(s3_place: Any) -> None:
    s3_place.open().put("a/k", b"0123456789")
    options = {name: value for name, value in s3_place.options.items() if name != "region"}
    store = open_store(f"fsspec+{s3_place.url}", **options)
    assert store.get("a/k")[0] == b"0123456789"
    assert store.head("a/k").etag == s3_place.open().head("a/k").etag
    assert all_keys(store) == ["a/k"]
    with pytest.raises(NotFoundError):
        store.get("absent")


@pytest.mark.slow
def test_a_remote_file_system_that_never_answers_runs_into_the_deadline() -> None:
    with silent_server() as url:
        settings = StoreSettings(connect_timeout=Duration(0.2), read_timeout=Duration(0.3), retries_max=0)
        store = open_store(f"{url}/root", settings=settings)
        with pytest.raises(StoreUnavailableError, match=r"no answer within 0\.5 s"):
            store.head("k")


@pytest.mark.parametrize("mode", [PutMode(create_only=True, etag='"e"'), PutMode(etag="")])
def test_a_mode_that_contradicts_itself_is_refused(mode: PutMode) -> None:
    store = open_store(f"memory://{uuid.uuid4().hex}")
    with pytest.raises(InvalidCallError):
        store.put("k", b"", mode=mode)
    assert PutMode() == OVERWRITE
    assert IfMatch('"e"') == PutMode(etag='"e"')


def cut(body: bytes, *at: int) -> Pieces:
    """``body`` in pieces that end at ``at``."""
    return Pieces([body[start:stop] for start, stop in itertools.pairwise([0, *at, len(body)])])


BODY = bytes(range(256)) * 4000


@pytest.mark.parametrize(
    "body",
    [bytearray(BODY), memoryview(BODY), cut(BODY, 300_000), cut(BODY, 1, 2, 2, 700_000), cut(BODY, 256 * 1024)],
    ids=["one", "view", "two pieces", "tiny pieces, an empty one", "cut where a read ends"],
)
def test_a_large_body_is_sent_in_views_of_itself(body: bytearray | memoryview | Pieces) -> None:
    reader = sendable(body)
    assert isinstance(reader, BodyReader)
    assert len(reader) == len(BODY)
    own = [np.frombuffer(view, dtype=np.uint8) for view in views_of(body)]
    pieces = []
    while piece := reader.read(16):
        assert any(np.shares_memory(np.frombuffer(piece, dtype=np.uint8), view) for view in own)
        assert len(piece) <= 256 * 1024
        pieces.append(bytes(piece))
    assert b"".join(pieces) == BODY
    assert (reader.seek(0, 2), reader.tell(), reader.seek(-5, 1)) == (len(body), len(body), len(body) - 5)
    assert bytes(reader.read()) == BODY[-5:]
    for start in (0, 1, 2, 299_999, 300_000, 700_001, len(BODY)):
        reader.seek(start)
        assert bytes(reader.read()) == BODY[start:]


def test_a_small_body_is_sent_whole() -> None:
    assert sendable(memoryview(b"small")) == b"small"
    assert sendable(Pieces([b"sm", b"all"])) == b"small"


# -- the start-up probe


def test_a_store_that_ignores_the_condition_is_refused_for_writing(servers: Any) -> None:
    place = servers.place("rclone")
    store = place.open()
    with pytest.raises(UnsupportedError, match="can't be written safely") as caught:
        require_conditional_puts(store)
    assert "a create replaces an existing object" in str(caught.value)
    assert "concurrent creates, 2 were reported as successful" in str(caught.value)
    assert "single_writer" in caught.value.hint
    result = require_conditional_puts(store, single_writer=True)
    assert not result.conditional
    assert all_keys(store) == []


def test_every_s3_server_we_test_with_keeps_its_promise(s3_place: Any) -> None:
    store = s3_place.open()
    assert require_conditional_puts(store, rounds=8).conditional
    assert all_keys(store) == []


def test_probe_misses_one_ignored_condition_in_twenty_with_odds_below_1_in_1000() -> None:
    assert 0.95 ** (CREATES + ETAGS) < 0.001


def test_second_probe_of_an_opened_store_sends_fewer_requests(servers: Any) -> None:
    place = servers.place("moto")
    store, other = place.open(), place.open()
    require_conditional_puts(store)
    first = requests_of(store)["put"].requests
    require_conditional_puts(store)
    again = requests_of(store)["put"].requests - first
    assert again < 20
    assert first == again + CREATES + ETAGS + 30
    require_conditional_puts(other)
    assert requests_of(other)["put"].requests == first


def test_probe_detects_an_ignored_stale_etag() -> None:
    class Forgetful(FaultyStore):
        """Treats If-Match as an overwrite."""

        def put(self, key: str, body: Any, *, mode: PutMode = OVERWRITE, **more: Any) -> Any:
            return super().put(key, body, mode=mode if mode.create_only else OVERWRITE, **more)

    store = Forgetful(open_store(f"memory://{uuid.uuid4().hex}"))
    assert probe_conditional_puts(store).problems == (
        "a put with a stale ETag replaces the object",
        "a put with an ETag creates a missing object",
    )


def test_failed_probe_write_is_reported_although_its_cleanup_fails_too() -> None:
    inner = open_store(f"memory://{uuid.uuid4().hex}")
    store = FaultyStore(inner, [Fault(verb="put", call=2), Fault(verb="delete", call=1)])
    with pytest.raises(OffloaderError, match="fault before put"):
        probe_conditional_puts(store)
