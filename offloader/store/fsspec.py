"""Read-only store for any other URL that fsspec supports."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future, wait
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, TypeVar, cast

from fsspec.asyn import AsyncFileSystem
from fsspec.core import url_to_fs
from fsspec.spec import AbstractFileSystem

from offloader.errors import (
    AccessDeniedError,
    InvalidCallError,
    NotFoundError,
    OffloaderError,
    StoreUnavailableError,
    UnsupportedError,
)
from offloader.store import checks
from offloader.store.base import (
    ByteRange,
    ListPage,
    ObjectInfo,
    ObjectStore,
    PartInfo,
    Sink,
    StoreOptions,
    UploadInfo,
    without_secrets,
)
from offloader.store.s3_responses import is_aws
from offloader.store.wrappers import ReadOnlyStore

_Answer = TypeVar("_Answer")
#: Default listing of file systems.
_common_find = AsyncFileSystem._find  # noqa: SLF001 - to find out whether a file system overrides it

#: Prefix that selects this store for a scheme with a built-in store: ``fsspec+s3://bucket``.
_PREFIX = "fsspec+"


def open_url(url: str, options: StoreOptions) -> ObjectStore:
    """Open the store at any fsspec URL, read-only."""
    plain = url.removeprefix(_PREFIX)
    protocol = plain.partition("://")[0]
    shown = without_secrets(url)
    try:
        file_system, root = url_to_fs(plain, **_storage_options(protocol, options))
    except ImportError as error:
        raise UnsupportedError(f"{shown}: {error}", hint=f"install the fsspec package for {protocol}") from error
    except ValueError as error:
        raise InvalidCallError(
            f"{shown}: unknown store scheme {protocol!r}",
            hint="use s3://bucket/root, file:///directory, memory://name, or a scheme that fsspec supports",
        ) from error
    except Exception as error:  # some file systems connect in their constructor
        raise StoreUnavailableError(
            f"{shown}: opening failed: {error}", hint="check the URL and the network"
        ) from error
    reason = f"{protocol} doesn't guarantee atomic writes: two concurrent writers could both succeed"
    store = RemoteStore(shown, protocol, file_system, str(root), options)  # type: ignore[abstract]  # no writing verbs
    return ReadOnlyStore(store, reason, hint="use s3:// or file:// to write")


def _storage_options(protocol: str, options: StoreOptions) -> dict[str, Any]:
    if protocol not in ("s3", "s3a"):
        return {}
    client = {"endpoint_url": options.endpoint_url, "region_name": options.region}
    return {
        "key": options.access_key,
        "secret": options.secret_key,
        "token": options.session_token,
        "client_kwargs": {name: value for name, value in client.items() if value},
        "config_kwargs": {
            "connect_timeout": options.settings.connect_timeout,
            "read_timeout": options.settings.read_timeout,
            "retries": {"total_max_attempts": 1},
        },
        "use_listings_cache": False,
        "skip_instance_cache": True,
    }


#: Environment variables with the endpoint of S3, in the order in which SDKs read them.
_S3_ENDPOINTS = ("AWS_ENDPOINT_URL_S3", "AWS_ENDPOINT_URL")


def _place(protocol: str, path: str, options: StoreOptions) -> dict[str, str]:
    """Arguments of ``CheckedStore`` that describe a location as its native store does, which may have written there.

    Args:
        path: path of the root, ending with a slash.
    """
    bucket = path.lstrip("/").partition("/")[0]
    if protocol in ("s3", "s3a"):
        environ = next(filter(None, map(os.environ.get, _S3_ENDPOINTS)), "")
        endpoint_url = options.endpoint_url or environ
        # Records don't contain Amazon's endpoint.
        return {"driver": "aws-s3", "bucket": bucket, "endpoint_url": "" if is_aws(endpoint_url) else endpoint_url}
    if protocol in ("gs", "gcs"):
        return {"driver": "google-cloud-storage", "bucket": bucket}
    if protocol in ("file", "local"):
        return {"driver": "file", "bucket": str(Path(path))}
    return {"driver": protocol, "bucket": path}


class RemoteStore(checks.CheckedStore):
    """The reading verbs of ``ObjectStore``. A listing reads all keys below the prefix's directory each time."""

    def __init__(self, url: str, protocol: str, file_system: Any, root: str, options: StoreOptions) -> None:
        self._path = root.rstrip("/") + "/"
        super().__init__(url, "", **_place(protocol, self._path, options))
        self._files = file_system
        self._deadline_s = options.settings.connect_timeout + options.settings.read_timeout
        self._places = threading.BoundedSemaphore(options.settings.connections_max)

    def _ask(self, what: str, call: Callable[[], _Answer]) -> _Answer:
        """Run ``call`` within the deadline and translate its exceptions. File systems have no common deadline, so the
        call runs in a thread that is abandoned on timeout; ``connections_max`` bounds such threads."""
        where = f"{self.url}: {what} failed"
        try:
            return self._within_deadline(where, call)
        except OffloaderError:
            raise
        except FileNotFoundError as error:
            raise NotFoundError(f"{self.url}: {what} failed: not found") from error
        except PermissionError as error:
            raise AccessDeniedError(f"{where}: {error}", hint="check the credentials for this file system") from error
        except NotImplementedError as error:
            raise UnsupportedError(f"{where}: the file system doesn't support it") from error
        except Exception as error:  # each file system has its own exceptions
            text = " ".join(f"{type(error).__name__} {error}".split())
            raise StoreUnavailableError(
                f"{where}: {text}", hint="check the URL, the network and the credentials"
            ) from error

    def _within_deadline(self, where: str, call: Callable[[], _Answer]) -> _Answer:
        answer = Future[_Answer]()

        def run() -> None:
            try:
                answer.set_result(call())
            except BaseException as error:  # re-raised in the calling thread
                answer.set_exception(error)
            finally:
                self._places.release()

        late = f"{where}: no answer within {self._deadline_s} s"
        if not self._places.acquire(timeout=self._deadline_s):
            raise StoreUnavailableError(late, hint="try again later: too many calls are waiting for the file system")
        threading.Thread(target=run, daemon=True, name="offloader-remote").start()
        if not wait([answer], self._deadline_s).done:
            raise StoreUnavailableError(late, hint="try again")
        return answer.result()

    def _info(self, key: str, found: Mapping[str, Any]) -> ObjectInfo:
        """Object description from a file system's description. Field names differ between file systems."""
        if found.get("type") == "directory":
            raise NotFoundError(f"{self.url}: no object {key}")
        size_bytes = int(found.get("size") or 0)
        modified_ms = _ms(next((found[name] for name in _TIMES if found.get(name)), None))
        etag = next((str(found[name]) for name in _ETAGS if found.get(name)), f'"{modified_ms:x}-{size_bytes:x}"')
        return ObjectInfo(key, size_bytes, etag, modified_ms)

    def _head(self, key: str) -> ObjectInfo:
        return self._info(key, self._ask(f"head of {key}", lambda: self._files.info(self._path + key)))

    def _get(self, key: str, byte_range: ByteRange | None, into: Sink | None) -> tuple[bytes, ObjectInfo]:  # noqa: ARG002
        """Read in two requests: file systems don't return the size with the bytes."""
        info, path = self._head(key), self._path + key
        wanted: dict[str, int] = {}
        expected = info.size_bytes
        if byte_range is not None:
            start, stop = byte_range.start, min(byte_range.stop, info.size_bytes)
            if start >= stop:
                return b"", info
            wanted, expected = {"start": start, "end": stop}, stop - start
        # A read of the whole object has no range, so that the size reveals a replacement in between.
        body = bytes(self._ask(f"get of {key}", lambda: self._files.cat_file(path, **wanted)))
        if len(body) != expected:
            raise StoreUnavailableError(f"{self.url}: get of {key}: received {len(body)} bytes, expected {expected}")
        return body, info

    def _list(self, prefix: str, after: str, limit: int) -> ListPage:
        directory = self._path + prefix.rpartition("/")[0]
        found: Mapping[str, Mapping[str, Any]] = {}
        with suppress(NotFoundError):
            found = self._ask(f"list of {prefix!r}", lambda: _files_below(self._files, directory))
        infos = {name[len(self._path) :]: info for name, info in found.items() if name.startswith(self._path)}
        keys = sorted(key for key in infos if key.startswith(prefix) and key > after)
        objects = tuple(self._info(key, infos[key]) for key in keys[:limit])
        return ListPage(objects, objects[-1].key if len(keys) > limit else None)

    def _list_uploads(self, prefix: str) -> Sequence[UploadInfo]:  # noqa: ARG002
        return ()

    def _list_parts(self, key: str, upload_id: str) -> Sequence[PartInfo]:
        raise NotFoundError(f"{self.url}: no upload {upload_id} of {key}")


