"""Paths of a bundle's files on disk; rejects paths and links that leave the bundle."""

from __future__ import annotations

import ctypes
import errno
import os
import stat
import sys
from pathlib import Path

from bundle.errors import DigestMismatch, UnsafePath
from bundle.storage.output_file import sync as sync  # noqa: PLC0414 - for importers

# A call of Linux that Python does not have.
_SYNC_FILE_RANGE = None
if sys.platform == "linux":
    _SYNC_FILE_RANGE = getattr(ctypes.CDLL(None), "sync_file_range", None)
_SYNC_FILE_RANGE_WRITE = 2
_OTHERS = 0o077
"""The permissions of all users but the owner."""


def locate(root: Path, path: str) -> Path:
    """Returns the real path of a file or directory of a bundle, behind all links.

    Args:
      root: The directory of the bundle; it may be a link itself.
      path: The path in the bundle, from the manifest.

    Raises:
      UnsafePath: A symbolic link on the way leads out of the bundle, or in a circle.
      DigestMismatch: There is nothing.
    """
    # Of the real root, too: bundles are often reached by a link, whose target is elsewhere.
    base = os.path.realpath(root)
    try:
        real = os.path.realpath(os.path.join(root, path), strict=True)
    except OSError as problem:
        if problem.errno == errno.ELOOP:
            raise UnsafePath(
                f"file {path!r} of the bundle is a symbolic link that leads in a circle"
            ) from problem
        raise DigestMismatch(
            f"file {path!r} of the bundle is missing ({problem.strerror}); copy the bundle again"
        ) from problem
    if os.path.commonpath([base, real]) != base:
        raise UnsafePath(
            f"file {path!r} of the bundle is a symbolic link to {real!r}, outside the bundle; copy "
            "the file instead"
        )
    return Path(real)


def size(root: Path, path: str) -> int:
    """Returns the size of one regular file of a bundle, in bytes.

    Raises:
      UnsafePath, DigestMismatch: See `locate`; DigestMismatch also if it is no regular file.
    """
    status = locate(root, path).stat()
    if not stat.S_ISREG(status.st_mode):
        raise DigestMismatch(
            f"file {path!r} of the bundle is no regular file; copy the bundle again"
        )
    return status.st_size


def open_private(path: Path, flags: int) -> int:
    """Opens a file that no other user may read, and creates it if there is none.

    Args:
      path: The file. Permissions that other users have are taken away, if it is this user's.
      flags: The flags of `os.open`.

    Returns:
      The descriptor.

    Raises:
      OSError: It cannot be opened or created.
    """
    descriptor = os.open(path, flags | os.O_CREAT | os.O_CLOEXEC, 0o600)
    make_private(descriptor)
    return descriptor


def make_private_directory(path: Path) -> None:
    """Creates a directory that no other user may enter, and those above it that are missing. One
    that exists stays as it is.

    Raises:
      OSError: It cannot be created.
    """
    # `Path.mkdir` would create those above it with the usual permissions.
    missing = [folder for folder in (path, *path.parents) if not folder.exists()]
    for folder in reversed(missing):
        folder.mkdir(mode=0o700, exist_ok=True)
    if not missing and not path.is_dir():
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))


def make_private(path: Path | int) -> bool:
    """Takes away the permissions that other users have for a file or directory.

    Args:
      path: The path or the descriptor.

    Returns:
      Whether others have none now; False: it belongs to another user, or cannot be changed.
    """
    status = os.stat(path)
    if not stat.S_IMODE(status.st_mode) & _OTHERS:
        return True
    if status.st_uid != os.geteuid():
        return False
    try:
        os.chmod(path, stat.S_IMODE(status.st_mode) & ~_OTHERS)
    except OSError:
        return False
    return True


def begin_sync(descriptor: int) -> None:
    """Makes the kernel begin to write a file to the disk, without waiting for it.

    By itself it begins once a tenth of the memory is dirty, or when the file is synced: the disk
    would idle until then. It promises nothing and reports no error: `os.fsync` does both.
    """
    if _SYNC_FILE_RANGE is not None:
        offset = ctypes.c_int64(0)
        size = ctypes.c_int64(0)  # 0 is to the end of the file
        flags = ctypes.c_uint(_SYNC_FILE_RANGE_WRITE)
        _SYNC_FILE_RANGE(ctypes.c_int(descriptor), offset, size, flags)
