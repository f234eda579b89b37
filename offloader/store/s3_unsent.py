"""Whether a request that got no answer was never sent, so that it can't have had an effect.

Owns which of the SDK's errors say so. Must never call a request unsent that may have arrived: who is told that tries
another write instead of looking.
"""

from __future__ import annotations

import ssl
from collections.abc import Iterator

import botocore.exceptions as sdk

__all__ = ["was_never_sent"]

#: Raised before anything is sent.
_UNSENT = (sdk.EndpointConnectionError, sdk.ConnectTimeoutError)
#: Raised before, and also when the connection broke later: urllib3 forgets that it was connected to a proxy when it
#: closes the connection, and TLS can fail in the middle of an answer.
_DOUBTFUL = (sdk.ProxyConnectionError, sdk.SSLError)
#: What urllib3 calls an attempt to connect (by name, as its classes are the SDK's own affair).
_CONNECTING = frozenset({"NewConnectionError", "NameResolutionError", "ConnectTimeoutError"})
#: OpenSSL's reasons that end a handshake.
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
    """Whether no byte of the request can have reached the server; false where that isn't certain."""
    if isinstance(error, _UNSENT):
        return True
    return isinstance(error, _DOUBTFUL) and any(_ended_at_the_door(cause) for cause in _causes(error))


def _ended_at_the_door(cause: BaseException) -> bool:
    if isinstance(cause, ssl.SSLError):
        return cause.reason in _HANDSHAKE
    # The proxy's refusal to connect any further.
    return type(cause).__name__ in _CONNECTING or str(cause).startswith("Tunnel connection failed")


def _causes(error: BaseException) -> Iterator[BaseException]:
    """Everything it was raised because of, or wraps."""
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
