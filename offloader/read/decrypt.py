"""Decrypt payloads of Pulsar messages with the user's private keys."""

from __future__ import annotations

import hmac
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from formats.errors import InconsistentError
from offloader.errors import InvalidCallError, NotFoundError, UnsupportedError

#: Decrypts an encrypted data key; raises ``ValueError`` if it was encrypted for another key.
_OpenDataKey = Callable[[bytes], bytes]
_KEY_BYTES_MAX = 64 * 1024
#: ECIES as in Pulsar's Java client (Bouncy Castle's defaults): length of the MAC key, and of the MAC.
_MAC_KEY_BYTES, _MAC_BYTES = 16, 20


class WrongKey(InconsistentError):
    """The named key does not decrypt a payload."""


class Decryptor:
    """Decrypts payloads of Pulsar clients: AES-GCM under a data key, which is encrypted for each reader's key.

    An RSA key uses OAEP with SHA-1, an EC key uses ECIES as in the Java client.

    Args:
        files: key name given by the producer -> PEM file of the private key; "": for every name.

    Raises:
        NotFoundError, InvalidCallError: a file is unreadable, or has no RSA or EC key without a password.
        UnsupportedError: the package cryptography is not installed.
    """

    def __init__(self, files: Mapping[str, str]) -> None:
        self._keys: dict[str, _OpenDataKey] = {name: _key_of(path) for name, path in files.items()}

    def __call__(self, metadata: Any, payload: bytes) -> bytes | None:
        """The decrypted payload; ``None``: it is encrypted for other keys.

        Args:
            metadata: protobuf ``MessageMetadata``.

        Raises:
            WrongKey: the named key does not decrypt it.
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
            raise WrongKey(
                "encrypted payload",
                expected=f"one for the given key {tried!a}",
                found="one for another key",
            )
        return None


def _key_of(path: str) -> _OpenDataKey:
    try:
        from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
        from cryptography.hazmat.primitives.asymmetric.rsa import RSAPrivateKey
        from cryptography.hazmat.primitives.serialization import load_pem_private_key
    except ImportError as cause:
        raise UnsupportedError(
            "the package cryptography, which decrypts messages, is not installed",
            hint="install offloader with the extra pulsar",
        ) from cause
    try:
        with Path(path).open("rb") as opened:
            key = load_pem_private_key(opened.read(_KEY_BYTES_MAX), password=None)
    except OSError as cause:
        raise NotFoundError(f"cannot read key {path}: {cause.strerror}", hint="check the path") from cause
    except (ValueError, TypeError) as cause:
        raise InvalidCallError(
            f"{path} is not a private key: {cause}", hint="give a private key in PEM format, without a password"
        ) from cause
    match key:
        case RSAPrivateKey():
            return lambda data: _opened_rsa(key, data)
        case EllipticCurvePrivateKey():
            return lambda data: _opened_ec(key, data)
    raise InvalidCallError(
        f"{path} is neither an RSA nor an EC key", hint="give the private key that matches the producer's public key"
    )


def _opened_rsa(key: Any, encrypted: bytes) -> bytes:
    from cryptography.hazmat.primitives.asymmetric import padding
    from cryptography.hazmat.primitives.hashes import SHA1

    oaep = padding.OAEP(mgf=padding.MGF1(SHA1()), algorithm=SHA1(), label=None)  # noqa: S303 - Pulsar's clients do
    return bytes(key.decrypt(encrypted, oaep))


def _opened_ec(key: Any, encrypted: bytes) -> bytes:
    """Decrypt by ECIES: the sender's point, the data XORed with a key stream, and a MAC.

    The key stream and the MAC key are derived from the point and the shared secret by KDF2 with SHA-1; the MAC key
    comes first.
    """
    from cryptography.hazmat.primitives.asymmetric.ec import ECDH, EllipticCurvePublicKey
    from cryptography.hazmat.primitives.hashes import SHA1
    from cryptography.hazmat.primitives.kdf.x963kdf import X963KDF

    size = (key.curve.key_size + 7) // 8
    # Uncompressed (4), or one coordinate and the sign of the other (2 and 3).
    point_bytes = 1 + (2 * size if encrypted[:1] == b"\x04" else size)
    point, data, mac = encrypted[:point_bytes], encrypted[point_bytes:-_MAC_BYTES], encrypted[-_MAC_BYTES:]
    secret = key.exchange(ECDH(), EllipticCurvePublicKey.from_encoded_point(key.curve, point))
    stream = X963KDF(SHA1(), _MAC_KEY_BYTES + len(data), b"").derive(point + secret)  # noqa: S303 - Java's client does
    # The MAC also covers the length of its parameter, which is empty.
    if not hmac.compare_digest(hmac.digest(stream[:_MAC_KEY_BYTES], data + bytes(8), "sha1"), mac):
        raise ValueError("the data key was encrypted for another key")
    return bytes(one ^ other for one, other in zip(data, stream[_MAC_KEY_BYTES:], strict=True))
