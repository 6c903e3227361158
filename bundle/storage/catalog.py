"""The versions of a model under a root, and the manifest of each. A version is published once it
has a manifest.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

from bundle.errors import NotCommitted
from bundle.format import paths
from bundle.format.manifest import MANIFEST_BYTES_MAX, Manifest, parse
from bundle.storage import files

VERSION = re.compile(r"[1-9][0-9]{0,17}", re.ASCII)


def next_version(root: Path, model: str) -> int:
    """Returns the number after the newest version of a model, complete or not; 1 for a
    new model.
    """
    return max((version for version, _ in _numbered(root / model)), default=0) + 1


def committed_versions(root: Path, model: str) -> list[int]:
    """Returns the versions of a model that have a manifest, ascending; one that may not be looked
    into is counted.

    Raises:
      OSError: The model's directory cannot be listed.
    """
    return sorted(version for version, path in _numbered(root / model) if _is_committed(path))


def read_manifest(bundle: Path) -> Manifest:
    """Reads the manifest of a bundle's directory.

    Raises:
      NotCommitted: There is none: no bundle, or one still being written.
      FormatError: It breaks a rule of the format.
    """
    path = bundle / paths.MANIFEST
    if not path.is_file():
        raise NotCommitted(
            f"{bundle} has no {paths.MANIFEST}: it is no bundle, or one that is still being written"
        )
    with files.locate(bundle, paths.MANIFEST).open("rb") as file:
        # A byte more than allowed, so that `parse` notices a file that is too large.
        return parse(file.read(MANIFEST_BYTES_MAX + 1))


def _numbered(parent: Path) -> list[tuple[int, Path]]:
    """Returns the entries of a directory whose names are versions."""
    if not parent.is_dir():
        return []
    names = filter(VERSION.fullmatch, os.listdir(parent))
    return [(int(name), parent / name) for name in names]


def _is_committed(bundle: Path) -> bool:
    try:
        return (bundle / paths.MANIFEST).is_file()
    except OSError:  # it exists, but may not be read: the reader reports why
        return True
