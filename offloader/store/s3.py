"""``s3://bucket/root`` through boto3, for AWS and S3-compatible servers; bodies go without copies."""

from __future__ import annotations

import contextlib
import io
import re
import ssl
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing
from http.client import HTTPException, HTTPResponse
from itertools import accumulate
from typing import Any
from urllib.parse import unquote, unquote_plus, urlsplit

import botocore.exceptions as sdk
from botocore.parsers import ResponseParserError
from urllib3.exceptions import HTTPError as BrokenAnswer

from formats.checksum import crc32c
from formats.entries import views_of
from offloader.errors import (
    AccessDenied,
    BucketMissing,
    InvalidCall,
    NotFound,
    ObjectChanged,
    OffloaderError,
    OutcomeUnknown,
    PreconditionFailed,
    StoreUnavailable,
    plain_reason,
)
from offloader.runtime.clock import Clock
from offloader.settings import StoreSettings
from offloader.store import checks
from offloader.store.base import (
    Body,
    ByteRange,
    DeleteFailure,
    ListPage,
    ObjectInfo,
    PartInfo,
    PutMode,
    Sink,
    StoreOptions,
    UploadInfo,
    delete_in_turns,
)
from offloader.store.bucket_rules import LIFECYCLE, OBJECT_LOCK, VERSIONING
from offloader.store.s3_client import open_client, signing_seconds
from offloader.store.s3_responses import (
    answered_ms,
    checksum_of_parts,
    composite_crc32c,
    composite_etag,
    decoded_crc32c,
    encoded_crc32c,
    is_aws,
    meaning_of,
    object_info,
    place_of,
    received,
    time_ms,
)
from offloader.telemetry.recorder import Recorder

#: Bytes of one send; smaller bodies are sent whole. The socket timeout applies per send, and is the *connect* timeout
#: while a request is sent: in one piece, a large body on a slow line would have to arrive within those few seconds.
_SLICE_BYTES = 256 * 1024


def sendable(body: Body) -> bytes | bytearray | BodyReader:
    """Convert ``body`` for the SDK, which refuses a memoryview."""
    if len(body) > _SLICE_BYTES:
        return BodyReader(body)
    return body if isinstance(body, bytes | bytearray) else bytes(body)


class BodyReader(io.RawIOBase):
    """File over ``body`` whose reads return views of it.

    A read returns up to ``_SLICE_BYTES``, within one piece, whatever smaller number is requested: the HTTP client
    requests 16 KiB at a time and sends what it gets, so larger slices mean fewer calls.
    """

    def __init__(self, body: Body) -> None:
        self._views = views_of(body)
        self._ends = list(accumulate(map(len, self._views)))
        self._position = 0

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._position, io.SEEK_END: len(self)}[whence]
        self._position = max(0, base + offset)
        return self._position

    def read(self, size: int | None = -1) -> memoryview | bytes:
        if size is None or size < 0:
            return self._rest()
        number = bisect_right(self._ends, self._position)
        if number == len(self._views):
            return b""
        view = self._views[number]
        start = self._position - self._ends[number] + len(view)
        piece = view[start : start + max(size, _SLICE_BYTES)]
        self._position += len(piece)
        return piece

    def _rest(self) -> memoryview | bytes:
        start, self._position = self._position, max(self._position, len(self))
        rest = (view[max(0, start - end + len(view)) :] for view, end in zip(self._views, self._ends, strict=True))
        filled = [view for view in rest if view]
        return filled[0] if len(filled) == 1 else b"".join(filled)


_ENDED = "the connection ended before the body"


def read_into(stream: Any, room: memoryview) -> int:
    """Fill ``room``, which isn't empty, from ``stream``, the body of an SDK response; returns the bytes read, at least
    one: fewer than ``room`` has where the body or its connection ends.

    The HTTP client below the SDK can read into existing memory; the layers above it only allocate per piece and copy.
    They have no public name for the client; should a later release move it, pieces are copied.

    Raises:
        sdk.HTTPClientError: the connection broke, or ended before the body did.
    """
    raw = getattr(stream, "_raw_stream", None)
    response = getattr(raw, "_fp", None)
    if isinstance(response, HTTPResponse):
        return _from_connection(raw, response, room)
    piece = stream.read(len(room))
    if not piece:
        raise sdk.ResponseStreamingError(error=_ENDED)
    room[: len(piece)] = piece
    return len(piece)


