"""What an S3 server's error code means: the one table.

Owns code or HTTP status -> error class and hint. Must never name the SDK or touch a connection.
"""

from __future__ import annotations

from offloader.errors import (
    AccessDenied,
    BucketMissing,
    InvalidCall,
    NotFound,
    OffloaderError,
    OutcomeUnknown,
    Overloaded,
    PreconditionFailed,
    StoreUnavailable,
    Throttled,
    Unsupported,
)

__all__ = ["meaning_of"]

_CREDENTIALS = "check the credentials: environment, profile, or access_key and secret_key"
_PERMISSION = "check the credentials and the bucket's policy"
_REGION = "check --region and --endpoint-url: the bucket is served elsewhere"
_NESTED = "this server can't hold an object whose key continues another one's"
_AGAIN = "try again"
_LOOK = "look before repeating it"
#: The one code by which S3 says that it didn't begin with a request. MinIO's SlowDownWrite isn't: it is also the answer
#: of a server that wrote to some of its disks.
_NOT_BEGUN = "SlowDown"

_CODES: dict[str, tuple[type[OffloaderError], str]] = {
    "NoSuchKey": (NotFound, ""),
    "NoSuchUpload": (NotFound, "the upload was completed or aborted"),
    "NoSuchBucket": (BucketMissing, "create the bucket, or check its name and --endpoint-url"),
    "PreconditionFailed": (PreconditionFailed, ""),
    "AccessDenied": (AccessDenied, _PERMISSION),
    "AllAccessDisabled": (AccessDenied, _PERMISSION),
    "AccountProblem": (AccessDenied, _PERMISSION),
    "Forbidden": (AccessDenied, _PERMISSION),
    "InvalidAccessKeyId": (AccessDenied, _CREDENTIALS),
    "SignatureDoesNotMatch": (AccessDenied, _CREDENTIALS),
    "ExpiredToken": (AccessDenied, "the session expired: get new credentials"),
    "InvalidToken": (AccessDenied, "the session isn't valid: get new credentials"),
    "TokenRefreshRequired": (AccessDenied, "the session expired: get new credentials"),
    "RequestTimeTooSkewed": (AccessDenied, "set this machine's clock"),
    "RequestExpired": (AccessDenied, "set this machine's clock"),
    "SlowDown": (Throttled, _AGAIN),
    "SlowDownRead": (Throttled, _AGAIN),
    "SlowDownWrite": (Throttled, _AGAIN),
    "ServiceUnavailable": (Throttled, _AGAIN),
    "Throttling": (Throttled, _AGAIN),
    "ThrottlingException": (Throttled, _AGAIN),
    "RequestThrottled": (Throttled, _AGAIN),
    "RequestLimitExceeded": (Throttled, _AGAIN),
    "TooManyRequests": (Throttled, _AGAIN),
    "BandwidthLimitExceeded": (Throttled, _AGAIN),
    # Two conditional writes met: neither is told that it won, and asking again settles it.
    "ConditionalRequestConflict": (StoreUnavailable, _AGAIN),
    "OperationAborted": (StoreUnavailable, _AGAIN),
    # The body didn't arrive as it was sent; nothing was stored.
    "RequestTimeout": (StoreUnavailable, _AGAIN),
    "IncompleteBody": (StoreUnavailable, _AGAIN),
    "BadDigest": (StoreUnavailable, "the body was damaged on its way: try again"),
    "XAmzContentChecksumMismatch": (StoreUnavailable, "the body was damaged on its way: try again"),
    "XAmzContentSHA256Mismatch": (StoreUnavailable, "the body was damaged on its way: try again"),
    "XMinioServerNotInitialized": (StoreUnavailable, "the server is starting: try again"),
    "XMinioStorageFull": (StoreUnavailable, "free some space on the server"),
    "InsufficientCapacity": (StoreUnavailable, "free some space on the server"),
    "PermanentRedirect": (InvalidCall, _REGION),
    "TemporaryRedirect": (StoreUnavailable, _REGION),
    "AuthorizationHeaderMalformed": (InvalidCall, _REGION),
    "IllegalLocationConstraintException": (InvalidCall, _REGION),
    "InvalidBucketName": (InvalidCall, "check the bucket's name"),
    "EntityTooSmall": (InvalidCall, "every part but the last needs 5 MiB: raise part_bytes"),
    "EntityTooLarge": (InvalidCall, "the object is larger than the server takes in one request: upload parts"),
    "InvalidPart": (InvalidCall, "a part isn't what was uploaded"),
    "InvalidPartOrder": (InvalidCall, "pass the parts in order"),
    "ObjectParentIsFile": (Unsupported, _NESTED),
    "XMinioParentIsObject": (Unsupported, _NESTED),
    "XMinioObjectExistsAsDirectory": (Unsupported, _NESTED),
    "InvalidStorageClass": (InvalidCall, "check store.storage_class: not every server has every class"),
    "InvalidEncryptionAlgorithmError": (InvalidCall, "check store.encryption: not every server offers it"),
    "InvalidObjectState": (Unsupported, "the object lies in an archive class: restore it first, then repeat this"),
    "KMS.NotFoundException": (InvalidCall, "check store.kms_key and its region"),
    "KMS.DisabledException": (AccessDenied, "enable the KMS key that the objects are encrypted with"),
    "KMS.KMSInvalidStateException": (AccessDenied, "enable the KMS key that the objects are encrypted with"),
    "NotImplemented": (Unsupported, "the server doesn't offer this"),
    "MethodNotAllowed": (Unsupported, "the server doesn't offer this"),
}

_STATUSES: dict[int, tuple[type[OffloaderError], str]] = {
    301: _CODES["PermanentRedirect"],
    307: _CODES["TemporaryRedirect"],
    401: _CODES["InvalidAccessKeyId"],
    403: _CODES["AccessDenied"],
    404: _CODES["NoSuchKey"],
    408: _CODES["RequestTimeout"],
    412: _CODES["PreconditionFailed"],
    429: _CODES["TooManyRequests"],
    501: _CODES["NotImplemented"],
    503: _CODES["ServiceUnavailable"],
    507: _CODES["InsufficientCapacity"],
}


def meaning_of(code: str, status: int, *, writes: bool) -> tuple[type[OffloaderError], str]:
    """The error class and hint for an error answer.

    A gateway answers 503 or 507 also after it forwarded a request. So does a server that gives up half-way. Whether a
    write happened is therefore unknown after every 5xx that asks to try again, unless its code is ``SlowDown``.

    Args:
        code: the ``Code`` of the answer's body; for an answer without one, the SDK's text of the status.
        status: HTTP status; 200 for an error inside the body of a success.
        writes: whether the request may have changed something.
    """
    is_server_error = status >= 500 or status < 300
    kind, hint = (
        _CODES.get(code)
        or _STATUSES.get(status)
        or ((StoreUnavailable, _AGAIN) if is_server_error else (InvalidCall, "the server refused the request"))
    )
    if not (writes and is_server_error and issubclass(kind, StoreUnavailable)) or code == _NOT_BEGUN:
        return kind, hint
    if issubclass(kind, Throttled):
        return Overloaded, _LOOK
    return OutcomeUnknown, _LOOK if hint == _AGAIN else f"{hint}; {_LOOK}"
