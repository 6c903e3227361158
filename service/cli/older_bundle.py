"""Takes blocks of a download from the newest version that is on this machine.

A store names the content of each block by its SHA-256. A block of the older version whose SHA-256
is the same is the same block, wherever it came from, and is not damaged. A directory, or a store of
files under their own names, is read instead and compared byte by byte: that saves the disk of this
machine alone.
"""

from __future__ import annotations

import hashlib
import os
from collections.abc import Collection, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import NamedTuple

from bundle.errors import BundleError, NotCommitted
from bundle.format.manifest import Manifest
from bundle.format.objects import OBJECT_BYTES, StoredBlock
from bundle.storage import catalog, files, retention
from object_store.stored_content import StoredContent
from service.cli.bundle_source import BundleSource

_READERS = 8
"""Number of threads that read and hash blocks of the older version: hashing releases the GIL."""


@dataclass(frozen=True)
class ReusedFiles:
    """The files that were taken from an older version.

    Attributes:
      whole: The paths of the files that were taken as a whole.
      bytes: The number of bytes that were taken.
    """

    whole: frozenset[str] = frozenset()
    bytes: int = 0


class _Sums(NamedTuple):
    """The checksums of a file in a manifest.

    Attributes:
      bytes: The number of bytes that the checksums are of.
      crc32c: Their crc32c as a whole.
      blocks: The crc32c of each block of OBJECT_BYTES; () if the manifest has none.
    """

    bytes: int
    crc32c: int
    blocks: tuple[int, ...] = ()


def reuse_files(
    source: BundleSource, root: Path, needed: Collection[str], target: Path
) -> ReusedFiles:
    """Takes blocks from the newest version that is under a root, if they are those of a download.

    A file whose blocks are all the same becomes a hard link to the older file. Of another file, the
    blocks that are the same are copied. A file that an earlier download began stays as it is.

    Args:
      source: The bundle in the store.
      root: The directory of the bundles on this machine.
      needed: The paths of the files that are downloaded.
      target: The directory where the files are staged.

    Raises:
      OSError: A file cannot be written.
    """
    older = _newest(root, source.manifest)
    if older is None:
        return ReusedFiles()
    directory, older_sums = older
    # Held, so that `pull --keep` of another process does not remove it meanwhile.
    try:
        lock = retention.hold(directory)
    except NotCommitted:
        # It is just being removed.
        return ReusedFiles()
    sums = _sums_of(source.manifest)
    whole = set()
    reused_bytes = 0
    try:
        for path in sorted(sums.keys() & older_sums.keys() & set(needed)):
            stored = _stored_blocks(source, path, sums[path].bytes)
            older_file = _locate(directory, path)
            if not stored or older_file is None or (target / path).exists():
                continue
            candidates = _candidates(stored, sums[path], older_sums[path])
            blocks = _equal_blocks(source, path, older_file, candidates)
            # The older file may be longer: only a file of the same size is the same file.
            is_whole = len(blocks) == len(stored)
            if is_whole and older_file.stat().st_size == sum(block.bytes for block in stored):
                _link(older_file, target / path, blocks)
                whole.add(path)
            elif blocks:
                _copy(older_file, target / path, blocks)
            reused_bytes += sum(block.bytes for block in blocks)
    finally:
        if lock is not None:
            os.close(lock)
    return ReusedFiles(frozenset(whole), reused_bytes)


def _newest(root: Path, manifest: Manifest) -> tuple[Path, dict[str, _Sums]] | None:
    """Returns the directory of the newest version of the model, and the checksums of its files;
    None if there is none that can be read.
    """
    versions = catalog.committed_versions(root, manifest.model)
    numbers = [number for number in versions if number != manifest.version]
    if not numbers:
        return None
    directory = root / manifest.model / str(numbers[-1])
    try:
        return directory, _sums_of(catalog.read_manifest(directory))
    except BundleError:
        return None


def _sums_of(manifest: Manifest) -> dict[str, _Sums]:
    """Returns the checksums of files by path; of a file with several segments of tables, those of
    the segment at its beginning.
    """
    sums = {file.path: _Sums(file.bytes, file.crc32c) for file in manifest.files}
    for table in manifest.tables.values():
        for segment, size in table.extents():
            if segment.blocks and not segment.offset:
                sums[segment.file] = _Sums(size, segment.crc32c, segment.blocks)
    return sums