def _from_connection(raw: Any, response: HTTPResponse, room: memoryview) -> int:
    try:
        came = response.readinto(room)
    except TimeoutError as error:
        raise sdk.ReadTimeoutError(endpoint_url=None, error=error) from error
    except (HTTPException, OSError) as error:
        raise sdk.ResponseStreamingError(error=error) from error
    if not came:
        raise sdk.ResponseStreamingError(error=_ENDED)
    if response.isclosed():  # complete: the connection is reusable
        raw.release_conn()
    return came


#: Limit of requests for the rest of one body. Each must bring bytes, or no other follows.
CONTINUATIONS_MAX = 4
#: Bytes read from the connection at once. A reset loses the partial read; smaller reads cost time.
PIECE_BYTES = 512 * 1024
#: Bodies up to this size (a block, an index) are read at once, which saves a copy, and are retried whole.
WHOLE_BYTES_MAX = 2 * 1024 * 1024


class Download:
    """A GET in progress: ``wanted`` gives the next request, ``take`` consumes its response, until ``result`` is set.

    Args:
        what: names the call in errors.
        byte_range: the requested range, not empty; ``None``: all of it.
        into: receives the body of a range served exactly as requested, instead of ``result``.
        settings: no further request is sent ``retry_total_s`` after the first one.
        recorder: counts each further request.

    Attributes:
        result: the body and the object's description, once complete.
        begun: whether a part of it arrived.
    """

    def __init__(
        self,
        what: str,
        key: str,
        byte_range: ByteRange | None,
        into: Sink | None = None,
        *,
        settings: StoreSettings,
        clock: Clock,
        recorder: Recorder,
    ) -> None:
        self._what = what
        self._key = key
        self._asked = byte_range
        self._into = into
        self._clock = clock
        self._recorder = recorder
        self._until_s = clock.monotonic_s() + settings.retry_total_s
        self._answer: Mapping[str, Any] = {}  # the first response
        #: Destination of the current body.
        self._room: Sink = _Whole(0)
        self._came_at_break = 0
        self._continuations = 0
        self.result: tuple[bytes, ObjectInfo] | None = None

    @property
    def begun(self) -> bool:
        return self._room.received_bytes > 0

    @property
    def wanted(self) -> dict[str, str]:
        """The next request's parameters besides bucket and key."""
        if self.begun:
            start = _first_byte(self._answer)
            rest = ByteRange(start + self._room.received_bytes, start + int(self._answer["ContentLength"]))
            return {"Range": _header(rest), "IfMatch": self._answer["ETag"]}
        return {"ChecksumMode": "ENABLED"} if self._asked is None else {"Range": _header(self._asked)}

    def take(self, answer: Mapping[str, Any]) -> None:
        """Read a response's body; on failure the bytes received so far are kept.

        Raises:
            ObjectChanged: it belongs to another version of the object than the earlier bytes.
            StoreUnavailable: the body is shorter than announced or another range; and the SDK's own errors.
        """
        with closing(answer["Body"]) as stream:
            if not self.begun:
                self._answer = answer
                left = int(answer["ContentLength"])
                if self._into is not None:
                    self._into.begin()
                if self._into is not None and _is_just(self._asked, answer):
                    self._room = self._into
                elif left <= WHOLE_BYTES_MAX:
                    self.result = received(self._what, self._key, self._asked, stream.read(), answer)
                    return
                else:
                    self._room = _Whole(left)
            else:
                left = int(self._answer["ContentLength"]) - self._room.received_bytes
                self._require_rest(answer, left)
            while left:
                came = read_into(stream, self._room.room()[: min(PIECE_BYTES, left)])
                self._room.came(came)
                left -= came
        self._finish()

    def _finish(self) -> None:
        room, self._room = self._room, _Whole(0)
        if not isinstance(room, _Whole):
            _, size_bytes = place_of(self._answer["ContentRange"])
            self.result = b"", object_info(self._key, size_bytes, self._answer)
            return
        body = room.taken()
        self.result = received(self._what, self._key, self._asked, body, self._answer)
        if self._continuations and self._asked is None and self.result[1].crc32c not in (None, crc32c(body)):
            self.result = None
            raise StoreUnavailable(
                f"{self._what}: its parts don't have the object's CRC-32C together", hint="try again"
            )

    def go_on_after(self, error: OffloaderError, *, past_end: bool) -> None:
        """Decide about an error of the request or of ``take``: return when the rest should be requested.

        Args:
            past_end: whether the server reports that the object ends before the requested range.

        Raises:
            ObjectChanged: the object was replaced since its first bytes arrived.
            OffloaderError: ``error``, where going on isn't possible or wouldn't help.
        """
        came = self._room.received_bytes
        if came and (past_end or isinstance(error, PreconditionFailed)):
            raise self._changed("it isn't the same any more") from error
        if not isinstance(error, StoreUnavailable) or came <= self._came_at_break:
            raise error
        if self._continuations == CONTINUATIONS_MAX or self._clock.monotonic_s() > self._until_s:
            error.add_note(f"gave up after {self._continuations} continuations with {came} bytes")
            raise error
        self._came_at_break = came
        self._continuations += 1
        self._recorder.add("retries_total")

    def _require_rest(self, answer: Mapping[str, Any], left: int) -> None:
        if answer["ETag"] != self._answer["ETag"]:
            raise self._changed(f"its ETag was {self._answer['ETag']} and is {answer['ETag']}")
        start = _first_byte(self._answer) + self._room.received_bytes
        if _first_byte(answer) != start or int(answer["ContentLength"]) != left:
            found = answer.get("ContentRange", "all of it")
            raise StoreUnavailable(f"{self._what}: {left} bytes from {start} were asked for, {found} came")

    def _changed(self, how: str) -> ObjectChanged:
        return ObjectChanged(
            f"{self._what}: the object was replaced while it was read, after {self._room.received_bytes} bytes of it: "
            f"{how}",
            hint="read it again; if nobody should have written there, restore it from a copy",
        )


