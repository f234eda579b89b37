"""S3 client creation."""

from __future__ import annotations

import functools
import threading
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

import boto3
import botocore.session
from botocore import UNSIGNED
from botocore.config import Config
from botocore.credentials import RefreshableCredentials
from botocore.exceptions import BotoCoreError
from botocore.loaders import JSONFileLoader, Loader
from botocore.parsers import ResponseParserError
from botocore.utils import parse_timestamp

from offloader.runtime.clock import Clock
from offloader.store.base import StoreOptions
from offloader.store.s3_responses import encoded_md5, is_aws, parsed_time

#: Operations that the store and ``doctor`` call, and those that the SDK calls for directory buckets and for buckets of
#: other regions.
OPERATIONS = (
    "AbortMultipartUpload",
    "CompleteMultipartUpload",
    "CreateMultipartUpload",
    "CreateSession",
    "DeleteObject",
    "DeleteObjects",
    "GetBucketLifecycleConfiguration",
    "GetBucketLocation",
    "GetBucketVersioning",
    "GetObject",
    "GetObjectLockConfiguration",
    "HeadBucket",
    "HeadObject",
    "ListMultipartUploads",
    "ListObjectsV2",
    "ListParts",
    "PutObject",
    "UploadPart",
)
#: Operations whose response may be empty -> beginning of the name of its element (``ListPartsResult``, and moto's
#: ``ListPartsOutput``).
_ANSWERS = {"DeleteObjects": b"Delete", "ListMultipartUploads": b"ListMultipartUploads", "ListParts": b"ListParts"}
#: Services with a required endpoint: the store, and the issuers of temporary credentials.
_SERVICES = ("s3", "sts", "oidc", "portal.sso", "signin", "sso")


class _Descriptions(JSONFileLoader):  # type: ignore[misc]  # the SDK has no types
    """The SDK's service descriptions without unused operations. Saves eleven megabytes of memory."""

    def load_file(self, file_path: str) -> Any:
        found = super().load_file(file_path)
        where = PurePath(file_path).parts
        if found and where[-1] == "endpoints":
            for partition in found["partitions"]:
                partition["services"] = {n: v for n, v in partition["services"].items() if n in _SERVICES}
        if found and where[-1] == "service-2" and where[-3] == "s3":
            found["operations"] = {n: v for n, v in found["operations"].items() if n in OPERATIONS}
            shapes = found["shapes"]
            found["shapes"] = {name: shapes[name] for name in _needed(found["operations"], shapes)}
        return found


def _needed(operations: Mapping[str, Any], shapes: Mapping[str, Any]) -> set[str]:
    needed: set[str] = set()
    waiting: list[Any] = list(operations.values())
    while waiting:
        each = waiting.pop()
        if isinstance(each, list):
            waiting += each
        elif isinstance(each, Mapping):
            waiting += each.values()
            name = each.get("shape")
            if isinstance(name, str) and name not in needed:
                needed.add(name)
                waiting.append(shapes[name])
    return needed


@functools.cache
def described_services() -> Any:
    """The SDK's descriptions: megabytes of JSON. Parsed once per process, a store opens in a third of the time."""
    return Loader(file_loader=_Descriptions())


def open_client(options: StoreOptions) -> Any:
    """Create an S3 client. Sends nothing. Raises the SDK's errors for an invalid region, endpoint or profile."""
    core, settings = _session(), options.settings
    core.get_component("response_parser_factory").set_parser_defaults(
        timestamp_parser=functools.partial(parsed_time, otherwise=parse_timestamp)
    )
    session = boto3.session.Session(
        botocore_session=core,
        aws_access_key_id=options.access_key,
        aws_secret_access_key=options.secret_key,
        aws_session_token=options.session_token,
    )

    def built(addressing: str) -> Any:
        config = Config(
            connect_timeout=settings.connect_timeout,
            read_timeout=settings.read_timeout,
            max_pool_connections=settings.connections_max,
            retries={"total_max_attempts": 1, "mode": "standard"},
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            # Without a checksum, only the signature protects a body in transit.
            s3={"payload_signing_enabled": settings.checksum == "none", "addressing_style": addressing},
            user_agent_extra="offloader",
        )
        client = session.client(
            "s3",
            region_name=options.region or session.region_name or "us-east-1",
            endpoint_url=options.endpoint_url,
            config=config,
        )
        for operation, name in _ANSWERS.items():
            check = functools.partial(_require_element, name)
            # After the SDK's handler, which finds the errors in a 200.
            client.meta.events.register_last(f"before-parse.s3.{operation}", check)
        client.meta.events.register_first("choose-signer.s3.GetObject", _presigned_by)
        client.meta.events.register_first("before-endpoint-resolution.s3", _presigned_for)
        if options.access_key is None:
            renewal = _Renewal(client, options.clock)
            client.meta.events.register_first("before-sign.s3", renewal.signing)
            client.meta.events.register_first("needs-retry.s3", renewal.answered)
        return client

    # Self-hosted servers rarely have a host name per bucket.
    if options.endpoint_url and not is_aws(options.endpoint_url):
        return built("path")
    client = built("auto")
    if is_aws(client.meta.endpoint_url):
        return client
    client.close()  # the environment or a profile sets a self-hosted server
    return built("path")


