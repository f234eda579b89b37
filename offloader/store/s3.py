"""``s3://bucket/root`` through boto3, for AWS and S3-compatible servers. Bodies are not copied."""

from __future__ import annotations

import contextlib
import re
import ssl
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import lru_cache
from typing import Any
from urllib.parse import unquote, unquote_plus, urlsplit

import botocore.exceptions as sdk
from botocore.parsers import ResponseParserError
from urllib3.exceptions import HTTPError as BrokenAnswer

from formats.checksum import crc32c
from offloader.errors import (
    AccessDeniedError,
    BucketMissingError,
    InvalidCallError,
    NotFoundError,
    OffloaderError,
    OutcomeUnknownError,
    PreconditionFailedError,
    StoreUnavailableError,
    plain_reason,
)
from offloader.parallel_map import at_once
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
from offloader.store.s3_bodies import CRC32C, Download, sendable
from offloader.store.s3_client import open_client, send_content_md5, signing_seconds
from offloader.store.s3_responses import (
    DENIED,
    answered_ms,
    checksum_of_parts,
    composite_crc32c,
    composite_etag,
    decoded_crc32c,
    encoded_crc32c,
    encoded_md5,
    is_aws,
    meaning_of,
    object_info,
    time_ms,
)
from offloader.store.wrappers import stream_of

#: Number of streams whose parameters of new objects are cached.
STREAMS_KNOWN_MAX = 4096
#: Smaller objects are stored in STANDARD: the cheaper classes bill them at this size and don't transition them. A
#: stream's state objects, which are read and written often, are also stored in STANDARD.
CLASS_BYTES_MIN = 128 * 1024
_CLASS = re.compile(r"[A-Z][A-Z0-9_-]{0,63}")
#: Objects in these classes need a restore before a read, which takes minutes to days.
_ARCHIVES = ("GLACIER", "DEEP_ARCHIVE", "SNOW")


def keeping_of(settings: StoreSettings) -> Callable[[int | None], Mapping[str, str]]:
    """Request parameters for creating an object, by its size in bytes; ``None``: multipart.

    Raises:
        InvalidCallError: an unknown or archive storage class; a KMS key without encryption by KMS.
    """
    chosen = settings.storage_class
    if chosen in _ARCHIVES:
        raise InvalidCallError(
            f"store.storage_class = {chosen!r} is an archive class: objects can't be read until they are restored",
            hint="use GLACIER_IR, STANDARD_IA or INTELLIGENT_TIERING",
        )
    if chosen and not _CLASS.fullmatch(chosen):
        raise InvalidCallError(
            f"store.storage_class = {chosen!r} isn't the name of a storage class", hint="use a name like STANDARD_IA"
        )
    if settings.kms_key and not settings.encryption.startswith("aws:kms"):
        raise InvalidCallError(
            "store.kms_key is set, but store.encryption isn't aws:kms", hint='also set store.encryption = "aws:kms"'
        )
    encryption = {} if settings.encryption == "bucket" else {"ServerSideEncryption": settings.encryption}
    encryption |= {"SSEKMSKeyId": settings.kms_key} if settings.kms_key else {}
    with_class = {**encryption, "StorageClass": chosen} if chosen else encryption
    return lambda size_bytes: encryption if size_bytes is not None and size_bytes < CLASS_BYTES_MIN else with_class


#: Exceptions raised before any byte is sent.
_UNSENT = (sdk.EndpointConnectionError, sdk.ConnectTimeoutError)
#: Exceptions raised before sending, and also when the connection breaks later: urllib3 reports both in the same way for
#: a proxy, and TLS can fail in the middle of a response.
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
    """Whether no byte of the request can have reached the server; false in doubt."""
    if isinstance(error, _UNSENT):
        return True
    return isinstance(error, _DOUBTFUL) and any(_failed_while_connecting(cause) for cause in _causes(error))


