"""GETs by the S3 SDK, and those of further ranges of an object past most of it.

Owns which signatures are used again. Must never decide what a refusal means (the SDK is asked then, which knows about
regions, clocks and credentials), nor let an answer through that the SDK would have refused.

The SDK takes one to two milliseconds of processor for a request: as long as a block of 1 MiB takes altogether. A
signature covers the headers that it names, and ``Range`` needn't be one of them; servers take it for 15 minutes. So one
request for an object is signed without its range, and what was sent serves for the next ranges of the same object.
"""

from __future__ import annotations

import re
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from email.utils import parsedate_to_datetime
from typing import Any

from botocore.awsrequest import AWSPreparedRequest
from botocore.exceptions import ClientError
from botocore.response import StreamingBody

from offloader.clock import Clock

__all__ = ["SIGNATURES_KEPT_MAX", "SIGNATURE_SECONDS", "Gets"]

#: How long a signature is used: much less than servers allow, and than credentials that are about to end still last.
SIGNATURE_SECONDS = 60.0
#: Objects whose signatures are kept; about 2 KiB each.
SIGNATURES_KEPT_MAX = 256

#: Another region or address, a clock that is off, credentials that ended, a server that wants the range signed.
_SDK_STATUSES = frozenset({301, 302, 307, 308, 400, 401, 403})
_METADATA = "x-amz-meta-"
_CODE = re.compile(rb"<Code>([^<]*)</Code>")
_MESSAGE = re.compile(rb"<Message>([^<]*)</Message>")


@dataclass(frozen=True, slots=True)
class _Signed:
    """A request that was answered, without its range.

    Its headers have the signature, and a token where credentials are for a time: nothing that is ever shown.
    """

    url: str
    headers: Mapping[str, str] = field(repr=False)
    until_s: float


class Gets:
    """GETs of one bucket. Thread-safe.

    Args:
        client: the SDK's.
        bucket: its name.
        clock: measures the age of signatures.
    """

    def __init__(self, client: Any, bucket: str, clock: Clock) -> None:
        self._client = client
        self._bucket = bucket
        self._clock = clock
        # Connections, proxies, certificates and time limits are the SDK's own. It has no public name for them; without
        # them every request goes the SDK's way.
        self._connections = getattr(getattr(client, "_endpoint", None), "http_session", None)
        self._lock = threading.Lock()
        self._signed: OrderedDict[str, _Signed] = OrderedDict()
        self._asking = threading.local()
        client.meta.events.register("before-send.s3.GetObject", self._before_send)

    def answer(self, full_key: str, wanted: Mapping[str, str]) -> Mapping[str, Any]:
        """The answer to a GET in the SDK's form, its body not read yet.

        Args:
            full_key: the object's key in the bucket.
            wanted: parameters besides bucket and key.

        Raises:
            what the SDK raises.
        """
        if wanted.keys() != {"Range"} or self._connections is None:
            answer: Mapping[str, Any] = self._client.get_object(Bucket=self._bucket, Key=full_key, **wanted)
            return answer
        signed = self._held(full_key)
        again = None if signed is None else self._send(signed, wanted["Range"])
        return self._ask_sdk(full_key, wanted["Range"]) if again is None else again

    def _ask_sdk(self, full_key: str, byte_range: str) -> Mapping[str, Any]:
        asking = self._asking
        asking.byte_range, asking.sent = byte_range, None
        try:
            answer: Mapping[str, Any] = self._client.get_object(Bucket=self._bucket, Key=full_key)
            sent = asking.sent
        finally:
            asking.byte_range = asking.sent = None
        if sent is not None:
            with self._lock:
                self._signed[full_key] = sent
                self._signed.move_to_end(full_key)
                if len(self._signed) > SIGNATURES_KEPT_MAX:
                    self._signed.popitem(last=False)
        return answer

    def _before_send(self, request: Any, **_: object) -> None:
        """Told by the SDK of each request that it signed; adds the range, if this thread asks for one here."""
        byte_range = getattr(self._asking, "byte_range", None)
        if byte_range is not None:
            self._asking.sent = _Signed(
                request.url, dict(request.headers.items()), self._clock.monotonic_s() + SIGNATURE_SECONDS
            )
            request.headers["Range"] = byte_range

    def _held(self, full_key: str) -> _Signed | None:
        with self._lock:
            signed = self._signed.get(full_key)
            if signed is None or signed.until_s <= self._clock.monotonic_s():
                return None
            self._signed.move_to_end(full_key)
            return signed

    def _send(self, signed: _Signed, byte_range: str) -> Mapping[str, Any] | None:
        """The answer; ``None`` when the SDK shall ask."""
        assert self._connections is not None
        headers = {**signed.headers, "Range": byte_range}
        response = self._connections.send(AWSPreparedRequest("GET", signed.url, headers, None, stream_output=True))
        status = response.status_code
        if status in (200, 206):
            try:
                return _answered(response)
            except BaseException:
                response.raw.close()
                raise
        body: bytes = response.content
        if status in _SDK_STATUSES:
            return None
        raise ClientError(
            {
                "Error": {"Code": _first(_CODE, body) or str(status), "Message": _first(_MESSAGE, body)},
                "ResponseMetadata": {"HTTPStatusCode": status},
            },
            "GetObject",
        )


def _answered(response: Any) -> Mapping[str, Any]:
    """Head and body as the SDK would give them; a ``KeyError``: no answer of S3's."""
    headers = {name.lower(): value for name, value in response.headers.items()}
    answer = {
        "Body": StreamingBody(response.raw, headers["content-length"]),
        "ContentLength": int(headers["content-length"]),
        "ETag": headers["etag"],
        "LastModified": parsedate_to_datetime(headers["last-modified"]),
        "Metadata": {
            name.removeprefix(_METADATA): value for name, value in headers.items() if name.startswith(_METADATA)
        },
    }
    if "content-range" in headers:
        answer["ContentRange"] = headers["content-range"]
    return answer


def _first(pattern: re.Pattern[bytes], body: bytes) -> str:
    found = pattern.search(body)
    return "" if found is None else found[1].decode(errors="replace")
