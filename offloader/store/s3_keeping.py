"""How S3 keeps a new object: storage class and encryption.

Owns which headers of that a request has. Must never send one, nor name a class whose objects can't be read at once.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from offloader.errors import InvalidCall
from offloader.settings import StoreSettings

__all__ = ["CLASS_BYTES_MIN", "keeping_of"]

#: The cheaper classes charge smaller objects as if they had this size, and don't move them: they stay in STANDARD. So
#: does what a stream's state consists of, which is read and written often.
CLASS_BYTES_MIN = 128 * 1024
_CLASS = re.compile(r"[A-Z][A-Z0-9_-]{0,63}")
#: Objects in them have to be restored before they can be read, which takes minutes to days.
_ARCHIVES = ("GLACIER", "DEEP_ARCHIVE", "SNOW")


def keeping_of(settings: StoreSettings) -> Callable[[int | None], Mapping[str, str]]:
    """What to add to a request that makes an object, by the object's size in bytes; ``None``: it comes in parts.

    Raises:
        InvalidCall: a storage class that isn't one, or is an archive; a key without encryption by it.
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
    encryption: dict[str, str] = {}
    if settings.encryption != "bucket":
        encryption["ServerSideEncryption"] = settings.encryption
    if settings.kms_key:
        encryption["SSEKMSKeyId"] = settings.kms_key
    with_class = {**encryption, "StorageClass": chosen} if chosen else encryption
    return lambda size_bytes: encryption if size_bytes is not None and size_bytes < CLASS_BYTES_MIN else with_class