def _failed_while_connecting(cause: BaseException) -> bool:
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
#: Suffix of a directory bucket's name. Signing for such a bucket requires a session, which is a request.
_DIRECTORY_BUCKET = "--x-s3"
#: Page limit of one listing of uploads or parts: ten thousand parts are ten pages.
PAGES_MAX = 1000
_LOOK = "check the object with head: the upload may have been completed"

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
        raise InvalidCallError(f"{url} has no bucket name", hint="use s3://bucket/root")
    return S3Store(parts.netloc, checks.split_root(url, unquote(parts.path)), options)


class S3Store(checks.CheckedStore):
    """See ``ObjectStore``. The server checks each body's CRC-32C, so that signatures needn't cover the body."""

    def __init__(self, bucket: str, root: str, options: StoreOptions) -> None:
        super().__init__(f"s3://{bucket}/{root}".rstrip("/"), root, driver="aws-s3", bucket=bucket)
        self._bucket = bucket
        for layer in options.settings.all_layers():
            keeping_of(layer)  # refuses invalid values before anything is written
        self._keeping = lru_cache(STREAMS_KNOWN_MAX)(lambda stream: keeping_of(options.settings.of_stream(stream)))
        self._checksum = options.settings.checksum
        self._downloads: Any = {"settings": options.settings, "clock": options.clock, "recorder": options.recorder}
        with self._translated("opening", writes=False):
            self._client: Any = open_client(options)
        if not bucket.endswith(_DIRECTORY_BUCKET):  # directory buckets refuse it
            send_content_md5(self._client)
        #: Whether the server refuses multi-deletes and accepts single ones.
        self._deletes_singly = False
        found, endpoint_url = dict(self.driver_metadata), self._client.meta.endpoint_url
        found["region"] = self._client.meta.region_name or ""
        if not is_aws(endpoint_url):
            found |= {"managedLedgerOffloadDriver": "S3", "serviceEndpoint": endpoint_url}
        self.driver_metadata = found

    @contextlib.contextmanager
    def _translated(self, what: str, *, writes: bool, creates: bool = False) -> Iterator[None]:
        where = f"{self.url}: {what} failed"
        try:
            yield
        except sdk.ClientError as error:
            answer = error.response.get("Error", {})
            status = error.response.get("ResponseMetadata", {}).get("HTTPStatusCode", 0)
            code = str(answer.get("Code", ""))
            kind, hint = meaning_of(code, status, writes=writes)
            if creates and hint == DENIED and not self.asks_encryption:
                hint += "; if the bucket requires encrypted objects, set store.encryption"
            text = " ".join(str(answer.get("Message", "")).split())
            raise kind(f"{where}: {code or status}{': ' if text else ''}{text}", hint=hint) from error
        except _CREDENTIALS as error:
            raise AccessDeniedError(
                f"{where}: {error}",
                hint="set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a profile, or access_key and secret_key",
            ) from error
        except (*_UNSENT, *_DOUBTFUL) as error:  # no connection, or a lost one
            if writes and not was_never_sent(error):
                raise OutcomeUnknownError(
                    f"{where}: {plain_reason(error)}", hint="check the object before repeating the request"
                ) from error
            raise StoreUnavailableError(
                f"{where}: {plain_reason(error)}",
                hint="check --endpoint-url and the network, and that the server is running",
            ) from error
        except sdk.ParamValidationError as error:
            text = " ".join(str(error).split())
            raise InvalidCallError(f"{where}: {text}", hint="check the bucket's name and the key") from error
        except (sdk.HTTPClientError, sdk.IncompleteReadError, ResponseParserError, BrokenAnswer, KeyError) as error:
            # No response, a partial one, or one of another protocol (KeyError: a mandatory field is missing).
            text = plain_reason(error)
            if text == str(error):  # not a connection error
                text = " ".join(f"{type(error).__name__} {error}".split())
            if writes:
                raise OutcomeUnknownError(
                    f"{where}: {text}", hint="check the object before repeating the request"
                ) from error
            raise StoreUnavailableError(f"{where}: {text}", hint="try again; check --endpoint-url") from error
        except (sdk.BotoCoreError, ValueError) as error:
            raise InvalidCallError(f"{where}: {error}", hint="check the URL, --endpoint-url and --region") from error

    def _kept_as(self, key: str, size_bytes: int | None) -> Mapping[str, str]:
        """Request parameters for creating an object, by the settings of its stream."""
        return self._keeping(stream_of(key))(size_bytes)

    def _head(self, key: str) -> ObjectInfo:
        with self._translated(f"head of {key}", writes=False):
            answer = self._client.head_object(Bucket=self._bucket, Key=self._root + key, **self._checksums_asked)
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
            with self._translated(f"put of {key}", writes=True, creates=True):
                answer = self._client.put_object(
                    Bucket=self._bucket,
                    Key=self._root + key,
                    Body=sendable(body),
                    Metadata=metadata,
                    **_checked_by(self._checksum, body, crc),
                    **condition,
                    **self._kept_as(key, len(body)),
                )
                return ObjectInfo(key, len(body), answer["ETag"], answered_ms(answer), metadata, crc)
        except NotFoundError as missing:
            if mode.etag is None:
                raise
            raise PreconditionFailedError(f"{self.url}: {key} doesn't exist, expected ETag {mode.etag}") from missing

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
                    # The page would report keys as missing that the server hasn't looked for.
                    raise StoreUnavailableError(
                        f"{self.url}: list of {prefix!r} after {after} begins with an earlier key, {objects[0].key}",
                        hint="use another server: this one ignores the start key of listings",
                    )
                truncated = answer["IsTruncated"]  # mandatory in every S3 response
                if truncated and objects and objects[-1].key == after:
                    break  # a server that ignores the start key would send the same page forever
                if objects or not truncated:
                    return ListPage(objects, objects[-1].key if truncated else None)
                # A server may scan a page of deleted keys and return none.
                before, place = place, {"ContinuationToken": answer["NextContinuationToken"]}
            if place == before:
                break
        raise self._endless(f"list of {prefix!r}")

    def _endless(self, what: str) -> StoreUnavailableError:
        return StoreUnavailableError(
            f"{self.url}: {what} has too many pages: each announces another one", hint="try again"
        )

    def _delete(self, keys: Sequence[str]) -> Sequence[DeleteFailure]:
        return delete_in_turns(keys, PAGE_KEYS_MAX, self._delete_some)

    def _delete_some(self, keys: Sequence[str]) -> Sequence[DeleteFailure]:
        if self._deletes_singly:
            return self._delete_singly(keys)
        try:
            return self._delete_together(keys)
        except InvalidCallError as refused:
            # Some servers don't support multi-deletes. The server refuses an invalid request as a single delete too.
            try:
                failures = self._delete_singly(keys)
            except InvalidCallError:
                raise refused from None
            self._deletes_singly = True
            return failures

    def _delete_singly(self, keys: Sequence[str]) -> Sequence[DeleteFailure]:
        """One request for each key; raises the first key's error, except ``AccessDeniedError``."""
        first = self._delete_one(keys[0])
        return [each for each in (first, *at_once(self._delete_alone, keys[1:])) if each is not None]

    def _delete_one(self, key: str) -> DeleteFailure | None:
        try:
            with contextlib.suppress(NotFoundError), self._translated(f"delete of {key}", writes=True):
                self._client.delete_object(Bucket=self._bucket, Key=self._root + key)
        except AccessDeniedError as error:  # a multi-delete reports it for each key
            return DeleteFailure.of(key, error)
        return None

    def _delete_alone(self, key: str) -> DeleteFailure | None:
        try:
            return self._delete_one(key)
        except OffloaderError as error:
            return DeleteFailure.of(key, error)

    def _delete_together(self, keys: Sequence[str]) -> Sequence[DeleteFailure]:
        wanted = {"Objects": [{"Key": self._root + key} for key in keys], "Quiet": True}
        with self._translated(f"delete of {len(keys)} keys", writes=True):
            answer = self._client.delete_objects(Bucket=self._bucket, Delete=wanted)
            failures = []
            for error in answer.get("Errors", ()):
                code = error.get("Code", "")
                kind, _ = meaning_of(code, 200, writes=True)
                if kind is not NotFoundError:  # a missing key counts as removed
                    key, why = error["Key"][len(self._root) :], kind(f"{code}: {error.get('Message', '')}")
                    failures.append(DeleteFailure.of(key, why))
        return failures

    def _delete_if_match(self, key: str, etag: str) -> None:
        # NotFoundError is S3's response to a condition on a missing object.
        with contextlib.suppress(NotFoundError), self._translated(f"delete of {key}", writes=True):
            self._client.delete_object(Bucket=self._bucket, Key=self._root + key, IfMatch=etag)

    def _begin_upload(self, key: str, metadata: Mapping[str, str]) -> str:
        with self._translated(f"upload of {key}", writes=True, creates=True):
            # Without the algorithm, servers refuse the parts' checksums at completion.
            declared = {"ChecksumAlgorithm": "CRC32C"} if self._checksum == CRC32C else {}
            answer = self._client.create_multipart_upload(
                Bucket=self._bucket,
                Key=self._root + key,
                Metadata=metadata,
                **declared,
                **self._kept_as(key, None),
            )
            return str(answer["UploadId"])

    @property
    def _checksums_asked(self) -> Mapping[str, str]:
        return {"ChecksumMode": "ENABLED"} if self._checksum == CRC32C else {}

    def checksum_taken(self, key: str) -> str:
        for checksum in [each for each in ("md5", "none") if each != self._checksum]:
            body = b"plain"
            with contextlib.suppress(InvalidCallError), self._translated(f"put of {key}", writes=True):
                given = _checked_by(checksum, body, crc32c(body))
                self._client.put_object(
                    Bucket=self._bucket, Key=self._root + key, Body=body, **given, **self._kept_as(key, len(body))
                )
                return checksum
        return ""

    @property
    def asks_encryption(self) -> bool:
        return bool(self._kept_as("", 0))

    def encryption_problem(self, key: str) -> str:
        asked = self._kept_as(key, 0)
        wanted, kms_key = asked["ServerSideEncryption"], asked.get("SSEKMSKeyId", "")
        with self._translated(f"head of {key}", writes=False):
            answer = self._client.head_object(Bucket=self._bucket, Key=self._root + key)
        found, used = answer.get("ServerSideEncryption"), answer.get("SSEKMSKeyId", "")
        if found != wanted:
            return f"store.encryption = {wanted!r} has no effect: a new object has the encryption {found or 'none'}"
        # The server returns the key's ARN, which doesn't contain an alias.
        if "alias/" not in kms_key and not used.endswith(kms_key):
            return f"store.kms_key = {kms_key!r} has no effect: a new object has the key {used or 'none'}"
        return ""

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
                    **_checked_by(self._checksum, body, crc),
                )
                confirmed = answer.get("ChecksumCRC32C") == encoded_crc32c(crc)
                return PartInfo(number, answer["ETag"], len(body), crc)
        finally:
            # A server that returns the checksum has compared it. Otherwise hash the bytes here: they may have changed
            # since the caller hashed them, which would explain a refusal, or remain unnoticed without a checksum.
            if not confirmed:
                checks.body_crc32c(key, body, crc)

    def _complete_upload(self, key: str, upload_id: str, parts: Sequence[PartInfo]) -> ObjectInfo:
        """Complete an upload, and verify the object unless the response proves its content.

        The proof is the server's checksum over the parts' checksums, which it compared on upload. A 200 and its ETag
        prove nothing: versitygw derives both from the request, for any upload id of an existing key. After a lost or
        refused response, the object may exist.
        """
        # With checksums: servers require them if the upload declared them.
        made_of = [{"PartNumber": part.number, "ETag": part.etag} for part in parts]
        if self._checksum == CRC32C:
            made_of = [
                {**each, "ChecksumCRC32C": encoded_crc32c(part.crc32c)}
                for each, part in zip(made_of, parts, strict=True)
            ]
        cause: OffloaderError | None = None
        try:
            with self._translated(f"completion of {key}", writes=True):
                answer = self._client.complete_multipart_upload(
                    Bucket=self._bucket, Key=self._root + key, UploadId=upload_id, MultipartUpload={"Parts": made_of}
                )
                if checksum_of_parts(answer) == composite_crc32c(parts):
                    return ObjectInfo(key, sum(part.size_bytes for part in parts), answer["ETag"], answered_ms(answer))
        except (OutcomeUnknownError, NotFoundError) as error:
            cause = error
        try:
            found = self._made_of(key, parts, answered=cause is None)
        except OffloaderError as error:
            if cause is None:
                raise OutcomeUnknownError(
                    f"{self.url}: completion of {key} succeeded, but its check failed: {error.message}", hint=_LOOK
                ) from error
            found = None  # report the error of the completion, not this one
        if found is None:
            problem = cause.message if cause else f"{self.url}: completion of {key} succeeded, but the object differs"
            raise OutcomeUnknownError(problem, hint=_LOOK) from cause
        return found

    def _made_of(self, key: str, parts: Sequence[PartInfo], *, answered: bool) -> ObjectInfo | None:
        """The object, if it exists and consists of ``parts``, else ``None``.

        The proof is the checksum over the parts' checksums, or the ETag over their ETags. The size suffices only for a
        server that confirmed the completion (``answered``) and keeps no checksums.
        """
        size_bytes = sum(part.size_bytes for part in parts)
        with contextlib.suppress(NotFoundError), self._translated(f"head of {key}", writes=False):
            answer = self._client.head_object(Bucket=self._bucket, Key=self._root + key, **self._checksums_asked)
            checksum = checksum_of_parts(answer)
            proven = checksum == composite_crc32c(parts) or answer["ETag"] == composite_etag(parts)
            if answer["ContentLength"] == size_bytes and (proven or (answered and not checksum)):
                return object_info(key, size_bytes, answer)
        return None

    def _abort_upload(self, key: str, upload_id: str) -> None:
        with contextlib.suppress(NotFoundError), self._translated(f"abort of an upload of {key}", writes=True):
            self._client.abort_multipart_upload(Bucket=self._bucket, Key=self._root + key, UploadId=upload_id)

    def _list_uploads(self, prefix: str) -> Sequence[UploadInfo]:
        found: dict[tuple[str, str], UploadInfo] = {}
        marker: dict[str, str] = {}
        for _ in range(PAGES_MAX):
            with self._translated(f"list of uploads {prefix!r}", writes=False):
                # Without it, a single key with characters that XML can't hold makes the response unreadable.
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
        except BucketMissingError:
            raise
        except NotFoundError:
            return None

    def close(self) -> None:
        self._client.close()


def _checked_by(checksum: str, body: Body, crc: int) -> Mapping[str, str]:
    """Request parameters with which the server verifies a body."""
    if checksum == CRC32C:
        return {"ChecksumCRC32C": encoded_crc32c(crc)}
    return {"ContentMD5": encoded_md5(body)} if checksum == "md5" else {}


def _starts_past_end(error: OffloaderError) -> bool:
    why = error.__cause__
    return isinstance(why, sdk.ClientError) and bool(why.response["ResponseMetadata"]["HTTPStatusCode"] == 416)
