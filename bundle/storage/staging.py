"""Write aside, manifest last, one rename; list and check what is committed. Never deletes a committed bundle.

Beside the bundles of a model lie, while version N is written: `.staging-N/` (its files), `.staging-N.journal` (what is
finished, with checksums) and `.staging-N.lock` (held by the one run that writes it; a crash lets go of it).

Each run has a directory `.staging-N/.attempts-*` for the unfinished files of its workers. A worker may outlive its run,
on another machine for long: the next run removes that directory before all else, and what the orphan writes has no way
in.
"""

from __future__ import annotations

import errno
import fcntl
import os
import re
import secrets
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from types import TracebackType
from typing import Any, Literal

from bundle.errors import (
    DestinationExists,
    DigestMismatch,
    FormatError,
    NotCommitted,
    UnsafePath,
    VersionBusy,
)
from bundle.format import paths
from bundle.format.checksums import BLOCK_BYTES, Digest, digest
from bundle.format.manifest import MANIFEST_BYTES_MAX, File, Manifest, dump, parse
from bundle.storage import files, journal
from bundle.storage.mapped_files import checked_later

VERSION = re.compile(r"[1-9][0-9]{0,17}", re.ASCII)
_ATTEMPTS = ".attempts-"


class Staging:
    """One version while it is written. Used as a context, it lets go of its lock at the end and keeps its files."""

    def __init__(self, root: Path, model: str, version: int, adding: bool = False) -> None:
        """Begins a version, or resumes it where an earlier run stopped.

        Args:
          root: directory of the bundles.
          adding: files to a version that is there: see `add`.
        Raises:
          FormatError: the model's name or the version cannot be a directory's.
          DestinationExists: the version is there already.
          VersionBusy: another run is writing it.
        """
        if not paths.is_name(model) or not VERSION.fullmatch(str(version)):
            raise FormatError(f"model {model!r} version {version} cannot name a directory")
        self._parent, self._model, self._version = root / model, model, version
        self._final = self._parent / str(version)
        self._run = secrets.token_hex(8)
        self._parent.mkdir(parents=True, exist_ok=True)
        self._lock: int | None = _locked(
            self._aside(".lock"), f"version {version} of model {model!r}"
        )
        try:
            if not adding:
                self._refuse_existing()
            self._steps = journal.read(self._aside(".journal"))
            self._trusted: set[str] = set()
            self.directory.mkdir(exist_ok=True)
            _end_attempts(self.directory)
            self.attempts.mkdir()
        except BaseException:
            self.close()
            raise

    @property
    def directory(self) -> Path:
        """Where the files of the version are written."""
        return self._aside("")

    @property
    def attempts(self) -> Path:
        """Where workers of this run write a file until it is whole: see `ShardWriter`."""
        return self.directory / f"{_ATTEMPTS}{self._run}"

    def finish(
        self, step: str, key: str, payload: Any = None, written: Sequence[File] | None = None
    ) -> None:
        """Notes a step as finished, once its files are safe from a loss of power.

        Args:
          step: its name: the path of the file or directory under `directory` that it made, or any other name.
          key: a digest of all that decides what it makes.
          payload: what a resumed run needs to know of it, as JSON.
          written: its files; None: those that `step` names, digested here.
        Raises:
          OSError: the disk is full or broken; the step does not count as finished.
        """
        if written is None:
            written = self.digests(step)
        for file in written:
            path = self.directory / file.path
            files.sync(path)
            files.sync(path.parent)
        self._steps[step] = journal.append(self._aside(".journal"), step, key, payload, written)
        self._trusted.add(step)

    def finished(self, step: str, key: str) -> journal.Finished | None:
        """Returns what a finished step left; None: it must be done (again), e.g. since its key is another now.

        Files that an earlier run finished are read once, in full: a step whose files are not whole is not finished.
        """
        entry = self._steps.get(step)
        if entry is None or entry.key != key:
            return None
        if step not in self._trusted:
            try:
                for file in entry.files:
                    _check_file(self.directory, file)
            except DigestMismatch:
                del self._steps[step]
                return None
            self._trusted.add(step)
        return entry

    def files(self, step: str) -> tuple[File, ...]:
        """Returns the files of a step that is finished; () if it is not."""
        return self._steps[step].files if step in self._trusted else ()

    def forget(self, step: str) -> None:
        """Has a step done again by this run and every later one: what it made is wrong."""
        if step in self._steps:
            self.finish(step, "", None, ())

    def digests(self, path: str) -> tuple[File, ...]:
        """Digests a staged file, or all files of a staged directory in the order of their paths; () if none."""
        try:
            place = self.directory / paths.checked(path)
        except UnsafePath:
            return ()
        found = (
            sorted(inner for inner in place.rglob("*") if inner.is_file())
            if place.is_dir()
            else [place]
        )
        return tuple(_digested(self.directory, file) for file in found if file.is_file())

    def commit(self, manifest: Manifest, data: bytes | None = None) -> Path:
        """Publishes the version: files synced, manifest last, one rename. Files that no manifest names are swept first.

        Args:
          manifest: of the version, or of the part of it that is staged.
          data: what is written as its manifest, where that was read from a file; None: it is made.
        Returns:
          The directory of the bundle.
        Raises:
          DestinationExists: the version appeared meanwhile.
          DigestMismatch: a file of the manifest is missing or has another size.
          FormatError: the manifest is of another model or version.
          OSError: the disk is full or broken; nothing is visible.
        """
        if (manifest.model, manifest.version) != (self._model, self._version):
            raise FormatError(
                f"the manifest is of {manifest.model!r} version {manifest.version}; this is {self._final}"
            )
        self._refuse_existing()
        _check_sizes(self.directory, manifest)
        _end_attempts(self.directory)
        _sweep_unlisted(self.directory, manifest)
        written = self.directory / paths.MANIFEST
        try:
            written.write_bytes(dump(manifest) if data is None else data)
            return self._publish()
        except (OSError, DestinationExists) as problem:
            written.unlink(missing_ok=True)
            if isinstance(problem, OSError):
                problem.filename = problem.filename or str(written)
            raise

    def publish(self) -> Path:
        """Publishes the version as it lies, without a manifest: what is no bundle, and no service opens.

        Returns:
          Its directory.
        Raises:
          DestinationExists: the version appeared meanwhile.
          OSError: the disk is full or broken; nothing is visible.
        """
        self._refuse_existing()
        _end_attempts(self.directory)
        return self._publish()

    def add(self, added: Sequence[str]) -> None:
        """Moves staged files to the version that is there and lacks them, and removes what else is staged.

        Raises:
          OSError: the disk is full or broken, or the version is gone; each file is there whole, or not at all.
        """
        for path in added:
            target = self._final / path
            files.sync(self.directory / path)
            target.parent.mkdir(parents=True, exist_ok=True)
            (self.directory / path).rename(target)
            files.sync(target.parent)
        self.discard()

    def _publish(self) -> Path:
        """Makes all that is staged safe from a loss of power, and renames it."""
        for directory, _, names in os.walk(self.directory, topdown=False):
            for name in names:
                files.sync(Path(directory, name))
            files.sync(Path(directory))
        try:
            self.directory.rename(self._final)
        except OSError as problem:
            if problem.errno in (errno.EEXIST, errno.ENOTEMPTY):
                raise DestinationExists(
                    f"{self._final} is there already; choose another version"
                ) from problem
            raise
        files.sync(self._parent)
        self._aside(".journal").unlink(missing_ok=True)
        self.close()
        return self._final

    def discard(self) -> None:
        """Removes what is staged, and lets go of the lock."""
        self._clear()
        self.close()

    def close(self) -> None:
        """Lets go of the lock; what is staged stays, to be resumed."""
        if self._lock is not None:
            self._aside(".lock").unlink(missing_ok=True)
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> Staging:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        problem: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def _aside(self, suffix: str) -> Path:
        return self._parent / f".staging-{self._version}{suffix}"

    def _refuse_existing(self) -> None:
        if os.path.lexists(self._final):
            if (
                self._final / paths.MANIFEST
            ).is_file():  # of a run that ended between its rename and this
                self._aside(".journal").unlink(missing_ok=True)
            raise DestinationExists(
                f"{self._final} is there already; committed bundles are never overwritten"
            )

    def _clear(self) -> None:
        # The journal first: what it vouches for must be there.
        self._aside(".journal").unlink(missing_ok=True)
        if self.directory.exists():
            _end_attempts(self.directory)
            shutil.rmtree(self.directory)


