"""Signatures of bundles: docs/reference/format.md, Signatures.

What is signed is a list: the SHA-256 of each block of each file of a bundle. Who has verified the
signature of the list can verify any of the files, wherever they lie, and as many as are there. The
library model-signing signs the list and verifies the signature.
"""

from __future__ import annotations

import base64
import hashlib
import json
from collections.abc import Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from importlib.util import find_spec
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, NamedTuple

from bundle.errors import SignatureMissing, SignatureRejected
from bundle.format import objects, paths
from bundle.format.objects import OBJECTS_BYTES_MAX, ObjectMap
from bundle.storage import files

SIGNATURE_BYTES_MAX = 1 << 20
"""The maximum size of a signature; a chain of certificates is in it, the list is not."""
_LIBRARY = "model_signing"
_PEM_BYTES_MAX = 1 << 20
_PUBLIC_KEY = b"-----BEGIN PUBLIC KEY-----"
_CERTIFICATE = b"-----BEGIN CERTIFICATE-----"
_REMEDY = "get the bundle again from the exporter that signs it"


class KeyRejected(Exception):
    """A file of a key or of certificates cannot be used, or the library is not installed; the
    message has the remedy.
    """


class Signature(NamedTuple):
    """A list of files, and its signature, as they lie in a bundle.

    Attributes:
      files: The list, an `ObjectMap` as JSON.
      signature: The signature of these bytes, a Sigstore bundle as JSON.
    """

    files: bytes
    signature: bytes

    def by_path(self) -> dict[str, bytes]:
        """Returns the contents of the files of a signature, by their paths in a bundle."""
        return {paths.SIGNED_FILES: self.files, paths.SIGNATURE: self.signature}


@dataclass(frozen=True)
class Signer:
    """Signs bundles.

    Attributes:
      key: The file of the private key, PEM, of the curve P-256, P-384 or P-521.
      certificates: The file of the certificate of the key, and behind it of those that lead from
        its issuer to the authority, PEM; None: the key is verified by its public key.
    """

    key: Path
    certificates: Path | None = None

    def check(self) -> None:
        """Signs nothing, to find out whether the key can sign.

        Raises:
          KeyRejected: It cannot.
        """
        self.sign(ObjectMap.model_construct(model="", version=0, files={}))

    def sign(self, listed: ObjectMap) -> Signature:
        """Signs a list of files.

        Raises:
          KeyRejected: The key or its certificate cannot be used.
        """
        require_library()
        from model_signing import hashing, signing

        data = listed.dump()
        config = signing.Config().set_hashing_config(hashing.Config())
        try:
            if self.certificates is None:
                config.use_elliptic_key_signer(private_key=self.key)
            else:
                config.use_certificate_signer(
                    private_key=self.key,
                    signing_certificate=self.certificates,
                    certificate_chain=[self.certificates],
                )
        except OSError as problem:
            raise KeyRejected(f"{problem.filename}: {problem.strerror}") from problem
        # What is wrong with a key, the library and those below it say by many exceptions.
        except Exception as problem:
            raise KeyRejected(
                f"{self.key} cannot sign: {problem}; a private key of the curve P-256, P-384 or "
                "P-521 in PEM without a password was expected, and the certificate of that key"
            ) from problem
        with TemporaryDirectory(prefix="rowcast-signature-") as directory:
            list_file = Path(directory, "files.json")
            signature_file = Path(directory, "files.json.sig")
            list_file.write_bytes(data)
            config.sign(list_file, signature_file)
            return Signature(data, signature_file.read_bytes())


def require_library() -> None:
    """Checks that the library is installed.

    Raises:
      KeyRejected: It is not.
    """
    if find_spec(_LIBRARY) is None:
        raise KeyRejected(
            "signatures need the library model-signing, which is not installed; install rowcast "
            "with its extra `sign`"
        )


def check_keys(keys: Sequence[Path]) -> None:
    """Checks the files of the keys that signatures are verified by.

    Raises:
      KeyRejected: One holds no public key and no certificate, or a private key; or the library is
        missing.
    """
    require_library()
    for key in keys:
        _verifying_config(key)


def read_signature(bundle: Path) -> Signature | None:
    """Reads the signature of a bundle's directory; None: it has none.

    Raises:
      SignatureRejected: A file is too large.
      BundleError: A file is no regular file, or the list is missing.
      OSError: A file cannot be read.
    """
    if not (bundle / paths.SIGNATURE).exists():
        return None
    limits = {paths.SIGNED_FILES: OBJECTS_BYTES_MAX, paths.SIGNATURE: SIGNATURE_BYTES_MAX}
    contents = []
    for path, limit in limits.items():
        size = files.size(bundle, path)
        if size > limit:
            raise SignatureRejected(
                f"file {path!r} has {size} bytes; at most {limit} are read; {_REMEDY}"
            )
        contents.append(files.locate(bundle, path).read_bytes())
    return Signature(*contents)


