"""Decrypts payloads of Pulsar messages with private keys that the user names."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from formats.errors import Inconsistent
from offloader.errors import InvalidCall, NotFound, Unsupported

#: Pulsar's clients encrypt the payload with AES in GCM mode and a tag of 16 bytes at its end.
_TAG_BYTES = 16
_KEY_BYTES_MAX = 64 * 1024


class WrongKey(Inconsistent):
    """The key of that name doesn't open a payload."""


class Decryptor:
    """Opens payloads with RSA keys, as Pulsar's clients encrypt them: AES-GCM under a data key, which is encrypted for
    each reader's key (OAEP with SHA-1).

    Args:
        files: name of the key, as the producer gave it -> PEM file of the private key; "": of every name.

    Raises:
        NotFound, InvalidCall: a file that can't be read, or holds no RSA key without a password.
        Unsupported: the package cryptography isn't installed.
    """

    def __init__(self, files: Mapping[str, str]) -> None:
        try:
            from cryptography.hazmat.primitives.serialization import load_pem_private_key
        except ImportError as cause:
            raise Unsupported(
                "the package cryptography isn't installed, which decrypts messages",
                hint="install offloader with its extra pulsar",
            ) from cause
        self._keys: dict[str, Any] = {}
        for name, path in files.items():
            try:
                with Path(path).open("rb") as opened:
                    key = load_pem_private_key(opened.read(_KEY_BYTES_MAX), password=None)
            except OSError as cause:
                raise NotFound(f"key {path} can't be read: {cause.strerror}", hint="check the path") from cause
            except (ValueError, TypeError) as cause:
                hint = "give a private key as PEM, without a password"
                raise InvalidCall(f"{path} is no private key: {cause}", hint=hint) from cause
            if not hasattr(key, "decrypt"):
                raise InvalidCall(f"{path} is no RSA key", hint="only RSA keys are supported")
            self._keys[name] = key

    def __call__(self, metadata: Any, payload: bytes) -> bytes | None:
        """The payload, decrypted; ``None``: it is encrypted for other keys than these.

        Args:
            metadata: protobuf ``MessageMetadata``.

        Raises:
            WrongKey: the key of that name doesn't open it.
        """
        from cryptography.exceptions import InvalidTag
        from cryptography.hazmat.primitives.asymmetric import padding
        from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        from cryptography.hazmat.primitives.hashes import SHA1

        oaep = padding.OAEP(mgf=padding.MGF1(SHA1()), algorithm=SHA1(), label=None)  # noqa: S303 - Pulsar's clients do
        tried = ""
        for each in metadata.encryption_keys:
            key = self._keys.get(each.key) or self._keys.get("")
            if key is None:
                continue
            tried = each.key
            try:
                return AESGCM(key.decrypt(each.value, oaep)).decrypt(metadata.encryption_param, payload, None)
            except (ValueError, InvalidTag):
                continue
        if tried:
            raise WrongKey("encrypted payload", expected=f"one for the given key {tried!a}", found="another key's")
        return None