def _stored_blocks(source: BundleSource, path: str, size: int) -> Sequence[StoredBlock]:
    """Returns the blocks of a file of the download; () if the store names none of it.

    Args:
      source: The bundle in the store.
      path: The path of the file in the bundle.
      size: The number of bytes of the file that the manifest has checksums of.
    """
    if source.objects is None:
        return [
            StoredBlock("", offset, min(OBJECT_BYTES, size - offset))
            for offset in range(0, size, OBJECT_BYTES)
        ]
    file = source.objects.files.get(path)
    return () if file is None else file.blocks


def _candidates(stored: Sequence[StoredBlock], sums: _Sums, older: _Sums) -> list[StoredBlock]:
    """Returns the blocks whose checksums are those of the older file: others differ, and need not
    be read.
    """
    # A crc32c only saves the reading: blocks are the same if their SHA-256 is, or their bytes are.
    if sums.crc32c == older.crc32c:
        return [*stored]
    pairs = zip(stored, sums.blocks, older.blocks, strict=False)
    return [block for block, crc, older_crc in pairs if crc == older_crc]


def _locate(directory: Path, path: str) -> Path | None:
    """Returns the path of a file of the older version; None if it does not exist."""
    try:
        return files.locate(directory, path)
    except BundleError:
        return None


def _equal_blocks(
    source: BundleSource, path: str, older_file: Path, candidates: Sequence[StoredBlock]
) -> list[StoredBlock]:
    """Returns the blocks of a file of the download that an older file holds."""
    is_equal = partial(_is_in, older_file)
    if source.objects is None:
        is_equal = partial(_reads_alike, older_file, source.file(path))
    with ThreadPoolExecutor(_READERS, thread_name_prefix="rowcast-older") as pool:
        equal = pool.map(is_equal, candidates)
        return [block for block, is_in in zip(candidates, equal, strict=True) if is_in]


def _reads_alike(older_file: Path, content: StoredContent, block: StoredBlock) -> bool:
    """Returns whether both files can be read, and hold the same bytes."""
    try:
        with older_file.open("rb", buffering=0) as file:
            older = os.pread(file.fileno(), block.bytes, block.offset)
        # What cannot be read now is fetched again, and named then.
        return len(older) == block.bytes and older == content.read(block.offset, block.bytes)
    except OSError:
        return False


def _is_in(older_file: Path, block: StoredBlock) -> bool:
    """Returns whether a file can be read and holds a block."""
    digest = hashlib.sha256()
    unread_bytes = block.bytes
    try:
        with older_file.open("rb", buffering=0) as file:
            file.seek(block.offset)
            # A file that is shorter than it was ends the loop early: its digest differs.
            while unread_bytes and (data := file.read(min(unread_bytes, OBJECT_BYTES))):
                digest.update(data)
                unread_bytes -= len(data)
    except OSError:
        return False
    return digest.hexdigest() == block.sha256


def _link(older_file: Path, target: Path, blocks: Sequence[StoredBlock]) -> None:
    """Makes a hard link to a file, or a copy where the file system allows none."""
    target.parent.mkdir(parents=True, exist_ok=True)
    # Fails on another file system, for another user's file, and beyond the maximum number of links.
    try:
        target.hardlink_to(older_file)
    except OSError:
        _copy(older_file, target, blocks)


def _copy(older_file: Path, target: Path, blocks: Sequence[StoredBlock]) -> None:
    """Copies blocks of a file to a new one."""
    target.parent.mkdir(parents=True, exist_ok=True)
    # The file has holes where blocks differ: the download fills them in.
    with older_file.open("rb", buffering=0) as source, target.open("xb", buffering=0) as file:
        for block in blocks:
            for offset in range(block.offset, block.offset + block.bytes, OBJECT_BYTES):
                count = min(OBJECT_BYTES, block.offset + block.bytes - offset)
                file.seek(offset)
                file.write(os.pread(source.fileno(), count, offset))
