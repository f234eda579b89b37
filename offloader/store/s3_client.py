"""The S3 SDK, set up: who signs, how long it waits, how it addresses buckets.

Owns making the SDK's client. Must never send a request, nor let the SDK retry or hash bodies by itself.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from pathlib import PurePath
from typing import Any

import boto3
import botocore.session
from botocore.config import Config
from botocore.loaders import JSONFileLoader, Loader
from botocore.utils import parse_timestamp

from offloader.store.base import StoreOptions
from offloader.store.s3_answers import is_aws, parsed_time

__all__ = ["OPERATIONS", "described_services", "open_client"]


#: What the store calls, and what the SDK calls by itself: for directory buckets, and for buckets of other regions.
OPERATIONS = (
    "AbortMultipartUpload",
    "CompleteMultipartUpload",
    "CreateMultipartUpload",
    "CreateSession",
    "DeleteObject",
    "DeleteObjects",
    "GetBucketLocation",
    "GetObject",
    "HeadBucket",
    "HeadObject",
    "ListMultipartUploads",
    "ListObjectsV2",
    "ListParts",
    "PutObject",
    "UploadPart",
)
#: Services with addresses that are needed: the store, and whoever gives credentials for a time.
_SERVICES = ("s3", "sts", "oidc", "portal.sso", "signin", "sso")


class _Descriptions(JSONFileLoader):  # type: ignore[misc]  # the SDK has no types
    """The SDK's description of its services without what is never used: eleven megabytes of memory."""

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
    """Names of the shapes that operations are made of."""
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
    """The SDK's descriptions: megabytes of JSON, parsed once per process, which makes a store open in a third."""
    return Loader(file_loader=_Descriptions())


def open_client(options: StoreOptions) -> Any:
    """A client for S3. Nothing is sent before its first call.

    Raises:
        what the SDK raises: a region, endpoint or profile that can't be.
    """
    core, settings = botocore.session.get_session(), options.settings
    core.register_component("data_loader", described_services())
    times = functools.partial(parsed_time, otherwise=parse_timestamp)
    core.get_component("response_parser_factory").set_parser_defaults(timestamp_parser=times)
    session = boto3.session.Session(
        botocore_session=core,
        aws_access_key_id=options.access_key,
        aws_secret_access_key=options.secret_key,
        aws_session_token=options.session_token,
    )

    def built(addressing: str) -> Any:
        config = Config(
            connect_timeout=settings.connect_timeout_s,
            read_timeout=settings.read_timeout_s,
            max_pool_connections=settings.connections_max,
            retries={"total_max_attempts": 1, "mode": "standard"},
            request_checksum_calculation="when_required",
            response_checksum_validation="when_required",
            s3={"payload_signing_enabled": False, "addressing_style": addressing},
            user_agent_extra="offloader",
        )
        region = options.region or session.region_name or "us-east-1"
        return session.client("s3", region_name=region, endpoint_url=options.endpoint_url, config=config)

    # A server of one's own rarely has a host name per bucket.
    if options.endpoint_url and not is_aws(options.endpoint_url):
        return built("path")
    client = built("auto")
    if is_aws(client.meta.endpoint_url):
        return client
    client.close()  # the environment or a profile names such a server
    return built("path")
