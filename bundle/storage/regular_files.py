"""Opens regular files alone. Whoever opens a FIFO waits for a writer, and a device such as
/dev/zero never ends.
"""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

_KINDS = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


class NotRegular(OSError):
    """A path leads to a FIFO, a socket or a device."""


class FileTooLarge(OSError):
    """A file has more bytes than are read of its kind."""


def check_regular(path: str | Path) -> None:
    """Checks a path before a library opens it by its name.

    Raises:
      NotRegular: It is no regular file.
      OSError: It does not exist, or is a directory.
    """
    _check(os.stat(path), path)


def check_regular_tree(directory: Path) -> None:
    """Checks all files below a directory before a library opens them by their names; raises the
    errors of `check_regular`.
    """
    seen_directories: set[tuple[int, int]] = set()
    directories = [str(directory)]
    while directories:
        current = directories.pop()
        status = os.stat(current)
        # Links may lead in a circle.
        if (status.st_dev, status.st_ino) in seen_directories:
            continue
        seen_directories.add((status.st_dev, status.st_ino))
        with os.scandir(current) as children:
            for child in children:
                if child.is_dir():
                    directories.append(child.path)
                elif not child.is_file():
                    check_regular(child.path)


def regular_descriptor(path: str | Path) -> int:
    """Opens a file for reading and returns its descriptor, which the caller closes; raises the
    errors of `check_regular`.
    """
    # Before the file is opened, because opening a device can have effects.
    check_regular(path)
    # O_NONBLOCK: a FIFO may have taken its place meanwhile.
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    try:
        _check(os.fstat(descriptor), path)
    except OSError:
        os.close(descriptor)
        raise
    return descriptor


def open_regular(path: str | Path) -> BinaryIO:
    """Opens a file for reading; raises the errors of `check_regular`."""
    return os.fdopen(regular_descriptor(path), "rb")


def read_regular(path: str | Path, bytes_max: int | None = None) -> bytes:
    """Returns the bytes of a file.

    Args:
      path: The path of the file.
      bytes_max: The maximum size of the file; None if it may have any.

    Raises:
      NotRegular: It is no regular file.
      FileTooLarge: It has more bytes.
      OSError: It cannot be read.
    """
    with open_regular(path) as file:
        if bytes_max is not None and os.fstat(file.fileno()).st_size > bytes_max:
            raise FileTooLarge(errno.EFBIG, f"it has more than {bytes_max} bytes", str(path))
        return file.read()


def _check(status: os.stat_result, path: str | Path) -> None:
    if stat.S_ISREG(status.st_mode):
        return
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    kind = _KINDS.get(stat.S_IFMT(status.st_mode), "no file")
    raise NotRegular(errno.EINVAL, f"{path} is {kind}; a regular file was expected")
