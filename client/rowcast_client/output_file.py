"""A file that a program publishes for others: written aside, then renamed to its name.

A rename replaces whatever has that name. So what is there is examined first, before anything is
computed: a symbolic link is followed, as any other program would, and what is not a regular file is
rejected. What a command writes once, for whoever reads it, may go to a stream as well.

`scripts/generate_stubs` copies this module to the client, which is a distribution of its own.
"""

from __future__ import annotations

import os
import secrets
import stat
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

_KINDS = {
    stat.S_IFDIR: "a directory",
    stat.S_IFIFO: "a pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFLNK: "a link",
}


class OutputRejected(Exception):
    """No file can be published under a name: it is `-`, a directory, a device, a pipe or a
    socket.
    """


def output_named(name: Path) -> OutputFile | OutputStream:
    """Returns where a command writes what it was asked for.

    Args:
      name: The name that a user gives; `-` is standard output.

    Raises:
      OutputRejected: It is the name of a directory, a disk or a socket.
      OSError: The name cannot be examined: links in a circle, or no permission.
    """
    try:
        status = name.stat()
    except FileNotFoundError:
        status = None
    is_standard_output = str(name) == "-"
    if status is not None:
        with suppress(OSError):  # of a closed standard output
            is_standard_output |= os.path.samestat(status, os.fstat(1))
    is_stream = status is not None and (
        stat.S_ISFIFO(status.st_mode) or stat.S_ISCHR(status.st_mode)
    )
    if is_standard_output or is_stream:
        return OutputStream(name, is_standard_output)
    return OutputFile(name)


@dataclass(frozen=True)
class OutputStream:
    """A pipe, a terminal or another character device, which is written through.

    Attributes:
      path: Its name.
      is_standard_output: Whether what is written stands beside what the program prints.
    """

    path: Path
    is_standard_output: bool

    def write(self, content: bytes) -> None:
        """Writes a content; raises as `writing`."""
        with self.writing() as stream:
            stream.write(content)

    @contextmanager
    def writing(self) -> Iterator[BinaryIO]:
        """Lends the stream to a block that writes to it.

        Raises:
          OSError: The stream cannot be written.
        """
        if self.is_standard_output:
            sys.stdout.flush()
            yield sys.stdout.buffer
            sys.stdout.buffer.flush()
            return
        with self.path.open("wb") as stream:
            yield stream


class OutputFile:
    """A file to publish, and where it lies.

    Attributes:
      path: The path at which the file appears: the target of a link, as it was when this object was
        created.
    """

    def __init__(self, name: Path) -> None:
        """Follows links, and examines what is there.

        Args:
          name: The file that a user names. It need not exist; its directory may appear later.

        Raises:
          OutputRejected: The name is `-`, or that of a directory, device, pipe or socket.
          OSError: The name cannot be examined: links in a circle, or no permission.
        """
        if str(name) == "-":
            raise OutputRejected(
                "'-' is not the name of a file, and this is not written to standard output; name "
                "a file"
            )
        self._name = name
        self.path = Path(os.path.realpath(name))
        try:
            status = name.stat()
        except FileNotFoundError:
            return
        self._check_kind(status)
        # The kernel follows /dev/stdout to files that were removed, too. The check does not compare
        # the two files: another writer may just have replaced it.
        if not self.path.exists():
            raise OutputRejected(f"{name} leads to a file that was removed; name a file")

    def write(self, content: bytes) -> None:
        """Publishes a file with a content; raises as `writing`."""
        with self.writing() as file:
            file.write(content)

    @contextmanager
    def writing(self) -> Iterator[BinaryIO]:
        """Lends a new file to a block, and publishes it when the block has ended without an error.
        It survives a loss of power.

        Raises:
          OutputRejected: Meanwhile something else than a regular file has the name.
          OSError: The file cannot be written; the previous one is unchanged.
        """
        # Each writer has a name of its own: another one may be writing the same file.
        staged = self.path.with_name(f".{self.path.name}.{secrets.token_hex(8)}")
        try:
            with staged.open("xb") as file:
                yield file
            self.replace(staged)
        finally:
            staged.unlink(missing_ok=True)

    def replace(self, staged: Path) -> None:
        """Publishes a file that was written in the same file system.

        Args:
          staged: The file, which is renamed.

        Raises:
          OutputRejected: Meanwhile something else than a regular file has the name.
          OSError: The file cannot be renamed; the previous one is unchanged.
        """
        # The content before the name, so that a loss of power leaves the old file or the new one.
        sync(staged)
        with suppress(FileNotFoundError):
            self._check_kind(self.path.lstat())
        staged.rename(self.path)
        sync(self.path.parent)

    def _check_kind(self, status: os.stat_result) -> None:
        if not stat.S_ISREG(status.st_mode):
            kind = _KINDS.get(stat.S_IFMT(status.st_mode), "not a regular file")
            raise OutputRejected(
                f"{self._name} is {kind}, which a rename would replace; name a file"
            )


def sync(path: Path) -> None:
    """Makes a file's bytes, or a directory's names, survive a loss of power."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    except OSError as problem:
        # An error of a descriptor names no file.
        problem.filename = str(path)
        raise
    finally:
        os.close(descriptor)
