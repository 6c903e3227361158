"""Which committed versions are in use, and the removal of old ones that are not.

A reader that has a version open holds a shared lock on its manifest; the kernel lets go of it when
the reader ends, however it ends. Who removes a version must get that lock for itself first. Works
between the processes of one machine, and between machines on a shared file system whose locks are
real (NFS 4).
"""

from __future__ import annotations

import fcntl
import os
import shutil
import time
from pathlib import Path

from bundle.errors import NotCommitted, VersionBusy
from bundle.format import paths
from bundle.storage import catalog, files, staging

_SWEPT = ".swept-"


def hold(bundle: Path) -> int | None:
    """Keeps a committed version from being removed, until the returned descriptor is closed.

    Returns:
      A descriptor; None: The file system has no locks, and the version may be removed.

    Raises:
      NotCommitted: The version is gone, or just being removed.
      OSError: Its manifest cannot be opened.
    """
    path = bundle / paths.MANIFEST
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError as problem:
        raise NotCommitted(
            f"{bundle} has no {paths.MANIFEST}: it was removed, or is no bundle"
        ) from problem
    try:
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError as problem:
        os.close(descriptor)
        raise NotCommitted(f"{bundle} is just being removed") from problem
    except OSError:
        os.close(descriptor)
        return None
    return descriptor


def sweep_old(root: Path, model: str, keep: int, spare: int) -> tuple[list[int], list[int]]:
    """Removes the committed versions of a model but the newest ones and those that something uses.

    Each is renamed first, to a name that no reader looks at, then deleted: a crash leaves no half
    version under its own name.

    Args:
      root: The directory of the bundles.
      model: The name of the model.
      keep: The number of the newest versions that stay.
      spare: One more version that stays, however old.

    Returns:
      The versions that were removed, and those that stay because they are in use, both ascending.

    Raises:
      OSError: A version cannot be removed; those before it are gone.
    """
    parent = root / model
    for name in os.listdir(parent):
        if name.startswith(_SWEPT):  # of a sweep that was killed
            _remove(parent / name)
    removed = []
    used = []
    # -0 is 0, which would slice none: without versions to keep, all are old.
    for version in catalog.committed_versions(root, model)[: -keep or None]:
        if version == spare:
            continue
        descriptor = _lock_exclusively(parent / str(version))
        if descriptor is None:
            used.append(version)
            continue
        try:
            renamed = parent / f"{_SWEPT}{version}"
            (parent / str(version)).rename(renamed)
            files.sync(parent)
        finally:
            os.close(descriptor)
        _remove(renamed)
        removed.append(version)
    return removed, used


def _remove(version: Path) -> None:
    """Removes a version's directory; of one that is linked, the link alone."""
    if version.is_symlink():
        version.unlink()
    else:
        shutil.rmtree(version)


def _lock_exclusively(bundle: Path) -> int | None:
    """Locks a version for its removal; None if something holds it."""
    # NFS grants an exclusive lock only on a file that is open for writing.
    descriptor = os.open(bundle / paths.MANIFEST, os.O_RDWR | os.O_CLOEXEC)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def clean(root: Path, older_than_s: float = 0) -> tuple[list[Path], list[Path]]:
    """Removes the staging directories under a root that no run is writing any more.

    Args:
      root: The directory of the bundles.
      older_than_s: The minimum time since the last write, in seconds; newer directories stay.

    Returns:
      The staging directories that were removed, and those that another run is writing.
    """
    removed = []
    busy = []
    for directory in sorted(root.glob("*/.staging-*/")):
        number = directory.name.removeprefix(".staging-")
        journal = directory.with_name(f"{directory.name}.journal")
        # The journal grows while files are written in directories below this one.
        written_s = max(path.stat().st_mtime for path in (directory, journal) if path.exists())
        is_old = time.time() - written_s >= older_than_s
        if catalog.VERSION.fullmatch(number) and is_old:
            try:
                staging.Staging(root, directory.parent.name, int(number), adding=True).discard()
                removed.append(directory)
            except VersionBusy:
                busy.append(directory)
    return removed, busy