class _Buffer(io.BytesIO):
    """A buffer that may be closed while there are views of it.

    A failed request leaves both in a cycle of its traceback. The garbage collector closes the buffer first, and since
    Python 3.13 the error of that goes to stderr.
    """

    def close(self) -> None:
        with contextlib.suppress(BufferError):
            super().close()


class _Whole:
    """Sink that keeps a whole body.

    The buffer is allocated at once, and the system clears only the pages that are written; the value is taken out
    without a copy.
    """

    def __init__(self, length: int) -> None:
        self._body = _Buffer(bytes(length))
        self._view = self._body.getbuffer()
        self.received_bytes = 0

    def begin(self) -> None:
        self.received_bytes = 0

    def room(self) -> memoryview:
        return self._view[self.received_bytes :]

    def came(self, count: int) -> None:
        self.received_bytes += count

    def taken(self) -> bytes:
        """Take out the body; afterwards the sink has no room for another."""
        self._view.release()
        return self._body.getvalue()


def _is_just(asked: ByteRange | None, answer: Mapping[str, Any]) -> bool:
    """Whether a response's body is the requested range, complete."""
    return (
        asked is not None
        and "ContentRange" in answer
        and _first_byte(answer) == asked.start
        and int(answer["ContentLength"]) == asked.length
    )


def _header(byte_range: ByteRange) -> str:
    return f"bytes={byte_range.start}-{byte_range.stop - 1}"


def _first_byte(answer: Mapping[str, Any]) -> int:
    """Offset of a response's body in the object; a server that ignores ranges sends all of it."""
    return place_of(answer["ContentRange"])[0] if "ContentRange" in answer else 0


#: The cheaper classes bill smaller objects at this size and don't transition them, so they stay in STANDARD. So do a
#: stream's state objects, which are read and written often.
CLASS_BYTES_MIN = 128 * 1024
_CLASS = re.compile(r"[A-Z][A-Z0-9_-]{0,63}")
#: Objects in these classes need a restore before a read, which takes minutes to days.
_ARCHIVES = ("GLACIER", "DEEP_ARCHIVE", "SNOW")


