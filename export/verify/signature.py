"""Verifies the signature of a published bundle."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from bundle.storage.catalog import read_manifest
from bundle.storage.signatures import KeyRejected, read_signature, signed_files
from bundle.storage.signed_content import check_content
from export.errors import UsageError
from export.verify.checks import raising_verification_failed


def verify_signature(bundle: Path, keys: Sequence[Path]) -> None:
    """Compares every byte of a bundle with what one of several keys has signed.

    Args:
      bundle: The bundle's directory.
      keys: The files of the keys.

    Raises:
      UsageError: A key cannot be used, or the directory holds no bundle.
      VerificationFailed: The bundle has no signature by one of the keys, or differs from what was
        signed.
    """
    with raising_verification_failed():
        try:
            signed = signed_files(read_signature(bundle), keys)
        except KeyRejected as problem:
            raise UsageError(f"--verify-signatures: {problem}") from problem
        check_content(bundle, read_manifest(bundle), signed)
