"""Downloads a bundle from an object store into a root of this machine.

The files that the manifest lists are fetched into `.staging-N`, 4 MiB a request, and checked by
their crc32c; the manifest is written last, then one rename publishes the version. A later pull of
the same manifest keeps what is
complete: of table shards every block, of other files the whole file.

A shard, or a router, needs some of the files; each is then there whole or not at all. A version
that was pulled for another shard gets the files that it lacks.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from bundle.arithmetic import ceil_div
from bundle.errors import BundleError, DestinationExists, VersionBusy
from bundle.format import paths
from bundle.format.checksums import BLOCK_BYTES, crc32c, digest
from bundle.format.manifest import Manifest
from bundle.storage import retention
from bundle.storage.staging import Staging
from service.cli.bundle_source import (
    EXIT_DAMAGED,
    EXIT_DESTINATION,
    BundleSource,
    PullError,
    reading,
)
from service.cli.older_bundle import reuse_files

CONNECTIONS = 8
_ATTEMPTS = 3
"""How often a block is fetched whose bytes differ from its checksum: they may have changed in
transit.
"""


@dataclass(frozen=True)
class Pulled:
    """The result of a pull.

    Attributes:
      bytes: of the bundle, or of the files of it that were asked for.
      downloaded_bytes: fetched now.
      kept_bytes: those of `bytes` that an earlier pull had fetched, for this version or another.
      reused_bytes: those of `kept_bytes` that this pull took from an older version.
      removed, in_use: older versions that were removed, and that were not because something uses
        them.
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
      crc32c: None: a block of what has a checksum only as a whole.
      blocks: crc32c of each block; (): there are none.
    """

    path: str
    offset: int
    bytes: int
    crc32c: int | None
    blocks: tuple[int, ...] = ()

    def split(self) -> Iterator[_Extent]:
        """Yields the blocks, what one request fetches."""
        for number, start in enumerate(range(0, self.bytes, BLOCK_BYTES)):
            crc = self.blocks[number] if self.blocks else None
            yield _Extent(self.path, self.offset + start, min(BLOCK_BYTES, self.bytes - start), crc)

    def is_complete(self, directory: Path) -> bool:
        """Whether its bytes are in a directory."""
        with (directory / self.path).open("rb", buffering=0) as file:
            file.seek(self.offset)
            return digest(file, self.bytes).crc32c == self.crc32c


def pull(
    source: BundleSource,
    root: Path,
    keep: int | None,
    report: Callable[[int, int], object] = lambda *_: None,
    held: Callable[[Manifest], Manifest] = lambda manifest: manifest,
) -> Pulled:
    """Downloads a bundle, and removes old versions on request.

    Args:
      root: directory of the bundles on this machine; created if missing.
      keep: how many of the newest versions stay; None: all. Those that a service uses stay anyway.
      report: called with the number of bytes to fetch, and the number of those fetched since its
        last call.
      held: returns of a manifest what is needed here.
    Raises:
      PullError: a file differs from its checksum, or the destination cannot take it; what was
        fetched is kept.
    """
    manifest = held(source.manifest)
    downloaded = 0
    reused_bytes = 0
    removed = list[int]()
    in_use = list[int]()
    final = root / manifest.model / str(manifest.version)
    extents = _extents(source.manifest, manifest)
    total = sum(extent.bytes for extent in extents)
    with _writing():
        adding = _exists(final, source)
        extents = [extent for extent in extents if not (adding and (final / extent.path).exists())]
        if extents or not adding:
            with Staging(root, manifest.model, manifest.version, adding) as stage:
                needed = {extent.path for extent in extents}
                reused = reuse_files(source, root, needed, stage.directory)
                reused_bytes = reused.bytes
                missing = _missing(
                    stage.directory,
                    [extent for extent in extents if extent.path not in reused.whole],
                )
                downloaded = sum(block.bytes for block in missing)
                if downloaded > (free := shutil.disk_usage(stage.directory).free):
                    found = (
                        f"{stage.directory} has {free >> 20:,} MiB free, "
                        f"{ceil_div(downloaded, 1 << 20):,} MiB are needed"
                    )
                    raise PullError(f"{found}; free some space, then pull again", EXIT_DESTINATION)
                _download(missing, source, stage.directory, partial(report, downloaded))
                unchecked = {block.path for block in missing if block.crc32c is None}
                for extent in extents:
                    if extent.path in unchecked and not extent.is_complete(stage.directory):
                        raise _damaged(source, extent)
                if adding:
                    stage.add(sorted({extent.path for extent in extents}))
                else:
                    stage.commit(manifest, source.data)
        if keep is not None:
            removed, in_use = retention.sweep_old(root, manifest.model, keep, manifest.version)
    counts = total, downloaded, total - downloaded
    return Pulled(
        final,
        manifest.model,
        manifest.version,
        *counts,
        tuple(removed),
        tuple(in_use),
        reused_bytes,
    )


def _extents(whole: Manifest, held: Manifest) -> list[_Extent]:
    """Returns what is listed of the files that hold a part of what is needed."""
    needed = {file.path for file in held.files}
    needed |= {shard.file for table in held.tables.values() for shard, _ in table.extents()}
    extents = [_Extent(file.path, 0, file.bytes, file.crc32c) for file in whole.files]
    for shard, size in (each for table in whole.tables.values() for each in table.extents()):
        extents.append(_Extent(shard.file, shard.offset, size, shard.crc32c, shard.blocks))
    return [extent for extent in extents if extent.path in needed]


@contextmanager
def _writing() -> Iterator[None]:
    """Turns errors of the destination into PullErrors."""
    try:
        yield
    except BundleError as problem:
        taken = isinstance(problem, DestinationExists | VersionBusy)
        raise PullError(str(problem), EXIT_DESTINATION if taken else EXIT_DAMAGED) from problem
    except OSError as problem:
        message = (
            f"{problem.filename or 'the destination'}: {problem.strerror or problem}; what "
            "was fetched is kept"
        )
        raise PullError(message, EXIT_DESTINATION) from problem


def _exists(final: Path, source: BundleSource) -> bool:
    manifest = final / paths.MANIFEST
    if not manifest.is_file():
        return False
    if manifest.read_bytes() != source.data:
        raise DestinationExists(
            f"{final} holds another bundle than {source.directory}; bundles are never overwritten"
        )
    return True


def _missing(directory: Path, extents: Sequence[_Extent]) -> list[_Extent]:
    """Creates the files that do not exist, and returns the blocks that are not on disk yet."""
    missing: list[_Extent] = []
    _part_from_other_versions(directory, extents)
    for path, end in {
        each.path: each.offset + each.bytes for each in sorted(extents, key=_end)
    }.items():
        if (directory / path).exists() and (directory / path).stat().st_size > end:
            os.truncate(directory / path, end)  # of another bundle
    new = {extent.path for extent in extents if not (directory / extent.path).exists()}
    for path in new:
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        (directory / path).touch()
    for extent in extents:
        if extent.blocks and extent.path not in new:
            missing += [block for block in extent.split() if not block.is_complete(directory)]
        elif extent.path in new or not extent.is_complete(directory):
            missing += extent.split()
    return missing


def _part_from_other_versions(directory: Path, extents: Sequence[_Extent]) -> None:
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
    blocks: Sequence[_Extent], source: BundleSource, target: Path, fetched: Callable[[int], object]
) -> None:
    pool = ThreadPoolExecutor(CONNECTIONS, thread_name_prefix="rowcast-pull")
    try:
        for size in pool.map(lambda block: _fetch(block, source, target), blocks):
            fetched(size)
    finally:
        pool.shutdown(cancel_futures=True)


def _fetch(block: _Extent, source: BundleSource, target: Path) -> int:
    for _ in range(_ATTEMPTS):
        with reading():
            data = source.file(block.path).read(block.offset, block.bytes)
        if len(data) == block.bytes and block.crc32c in (None, crc32c(data)):
            with (target / block.path).open("r+b") as file:
                file.seek(block.offset)
                return file.write(data)
    raise _damaged(source, block)


def _damaged(source: BundleSource, extent: _Extent) -> PullError:
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
