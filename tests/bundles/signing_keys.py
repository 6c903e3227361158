"""Keys and certificates that sign bundles, made anew by each test run."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import NamedTuple

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID, ObjectIdentifier

from bundle.storage.signatures import Signer

CODE_SIGNING = ExtendedKeyUsageOID.CODE_SIGNING
SERVER = ExtendedKeyUsageOID.SERVER_AUTH


class KeyPair(NamedTuple):
    """The files of a key.

    Attributes:
      private: The private key.
      public: What verifies its signatures: the public key, or the certificate of an authority.
      certificates: The certificate of the key; None: it has none.
    """

    private: Path
    public: Path
    certificates: Path | None = None

    @property
    def signer(self) -> Signer:
        return Signer(self.private, self.certificates)


def write_keys(directory: Path, name: str) -> KeyPair:
    """Writes a private and a public key."""
    key = ec.generate_private_key(ec.SECP256R1())
    public = directory / f"{name}.pub"
    public.write_bytes(
        key.public_key().public_bytes(
            serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
        )
    )
    return KeyPair(write_private_key(directory / f"{name}.pem", key), public)


def write_private_key(
    path: Path,
    key: ec.EllipticCurvePrivateKey,
    encryption: serialization.KeySerializationEncryption | None = None,
) -> Path:
    path.write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            encryption or serialization.NoEncryption(),
        )
    )
    return path


def write_certified_keys(
    directory: Path,
    name: str,
    usage: ObjectIdentifier = CODE_SIGNING,
    days: tuple[float, float] = (-1, 30),
) -> KeyPair:
    """Writes a private key, its certificate, and that of the authority that issued it.

    Args:
      directory: Where the files are written.
      name: Begins the names of the files.
      usage: What the certificate may be used for.
      days: From when to when the certificate is valid, in days from now.
    """
    authority = ec.generate_private_key(ec.SECP256R1())
    key = ec.generate_private_key(ec.SECP256R1())
    now = datetime.now(UTC)
    issuer = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, f"authority of {name}")])
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])

    root = x509.CertificateBuilder().subject_name(issuer).issuer_name(issuer)
    root = root.public_key(authority.public_key()).serial_number(x509.random_serial_number())
    root = root.not_valid_before(now - timedelta(365)).not_valid_after(now + timedelta(365))
    root = root.add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)

    leaf = x509.CertificateBuilder().subject_name(subject).issuer_name(issuer)
    leaf = leaf.public_key(key.public_key()).serial_number(x509.random_serial_number())
    leaf = leaf.not_valid_before(now + timedelta(days[0]))
    leaf = leaf.not_valid_after(now + timedelta(days[1]))
    leaf = leaf.add_extension(x509.ExtendedKeyUsage([usage]), critical=False)
    leaf = leaf.add_extension(
        x509.KeyUsage(
            digital_signature=True,
            content_commitment=False,
            key_encipherment=False,
            data_encipherment=False,
            key_agreement=False,
            key_cert_sign=False,
            crl_sign=False,
            encipher_only=False,
            decipher_only=False,
        ),
        critical=True,
    )

    files = {
        directory / f"{name}-authority.crt": root.sign(authority, hashes.SHA256()),
        directory / f"{name}.crt": leaf.sign(authority, hashes.SHA256()),
    }
    for path, certificate in files.items():
        path.write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    public, certificates = files
    return KeyPair(write_private_key(directory / f"{name}.pem", key), public, certificates)