def next_version(root: Path, model: str) -> int:
    """Returns the number after the newest version of a model, complete or not; 1 for a new model."""
    return max((version for version, _ in _numbered(root / model)), default=0) + 1


def committed_versions(root: Path, model: str) -> list[int]:
    """Returns the versions of a model that have a manifest, ascending; one that may not be looked into is counted.

    Raises:
      OSError: the model's directory cannot be listed.
    """
    return sorted(version for version, path in _numbered(root / model) if _is_committed(path))


def read_manifest(bundle: Path) -> Manifest:
    """Reads the manifest of a bundle's directory.

    Raises:
      NotCommitted: there is none: no bundle, or one still being written.
      FormatError: it breaks a rule of the format.
    """
    path = bundle / paths.MANIFEST
    if not path.is_file():
        raise NotCommitted(
            f"{bundle} has no {paths.MANIFEST}: it is no bundle, or one that is still being written"
        )
    with files.locate(bundle, paths.MANIFEST).open("rb") as file:
        return parse(file.read(MANIFEST_BYTES_MAX + 1))


def check_files(
    bundle: Path,
    manifest: Manifest,
    tables: Literal["sizes", "full"] = "sizes",
    pause: Callable[[], object] = lambda: None,
) -> None:
    """Holds a bundle's files against its manifest: all in full but what is mapped by rows, which may go by size.

    Args:
      tables: `sizes` compares the sizes of table shards and of `checked_later`, `full` every byte of them.
      pause: called after each file, and each block of a large one.
    Raises:
      DigestMismatch: a file is missing, has another size or other bytes; names file and block.
      UnsafePath: a file lies outside the bundle.
    """
    _check_sizes(bundle, manifest, pause)
    later = {file.path for file in checked_later(manifest)} if tables == "sizes" else set()
    for file in manifest.files:
        if file.path not in later:
            _check_file(bundle, file, pause)
    for table in manifest.tables.values() if tables == "full" else ():
        for shard, size in table.extents():
            with files.locate(bundle, shard.file).open("rb") as stream:
                stream.seek(shard.offset)
                found = digest(stream, size, pause)
            _check_blocks(shard.file, shard.offset, found, shard.blocks, shard.crc32c)


