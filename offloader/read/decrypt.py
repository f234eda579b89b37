"""Decrypts payloads of Pulsar messages with private keys that the user names."""

from __future__ import annotations

import hmac
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from formats.errors import Inconsistent
from offloader.errors import InvalidCall, NotFound, Unsupported

#: Opens an encrypted data key; raises ``ValueError`` if it was encrypted for another key.
_OpenDataKey = Callable[[bytes], bytes]
_KEY_BYTES_MAX = 64 * 1024
#: ECIES as Pulsar's Java client uses it (Bouncy Castle's defaults): key of the MAC, and the MAC.
_MAC_KEY_BYTES, _MAC_BYTES = 16, 20


class WrongKey(Inconsistent):
    """The key of that name doesn't open a payload."""


class Decryptor:
    """Opens payloads as Pulsar's clients encrypt them: AES-GCM under a data key, which is encrypted for each reader's
    key: an RSA key with OAEP and SHA-1, an EC key with ECIES as the Java client does.

    Args:
        files: name of the key, as the producer gave it -> PEM file of the private key; "": of every name.

    Raises:
        NotFound, InvalidCall: a file that can't be read, or holds no RSA or EC key without a password.
        Unsupported: the package cryptography isn't installed.
    """

    def __init__(self, files: Mapping[str, str]) -> None:
        self._keys: dict[str, _OpenDataKey] = {name: _key_of(path) for name, path in files.items()}

    def __call__(self, metadata: Any, payload: bytes) -> bytes | None:
        """The payload, decrypted; ``None``: it is encrypted for other keys than these.

        Args:
            metadata: protobuf ``MessageMetadata``.

        Raises:
            WrongKey: the key of that name doesn't open it.
        """
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM

        tried = ""
        for each in metadata.encryption_keys:
            open_data_key = self._keys.get(each.key) or self._keys.get("")
            if open_data_key is None:
                continue
            tried = each.key
            try:
                return AESGCM(open_data_key(each.value)).decrypt(metadata.encryption_param, payload, None)
            except (ValueError, InvalidTag):
                continue
        if tried:
            raise WrongKey("encrypted payload", expected=f"one for the given key {tried!a}", found="another key's")
        return None


def _key_of(path: str) -> _OpenDataKey:
    try:
        from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
        from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
        from cryptography.hazmat.primitives.serialization import load_pem_private_key
    except ImportError as cause:
        raise Unsupported(
            "the package cryptography isn't installed, which decrypts messages",
            hint="install offloader with its extra pulsar",
        ) from cause
    try:
        with Path(path).open("rb") as opened:
            key = load_pem_private_key(opened.read(_KEY_BYTES_MAX), password=None)
    except OSError as cause:
        raise NotFound(f"key {path} can't be read: {cause.strerror}", hint="check the path") from cause
    except (ValueError, TypeError) as cause:
        raise InvalidCall(
            f"{path} is no private key: {cause}", hint="give a private key as PEM, without a password"
        ) from cause
    match key:
        case RSAPrivateKey():
            return lambda data: _opened_rsa(key, data)
        case EllipticCurvePrivateKey():
            return lambda data: _opened_ec(key, data)
    raise InvalidCall(f"{path} is neither an RSA nor an EC key", hint="give the key that belongs to the producer's")


def _opened_rsa(key: Any, encrypted: bytes) -> bytes:
    from cryptography.hazmat.primitives.asymmetric import padding
    from cryptography.hazmat.primitives.hashes import SHA1

    oaep = padding.OAEP(mgf=padding.MGF1(SHA1()), algorithm=SHA1(), label=None)  # noqa: S303 - Pulsar's clients do
    return bytes(key.decrypt(encrypted, oaep))


def _opened_ec(key: Any, encrypted: bytes) -> bytes:
    """By ECIES: the sender's point, the data XORed with a key stream, and a MAC of it.

    Stream and key of the MAC come from the point and the shared secret by KDF2 with SHA-1; the MAC's key comes first.
    """
    from cryptography.hazmat.primitives.asymmetric.ec import ECDH, EllipticCurvePublicKey
    from cryptography.hazmat.primitives.hashes import SHA1
    from cryptography.hazmat.primitives.kdf.x963kdf import X963KDF

    size = (key.curve.key_size + 7) // 8
    # Uncompressed (4), or only one coordinate and the other's sign (2 and 3).
    point_bytes = 1 + (2 * size if encrypted[:1] == b"\x04" else size)
    point, data, mac = encrypted[:point_bytes], encrypted[point_bytes:-_MAC_BYTES], encrypted[-_MAC_BYTES:]
    secret = key.exchange(ECDH(), EllipticCurvePublicKey.from_encoded_point(key.curve, point))
    stream = X963KDF(SHA1(), _MAC_KEY_BYTES + len(data), b"").derive(point + secret)  # noqa: S303 - Java's client does
    # The MAC covers the length of its parameter too, which is empty.
    if not hmac.compare_digest(hmac.digest(stream[:_MAC_KEY_BYTES], data + bytes(8), "sha1"), mac):
        raise ValueError("the data key is another key's")
    return bytes(one ^ other for one, other in zip(data, stream[_MAC_KEY_BYTES:], strict=True))