def _session() -> Any:
    core = botocore.session.get_session()
    core.register_component("data_loader", described_services())
    return core


#: Error codes for access keys that the server doesn't know or has revoked. The response to a HEAD has only a status.
_STALE_KEYS = frozenset(
    {
        "400",
        "401",
        "403",
        "ExpiredToken",
        "InvalidAccessKeyId",
        "InvalidToken",
        "InvalidTokenId",
        "SignatureDoesNotMatch",
        "TokenRefreshRequired",
    }
)
#: Minimum time between two attempts to read new keys.
RENEWAL_S_MIN = 1.0


class _Renewal:
    """Reloads a client's access keys when the server refuses them, and resends the request once with new keys.

    The SDK renews temporary keys before they expire. It keeps keys from a file until the process ends, and doesn't
    notice that keys were revoked.
    """

    def __init__(self, client: Any, clock: Clock) -> None:
        self._client, self._clock = client, clock
        self._lock = threading.Lock()
        self._generation = 0
        self._next_look_s = 0.0

    def signing(self, request: Any, **_: object) -> None:
        """Record the keys that sign a request."""
        request.context[_GENERATION] = self._generation

    def answered(self, response: Any, attempts: int, request_dict: Mapping[str, Any], **_: object) -> int | None:
        """Seconds after which the SDK resends the request; ``None``: never."""
        if attempts > 1 or response is None or response[1].get("Error", {}).get("Code") not in _STALE_KEYS:
            return None
        with self._lock:
            is_renewed = request_dict["context"].get(_GENERATION, 0) < self._generation or self._could_renew()
        return 0 if is_renewed else None

    def _could_renew(self) -> bool:
        if self._clock.monotonic_s() < self._next_look_s:
            return False
        self._next_look_s = self._clock.monotonic_s() + RENEWAL_S_MIN
        signer = self._client._request_signer  # noqa: SLF001 - the SDK doesn't show them
        try:
            found = _session().get_credentials()
            if found is None or found.get_frozen_credentials() == signer._credentials.get_frozen_credentials():  # noqa: SLF001
                return False
        except (BotoCoreError, OSError):  # the server's refusal is more informative
            return False
        signer._credentials = found  # noqa: SLF001
        self._generation += 1
        return True


_GENERATION = "offloader_keys"


def preload() -> None:
    """Load the modules and descriptions of clients, for processes that are forked from this one.

    Sends nothing, and starts no thread. Raises the SDK's errors, as ``open_client``.
    """
    unused = "-"
    nobody = StoreOptions(endpoint_url="http://localhost", region="us-east-1", access_key=unused, secret_key=unused)
    open_client(nobody).close()


def _require_element(name: bytes, response_dict: Mapping[str, Any], **_: object) -> None:
    """Refuse the success of a server that isn't S3. The SDK takes its page, or an empty body, for an empty result."""
    if response_dict["status_code"] == 200 and name not in response_dict["body"]:
        raise ResponseParserError(f"the body of a 200 response has no element {name.decode()}...")


def send_content_md5(client: Any) -> None:
    """Let ``client`` send ``Content-MD5`` with each multi-delete, instead of the SDK's checksum. Servers require one of
    them; Amazon accepts both, many other servers only ``Content-MD5``."""
    client.meta.events.register_last("before-call.s3.DeleteObjects", _with_content_md5)


def _with_content_md5(params: dict[str, Any], **_: object) -> None:
    params["headers"]["Content-MD5"] = encoded_md5(params["body"])
    params["context"].pop("checksum", None)  # else the SDK adds its own


def _presigned_by(signature_version: object, **_: object) -> str | None:
    """Signature version of a signed URL. The SDK's default in old regions, version 2, can't read encrypted objects."""
    return "s3v4-query" if signature_version in ("s3-query", "s3v4-query", "v4-query") else None


def _presigned_for(context: dict[str, Any], **_: object) -> None:
    """Host of a signed URL. The SDK's default, the global host, may redirect to a host that the signature excludes."""
    if context.get("is_presign_request"):
        context["use_global_endpoint"] = False


def signing_seconds(client: Any, otherwise: float) -> float:
    """Longest validity of a URL signed now: the remaining time of temporary credentials, or else ``otherwise``.

    0: there are no credentials, or they must be renewed first.
    """
    credentials = client._request_signer._credentials  # noqa: SLF001 - the SDK doesn't show them
    if credentials is None or client.meta.config.signature_version is UNSIGNED:
        return 0.0
    if not isinstance(credentials, RefreshableCredentials):
        return otherwise
    # The store's next request renews the credentials.
    return 0.0 if credentials.refresh_needed() else float(credentials._seconds_remaining())  # noqa: SLF001
