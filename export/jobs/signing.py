"""Signs a published bundle."""

from __future__ import annotations

from pathlib import Path

from bundle.errors import VersionBusy
from bundle.format import paths
from bundle.format.manifest import Manifest
from bundle.format.objects import ObjectMap
from bundle.storage import catalog, integrity
from bundle.storage.signatures import KeyRejected, Signer
from bundle.storage.signed_content import list_content
from bundle.storage.staging import Staging
from export.errors import DestinationError, UsageError, VerificationFailed
from export.verify.bundle_files import check_unlisted
from export.verify.checks import raising_verification_failed


def sign_bundle(bundle: Path, signer: Signer) -> ObjectMap:
    """Signs a bundle as it lies on the disk; a signature that it has is replaced.

    Args:
      bundle: The directory of the bundle: ROOT/MODEL/VERSION.
      signer: The key.

    Returns:
      The files that were signed.

    Raises:
      UsageError: The key cannot sign, or the directory holds no bundle that can be signed.
      VerificationFailed: A file differs from its checksum, or is not in the manifest.
      DestinationError: The directory cannot be written.
    """
    directory = bundle.absolute()
    with raising_verification_failed():
        manifest = catalog.read_manifest(directory)
        if (manifest.model, str(manifest.version)) != (directory.parent.name, directory.name):
            raise UsageError(
                f"{bundle} is version {manifest.version} of model {manifest.model!r}; give its "
                "directory as ROOT/MODEL/VERSION"
            )
        if _is_linked(manifest):
            raise UsageError(
                f"{bundle} has tables that are linked to the checkpoint, of whose files it holds "
                'only parts; to sign it, export it with tables = "copy"'
            )
        # Damage would be signed.
        integrity.check_files(directory, manifest, "full")
        unlisted = check_unlisted(directory, manifest)
        if unlisted:
            raise VerificationFailed(
                f"file {unlisted[0]!r} is not in the manifest of {bundle}; remove it, then sign "
                "the bundle"
            )
        listed = list_content(directory, manifest)
    try:
        signature = signer.sign(listed)
        with Staging(directory.parents[1], manifest.model, manifest.version, adding=True) as stage:
            stage.write_signature(signature)
            stage.add(paths.SIGNATURE_FILES)
    except KeyRejected as problem:
        raise UsageError(f"--sign-key: {problem}") from problem
    except VersionBusy as problem:
        raise DestinationError(str(problem)) from problem
    except OSError as problem:
        raise DestinationError(f"{problem.filename}: {problem.strerror}") from problem
    return listed


def _is_linked(manifest: Manifest) -> bool:
    segments = [segment for table in manifest.tables.values() for segment in table.segments]
    return any(not segment.blocks for segment in segments)
