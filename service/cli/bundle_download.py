"""Downloads a bundle from an object store into a root of this machine.

The files that the manifest lists are fetched into `.staging-N`, 4 MiB per request, and checked by
their crc32c; the manifest is written last, then one rename publishes the version. A later pull of
the same manifest keeps complete blocks of table shards, and other files that are complete as a
whole.

A shard, or a router, needs some of the files; each of them is then on the disk whole or not at all.
A version that was pulled for another shard gets the files that it lacks.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bundle.arithmetic import ceil_div
from bundle.errors import BundleError, DestinationExists, SignatureRejected, VersionBusy
from bundle.format import paths
from bundle.format.checksums import BLOCK_BYTES, crc32c, digest
from bundle.format.manifest import Manifest
from bundle.format.objects import ObjectMap
from bundle.storage import retention
from bundle.storage.signatures import KeyRejected, Signature, signed_files
from bundle.storage.signed_content import check_content, check_data, check_paths
from bundle.storage.staging import Staging
from service.cli.bundle_source import (
    EXIT_DAMAGED,
    EXIT_DESTINATION,
    BundleSource,
    PullError,
    reading,
)
from service.cli.older_bundle import reuse_files
from service.exit_codes import EXIT_USAGE

CONNECTIONS = 8
"""Number of requests at a time: one waits for the store most of the time."""
_ATTEMPTS = 3
"""Number of times that a block is fetched whose bytes differ from its checksum: they may have
changed in transit.
"""


@dataclass(frozen=True)
class Pulled:
    """The result of a pull.

    Attributes:
      bundle: The directory of the bundle.
      model: The name of the model.
      version: The version of the bundle.
      bytes: The size of the bundle, or of the files that are needed here.
      downloaded_bytes: The number of bytes that were fetched now.
      kept_bytes: The number of bytes that an earlier pull had fetched, for this version or another.
      removed: The older versions that were removed.
      in_use: The older versions that were not removed, because something uses them.
      reused_bytes: The part of `kept_bytes` that this pull took from an older version.
    """

    bundle: Path
    model: str
    version: int
    bytes: int
    downloaded_bytes: int
    kept_bytes: int
    removed: tuple[int, ...] = ()
    in_use: tuple[int, ...] = ()
    reused_bytes: int = 0


@dataclass(frozen=True)
class _Extent:
    """Bytes of a file: a whole one, the rows of a table shard within one, or a block of either.

    Attributes:
      path: The path of the file in the bundle.
      offset: The position of the first byte in the file.
      bytes: The number of bytes.
      crc32c: The checksum of the bytes; None: they are a block of an extent that has a checksum
        only as a whole.
      blocks: The crc32c of each block; (): the manifest has none.
    """

    path: str
    offset: int
    bytes: int
    crc32c: int | None
    blocks: tuple[int, ...] = ()

    def split(self) -> Iterator[_Extent]:
        """Yields the blocks, each of which one request fetches."""
        for number, start in enumerate(range(0, self.bytes, BLOCK_BYTES)):
            crc = None
            if self.blocks:
                crc = self.blocks[number]
            size = min(BLOCK_BYTES, self.bytes - start)
            yield _Extent(self.path, self.offset + start, size, crc)

    def is_complete(self, directory: Path) -> bool:
        """Returns whether the bytes are in a directory."""
        with (directory / self.path).open("rb", buffering=0) as file:
            file.seek(self.offset)
            return digest(file, self.bytes).crc32c == self.crc32c


def pull(
    source: BundleSource,
    root: Path,
    keep: int | None,
    report: Callable[[int, int], object] = lambda *_: None,
    select_part: Callable[[Manifest], Manifest] = lambda manifest: manifest,
    signing_keys: Sequence[Path] = (),
) -> Pulled:
    """Downloads a bundle, and removes old versions on request.

    Args:
      source: The bundle in the store.
      root: The directory of the bundles on this machine; created if missing.
      keep: How many of the newest versions stay; None: all. Versions that a service uses stay
        anyway.
      report: Called with the number of bytes to fetch, and the number of bytes fetched since its
        last call.
      select_part: Takes a manifest, and returns the part that is needed here.
      signing_keys: The files of the keys one of which must have signed the bundle; (): no signature
        is required.

    Raises:
      PullError: A file differs from its checksum, or from what was signed, or the destination
        cannot take it; fetched bytes are kept.
    """
    # The whole manifest is published, whatever part is downloaded: shards find their part by it.
    manifest = select_part(source.manifest)
    signed = _signed_files(source, signing_keys)
    downloaded = 0
    reused_bytes = 0
    removed = list[int]()
    in_use = list[int]()
    final = root / manifest.model / str(manifest.version)
    extents = _extents(source.manifest, manifest)
    total = sum(extent.bytes for extent in extents)
    with _writing():
        # A version that was pulled for another shard: files are added to it.
        is_adding = _exists(final, source)
        if is_adding:
            extents = [extent for extent in extents if not (final / extent.path).exists()]
        new_signature = _new_signature(final, source)
        if extents or new_signature or not is_adding:
            with Staging(root, manifest.model, manifest.version, is_adding) as stage:
                needed = {extent.path for extent in extents}
                reused = reuse_files(source, root, needed, stage.directory)
                reused_bytes = reused.bytes
                not_reused = [extent for extent in extents if extent.path not in reused.whole]
                missing = _missing_blocks(stage.directory, not_reused)
                downloaded = sum(block.bytes for block in missing)
                _check_space(stage.directory, downloaded)
                _download(missing, source, stage.directory, partial(report, downloaded))

                # Blocks without a checksum of their own are checked by that of their extent.
                unchecked = {block.path for block in missing if block.crc32c is None}
                for extent in extents:
                    if extent.path in unchecked and not extent.is_complete(stage.directory):
                        raise _damage(source, extent)
                _check_staged(stage.directory, signed, needed)
                if is_adding:
                    if new_signature is not None:
                        stage.write_signature(new_signature)
                        needed.update(paths.SIGNATURE_FILES)
                    stage.add(sorted(needed))
                else:
                    stage.commit(manifest, source.data, lambda _: source.signature)
        if signed is not None and is_adding:
            check_content(final, manifest, signed)
        # Last: the older versions are of use until this one is complete.
        if keep is not None:
            removed, in_use = retention.sweep_old(root, manifest.model, keep, manifest.version)
    return Pulled(
        bundle=final,
        model=manifest.model,
        version=manifest.version,
        bytes=total,
        downloaded_bytes=downloaded,
        kept_bytes=total - downloaded,
        removed=tuple(removed),
        in_use=tuple(in_use),
        reused_bytes=reused_bytes,
    )


def _signed_files(source: BundleSource, keys: Sequence[Path]) -> ObjectMap | None:
    """Returns the files of a bundle that one of several keys has signed, before any is downloaded;
    None: there are no keys.

    Raises:
      PullError: There is no such signature, or a key cannot be used.
    """
    if not keys:
        return None
    try:
        signed = signed_files(source.signature, keys)
        check_data(paths.MANIFEST, source.data, signed)
    except KeyRejected as problem:
        raise PullError(f"--verify-signatures: {problem}", EXIT_USAGE) from problem
    except BundleError as problem:
        raise PullError(f"{source.directory}: {problem}", EXIT_DAMAGED) from problem
    if source.objects is not None:
        # Objects are named by the digests that are signed.
        for path, stored in source.objects.files.items():
            if path not in paths.SIGNATURE_FILES and stored != signed.files.get(path):
                raise PullError(
                    f"{source.directory}: file {path!r} is not what was signed, by the names of "
                    "its objects; publish the bundle again, and find out what changed it",
                    EXIT_DAMAGED,
                )
    return signed


def _new_signature(final: Path, source: BundleSource) -> Signature | None:
    """Returns the signature of a bundle; None: it has none, or the destination has it already.

    A version that was pulled before may have been signed since, or by another key.
    """
    if source.signature is None:
        return None
    local = {path: final / path for path in paths.SIGNATURE_FILES}
    contents = {path: file.read_bytes() for path, file in local.items() if file.is_file()}
    if contents == source.signature.by_path():
        return None
    return source.signature


def _check_staged(staged: Path, signed: ObjectMap | None, needed: Collection[str]) -> None:
    """Compares files with what was signed; None: no signature is required.

    Raises:
      SignatureRejected: A file differs. It is removed: the next pull would keep it, since its
        checksum is right.
    """
    if signed is None:
        return
    try:
        check_paths(staged, signed, needed)
    except SignatureRejected as problem:
        if problem.path:
            (staged / problem.path).unlink(missing_ok=True)
        raise


def _check_space(directory: Path, needed_bytes: int) -> None:
    """Rejects a download that would fill the disk up.

    Raises:
      PullError: There is not enough space.
    """
    free_bytes = shutil.disk_usage(directory).free
    if needed_bytes > free_bytes:
        raise PullError(
            f"{directory} has {free_bytes >> 20:,} MiB free, "
            f"{ceil_div(needed_bytes, 1 << 20):,} MiB are needed; free some space, then pull again",
            EXIT_DESTINATION,
        )


def _extents(whole: Manifest, part: Manifest) -> list[_Extent]:
    """Returns the extents of all files that hold something of a part of the bundle."""
    needed = {file.path for file in part.files}
    needed |= {shard.file for table in part.tables.values() for shard, _ in table.extents()}
    extents = [_Extent(file.path, 0, file.bytes, file.crc32c) for file in whole.files]
    for table in whole.tables.values():
        for shard, size in table.extents():
            extents.append(_Extent(shard.file, shard.offset, size, shard.crc32c, shard.blocks))
    return [extent for extent in extents if extent.path in needed]


@contextmanager
def _writing() -> Iterator[None]:
    """Turns errors of the destination into PullError."""
    try:
        yield
    except (DestinationExists, VersionBusy) as problem:
        raise PullError(str(problem), EXIT_DESTINATION) from problem
    except BundleError as problem:
        raise PullError(str(problem), EXIT_DAMAGED) from problem
    except OSError as problem:
        message = (
            f"{problem.filename or 'the destination'}: {problem.strerror or problem}; what "
            "was fetched is kept"
        )
        raise PullError(message, EXIT_DESTINATION) from problem


def _exists(final: Path, source: BundleSource) -> bool:
    """Returns whether the destination has the version already.

    Raises:
      DestinationExists: Another bundle has the directory of the version.
    """
    manifest = final / paths.MANIFEST
    if not manifest.is_file():
        return False
    if manifest.read_bytes() != source.data:
        raise DestinationExists(
            f"{final} holds another bundle than {source.directory}; bundles are never overwritten"
        )
    return True


def _missing_blocks(directory: Path, extents: Sequence[_Extent]) -> list[_Extent]:
    """Creates the files that do not exist, and returns the blocks that are not on disk yet."""
    missing: list[_Extent] = []
    _remove_incomplete_links(directory, extents)

    # A longer file was staged for another bundle of the same version.
    ends: dict[str, int] = {}
    for extent in extents:
        ends[extent.path] = max(_end(extent), ends.get(extent.path, 0))
    for path, end in ends.items():
        file = directory / path
        if file.exists() and file.stat().st_size > end:
            os.truncate(file, end)
    new_paths = {extent.path for extent in extents if not (directory / extent.path).exists()}
    for path in new_paths:
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).touch()

    # Blocks of an earlier run are read and compared, which is faster than to fetch them.
    for extent in extents:
        if extent.blocks and extent.path not in new_paths:
            missing += [block for block in extent.split() if not block.is_complete(directory)]
        elif extent.path in new_paths or not extent.is_complete(directory):
            missing += extent.split()
    return missing


def _remove_incomplete_links(directory: Path, extents: Sequence[_Extent]) -> None:
    """Removes staged files that are not whole and have other names too.

    An exporter that was stopped leaves hard links to the files of a published version, or of a
    checkpoint. Nothing is ever written to these.
    """
    by_path: dict[str, list[_Extent]] = {}
    for extent in extents:
        by_path.setdefault(extent.path, []).append(extent)
    for path, parts in by_path.items():
        file = directory / path
        if not file.exists() or file.stat().st_nlink == 1:
            continue
        is_whole = file.stat().st_size == max(map(_end, parts)) and all(
            part.is_complete(directory) for part in parts
        )
        if not is_whole:
            file.unlink()


def _end(extent: _Extent) -> int:
    return extent.offset + extent.bytes


def _download(
    blocks: Sequence[_Extent], source: BundleSource, target: Path, report: Callable[[int], object]
) -> None:
    """Fetches blocks into their files.

    Args:
      blocks: The blocks.
      source: The bundle in the store.
      target: The directory of the files.
      report: Takes the size of each block that is written.

    Raises:
      PullError: A block differs from its checksum, or the store cannot be read.
    """
    pool = ThreadPoolExecutor(CONNECTIONS, thread_name_prefix="rowcast-pull")
    try:
        for size in pool.map(lambda block: _fetch(block, source, target), blocks):
            report(size)
    finally:
        # After an error, or Ctrl-C, blocks that nobody waits for are not fetched.
        pool.shutdown(cancel_futures=True)


def _fetch(block: _Extent, source: BundleSource, target: Path) -> int:
    """Fetches a block into its file; returns its size."""
    for _ in range(_ATTEMPTS):
        with reading():
            data = source.file(block.path).read(block.offset, block.bytes)
        if len(data) == block.bytes and block.crc32c in (None, crc32c(data)):
            # Opened for each block: several threads write different blocks of one file.
            with (target / block.path).open("r+b") as file:
                file.seek(block.offset)
                return file.write(data)
    raise _damage(source, block)


def _damage(source: BundleSource, extent: _Extent) -> PullError:
    """Returns the error for bytes that differ from their checksum. It names the damaged object."""
    content = source.file(extent.path)
    if extent.bytes > BLOCK_BYTES and len(content.objects) > 1:
        stored = f"{len(content.objects)} objects from {content.objects[0]} on"
    else:
        stored = str(content.object_at(extent.offset))
    return PullError(
        f"{source.directory / extent.path} ({stored}) differs from its checksum; publish the "
        "bundle again, with --no-reuse",
        EXIT_DAMAGED,
    )