def signed_files(signature: Signature | None, keys: Sequence[Path]) -> ObjectMap:
    """Returns the files that one of several keys has signed.

    Args:
      signature: The signature of a bundle; None: it has none.
      keys: The files of the keys: a public key, or certificates of authorities, PEM. They are read
        each time, so that they can be replaced.

    Raises:
      SignatureMissing: There is no signature.
      SignatureRejected: It is by none of the keys, by a certificate that is not valid now, or of
        another list.
      KeyRejected: A file of a key cannot be used.
    """
    require_library()
    if signature is None:
        raise SignatureMissing(
            f"the bundle has no signature ({paths.SIGNATURE}), and one is required; sign it with "
            "`rowcast-export sign`, or export it with --sign-key"
        )
    problems = []
    for key in keys:
        config = _verifying_config(key)
        problem = _problem_of(signature, config)
        if not problem:
            return objects.parse(signature.files, paths.SIGNED_FILES)
        # Clients see the message: the name says enough, and not where secrets lie.
        problems.append(f"{key.name}: {problem}")
    raise SignatureRejected(
        f"{paths.SIGNATURE} is not a valid signature by any of the keys ({'; '.join(problems)}); "
        f"{_REMEDY}"
    )


def _verifying_config(key: Path) -> Any:
    """Returns what verifies signatures by a key, or by certificates of some authorities."""
    from model_signing import hashing, verifying

    # Stated, so that a signature does not choose how the list is hashed.
    config = verifying.Config().set_hashing_config(hashing.Config())
    expected = (
        "a public key of the curve P-256, P-384 or P-521, or certificates of authorities, in PEM "
        "was expected"
    )
    try:
        with key.open("rb") as file:
            content = file.read(_PEM_BYTES_MAX)
    except OSError as problem:
        raise KeyRejected(f"{key}: {problem.strerror}; {expected}") from problem
    if b"PRIVATE KEY-----" in content:
        raise KeyRejected(
            f"{key} holds a private key, which only the exporter may have; {expected}"
        )
    try:
        if _PUBLIC_KEY in content:
            return config.use_elliptic_key_verifier(public_key=key)
        if _CERTIFICATE in content:
            return config.use_certificate_verifier(certificate_chain=[key])
    # Whatever the library and those below it find wrong with a key.
    except Exception as problem:
        raise KeyRejected(f"{key} cannot verify signatures: {problem}; {expected}") from problem
    raise KeyRejected(f"{key} holds no key; {expected}")


def _problem_of(signature: Signature, config: Any) -> str:
    """Returns why a signature is not one of its list by a key; "" if it is."""
    with TemporaryDirectory(prefix="rowcast-signature-") as directory:
        list_file = Path(directory, "files.json")
        signature_file = Path(directory, "files.json.sig")
        list_file.write_bytes(signature.files)
        signature_file.write_bytes(signature.signature)
        try:
            config.verify(list_file, signature_file)
            expected = _signed_digest(signature.signature)
            actual = hashlib.sha256(signature.files).hexdigest()
            if actual != expected:
                return f"{paths.SIGNED_FILES} has the SHA-256 {actual}, {expected} was signed"
            return _problem_of_certificates(signature.signature)
        # The file comes from whoever could write the bundle: the library raises whatever its
        # parsers do.
        except Exception as problem:  # noqa: BLE001
            if str(problem).startswith("Signature mismatch"):
                return f"{paths.SIGNED_FILES} is not the list that was signed"
            return str(problem) or "the signature is by another key, or was changed"


def _signed_digest(signature: bytes) -> str:
    """Returns the SHA-256 of the one file that a verified signature covers."""
    payload = json.loads(signature)["dsseEnvelope"]["payload"]
    (resource,) = json.loads(base64.b64decode(payload))["predicate"]["resources"]
    return str(resource["digest"])


def _problem_of_certificates(signature: bytes) -> str:
    """Returns why the certificates of a verified signature do not count; "" if they do, or if there
    are none.

    The library verifies the chain as of the day when the certificate became valid, and accepts
    certificates for any digital signature, such as those of web servers.
    """
    material = json.loads(signature)["verificationMaterial"]
    if "x509CertificateChain" not in material:
        return ""
    from cryptography import x509
    from cryptography.x509.oid import ExtendedKeyUsageOID

    entries = material["x509CertificateChain"]["certificates"]
    chain = [
        x509.load_der_x509_certificate(base64.b64decode(entry["rawBytes"])) for entry in entries
    ]
    now = datetime.now(UTC)
    for certificate in chain:
        begin = certificate.not_valid_before_utc
        end = certificate.not_valid_after_utc
        if not begin <= now <= end:
            return (
                f"the certificate of {certificate.subject.rfc4514_string()!r} is valid from "
                f"{begin:%Y-%m-%d} to {end:%Y-%m-%d %H:%M} UTC, not now"
            )
    try:
        usage = chain[0].extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    except x509.ExtensionNotFound:
        return ""
    if ExtendedKeyUsageOID.CODE_SIGNING not in usage:
        return (
            f"the certificate of {chain[0].subject.rfc4514_string()!r} is not for signing code "
            "(extended key usage)"
        )
    return ""
