"""Certificate authorities of tests, as files."""

from __future__ import annotations

import datetime
import ipaddress
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

_BEGIN = datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC)
_END = datetime.datetime(2120, 1, 1, tzinfo=datetime.UTC)
_SIGNS = x509.KeyUsage(
    key_cert_sign=True,
    **dict.fromkeys(
        (
            "digital_signature",
            "content_commitment",
            "key_encipherment",
            "data_encipherment",
            "key_agreement",
            "crl_sign",
            "encipher_only",
            "decipher_only",
        ),
        False,
    ),
)
"""With the identifiers of the keys what Python requires of certificates since 3.13."""


@dataclass(frozen=True)
class Signed:
    """Files of a certificate and its key."""

    cert: Path
    key: Path


class Authority:
    """Signs certificates of the service and of clients."""

    def __init__(self, directory: Path, name: str = "authority") -> None:
        self._directory = directory
        self._name = name
        self._key = ec.generate_private_key(ec.SECP256R1())
        self._subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        builder = self._begun(self._subject, self._key.public_key()).add_extension(
            x509.BasicConstraints(True, None), True
        )
        builder = builder.add_extension(
            x509.SubjectKeyIdentifier.from_public_key(self._key.public_key()), False
        )
        builder = builder.add_extension(_SIGNS, True)
        self.file = directory / f"{name}.pem"
        self.file.write_bytes(_pem(builder.sign(self._key, hashes.SHA256())))

    def sign(self, name: str, end: datetime.datetime = _END, *, by_address: bool = True) -> Signed:
        """Writes a certificate for localhost, and 127.0.0.1 if `by_address`, and its key."""
        key = ec.generate_private_key(ec.SECP256R1())
        subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
        address = [x509.IPAddress(ipaddress.ip_address("127.0.0.1"))] if by_address else []
        names = x509.SubjectAlternativeName([*address, x509.DNSName("localhost")])
        issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(self._key.public_key())
        begun = (
            self._begun(subject, key.public_key(), end)
            .add_extension(names, False)
            .add_extension(issuer, False)
        )
        certificate = begun.sign(self._key, hashes.SHA256())
        signed = Signed(self._directory / f"{name}.pem", self._directory / f"{name}.key")
        signed.cert.write_bytes(_pem(certificate))
        signed.key.write_bytes(
            key.private_bytes(
                serialization.Encoding.PEM,
                serialization.PrivateFormat.PKCS8,
                serialization.NoEncryption(),
            )
        )
        return signed

    def _begun(
        self, subject: x509.Name, key: ec.EllipticCurvePublicKey, end: datetime.datetime = _END
    ) -> x509.CertificateBuilder:
        begun = (
            x509.CertificateBuilder()
            .subject_name(subject)
            .issuer_name(self._subject)
            .public_key(key)
        )
        return (
            begun.serial_number(x509.random_serial_number())
            .not_valid_before(_BEGIN)
            .not_valid_after(end)
        )


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)
