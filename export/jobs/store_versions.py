"""One version of a model in a store while an exporter writes it: objects named by their content,
and the one file that makes them a version.

    <root>/<model>/<version>/objects/<sha256>   the files; created if absent, never changed
    <root>/<model>/<version>/objects.json       which file is which object; created last, once
    <root>/<model>/<version>/started            when a run began last, for `rowcast-export clean`

No two exporters can harm one another: an object has one possible content, and the store decides
who creates `objects.json`.
"""

from __future__ import annotations

import hashlib
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from bundle.errors import DestinationExists
from bundle.format import paths
from bundle.format.checksums import extend
from bundle.format.manifest import File
from bundle.format.objects import OBJECTS, ObjectMap, StoredFile
from export.errors import DestinationError
from object_store.remote_path import RemotePath

STARTED = "started"
_READ_BYTES = 1 << 20
_COMPARED_BYTES = 8 << 20


class StoreVersion:
    """A version in a store. Safe for any number of threads."""

    def __init__(self, directory: RemotePath) -> None:
        """Names a version; sends no request.

        Args:
          directory: `<root>/<model>/<version>`.
        """
        self.directory = directory

    def begin(self) -> None:
        """Begins to write the version, or goes on with it.

        Raises:
          DestinationExists: The version is there already.
          OSError: The store cannot be written.
        """
        if is_committed(self.directory):
            raise DestinationExists(
                f"{self.directory} is there already; committed bundles are never overwritten"
            )
        now = datetime.now(UTC).isoformat(timespec="seconds")
        (self.directory / STARTED).write(f"{now}\n".encode())

    def file(self, stored: StoredFile) -> RemotePath:
        """Returns where an object lies."""
        return self.directory / stored.path

    def holds(self, stored: StoredFile) -> bool:
        """Returns whether the store has an object. Its name says its content, its size is compared.

        Raises:
          OSError: The store cannot be asked.
        """
        try:
            return self.file(stored).stamp().bytes == stored.bytes
        except FileNotFoundError:
            return False

    def send(self, source: Path, expected: File) -> StoredFile:
        """Sends a local file, unless the store has an object of its content.

        Args:
          source: The local file.
          expected: Its size and checksum as they were when it was written.

        Raises:
          DestinationError: The local file has changed since, or the store does not hold what was
            sent.
          OSError: The store cannot be written.
        """
        stored = _digested(source, expected)
        if self.holds(stored):
            return stored

        target = self.file(stored)
        # It is there: another exporter was faster, or a lost response hid our own success.
        with suppress(FileExistsError):
            target.upload(source, new=True)

        if not (self.holds(stored) and _arrived(target, source, expected.crc32c)):
            raise DestinationError(
                f"{target} does not hold what was sent ({stored.bytes} bytes of {expected.path}); "
                "remove it and run the export again"
            )
        return stored

    def commit(self, objects: ObjectMap) -> None:
        """Makes the version visible, once and for all.

        Raises:
          DestinationExists: Another exporter published the version first.
          OSError: The store cannot be written; the version is not there.
        """
        data = objects.dump()
        target = self.directory / OBJECTS
        try:
            target.write(data, new=True)
        except FileExistsError as problem:
            # After a lost response, what is there is our own.
            if target.read(0, len(data) + 1) != data:
                raise DestinationExists(
                    f"another run has published {self.directory}; this run published nothing: "
                    "choose another version"
                ) from problem
        with suppress(OSError):  # `clean` removes it
            (self.directory / STARTED).remove()


def is_committed(directory: RemotePath) -> bool:
    """Returns whether a version can be read: published by an exporter, or copied as it lies on a
    disk.
    """
    return any((directory / name).is_file() for name in (OBJECTS, paths.MANIFEST))


def _digested(source: Path, expected: File) -> StoredFile:
    """Returns the name of a file as an object, once its content is known to be what was written."""
    sha256 = hashlib.sha256()
    crc = size = 0
    with source.open("rb", buffering=0) as file:
        while data := file.read(_READ_BYTES):
            sha256.update(data)
            crc = extend(crc, data)
            size += len(data)
    if (crc, size) != (expected.crc32c, expected.bytes):
        raise DestinationError(
            f"{source} has changed since it was written: {size} bytes with crc32c {crc}, "
            f"{expected.bytes} with {expected.crc32c} were expected; nothing of it was sent; run "
            "the export again: it writes the file anew"
        )
    return StoredFile(sha256=sha256.hexdigest(), bytes=size)


def _arrived(target: RemotePath, source: Path, crc32c: int) -> bool:
    """Compares a new object with the file that was sent, where the store has not done so."""
    if target.verifies_uploads:
        return True
    told = target.crc32c()
    if told is not None:
        return told == crc32c
    offset = 0
    with source.open("rb") as file:
        while data := file.read(_COMPARED_BYTES):
            if target.read(offset, len(data)) != data:
                return False
            offset += len(data)
    return True
