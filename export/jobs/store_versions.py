"""One version of a model in a store while an exporter writes it: objects named by their content,
and the one file that makes them a version.

    <root>/<model>/.objects/<ab>/<sha256>   blocks of files, which all versions of the model share
    <root>/<model>/<version>/objects.json   which objects a file is made of; created last, once
    <root>/<model>/<version>/started        that a run writes the version

No two exporters can harm one another: an object has one possible content, and the store decides
who creates `objects.json`.

`clean` removes no object of a model while a run has begun and not ended (see `store_cleaning.py`).
So a run that began before it read which objects the newest version has can rely on these, even if
that version is removed meanwhile. An object that no version names may just be removed. It is
relied on if it is young, and sent again otherwise.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from datetime import UTC, datetime
from pathlib import Path

from bundle.errors import BundleError, DestinationExists
from bundle.format import objects as stored_objects
from bundle.format import paths
from bundle.format.checksums import combine, crc32c
from bundle.format.manifest import MANIFEST_BYTES_MAX, File, Manifest, parse
from bundle.format.objects import (
    OBJECT_BYTES,
    OBJECTS,
    OBJECTS_BYTES_MAX,
    POOL,
    ObjectMap,
    StoredBlock,
    StoredFile,
    pool_path,
)
from bundle.storage.catalog import VERSION
from export.errors import DestinationError
from object_store.remote_path import RemotePath
from object_store.stored_content import StoredContent, content_of, is_committed

STARTED = "started"
GRACE_DAYS = 7.0
"""Objects that were written more recently are not removed, unless another number of days is
requested.
"""
_DAY_S = 86_400
_REQUESTS = 16
"""The number of requests to the store at a time."""
_LISTED_MIN = 2_000
"""From this number on, objects are looked for by listing the pool, which takes 256 requests or
more.
"""


class StoreVersion:
    """A version in a store. Safe for any number of threads.

    Attributes:
      directory: `<root>/<model>/<version>`.
    """

    def __init__(self, directory: RemotePath, *, reuse: bool = True) -> None:
        """Names a version; sends no request.

        Args:
          directory: `<root>/<model>/<version>`.
          reuse: Whether objects that the store has are not sent again.
        """
        self.directory = directory
        self._reuse = reuse
        self._older_objects: frozenset[str] = frozenset()
        self._young_from_s: float | None = None

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
        self.mark()
        if not self._reuse:
            return
        started_s = (self.directory / STARTED).modified_s()
        if started_s is not None:
            # By the store's clock, as `clean` counts. What was written later stays for at least
            # another half of the grace period, in which this run should end.
            self._young_from_s = started_s - GRACE_DAYS / 2 * _DAY_S
        # Only now: what the newest version names is not removed until this run ends.
        newest = newest_objects(self.directory.parent)
        if newest is not None:
            # The store may have lost objects that the version names: these are sent again.
            self._older_objects = pool_objects(newest) - self.missing(newest.files.values())

    def mark(self) -> None:
        """Shows `clean` that a run is writing the version now.

        Raises:
          OSError: The store cannot be written.
        """
        now = datetime.now(UTC).isoformat(timespec="seconds")
        (self.directory / STARTED).write(f"{now}\n".encode())

    def content(self, stored: StoredFile) -> StoredContent:
        """Returns the content of a file that was sent."""
        return content_of(self.directory.parent, stored)

    def is_older(self, block: StoredBlock) -> bool:
        """Returns whether the newest version has an object."""
        return block.sha256 in self._older_objects

    def missing(self, files: Iterable[StoredFile]) -> set[str]:
        """Returns the objects of files that the store does not hold, by their SHA-256. Their names
        say their content, their sizes are compared.

        Raises:
          OSError: The store cannot be reached.
        """
        expected = {block.sha256: block.bytes for file in files for block in file.blocks}
        with ThreadPoolExecutor(_REQUESTS, thread_name_prefix="rowcast-check") as pool:
            if len(expected) >= _LISTED_MIN:
                sizes: dict[str, int] = {}
                for listing in pool.map(RemotePath.listing, pool_directories(self._pool)):
                    sizes |= {name: stamp.bytes for name, stamp in listing.items()}
                # A store may list an object some time after it was written.
                names = [name for name, size in expected.items() if sizes.get(name) != size]
            else:
                names = list(expected)
            checks = pool.map(lambda sha256: self._holds(sha256, expected[sha256]), names)
            return {
                sha256 for sha256, is_stored in zip(names, checks, strict=True) if not is_stored
            }

    def send(self, source: Path, expected: File) -> StoredFile:
        """Sends the blocks of a local file that the store does not have.

        Args:
          source: The local file.
          expected: Its size and checksum as they were when it was written.

        Raises:
          DestinationError: The local file has changed since, or the store does not hold what was
            sent.
          OSError: The store cannot be written.
        """
        stored, crcs = _digest_blocks(source, expected)

        def send_block(number: int) -> None:
            block = stored.blocks[number]
            if block.sha256 not in self._older_objects and not self._is_young(block):
                self._write(source, block, crcs[number])

        # Blocks of the same content are one object, which is sent once.
        numbers = {sha256: number for number, sha256 in enumerate(stored.objects)}
        # Up to four files are sent at a time (UPLOADS), and share the number of requests.
        with ThreadPoolExecutor(_REQUESTS // 4, thread_name_prefix="rowcast-send") as pool:
            tuple(pool.map(send_block, numbers.values()))
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
            # If the response to an earlier request was lost, the file is our own.
            if target.read(0, len(data) + 1) != data:
                raise DestinationExists(
                    f"another run has published {self.directory}; this run published nothing: "
                    "choose another version"
                ) from problem
        # Beside `objects.json` the file `started` has no meaning.
        with suppress(OSError):
            (self.directory / STARTED).remove()

    @property
    def _pool(self) -> RemotePath:
        return self.directory.parent / POOL

    def _object(self, sha256: str) -> RemotePath:
        return self.directory.parent / pool_path(sha256)

    def _holds(self, sha256: str, size: int) -> bool:
        try:
            return self._object(sha256).stamp().bytes == size
        except FileNotFoundError:
            return False

    def _is_young(self, block: StoredBlock) -> bool:
        """Returns whether the store has an object that is so young that nothing removes it before
        this run ends.
        """
        if self._young_from_s is None:
            return False
        try:
            size, written_s = self._object(block.sha256).size_and_time()
        except FileNotFoundError:
            return False
        return size == block.bytes and written_s is not None and written_s >= self._young_from_s

    def _write(self, source: Path, block: StoredBlock, crc: int) -> None:
        with source.open("rb") as file:
            file.seek(block.offset)
            data = file.read(block.bytes)
        # The object is named by the content that was digested, and must hold no other bytes.
        if len(data) != block.bytes or crc32c(data) != crc:
            raise DestinationError(
                f"{source} changed while it was sent; run the export again: it writes the file anew"
            )
        target = self._object(block.sha256)
        target.write(data)
        if not _has_arrived(target, data, crc):
            raise DestinationError(
                f"{target} does not hold what was sent ({block.bytes} bytes of {source.name} from "
                f"byte {block.offset}); remove it and run the export again"
            )


def pool_directories(pool: RemotePath) -> list[RemotePath]:
    """Returns the directories of a pool that hold objects."""
    return [pool / f"{number:02x}" for number in range(256)]


def read_objects(directory: RemotePath) -> ObjectMap | None:
    """Reads which objects the files of a version are; returns None if it has no objects.

    Raises:
      BundleError: The file is invalid.
      OSError: It cannot be read.
    """
    file = directory / OBJECTS
    if not file.is_file():
        return None
    return stored_objects.parse(file.read(0, OBJECTS_BYTES_MAX + 1))


def pool_objects(objects: ObjectMap) -> frozenset[str]:
    """Returns the objects in the pool of a model that a version names, by their SHA-256."""
    return frozenset(block.sha256 for file in objects.files.values() for block in file.blocks)


def newest_objects(model: RemotePath) -> ObjectMap | None:
    """Returns the objects of the newest version of a model that shares objects.

    A version that cannot be read is skipped, and its objects are sent again.
    """
    numbers = sorted(map(int, filter(VERSION.fullmatch, model.listing())), reverse=True)
    for number in numbers:
        try:
            objects = read_objects(model / str(number))
        except (BundleError, FileNotFoundError):
            continue
        if objects is not None:
            return objects
    return None


def read_stored_manifest(model: RemotePath, objects: ObjectMap) -> Manifest:
    """Reads the manifest of a version.

    Args:
      model: The directory of the model.
      objects: The objects of the version.

    Raises:
      BundleError: The manifest is invalid.
      OSError: It cannot be read.
    """
    content = content_of(model, objects.files[paths.MANIFEST])
    return parse(content.read(0, MANIFEST_BYTES_MAX + 1))


def _digest_blocks(source: Path, expected: File) -> tuple[StoredFile, list[int]]:
    """Returns a file as its blocks are stored, and the crc32c of each block.

    Raises:
      DestinationError: The file has changed since it was written.
    """
    # One pass computes both: the names of the objects, and the checksum of the whole file.
    names = []
    crcs = []
    crc = size = 0
    with source.open("rb") as file:
        while data := file.read(OBJECT_BYTES):
            names.append(hashlib.sha256(data).hexdigest())
            crcs.append(crc32c(data))
            crc = combine(crc, crcs[-1], len(data))
            size += len(data)
    # The checksum was computed while the file was written, so it also finds damage by this disk.
    if (crc, size) != (expected.crc32c, expected.bytes):
        raise DestinationError(
            f"{source} has changed since it was written: {size} bytes with crc32c {crc}, "
            f"{expected.bytes} with {expected.crc32c} were expected; nothing of it was sent; run "
            "the export again: it writes the file anew"
        )
    return StoredFile(bytes=size, objects=tuple(names)), crcs


def _has_arrived(target: RemotePath, data: bytes, crc: int) -> bool:
    """Compares a new object with what was sent, where the store has not done so."""
    # A store that compares a checksum of each request has rejected what arrived otherwise.
    if target.verifies_uploads:
        return True
    checksum = target.crc32c()
    if checksum is not None:
        return checksum == crc
    return target.read(0, len(data)) == data
