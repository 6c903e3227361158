"""Segments: changed candidates of one corpus in files beside the change log.

    segment.json                    what the segment is, with the checksum of each other file
    candidates.arrow                a store as a bundle has it, with `expires_s` (Unix seconds,
                                    null: never) and `sent:<index>` (bool: the vector was sent)
    ended.bin                       positions of the bundle and of the segments before this one that
                                    were replaced or deleted, ascending, little-endian uint32
    filters/<number>/               an index of each attribute that requests may filter by
    indexes/<index>/vectors.bin     float32 rows
    indexes/<index>/scann/          ScaNN's files; none where vectors are searched exactly

A segment is written under a temporary name, and never changes once it has its own. The log says
from which record on it stands for the changes before.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from pydantic import Field, ValidationError

from bundle.errors import DigestMismatch, FormatError
from bundle.format.checksums import Digest, crc32c, digest
from bundle.format.fields import Count, Crc32c, Name, Positive, StrictModel
from bundle.format.manifest import AttributeIndex, Corpus, File
from bundle.storage import arrow, files, integrity
from bundle.stores.attribute_index import write_attribute_index

MANIFEST = "segment.json"
CANDIDATES = "candidates.arrow"
ENDED = "ended.bin"
EXPIRES = "expires_s"
TEMPORARY = ".temporary-"
"""The beginning of the name of a directory that is not complete."""
PART_BYTES = 4 << 20
"""The number of bytes of a file that are read at a time to copy it."""
ReadPart = Callable[[str, int, int], bytes]
"""A function that returns bytes of a file by its name, an offset, and their maximum number; fewer
where the file ends.
"""
_UNSORTED = "candidates.parts"
_FORMAT = 1
_MANIFEST_BYTES_MAX = 16 << 20
_ENDED_DTYPE = np.dtype("<u4")


class SegmentIndex(StrictModel):
    """The vectors of one index.

    Attributes:
      dim: The number of values of each vector.
      parameters: The parameters of ScaNN's training, as in an index of the bundle; {}: the vectors
        are searched exactly.
    """

    dim: Positive
    parameters: dict[str, int] = Field(default_factory=dict)


class SegmentManifest(StrictModel):
    """What a segment is.

    Attributes:
      model, version, fingerprint: The version whose towers gave the vectors: the crc32c of its
        manifest tells it from another one that has its number.
      corpus: The name of the corpus.
      sequence: The sequence of the last change that the segment contains.
      size: The number of candidates; without any, `ended.bin` is the only file.
      filters: The indexes of attributes, by attribute.
      indexes: The indexes of vectors, by name.
      files: All other files.
    """

    format: int = _FORMAT
    model: Name
    version: Positive
    fingerprint: Crc32c
    corpus: Name
    sequence: Count
    size: Count
    filters: dict[str, AttributeIndex] = Field(default_factory=dict)
    indexes: dict[Name, SegmentIndex] = Field(default_factory=dict)
    files: tuple[File, ...] = ()


class Segment(NamedTuple):
    """A segment that was found sound.

    Attributes:
      directory: The directory of its files.
      manifest: The content of its `segment.json`.
    """

    directory: Path
    manifest: SegmentManifest

    def ended(self) -> NDArray[np.uint32]:
        """Reads the positions before the segment that were ended."""
        return np.fromfile(self.directory / ENDED, _ENDED_DTYPE)

    def vectors(self, index: str) -> NDArray[np.float32]:
        """Maps the vectors of an index, [size, dim]."""
        shape = (self.manifest.size, self.manifest.indexes[index].dim)
        path = self.directory / vectors_file(index)
        return np.asarray(np.memmap(path, np.dtype("<f4"), "r", shape=shape))

    def corpus(self, entry: Corpus) -> Corpus:
        """Returns the entry of the segment's store; `entry`: that of the corpus of the bundle."""
        manifest = self.manifest
        update = {"file": CANDIDATES, "size": manifest.size, "filters": manifest.filters}
        return entry.model_copy(update=update)


def sent_column(index: str) -> str:
    """Returns the column that says whose vectors of an index were sent."""
    return f"sent:{index}"


