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

_LOST_AND_FOUND = "lost+found"
_MODEL_EXPECTED = "a name of letters, digits, _, - and ., which begins with a letter or digit"
_VERSION_EXPECTED = "a version's number without leading zeros, such as 1"
_VERSIONS_EXPECTED = "directories of versions, such as 1"
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


def ignored_directories(root: Path) -> dict[str, str]:
    """Returns the directories under a root in which nobody looks for a version, with what was
    expected of each. Names that begin with a dot, as of files that are being written, and
    `lost+found` of file systems are left out.

    Raises:
      OSError: The root cannot be listed.
    """
    ignored: dict[str, str] = {}
    for name in os.listdir(root):
        model = root / name
        if name.startswith(".") or name == _LOST_AND_FOUND or not model.is_dir():
            continue
        if not paths.is_name(name):
            ignored[name] = _MODEL_EXPECTED
            continue
        try:
            names = os.listdir(model)
        except OSError:
            # `committed_versions` reports it.
            continue
        for other_name in names:
            is_hidden = other_name.startswith(".")
            if is_hidden or VERSION.fullmatch(other_name) or not (model / other_name).is_dir():
                continue
            ignored[f"{name}/{other_name}"] = _VERSION_EXPECTED
        # A version that is being written has a directory.
        if not any((model / version).is_dir() for version in names):
            ignored[name] = _VERSIONS_EXPECTED
    return ignored


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
