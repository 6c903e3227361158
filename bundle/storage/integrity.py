"""Compares the files of a bundle with the sizes and checksums of its manifest."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Literal

from bundle.errors import DigestMismatch
from bundle.format.checksums import BLOCK_BYTES, Digest, digest
from bundle.format.manifest import File, Manifest
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
      tables: `sizes` compares the sizes of table segments and of `checked_later`, `full` every byte
        of them.
      pause: called after each file, and each block of a large one.
    Raises:
      DigestMismatch: a file is missing, has another size or other bytes; names file and block.
      UnsafePath: a file lies outside the bundle.
    """
    check_sizes(bundle, manifest, pause)
    later = {file.path for file in checked_later(manifest)} if tables == "sizes" else set()
    for file in manifest.files:
        if file.path not in later:
            check_file(bundle, file, pause)
    for table in manifest.tables.values() if tables == "full" else ():
        for segment, size in table.extents():
            with files.locate(bundle, segment.file).open("rb") as stream:
                stream.seek(segment.offset)
                found = digest(stream, size, pause)
            _check_blocks(segment.file, segment.offset, found, segment.blocks, segment.crc32c)


def check_sizes(
    bundle: Path, manifest: Manifest, pause: Callable[[], object] = lambda: None
) -> None:
    """Compares the size of every file with the manifest; raises as `check_files`."""
    for file in manifest.files:
        _check_size(bundle, file.path, file.bytes)
        pause()
    for table in manifest.tables.values():
        for segment, size in table.extents():
            _check_size(bundle, segment.file, segment.offset + size, exact=False)
            pause()


def check_file(bundle: Path, file: File, pause: Callable[[], object] = lambda: None) -> None:
    """Compares every byte of one file with its checksum; raises as `check_files`."""
    _check_size(bundle, file.path, file.bytes)
    with files.locate(bundle, file.path).open("rb", buffering=0) as stream:
        found = digest(stream, file.bytes, pause)
    pause()
    if (found.bytes, found.crc32c) != (file.bytes, file.crc32c):
        raise DigestMismatch(f"file {file.path!r} differs from its checksum; copy the bundle again")


def _check_size(bundle: Path, path: str, expected: int, exact: bool = True) -> None:
    size = files.size(bundle, path)
    if size < expected or (exact and size != expected):
        raise DigestMismatch(
            f"file {path!r} has {size} bytes, {'' if exact else 'at least '}{expected} expected; "
            "copy the bundle again"
        )


def _check_blocks(path: str, offset: int, found: Digest, blocks: Sequence[int], crc: int) -> None:
    for block, (have, want) in enumerate(zip(found.blocks, blocks, strict=False)):
        if have != want:
            first = offset + block * BLOCK_BYTES
            raise DigestMismatch(
                f"file {path!r} differs from its checksum in the 4 MiB from byte {first}; copy it "
                "again"
            )
    if found.crc32c != crc or len(found.blocks) != len(blocks or found.blocks):
        raise DigestMismatch(f"file {path!r} differs from its checksum; copy the bundle again")