def keeping_of(settings: StoreSettings) -> Callable[[int | None], Mapping[str, str]]:
    """Request parameters for creating an object, by its size in bytes; ``None``: multipart.

    Raises:
        InvalidCall: an unknown or archive storage class; a KMS key without encryption by it.
    """
    chosen = settings.storage_class
    if chosen in _ARCHIVES:
        raise InvalidCall(
            f"store.storage_class = {chosen!r}: objects there can't be read before they are restored",
            hint="use GLACIER_IR, STANDARD_IA or INTELLIGENT_TIERING",
        )
    if chosen and not _CLASS.fullmatch(chosen):
        raise InvalidCall(
            f"store.storage_class = {chosen!r} isn't a storage class's name", hint="write it like STANDARD_IA"
        )
    if settings.kms_key and not settings.encryption.startswith("aws:kms"):
        raise InvalidCall(
            "store.kms_key is set, but store.encryption isn't aws:kms", hint='set store.encryption = "aws:kms" as well'
        )
    encryption = {} if settings.encryption == "bucket" else {"ServerSideEncryption": settings.encryption}
    encryption |= {"SSEKMSKeyId": settings.kms_key} if settings.kms_key else {}
    with_class = {**encryption, "StorageClass": chosen} if chosen else encryption
    return lambda size_bytes: encryption if size_bytes is not None and size_bytes < CLASS_BYTES_MIN else with_class


#: Raised before anything is sent.
_UNSENT = (sdk.EndpointConnectionError, sdk.ConnectTimeoutError)
#: Raised before sending, and also when the connection broke later: urllib3 forgets that it was connected to a proxy
#: when it closes the connection, and TLS can fail in the middle of a response.
_DOUBTFUL = (sdk.ProxyConnectionError, sdk.SSLError)
#: urllib3's connect errors (by name, as its classes are internal to the SDK).
_CONNECTING = frozenset({"NewConnectionError", "NameResolutionError", "ConnectTimeoutError"})
#: OpenSSL's reasons of a failed handshake.
_HANDSHAKE = frozenset(
    {
        "CERTIFICATE_VERIFY_FAILED",
        "NO_PROTOCOLS_AVAILABLE",
        "SSLV3_ALERT_HANDSHAKE_FAILURE",
        "TLSV1_ALERT_PROTOCOL_VERSION",
        "TLSV1_ALERT_UNKNOWN_CA",
        "UNSUPPORTED_PROTOCOL",
        "WRONG_VERSION_NUMBER",
    }
)


def was_never_sent(error: BaseException) -> bool:
    """Whether no byte of the request can have reached the server; false where uncertain."""
    if isinstance(error, _UNSENT):
        return True
    return isinstance(error, _DOUBTFUL) and any(_ended_at_the_door(cause) for cause in _causes(error))


def _ended_at_the_door(cause: BaseException) -> bool:
    if isinstance(cause, ssl.SSLError):
        return cause.reason in _HANDSHAKE
    # The proxy refused to connect.
    return type(cause).__name__ in _CONNECTING or str(cause).startswith("Tunnel connection failed")


def _causes(error: BaseException) -> Iterator[BaseException]:
    waiting: list[object] = [error]
    seen: set[int] = set()
    while waiting:
        each = waiting.pop()
        if not isinstance(each, BaseException) or id(each) in seen:
            continue
        seen.add(id(each))
        yield each
        kwargs = getattr(each, "kwargs", {})
        waiting += [each.__cause__, getattr(each, "original_error", None), *each.args]
        waiting += [kwargs.get("error")] if isinstance(kwargs, dict) else []


#: Keys of one listing page and of one delete request (S3's limits).
PAGE_KEYS_MAX = 1000
#: End of a directory bucket's name; signing for it takes a session, which is a request.
_DIRECTORY_BUCKET = "--x-s3"
#: Page limit of one listing of uploads or parts: ten thousand parts are ten pages.
PAGES_MAX = 1000
_LOOK = "look with head: it may have been completed"

