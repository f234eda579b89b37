"""Certificates for tests: an authority, and what it signs for servers and clients."""

from __future__ import annotations

import datetime
import ipaddress
import ssl
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

__all__ = ["Authority"]

_YEARS = datetime.timedelta(days=3650)


@dataclass
class Authority:
    """Signs certificates; its own is ``ca_file``."""

    folder: Path

    def __post_init__(self) -> None:
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "test authority")])
        builder = self._builder(self._name, self._key, expired=False)
        usage = dict.fromkeys(
            ("digital_signature", "content_commitment", "key_encipherment", "data_encipherment", "key_agreement"), False
        )
        signs = x509.KeyUsage(**usage, key_cert_sign=True, crl_sign=True, encipher_only=False, decipher_only=False)
        certificate = (
            builder.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
            .add_extension(signs, critical=True)
            .sign(self._key, hashes.SHA256())
        )
        self.ca_file = self.folder / "ca.pem"
        self.ca_file.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))

    def server(self, host: str = "127.0.0.1", *, expired: bool = False) -> ssl.SSLContext:
        """For a server called ``host``."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(self.issue(host, expired=expired))
        return context

    def issue(self, name: str, *, expired: bool = False) -> Path:
        """Certificate and key, in one file, of a server or client called ``name``."""
        key = ec.generate_private_key(ec.SECP256R1())
        alternative: x509.GeneralName = x509.DNSName(name)
        if name[0].isdigit():
            alternative = x509.IPAddress(ipaddress.ip_address(name))
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        builder = self._builder(subject, key, expired=expired)
        builder = builder.add_extension(x509.SubjectAlternativeName([alternative]), critical=False)
        signed = builder.sign(self._key, hashes.SHA256())
        file = self.folder / f"{name}-{expired}.pem"
        private = key.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
        file.write_bytes(private + signed.public_bytes(serialization.Encoding.PEM))
        return file

    def _builder(
        self, subject: x509.Name, key: ec.EllipticCurvePrivateKey, *, expired: bool
    ) -> x509.CertificateBuilder:
        now = datetime.datetime.now(datetime.UTC)
        end = now - datetime.timedelta(days=1) if expired else now + _YEARS
        return (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._name)
            .public_key(key.public_key())
            .serial_number(x509.random_serial_number())
            .not_valid_before(now - _YEARS)
            .not_valid_after(end)
            # Without them Python 3.13 refuses a certificate.
            .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
            .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key()), critical=False)
        )