def vectors_file(index: str) -> str:
    """Returns the file of the vectors of an index."""
    return f"indexes/{index}/vectors.bin"


def scann_directory(index: str) -> str:
    """Returns the directory of ScaNN's files."""
    return f"indexes/{index}/scann"


def write_candidates(
    directory: Path,
    parts: Iterator[tuple[Any, Mapping[str, NDArray[np.float32]]]],
    ended: NDArray[np.uint32],
) -> None:
    """Writes the candidates and vectors that the serving process holds; `finish` makes a segment of
    these files.

    Args:
      directory: The directory, which is created under a temporary name.
      parts: Candidates that follow each other: a `pyarrow.RecordBatch`, and [m, dim] vectors by
        index.
      ended: Positions before the segment that were ended, ascending.

    Raises:
      OSError: The disk is full or broken.
    """
    import pyarrow as pa

    files.make_private_directory(directory)
    ended.astype(_ENDED_DTYPE).tofile(directory / ENDED)
    # In the batches that come, since memory may not hold all; `finish` joins them.
    writer = None
    try:
        for batch, vectors in parts:
            if writer is None:
                writer = pa.ipc.new_file(str(directory / _UNSORTED), batch.schema)
            writer.write_batch(batch)
            for index, rows in vectors.items():
                path = directory / vectors_file(index)
                path.parent.mkdir(parents=True, exist_ok=True)
                with path.open("ab") as file:
                    file.write(np.ascontiguousarray(rows, "<f4").data)
    finally:
        if writer is not None:
            writer.close()


def finish(directory: Path, manifest: SegmentManifest, attributes: tuple[str, ...]) -> None:
    """Completes a segment, but for its name: columns that lie in one piece, indexes of attributes,
    checksums, and everything on the disk.

    Args:
      directory: The directory that `write_candidates` wrote, with ScaNN's files.
      manifest: The manifest, without files and filters.
      attributes: The attributes by which requests may filter.

    Raises:
      OSError: The disk is full or broken.
    """
    if manifest.size:
        table, _ = arrow.open_trusted(directory / _UNSORTED)
        arrow.write(directory / CANDIDATES, table)
        # The map goes with the table, so that the file's blocks are free.
        del table
        (directory / _UNSORTED).unlink()
    filters = {}
    if not manifest.size:
        attributes = ()
    for number, attribute in enumerate(attributes):
        entry = AttributeIndex(
            values=f"filters/{number:05d}/values.arrow", rows=f"filters/{number:05d}/rows.bin"
        )
        write_attribute_index(directory / CANDIDATES, attribute, directory, entry)
        filters[attribute] = entry
    # In the order of their names, so that equal segments have equal manifests.
    entries = []
    for path in sorted(directory.rglob("*")):
        if path.is_file():
            files.make_private(path)
            with path.open("rb", buffering=0) as stream:
                content = digest(stream)
            files.sync(path)
            name = str(path.relative_to(directory))
            entries.append(File(path=name, bytes=content.bytes, crc32c=content.crc32c))
    complete = manifest.model_copy(update={"filters": filters, "files": tuple(entries)})
    path = directory / MANIFEST
    path.write_text(complete.model_dump_json())
    files.make_private(path)
    files.sync(path)
    _sync_folders(directory)


def _sync_folders(directory: Path) -> None:
    for folder in [directory, *(folder for folder in directory.rglob("*") if folder.is_dir())]:
        files.sync(folder)


def publish(temporary: Path, directory: Path) -> int:
    """Gives a complete segment its name; returns the checksum of its manifest.

    Raises:
      OSError: It cannot be renamed.
    """
    temporary.rename(directory)
    files.sync(directory.parent)
    return crc32c((directory / MANIFEST).read_bytes())


def open_segment(directory: Path, checksum: int) -> Segment:
    """Opens a segment and compares all of its bytes with their checksums.

    Args:
      directory: The directory of the segment.
      checksum: The checksum of its manifest, as the log has it.

    Raises:
      DigestMismatch: A file is missing or damaged.
      FormatError: It is of another format.
      OSError: A file cannot be read.
    """
    try:
        content = _manifest_content(directory)
    except FileNotFoundError as problem:
        raise DigestMismatch(f"segment {directory.name!r} has no {MANIFEST}") from problem
    manifest = _checked_manifest(directory.name, content, checksum)
    for entry in manifest.files:
        integrity.check_file(directory, entry)
    return Segment(directory, manifest)


