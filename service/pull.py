"""`rowcast-serve pull`: brings a bundle from a store to a root of this machine.

The manifest is read first. What it lists is fetched into `.staging-N`, several ranges at a time, each checked by its
crc32c; the manifest is written last, then one rename publishes. What an earlier pull of the same manifest left is kept
as far as its checksums say so: of a table shard every 4 MiB block, of another file all of it or nothing.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path

from bundle import paths, retention
from bundle.checksums import BLOCK_BYTES, crc32c, digest, joined
from bundle.errors import BundleError, DestinationExists, VersionBusy
from bundle.manifest import Manifest
from bundle.staging import Staging
from runtime.remote import RemotePath
from service.remote_bundles import Damaged, Found, PullError, SourceUnreadable

CONNECTIONS = 8
FETCH_BYTES = 2 * BLOCK_BYTES
"""The most that one request asks for."""
_ATTEMPTS = 3
"""How often a block is fetched whose bytes are not those of its checksum: they may have changed on their way."""


class DestinationProblem(PullError):
    """The destination holds another bundle of that version, is full, busy, or cannot be written."""

    exit_code = 6


@dataclass(frozen=True)
class Pulled:
    """What was done.

    Attributes:
      downloaded_bytes: fetched now.
      kept_bytes: of `bytes`, those that an earlier pull had brought.
      removed, in_use: older versions that were swept, and that were not because something uses them.
    """

    bundle: Path
    model: str
    version: int
    bytes: int
    downloaded_bytes: int
    kept_bytes: int
    removed: tuple[int, ...] = ()
    in_use: tuple[int, ...] = ()


@dataclass(frozen=True)
class _Piece:
    """Bytes that the manifest vouches for: a whole file, or a shard's range of one."""

    path: str
    offset: int
    bytes: int
    crc32c: int
    blocks: tuple[int, ...]
    """crc32c of each 4 MiB; () where only the whole has one."""


@dataclass(frozen=True)
class _Range:
    """What one request fetches; `blocks` are the checksums of its blocks, () where only the whole piece has one."""

    piece: _Piece
    offset: int
    bytes: int
    blocks: tuple[int, ...]


def pull(found: Found, root: Path, keep: int | None, begin: Callable[[int], Callable[[int], None]]) -> Pulled:
    """Brings a bundle here, and removes old versions if asked to.

    Args:
      found: the bundle in a store.
      root: directory of the bundles on this machine; made if it is not there.
      keep: how many of the newest versions stay; None: all. What a service uses stays anyway.
      begin: called with the bytes that are to be fetched; returns what takes those that came since its last call.
    Raises:
      PullError: a file differs from its checksum, or the destination refuses; what was fetched is kept for the next.
    """
    page = found.page
    final = root / page.model / str(page.version)
    pieces = _pieces(page)
    total = sum(piece.bytes for piece in pieces)
    with _told():
        if _is_there(final, found):
            result = Pulled(final, page.model, page.version, total, 0, total)
        else:
            with Staging(root, page.model, page.version, f"pull {crc32c(found.data)}") as stage:
                missing = _missing(stage.directory, pieces)
                wanted = sum(each.bytes for each in missing)
                _check_space(stage.directory, wanted)
                _fetch(missing, found.directory, stage.directory, begin(wanted))
                final = stage.commit(page, found.data)
            result = Pulled(final, page.model, page.version, total, wanted, total - wanted)
        if keep is None:
            return result
        removed, used = retention.sweep_old(root, page.model, keep, page.version)
    return Pulled(
        final, page.model, page.version, total, result.downloaded_bytes, result.kept_bytes, tuple(removed), tuple(used)
    )


@contextmanager
def _told() -> Iterator[None]:
    try:
        yield
    except (DestinationExists, VersionBusy) as problem:
        raise DestinationProblem(str(problem)) from problem
    except BundleError as problem:
        raise Damaged(str(problem)) from problem
    except OSError as problem:
        what = problem.filename or "the destination"
        raise DestinationProblem(f"{what}: {problem.strerror or problem}; what was fetched is kept") from problem


def _is_there(final: Path, found: Found) -> bool:
    manifest = final / paths.MANIFEST
    if not manifest.is_file():
        return False
    if manifest.read_bytes() != found.data:
        raise DestinationExists(
            f"{final} holds another bundle than {found.directory}; committed bundles stay as they are"
        )
    return True


def _pieces(page: Manifest) -> list[_Piece]:
    whole = [_Piece(file.path, 0, file.bytes, file.crc32c, ()) for file in page.files]
    shards = [(shard, size) for table in page.tables.values() for shard, size in table.extents()]
    return whole + [_Piece(each.file, each.offset, size, each.crc32c, each.blocks) for each, size in shards]