_CREDENTIALS = (
    sdk.NoCredentialsError,
    sdk.PartialCredentialsError,
    sdk.CredentialRetrievalError,
    sdk.TokenRetrievalError,
    sdk.SSOError,
    sdk.ProfileNotFound,
    sdk.MetadataRetrievalError,
    sdk.RefreshWithMFAUnsupportedError,
)


def open_url(url: str, options: StoreOptions) -> S3Store:
    """Open the store at ``s3://bucket/root``. Sends nothing."""
    parts = urlsplit(url)
    if not parts.netloc:
        raise InvalidCall(f"{url} names no bucket", hint="give s3://bucket/root")
    return S3Store(parts.netloc, checks.split_root(url, unquote(parts.path)), options)


class S3Store(checks.CheckedStore):
    """See ``ObjectStore``. Bodies carry our own CRC-32C, which the server checks; the signature doesn't hash them."""

    def __init__(self, bucket: str, root: str, options: StoreOptions) -> None:
        super().__init__(f"s3://{bucket}/{root}".rstrip("/"), root, driver="aws-s3", bucket=bucket)
        self._bucket = bucket
        self._kept_as = keeping_of(options.settings)
        self._downloads: Any = {"settings": options.settings, "clock": options.clock, "recorder": options.recorder}
        with self._translated("opening", writes=False):
            self._client: Any = open_client(options)
        found, endpoint_url = dict(self.driver_metadata), self._client.meta.endpoint_url
        found["region"] = self._client.meta.region_name or ""
        if not is_aws(endpoint_url):
            found |= {"managedLedgerOffloadDriver": "S3", "serviceEndpoint": endpoint_url}
        self.driver_metadata = found

    @contextlib.contextmanager
    def _translated(self, what: str, *, writes: bool) -> Iterator[None]:
        where = f"{self.url}: {what} failed"
        try:
            yield
        except sdk.ClientError as error:
            answer = error.response.get("Error", {})
            status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
            code = str(answer.get("Code", ""))
            kind, hint = meaning_of(code, status, writes=writes)
            text = " ".join(str(answer.get("Message", "")).split())
            raise kind(f"{where}: {code or status}{': ' if text else ''}{text}", hint=hint) from error
        except _CREDENTIALS as error:
            raise AccessDenied(
                f"{where}: {error}",
                hint="set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a profile, or give access_key and secret_key",
            ) from error
        except (*_UNSENT, *_DOUBTFUL) as error:  # no connection, or a broken one
            if writes and not was_never_sent(error):
                raise OutcomeUnknown(f"{where}: {plain_reason(error)}", hint="look before repeating it") from error
            raise StoreUnavailable(
                f"{where}: {plain_reason(error)}", hint="check --endpoint-url, the network and that the server runs"
            ) from error
        except sdk.ParamValidationError as error:
            text = " ".join(str(error).split())
            raise InvalidCall(f"{where}: {text}", hint="check the bucket's name and the key") from error
        except (sdk.HTTPClientError, sdk.IncompleteReadError, ResponseParserError, BrokenAnswer, KeyError) as error:
            # No response, a partial one, or one that isn't S3's (a KeyError: a mandatory field is missing).
            text = plain_reason(error)
            if text == str(error):  # no connection's
                text = " ".join(f"{type(error).__name__} {error}".split())
            if writes:
                raise OutcomeUnknown(f"{where}: {text}", hint="look before repeating it") from error
            raise StoreUnavailable(f"{where}: {text}", hint="try again; check --endpoint-url") from error
        except (sdk.BotoCoreError, ValueError) as error:
            raise InvalidCall(f"{where}: {error}", hint="check the URL, --endpoint-url and --region") from error

    def _head(self, key: str) -> ObjectInfo:
        with self._translated(f"head of {key}", writes=False):
            answer = self._client.head_object(Bucket=self._bucket, Key=self._root + key, ChecksumMode="ENABLED")
            return object_info(key, answer["ContentLength"], answer)

    def _get(self, key: str, byte_range: ByteRange | None, into: Sink | None) -> tuple[bytes, ObjectInfo]:
        download = Download(f"{self.url}: get of {key}", key, byte_range, into, **self._downloads)
        while download.result is None:
            try:
                with self._translated(f"get of {key}", writes=False):
                    download.take(self._client.get_object(Bucket=self._bucket, Key=self._root + key, **download.wanted))
            except OffloaderError as error:
                past_end = _starts_past_end(error)
                if past_end and not download.begun:
                    return b"", self._head(key)
                download.go_on_after(error, past_end=past_end)
        return download.result

    def _put(self, key: str, body: Body, mode: PutMode, metadata: Mapping[str, str], crc: int) -> ObjectInfo:
        condition = {"IfNoneMatch": "*"} if mode.create_only else {"IfMatch": mode.etag} if mode.etag else {}
        try:
            with self._translated(f"put of {key}", writes=True):
                answer = self._client.put_object(
                    Bucket=self._bucket,
                    Key=self._root + key,
                    Body=sendable(body),
                    Metadata=metadata,
                    ChecksumCRC32C=encoded_crc32c(crc),
                    **condition,
                    **self._kept_as(len(body)),
                )
                return ObjectInfo(key, len(body), answer["ETag"], answered_ms(answer), metadata, crc)
        except NotFound as missing:
            if mode.etag is None:
                raise
            raise PreconditionFailed(f"{self.url}: {key} isn't there, expected {mode.etag}") from missing

    def _list(self, prefix: str, after: str, limit: int) -> ListPage:
        place = {"StartAfter": self._root + after} if after else {}
        for _ in range(PAGES_MAX):
            with self._translated(f"list of {prefix!r}", writes=False):
                answer = self._client.list_objects_v2(
                    Bucket=self._bucket, Prefix=self._root + prefix, MaxKeys=min(limit, PAGE_KEYS_MAX), **place
                )
                objects = tuple(
                    ObjectInfo(
                        each["Key"][len(self._root) :], each["Size"], each["ETag"], time_ms(each["LastModified"])
                    )
                    for each in answer.get("Contents", ())
                )
                if after and objects and objects[0].key < after:
                    # Its page would say that nothing follows where it wasn't looked.
                    raise StoreUnavailable(
                        f"{self.url}: list of {prefix!r} after {after} begins before that, with {objects[0].key}",
                        hint="this server ignores where a listing is to begin: use another one",
                    )
                truncated = answer["IsTruncated"]  # mandatory in every S3 response
                if truncated and objects and objects[-1].key == after:
                    break  # a server that ignores where to begin would send the same page forever
                if objects or not truncated:
                    return ListPage(objects, objects[-1].key if truncated else None)
                # A server may scan a page of deleted keys and return none.
                before, place = place, {"ContinuationToken": answer["NextContinuationToken"]}
            if place == before:
                break
        raise self._endless(f"list of {prefix!r}")

    def _endless(self, what: str) -> StoreUnavailable:
        return StoreUnavailable(f"{self.url}: {what} doesn't end: each page announces another one", hint="try again")

    def _delete(self, keys: Sequence[str]) -> Sequence[DeleteFailure]:
        return delete_in_turns(keys, PAGE_KEYS_MAX, self._delete_some)

    def _delete_some(self, keys: Sequence[str]) -> Sequence[DeleteFailure]:
        wanted = {"Objects": [{"Key": self._root + key} for key in keys], "Quiet": True}
        with self._translated(f"delete of {len(keys)} keys", writes=True):
            answer = self._client.delete_objects(Bucket=self._bucket, Delete=wanted)
            failures = []
            for error in answer.get("Errors", ()):
                code = error.get("Code", "")
                kind, _ = meaning_of(code, 200, writes=True)
                if kind is not NotFound:  # a missing key counts as removed
                    key, reason = error["Key"][len(self._root) :], f"{code}: {error.get('Message', '')}"
                    failures.append(DeleteFailure(key, reason, issubclass(kind, StoreUnavailable | OutcomeUnknown)))
        return failures

    def _delete_if_match(self, key: str, etag: str) -> None:
        # NotFound is S3's response to a condition on a missing object.
        with contextlib.suppress(NotFound), self._translated(f"delete of {key}", writes=True):
            self._client.delete_object(Bucket=self._bucket, Key=self._root + key, IfMatch=etag)

    def _begin_upload(self, key: str, metadata: Mapping[str, str]) -> str:
        with self._translated(f"upload of {key}", writes=True):
            # Declare the algorithm here, or servers refuse the parts' checksums at completion.
            answer = self._client.create_multipart_upload(
                Bucket=self._bucket,
                Key=self._root + key,
                Metadata=metadata,
                ChecksumAlgorithm="CRC32C",
                **self._kept_as(None),
            )
            return str(answer["UploadId"])

    def _part_crc32c(self, key: str, body: Body, given: int | None) -> int:
        return super()._part_crc32c(key, body, given) if given is None else given

    def _upload_part(self, key: str, upload_id: str, number: int, body: Body, crc: int) -> PartInfo:
        confirmed = False
        try:
            with self._translated(f"part {number} of {key}", writes=True):
                answer = self._client.upload_part(
                    Bucket=self._bucket,
                    Key=self._root + key,
                    UploadId=upload_id,
                    PartNumber=number,
                    Body=sendable(body),
                    ChecksumCRC32C=encoded_crc32c(crc),
                )
                confirmed = answer.get("ChecksumCRC32C") == encoded_crc32c(crc)
                return PartInfo(number, answer["ETag"], len(body), crc)
        finally:
            # A server that returns the checksum has compared it. Otherwise hash the bytes here: a refusal may mean that
            # they changed since the caller hashed them, and a missing checksum would hide it.
            if not confirmed:
                checks.body_crc32c(key, body, crc)

    def _complete_upload(self, key: str, upload_id: str, parts: Sequence[PartInfo]) -> ObjectInfo:
        """Complete an upload. The response is trusted if it has the server's checksum over the parts' checksums, each
        of which the server compared on upload. Otherwise the object is verified. A 200 alone proves nothing, nor does
        its ETag (versitygw makes both up from the request, for any upload id of an existing key, but no checksum), and
        after a lost or refused response the object may exist."""
        # With checksums: servers require those declared by the upload.
        made_of = [
            {"PartNumber": part.number, "ETag": part.etag, "ChecksumCRC32C": encoded_crc32c(part.crc32c)}
            for part in parts
        ]
        cause: OffloaderError | None = None
        try:
            with self._translated(f"completion of {key}", writes=True):
                answer = self._client.complete_multipart_upload(
                    Bucket=self._bucket, Key=self._root + key, UploadId=upload_id, MultipartUpload={"Parts": made_of}
                )
                if checksum_of_parts(answer) == composite_crc32c(parts):
                    return ObjectInfo(key, sum(part.size_bytes for part in parts), answer["ETag"], answered_ms(answer))
        except (OutcomeUnknown, NotFound) as error:
            cause = error
        try:
            found = self._made_of(key, parts, answered=cause is None)
        except OffloaderError as error:
            if cause is None:
                raise OutcomeUnknown(
                    f"{self.url}: completion of {key} was answered, then {error.message}", hint=_LOOK
                ) from error
            found = None  # report the lost completion, not this error
        if found is None:
            problem = (
                cause.message if cause else f"{self.url}: completion of {key} was answered, but made something else"
            )
            raise OutcomeUnknown(problem, hint=_LOOK) from cause
        return found

    def _made_of(self, key: str, parts: Sequence[PartInfo], *, answered: bool) -> ObjectInfo | None:
        """The object, if it exists and is made of ``parts``: proven by the checksum over theirs, or the ETag over
        theirs. The size alone suffices only for a server that confirmed (``answered``) and keeps no checksums."""
        size_bytes = sum(part.size_bytes for part in parts)
        with contextlib.suppress(NotFound), self._translated(f"head of {key}", writes=False):
            answer = self._client.head_object(Bucket=self._bucket, Key=self._root + key, ChecksumMode="ENABLED")
            checksum = checksum_of_parts(answer)
            proven = checksum == composite_crc32c(parts) or answer["ETag"] == composite_etag(parts)
            if answer["ContentLength"] == size_bytes and (proven or (answered and not checksum)):
                return object_info(key, size_bytes, answer)
        return None

    def _abort_upload(self, key: str, upload_id: str) -> None:
        with contextlib.suppress(NotFound), self._translated(f"abort of an upload of {key}", writes=True):
            self._client.abort_multipart_upload(Bucket=self._bucket, Key=self._root + key, UploadId=upload_id)

    def _list_uploads(self, prefix: str) -> Sequence[UploadInfo]:
        found: dict[tuple[str, str], UploadInfo] = {}
        marker: dict[str, str] = {}
        for _ in range(PAGES_MAX):
            with self._translated(f"list of uploads {prefix!r}", writes=False):
                # Else one key of letters that no XML has, of whomever, makes the response unreadable.
                answer = self._client.list_multipart_uploads(
                    Bucket=self._bucket, Prefix=self._root + prefix, EncodingType="url", **marker
                )
                read = unquote_plus if answer.get("EncodingType") == "url" else str
                for upload in answer.get("Uploads", ()):
                    key = read(upload["Key"])[len(self._root) :]
                    info = UploadInfo(key, upload["UploadId"], time_ms(upload["Initiated"]))
                    found[key, info.upload_id] = info
            before = marker
            marker = {
                "KeyMarker": read(answer.get("NextKeyMarker", "")),
                "UploadIdMarker": answer.get("NextUploadIdMarker", ""),
            }
            # A server that ignores the markers would send the same page forever.
            if not answer.get("IsTruncated") or marker == before:
                return list(found.values())
        raise self._endless(f"list of uploads {prefix!r}")

    def _list_parts(self, key: str, upload_id: str) -> Sequence[PartInfo]:
        found: dict[int, PartInfo] = {}
        marker = 0
        for _ in range(PAGES_MAX):
            with self._translated(f"list of parts of {key}", writes=False):
                answer = self._client.list_parts(
                    Bucket=self._bucket, Key=self._root + key, UploadId=upload_id, PartNumberMarker=marker
                )
                for part in answer.get("Parts", ()):
                    crc = decoded_crc32c(part.get("ChecksumCRC32C"))
                    number = part["PartNumber"]
                    found[number] = PartInfo(number, part["ETag"], part["Size"], -1 if crc is None else crc)
            before, marker = marker, max(marker, answer.get("NextPartNumberMarker", 0), *found)
            if not answer.get("IsTruncated") or marker == before:
                return [found[number] for number in sorted(found)]
        raise self._endless(f"list of parts of {key}")

    def _signed_url(self, key: str, expires_s: float) -> str | None:
        valid_s = int(min(expires_s, signing_seconds(self._client, expires_s)))
        if valid_s < 1 or self._bucket.endswith(_DIRECTORY_BUCKET):
            return None
        with self._translated(f"signing of {key}", writes=False):
            named = {"Bucket": self._bucket, "Key": self._root + key}
            return str(self._client.generate_presigned_url("get_object", Params=named, ExpiresIn=valid_s))

    @property
    def root(self) -> str:
        """Prefix of all keys; see ``offloader.store.bucket_rules.Bucket``, as for ``bucket_configuration``."""
        return self._root

    def bucket_configuration(self, what: str) -> Mapping[str, Any] | None:
        asks: Mapping[str, Callable[[], Mapping[str, Any]]] = {
            LIFECYCLE: lambda: self._client.get_bucket_lifecycle_configuration(Bucket=self._bucket),
            VERSIONING: lambda: self._client.get_bucket_versioning(Bucket=self._bucket),
            OBJECT_LOCK: lambda: self._client.get_object_lock_configuration(Bucket=self._bucket),
        }
        try:
            with self._translated(f"{what} of the bucket", writes=False):
                return asks[what]()
        except BucketMissing:
            raise
        except NotFound:
            return None

    def close(self) -> None:
        self._client.close()


def _starts_past_end(error: OffloaderError) -> bool:
    why = error.__cause__
    return isinstance(why, sdk.ClientError) and bool(why.response["ResponseMetadata"]["HTTPStatusCode"] == 416)
