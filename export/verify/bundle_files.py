"""The files of a bundle: listed ones, which its manifest names, and unlisted ones."""

from __future__ import annotations

import os
from pathlib import Path

from bundle.format import paths
from bundle.format.manifest import Manifest
from export.errors import VerificationFailed
from export.verify.parts import towers_and_parts


def check_unlisted(bundle: Path, manifest: Manifest) -> tuple[str, ...]:
    """Returns the files of a bundle that the manifest does not name, without those of a signature.

    Raises:
      VerificationFailed: One lies in a directory that is opened as a whole, whose reader might take
        it for a part.
    """
    existing = set()
    for directory, _, names in os.walk(bundle):
        for name in names:
            existing.add(Path(directory, name).relative_to(bundle).as_posix())
    unlisted = sorted(existing - manifest.listed_files - {paths.MANIFEST, *paths.SIGNATURE_FILES})

    # TensorFlow and ScaNN find the files of their directories by themselves.
    forms = [form for _, entry in towers_and_parts(manifest) for form in entry.forms]
    opened = [str(form.path) for form in forms if form.kind == "saved_model"]
    opened += [str(index.directory) for index in manifest.indexes.values()]
    for path in unlisted:
        for directory in opened:
            if path.startswith(f"{directory}/"):
                raise VerificationFailed(
                    f"file {path!r} is not in the manifest, yet {directory!r} is opened as a "
                    "whole; remove it, or copy the bundle again"
                )
    return tuple(unlisted)