def _missing(directory: Path, pieces: Sequence[_Piece]) -> list[_Range]:
    """Makes every file as long as it will be, and returns the ranges that are not there yet."""
    ends: dict[str, int] = {}
    for piece in pieces:
        ends[piece.path] = max(ends.get(piece.path, 0), piece.offset + piece.bytes)
    missing: list[_Range] = []
    for path, end in ends.items():
        (directory / path).parent.mkdir(parents=True, exist_ok=True)
        with (directory / path).open("ab") as file:
            file.truncate(end)
    for piece in pieces:
        with (directory / piece.path).open("rb", buffering=0) as file:
            missing += _missing_of(piece, file.fileno())
    return missing


def _missing_of(piece: _Piece, descriptor: int) -> list[_Range]:
    if not piece.blocks:
        kept = _whole_is_there(piece, descriptor)
        starts = range(0, 0 if kept else piece.bytes, FETCH_BYTES)
        return [_Range(piece, start, min(FETCH_BYTES, piece.bytes - start), ()) for start in starts]
    ranges: list[_Range] = []
    for number, crc in enumerate(piece.blocks):
        start = number * BLOCK_BYTES
        size = min(BLOCK_BYTES, piece.bytes - start)
        if _has_data(descriptor, piece.offset + start, size):
            data = os.pread(descriptor, size, piece.offset + start)
            if crc32c(data) == crc:
                continue
        last = ranges[-1] if ranges else None
        if last is not None and last.offset + last.bytes == start and last.bytes + size <= FETCH_BYTES:
            ranges[-1] = _Range(piece, last.offset, last.bytes + size, (*last.blocks, crc))
        else:
            ranges.append(_Range(piece, start, size, (crc,)))
    return ranges


def _whole_is_there(piece: _Piece, descriptor: int) -> bool:
    if piece.bytes and not _has_data(descriptor, piece.offset, piece.bytes):
        return False
    with os.fdopen(os.dup(descriptor), "rb", buffering=0) as file:
        file.seek(piece.offset)
        return digest(file, piece.bytes).crc32c == piece.crc32c


def _has_data(descriptor: int, start: int, size: int) -> bool:
    """Tells whether anything was written to a range: what was not is a hole of the file, and need not be summed."""
    try:
        return os.lseek(descriptor, start, os.SEEK_DATA) < start + size
    except OSError:  # nothing but a hole up to the end
        return False


def _check_space(directory: Path, wanted: int) -> None:
    free = shutil.disk_usage(directory).free
    if wanted > free:
        raise DestinationProblem(
            f"{directory} has {free >> 20:,} MiB free, {-(-wanted >> 20):,} MiB are to be fetched; free some"
        )


def _fetch(ranges: Sequence[_Range], source: RemotePath, directory: Path, moved: Callable[[int], None]) -> None:
    """Fetches ranges, a few at a time, and sums the pieces that have no checksum of their blocks."""
    sums: dict[_Piece, list[tuple[int, int, int]]] = {}
    running: dict[Future[int], _Range] = {}
    with ExitStack() as ending:
        pool = ThreadPoolExecutor(CONNECTIONS, thread_name_prefix="rowcast-pull")
        ending.callback(pool.shutdown, wait=True, cancel_futures=True)
        waiting = iter(ranges)
        while True:
            for each in waiting:
                running[pool.submit(_fetch_range, each, source / each.piece.path, directory / each.piece.path)] = each
                if len(running) >= 2 * CONNECTIONS:
                    break
            if not running:
                break
            for future in wait(running, return_when=FIRST_COMPLETED).done:
                each = running.pop(future)
                crc = future.result()
                if not each.blocks:
                    sums.setdefault(each.piece, []).append((each.offset, crc, each.bytes))
                moved(each.bytes)
    for piece, parts in sums.items():
        if joined((crc, size) for _, crc, size in sorted(parts)) != piece.crc32c:
            raise Damaged(f"{source / piece.path} differs from its checksum; publish the bundle again")


def _fetch_range(wanted: _Range, source: RemotePath, target: Path) -> int:
    """Fetches one range to its place; returns its crc32c."""
    start = wanted.piece.offset + wanted.offset
    for _ in range(_ATTEMPTS):
        try:
            data = source.read(start, wanted.bytes)
        except OSError as problem:
            raise SourceUnreadable(
                f"{source} cannot be read: {problem.strerror}; run the same command again"
            ) from problem
        blocks = tuple(crc32c(data[at : at + BLOCK_BYTES]) for at in range(0, len(data), BLOCK_BYTES))
        if len(data) == wanted.bytes and wanted.blocks in ((), blocks):
            descriptor = os.open(target, os.O_WRONLY | os.O_CLOEXEC)
            try:
                left, at = memoryview(data), start
                while left:
                    count = os.pwrite(descriptor, left, at)
                    left, at = left[count:], at + count
            finally:
                os.close(descriptor)
            return joined((crc, min(BLOCK_BYTES, len(data) - place * BLOCK_BYTES)) for place, crc in enumerate(blocks))
    raise Damaged(
        f"{source} differs from its checksum in the {wanted.bytes} bytes from byte {start}; publish the bundle again"
    )