def _files_below(files: Any, directory: str) -> Mapping[str, Mapping[str, Any]]:
    """All files below a directory: path -> description.

    Propagates every error. fsspec's default ``find`` treats a directory that it can't list as empty, and would make an
    incomplete manifest look complete.
    """
    kind = type(files)
    if kind.find is not AbstractFileSystem.find or getattr(kind, "_find", _common_find) is not _common_find:
        return cast("Mapping[str, Mapping[str, Any]]", files.find(directory, detail=True))  # one flat listing
    found: dict[str, Mapping[str, Any]] = {}
    root = directory.rstrip("/")
    waiting, seen = [root], {root}
    while waiting:
        place = waiting.pop()
        try:
            rows = files.ls(place, detail=True)
        except FileNotFoundError:
            if place == root:
                raise
            continue  # deleted meanwhile
        for row in rows:
            name = row["name"].rstrip("/")
            if row["type"] != "directory":
                found[row["name"]] = row
            elif name.startswith(f"{root}/") and name not in seen:
                seen.add(name)
                waiting.append(name)
    return found


_TIMES = ("LastModified", "last_modified", "mtime", "updated", "modified", "created")
_ETAGS = ("ETag", "etag", "e_tag", "md5", "content_md5", "md5Hash", "generation")


def _ms(time: object) -> int:
    """Milliseconds from a file system's time: seconds, a datetime or ISO text."""
    if isinstance(time, str):
        try:
            time = datetime.fromisoformat(time)
        except ValueError:
            return 0
    if isinstance(time, datetime):
        return int((time if time.tzinfo else time.replace(tzinfo=UTC)).timestamp() * 1000)
    return int(time * 1000) if isinstance(time, int | float) else 0
