"""Compares the files of a bundle with the sizes and checksums of its manifest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

from bundle.errors import DigestMismatch
from bundle.format.checksums import BLOCK_BYTES, Digest, digest
from bundle.format.manifest import Delta, File, Manifest
from bundle.storage import files
from bundle.storage.mapped_files import checked_later


def check_files(
    bundle: Path,
    manifest: Manifest,
    tables: Literal["sizes", "full"] = "sizes",
    pause: Callable[[], object] = lambda: None,
) -> None:
    """Compares a bundle's files with its manifest: in full, except those mapped by rows, which may
    be compared by size.

    Args:
      bundle: The directory of the bundle.
      manifest: The manifest of the bundle.
      tables: How table segments and `checked_later` are compared: `sizes` by their sizes, `full` by
        every byte.
      pause: A function that is called after each file, and after each block of a large one.

    Raises:
      DigestMismatch: A file is missing, has another size or other bytes; names file and block.
      UnsafePath: A file lies outside the bundle.
    """
    # All sizes first: a file that was not copied to its end shows in no time.
    check_sizes(bundle, manifest, pause)
    if tables == "sizes":
        later = {file.path for file in checked_later(manifest)}
        for file in manifest.files:
            if file.path not in later:
                check_file(bundle, file, pause)
        return

    for file in manifest.files:
        check_file(bundle, file, pause)
    for table in manifest.tables.values():
        for extent, size in table.extents():
            with files.locate(bundle, extent.file).open("rb") as stream:
                stream.seek(extent.offset)
                actual = digest(stream, size, pause)
            _check_blocks(extent.file, extent.offset, actual, extent.blocks, extent.crc32c)


def check_sizes(
    bundle: Path, manifest: Manifest, pause: Callable[[], object] = lambda: None
) -> None:
    """Compares the size of every file with the manifest; raises as `check_files`."""
    for file in manifest.files:
        _check_size(bundle, file.path, file.bytes)
        pause()
    for table in manifest.tables.values():
        for extent, size in table.extents():
            # A linked file of the checkpoint may go on behind the segment. A delta ends where its
            # last record does.
            exact = isinstance(extent, Delta)
            _check_size(bundle, extent.file, extent.offset + size, exact)
            pause()


def check_file(bundle: Path, file: File, pause: Callable[[], object] = lambda: None) -> None:
    """Compares every byte of one file with its checksum; raises as `check_files`."""
    _check_size(bundle, file.path, file.bytes)
    with files.locate(bundle, file.path).open("rb", buffering=0) as stream:
        actual = digest(stream, file.bytes, pause)
    pause()
    if (actual.bytes, actual.crc32c) != (file.bytes, file.crc32c):
        raise DigestMismatch(f"file {file.path!r} differs from its checksum; copy the bundle again")


def _check_size(bundle: Path, path: str, expected: int, exact: bool = True) -> None:
    size = files.size(bundle, path)
    if size == expected or (size > expected and not exact):
        return
    minimum = "" if exact else "at least "
    raise DigestMismatch(
        f"file {path!r} has {size} bytes, {minimum}{expected} expected; copy the bundle again"
    )


def _check_blocks(path: str, offset: int, actual: Digest, blocks: Sequence[int], crc: int) -> None:
    # Block by block where the manifest has their checksums: the error says what part is damaged.
    for block, checksums in enumerate(zip(actual.blocks, blocks, strict=False)):
        actual_checksum, expected_checksum = checksums
        if actual_checksum != expected_checksum:
            first = offset + block * BLOCK_BYTES
            raise DigestMismatch(
                f"file {path!r} differs from its checksum in the 4 MiB from byte {first}; copy it "
                "again"
            )
    if actual.crc32c != crc or len(actual.blocks) != len(blocks or actual.blocks):
        raise DigestMismatch(f"file {path!r} differs from its checksum; copy the bundle again")
