"""Compares the files of a bundle with those that were signed, and lists them to be signed."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Callable, Collection, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from functools import partial
from pathlib import Path

from bundle.arithmetic import ceil_div
from bundle.errors import DigestMismatch, SignatureRejected
from bundle.format import paths
from bundle.format.checksums import PIECE_BYTES
from bundle.format.manifest import Manifest
from bundle.format.objects import OBJECT_BYTES, ObjectMap, StoredBlock, StoredFile
from bundle.storage import files

_READERS = 8
"""Number of threads that read and hash blocks: hashing releases the GIL."""
_NICENESS = 10
"""Enough to let requests go first, and not to wait for ever where a host is never idle."""
_REMEDY = "copy the bundle again, and find out what changed it"


def list_content(bundle: Path, manifest: Manifest) -> ObjectMap:
    """Returns the list of all files of a bundle that is signed; reads every byte.

    Args:
      bundle: The directory of the bundle, or in which it is staged.
      manifest: Its manifest, which lies there too.

    Raises:
      BundleError: A file is missing.
      OSError: A file cannot be read.
    """
    listed = {}
    with ThreadPoolExecutor(_READERS, thread_name_prefix="rowcast-sign") as pool:
        for path in sorted({paths.MANIFEST, *manifest.listed_files}):
            size = files.size(bundle, path)
            blocks = _blocks(size)
            digests = pool.map(partial(_sha256, files.locate(bundle, path)), blocks)
            listed[path] = StoredFile(bytes=size, objects=tuple(digests))
    return ObjectMap(model=manifest.model, version=manifest.version, files=listed)


def check_content(
    bundle: Path,
    manifest: Manifest,
    signed: ObjectMap,
    pause: Callable[[], object] = lambda: None,
) -> None:
    """Compares every byte of a bundle with what was signed.

    It reads in several threads of a low priority, so that requests of a service come first.

    Args:
      bundle: The directory of the bundle.
      manifest: The manifest of the bundle, or of the part whose files are compared; others may be
        missing.
      signed: The files that were signed (`signed_files`).
      pause: A function that is called after each block.

    Raises:
      SignatureRejected: A file differs from the signed one, was not signed, or is missing; the
        message names the file, what was expected and what was found.
      OSError: A file cannot be read.
    """
    if (signed.model, signed.version) != (manifest.model, manifest.version):
        raise SignatureRejected(
            f"the signature is of model {signed.model!r} version {signed.version}; "
            f"{manifest.model!r} version {manifest.version} was expected; {_REMEDY}",
            paths.SIGNED_FILES,
        )
    # Names and sizes first: what was added or cut short shows before TBs are read.
    _check_names(bundle, signed)
    check_paths(bundle, signed, {paths.MANIFEST, *manifest.listed_files}, pause)


def check_paths(
    bundle: Path,
    signed: ObjectMap,
    needed: Collection[str],
    pause: Callable[[], object] = lambda: None,
) -> None:
    """Compares every byte of some files with what was signed; errors as of `check_content`.

    Args:
      bundle, signed, pause: As for `check_content`.
      needed: The paths of the files, relative to the bundle, which the signature has.
    """
    for path in needed:
        _check_size(bundle, path, signed)
    pool = ThreadPoolExecutor(
        _READERS, thread_name_prefix="rowcast-signed", initializer=_lower_priority
    )
    try:
        for path in sorted(needed):
            blocks = signed.files[path].blocks
            digests = pool.map(partial(_sha256, files.locate(bundle, path)), blocks)
            for block, sha256 in zip(blocks, digests, strict=True):
                if sha256 != block.sha256:
                    raise SignatureRejected(
                        f"file {path!r} is not what was signed: the SHA-256 of the {block.bytes} "
                        f"bytes from byte {block.offset} is {sha256}, {block.sha256} was expected; "
                        f"{_REMEDY}",
                        path,
                    )
                pause()
    finally:
        pool.shutdown(cancel_futures=True)


def check_data(path: str, data: bytes, signed: ObjectMap) -> None:
    """Compares the content of a file, which is in memory, with what was signed.

    Raises:
      SignatureRejected: It differs, or the file was not signed.
    """
    blocks = [data[start : start + OBJECT_BYTES] for start in range(0, len(data), OBJECT_BYTES)]
    digests = tuple(hashlib.sha256(block).hexdigest() for block in blocks)
    expected = signed.files.get(path)
    if expected is None or expected.objects != digests:
        raise SignatureRejected(f"file {path!r} is not what was signed; {_REMEDY}", path)


def _check_names(bundle: Path, signed: ObjectMap) -> None:
    """Rejects files in the directory of a bundle that were not signed."""
    signed_paths = {*signed.files, *paths.SIGNATURE_FILES}
    for directory, directories, names in os.walk(bundle):
        folder = Path(directory)
        # Nothing is looked for behind a link to a directory: no bundle has one.
        links = [name for name in directories if (folder / name).is_symlink()]
        for name in (*names, *links):
            path = (folder / name).relative_to(bundle).as_posix()
            if path not in signed_paths:
                raise SignatureRejected(
                    f"file {path!r} is in the bundle, and was not signed; remove it, and find out "
                    "what added it",
                    path,
                )


def _check_size(bundle: Path, path: str, signed: ObjectMap) -> None:
    if path not in signed.files:
        raise SignatureRejected(
            f"file {path!r} of the manifest is not among those that were signed; {_REMEDY}", path
        )
    expected = signed.files[path].bytes
    try:
        actual_bytes = files.size(bundle, path)
    except DigestMismatch as problem:
        raise SignatureRejected(
            f"file {path!r} of {expected} bytes was signed, and is missing; {_REMEDY}", path
        ) from problem
    if actual_bytes != expected:
        raise SignatureRejected(
            f"file {path!r} is not what was signed: it has {actual_bytes} bytes, {expected} were "
            f"expected; {_REMEDY}",
            path,
        )


def _blocks(size: int) -> Iterable[StoredBlock]:
    """Yields the blocks of a file, without their digests."""
    for number in range(ceil_div(size, OBJECT_BYTES)):
        offset = number * OBJECT_BYTES
        yield StoredBlock("", offset, min(OBJECT_BYTES, size - offset))


def _sha256(path: Path, block: StoredBlock) -> str:
    """Returns the SHA-256 of a block of a file; of what there is of it, if the file is shorter."""
    digest = hashlib.sha256()
    piece = memoryview(bytearray(min(PIECE_BYTES, block.bytes)))
    unread = block.bytes
    with path.open("rb", buffering=0) as file:
        file.seek(block.offset)
        while unread:
            count = file.readinto(piece[:unread])
            if not count:
                break
            digest.update(piece[:count])
            unread -= count
    return digest.hexdigest()


def _lower_priority() -> None:
    # Of this thread alone, on Linux. Where the number is no thread, nothing is lowered.
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