def _check_sizes(
    bundle: Path, manifest: Manifest, pause: Callable[[], object] = lambda: None
) -> None:
    for file in manifest.files:
        _check_size(bundle, file.path, file.bytes)
        pause()
    for table in manifest.tables.values():
        for shard, size in table.extents():
            _check_size(bundle, shard.file, shard.offset + size, exact=False)
            pause()


def _check_blocks(path: str, offset: int, found: Digest, blocks: Sequence[int], crc: int) -> None:
    for block, (have, want) in enumerate(zip(found.blocks, blocks, strict=False)):
        if have != want:
            first = offset + block * BLOCK_BYTES
            raise DigestMismatch(
                f"file {path!r} differs from its checksum in the 4 MiB from byte {first}; copy it again"
            )
    if found.crc32c != crc or len(found.blocks) != len(blocks or found.blocks):
        raise DigestMismatch(f"file {path!r} differs from its checksum; copy the bundle again")


def _check_file(bundle: Path, file: File, pause: Callable[[], object] = lambda: None) -> None:
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
            f"file {path!r} has {size} bytes, {'' if exact else 'at least '}{expected} expected; copy the bundle again"
        )


def _digested(root: Path, path: Path) -> File:
    with path.open("rb") as stream:
        found = digest(stream)
    return File(path=path.relative_to(root).as_posix(), bytes=found.bytes, crc32c=found.crc32c)


def _sweep_unlisted(staged: Path, manifest: Manifest) -> None:
    listed = {file.path for file in manifest.files}
    listed |= {shard.file for table in manifest.tables.values() for shard, _ in table.extents()}
    for directory, _, names in os.walk(staged, topdown=False):
        here = Path(directory)
        unlisted = [
            name for name in names if (here / name).relative_to(staged).as_posix() not in listed
        ]
        for name in unlisted:
            (here / name).unlink()
        if unlisted and here != staged and not any(here.iterdir()):
            here.rmdir()


def _end_attempts(staged: Path) -> None:
    # Renamed first: a worker that still writes finds no path there, and adds nothing while the directory is removed.
    for directory in staged.glob(f"{_ATTEMPTS}*"):
        gone = staged / f"{_ATTEMPTS}{secrets.token_hex(8)}"
        directory.rename(gone)
        shutil.rmtree(gone)


def _locked(path: Path, what: str) -> int:
    # The file may be removed by its last holder between our open and our lock: what is locked must be what is there.
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as problem:
            os.close(descriptor)
            raise VersionBusy(
                f"{what} is being written by another run; wait for it or choose another version"
            ) from problem
        if path.exists() and path.stat().st_ino == os.fstat(descriptor).st_ino:
            return descriptor
        os.close(descriptor)


def _numbered(parent: Path) -> list[tuple[int, Path]]:
    names = os.listdir(parent) if parent.is_dir() else []
    return [(int(name), parent / name) for name in names if VERSION.fullmatch(name)]


def _is_committed(bundle: Path) -> bool:
    try:
        return (bundle / paths.MANIFEST).is_file()
    except OSError:  # there, but not for us: reading it reports why
        return True