def read_part(directory: Path, file: str, offset: int, bytes_max: int) -> bytes:
    """Returns a part of a file of a segment, for services that copy it.

    Args:
      directory: The directory of the segment.
      file: The name of the file in the segment: the manifest, or a file that it lists.
      offset: The position of the first byte.
      bytes_max: The maximum size of the part, which is shorter where the file ends.

    Raises:
      FileNotFoundError: There is no such segment, or it has no such file.
      FormatError: Its manifest cannot be read.
      OSError: The file cannot be read.
    """
    # Only listed files, since the name comes from another process: no path may leave the segment.
    if file != MANIFEST:
        manifest = _manifest(directory.name, _manifest_content(directory))
        if all(entry.path != file for entry in manifest.files):
            raise FileNotFoundError(f"segment {directory.name!r} has no file {file!r}")
    with (directory / file).open("rb") as stream:
        stream.seek(offset)
        return stream.read(bytes_max)


def copy_segment(temporary: Path, name: str, checksum: int, read: ReadPart) -> None:
    """Writes a copy of a segment, but for its name, with every byte compared and on the disk.

    Args:
      temporary: The directory to write, which is created.
      name: The name of the segment, for errors.
      checksum: The checksum of its manifest, as the log has it.
      read: The function that returns a part of a file of the segment.

    Raises:
      DigestMismatch: A file has other bytes than its checksum says.
      FormatError: The segment is of another format.
      OSError: The disk is full or broken.
    """
    content = b"".join(_parts(MANIFEST, _MANIFEST_BYTES_MAX, read))
    manifest = _checked_manifest(name, content, checksum)
    files.make_private_directory(temporary)
    for entry in manifest.files:
        path = temporary / entry.path
        path.parent.mkdir(parents=True, exist_ok=True)
        copied = Digest()
        with os.fdopen(files.open_private(path, os.O_WRONLY), "wb") as stream:
            for part in _parts(entry.path, entry.bytes, read):
                copied.update(part)
                stream.write(part)
        if (copied.bytes, copied.crc32c) != (entry.bytes, entry.crc32c):
            raise DigestMismatch(
                f"file {entry.path!r} of segment {name!r} differs from its checksum as it came"
            )
        files.sync(path)
    path = temporary / MANIFEST
    path.write_bytes(content)
    files.make_private(path)
    files.sync(path)
    _sync_folders(temporary)


def _parts(file: str, size: int, read: ReadPart) -> Iterator[bytes]:
    """Yields the parts of a file that is copied: at most `size` bytes, fewer if it ends before."""
    offset = 0
    while offset < size:
        part_bytes = min(PART_BYTES, size - offset)
        part = read(file, offset, part_bytes)
        yield part
        if len(part) < part_bytes:
            return
        offset += part_bytes


def _manifest_content(directory: Path) -> bytes:
    # Cut off if it is larger, so that its checksum does not match.
    with (directory / MANIFEST).open("rb") as file:
        return file.read(_MANIFEST_BYTES_MAX)


def _checked_manifest(name: str, content: bytes, checksum: int) -> SegmentManifest:
    if crc32c(content) != checksum:
        raise DigestMismatch(f"{MANIFEST} of segment {name!r} differs from its checksum")
    return _manifest(name, content)


def _manifest(name: str, content: bytes) -> SegmentManifest:
    try:
        manifest = SegmentManifest.model_validate_json(content)
    except ValidationError as problem:
        raise FormatError(f"segment {name!r} is of another release") from problem
    if manifest.format != _FORMAT:
        raise FormatError(f"segment {name!r} has format {manifest.format}; {_FORMAT} was expected")
    return manifest


def segment_names(parent: Path) -> list[str]:
    """Returns the names of all segments, and of directories that were never finished; none if there
    is no such directory.
    """
    try:
        return sorted(os.listdir(parent))
    except (FileNotFoundError, NotADirectoryError):
        return []
