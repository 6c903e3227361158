"""Writes a version aside, its manifest last, and publishes it by one rename. Never deletes a
published bundle.

Beside the bundles of a model lie, while version N is written: `.staging-N/` (its files),
`.staging-N.journal` (what is finished, with checksums) and `.staging-N.lock` (held by the one run
that writes it; a crash lets go of it).

Each run has a directory `.staging-N/.attempts-*` for the unfinished files of its workers. A worker
may outlive its run, on another machine for long: the next run removes that directory before all
else, and what the orphan writes has no way in.
"""

from __future__ import annotations

import errno
import fcntl
import os
import secrets
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from bundle.errors import (
    DestinationExists,
    DigestMismatch,
    FormatError,
    UnsafePath,
    VersionBusy,
)
from bundle.format import paths
from bundle.format.checksums import digest
from bundle.format.manifest import File, Manifest, dump
from bundle.storage import files, journal
from bundle.storage.catalog import VERSION
from bundle.storage.integrity import check_file, check_sizes
from bundle.storage.signatures import Signature

_ATTEMPTS = ".attempts-"


class Staging:
    """One version while it is written. Used as a context, it lets go of its lock at the end and
    keeps its files.
    """

    def __init__(self, root: Path, model: str, version: int, adding: bool = False) -> None:
        """Begins a version, or resumes it where an earlier run stopped.

        Args:
          root: The directory of the bundles.
          model: The name of the model.
          version: The version to write.
          adding: Whether files are added to a version that exists: see `add`.

        Raises:
          FormatError: The model's name or the version cannot name a directory.
          DestinationExists: The version exists already.
          VersionBusy: Another run is writing it.
        """
        if not paths.is_name(model) or not VERSION.fullmatch(str(version)):
            raise FormatError(f"model {model!r} version {version} cannot name a directory")
        self._parent = root / model
        self._model = model
        self._version = version
        self._final = self._parent / str(version)
        self._run = secrets.token_hex(8)
        self._parent.mkdir(parents=True, exist_ok=True)
        self._lock: int | None = _lock(
            self._staging_path(".lock"), f"version {version} of model {model!r}"
        )
        try:
            if not adding:
                self._reject_existing()
            self._steps = journal.read(self._staging_path(".journal"))
            self._trusted: set[str] = set()
            self.resumed: set[str] = set()
            self.directory.mkdir(exist_ok=True)
            _end_attempts(self.directory)
            self._remove_unknown_links()
            self.attempts.mkdir()
        except BaseException:
            self.close()
            raise

    @property
    def directory(self) -> Path:
        """The directory in which the files of the version are written."""
        return self._staging_path("")

    @property
    def attempts(self) -> Path:
        """The directory in which workers of this run write a file until it is whole: see
        `SegmentWriter`.
        """
        return self.directory / f"{_ATTEMPTS}{self._run}"

    def finish(
        self, step: str, key: str, payload: Any = None, written: Sequence[File] | None = None
    ) -> None:
        """Notes a step as finished, once its files are safe from a loss of power.

        Args:
          step: The name of the step: the path of the file or directory under `directory` that it
            made, or any other name.
          key: A digest of all that decides what it makes.
          payload: The data of the step that a resumed run needs, as JSON.
          written: The files of the step. None: The files that `step` names, digested here.

        Raises:
          OSError: The disk is full or broken; the step does not count as finished.
        """
        if written is None:
            written = self.digests(step)
        for file in written:
            path = self.directory / file.path
            files.sync(path)
            files.sync(path.parent)
        self._steps[step] = journal.append(
            self._staging_path(".journal"), step, key, payload, written
        )
        self._trusted.add(step)

    def finished(self, step: str, key: str) -> journal.Finished | None:
        """Returns what a finished step left. None: The step must be done (again), e.g. since its
        key has changed.

        Files that an earlier run finished are read once, in full: a step whose files are not whole
        is not finished.
        """
        entry = self._steps.get(step)
        if entry is None or entry.key != key:
            return None
        if step not in self._trusted:
            try:
                for file in entry.files:
                    check_file(self.directory, file)
            except DigestMismatch:
                del self._steps[step]
                return None
            self._trusted.add(step)
            self.resumed.add(step)
        return entry

    def files(self, step: str) -> tuple[File, ...]:
        """Returns the files of a step that is finished; () if it is not."""
        if step not in self._trusted:
            return ()
        return self._steps[step].files

    def forget(self, step: str) -> None:
        """Has a step done again by this run and every later one: what it made is wrong."""
        if step in self._steps:
            self.finish(step, "", None, ())

    def digests(self, path: str) -> tuple[File, ...]:
        """Digests a staged file, or all files of a staged directory in the order of their paths; ()
        if none.
        """
        # The name of a step need not be a path.
        try:
            staged = self.directory / paths.checked(path)
        except UnsafePath:
            return ()
        candidates = [staged]
        if staged.is_dir():
            candidates = sorted(staged.rglob("*"))
        return tuple(_digest_file(self.directory, file) for file in candidates if file.is_file())

    def commit(
        self,
        manifest: Manifest,
        data: bytes | None = None,
        sign: Callable[[Path], Signature | None] = lambda _staged: None,
    ) -> Path:
        """Publishes the version: files synced, manifest last, one rename. Files that no manifest
        names are swept first.

        Args:
          manifest: The manifest of the version, or of the part of it that is staged.
          data: The bytes that are written as its manifest, where they were read from a file. None:
            They are made from `manifest`.
          sign: A function that returns the signature of the whole bundle, given the directory where
            it is staged; None: it is not signed.

        Returns:
          The directory of the bundle.

        Raises:
          DestinationExists: The version appeared meanwhile.
          DigestMismatch: A file of the manifest is missing or has another size.
          FormatError: The manifest is of another model or version.
          OSError: The disk is full or broken; nothing is visible.
        """
        if (manifest.model, manifest.version) != (self._model, self._version):
            raise FormatError(
                f"the manifest is of {manifest.model!r} version {manifest.version}; this is "
                f"{self._final}"
            )
        self._reject_existing()
        check_sizes(self.directory, manifest)
        _end_attempts(self.directory)
        _sweep_unlisted(self.directory, manifest)

        # The manifest is what makes a directory a bundle, so that it is the last file.
        if data is None:
            data = dump(manifest)
        path = self.directory / paths.MANIFEST
        try:
            path.write_bytes(data)
            signature = sign(self.directory)
            if signature is not None:
                self.write_signature(signature)
            return self._publish()
        except BaseException as problem:
            path.unlink(missing_ok=True)
            if isinstance(problem, OSError):
                problem.filename = problem.filename or str(path)
            raise

    def write_signature(self, signature: Signature) -> None:
        """Stages the files of a signature."""
        for path, content in signature.by_path().items():
            file = self.directory / path
            file.parent.mkdir(exist_ok=True)
            file.write_bytes(content)

    def publish(self) -> Path:
        """Publishes the version as it lies, without a manifest: what is no bundle, and no service
        opens.

        Returns:
          The directory of the version.

        Raises:
          DestinationExists: The version appeared meanwhile.
          OSError: The disk is full or broken; nothing is visible.
        """
        self._reject_existing()
        _end_attempts(self.directory)
        return self._publish()

    def add(self, added: Sequence[str]) -> None:
        """Moves staged files to the published version, which lacks them, and removes everything
        else that is staged.

        Raises:
          OSError: The disk is full or broken, or the version is gone; each file is there whole, or
            not at all.
        """
        for path in added:
            target = self._final / path
            # Before the rename, so that no reader finds a file that a loss of power has emptied.
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
        self._staging_path(".journal").unlink(missing_ok=True)
        self.close()
        return self._final

    def discard(self) -> None:
        """Removes what is staged, and lets go of the lock."""
        # The journal first: what it vouches for must be there.
        self._staging_path(".journal").unlink(missing_ok=True)
        if self.directory.exists():
            _end_attempts(self.directory)
            shutil.rmtree(self.directory)
        self.close()

    def close(self) -> None:
        """Lets go of the lock; what is staged stays, to be resumed."""
        if self._lock is not None:
            # The file is removed while the lock is held.
            self._staging_path(".lock").unlink(missing_ok=True)
            os.close(self._lock)
            self._lock = None

    def __enter__(self) -> Staging:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _staging_path(self, suffix: str) -> Path:
        return self._parent / f".staging-{self._version}{suffix}"

    def _remove_unknown_links(self) -> None:
        """Removes files that are in published versions or checkpoints, too, unless the journal
        lists them.

        A download that was stopped leaves such files under any name, and some steps write to the
        files that they find. Files that the journal lists are replaced, never written to.
        """
        listed = {file.path for step in self._steps.values() for file in step.files}
        for directory, _, names in os.walk(self.directory):
            for name in names:
                path = Path(directory, name)
                relative = path.relative_to(self.directory).as_posix()
                if relative not in listed and path.lstat().st_nlink > 1:
                    path.unlink()

    def _reject_existing(self) -> None:
        if os.path.lexists(self._final):
            # A run may have ended between its rename and the removal of its journal.
            if (self._final / paths.MANIFEST).is_file():
                self._staging_path(".journal").unlink(missing_ok=True)
            raise DestinationExists(
                f"{self._final} is there already; committed bundles are never overwritten"
            )


def _digest_file(root: Path, path: Path) -> File:
    with path.open("rb") as stream:
        computed = digest(stream)
    relative = path.relative_to(root).as_posix()
    return File(path=relative, bytes=computed.bytes, crc32c=computed.crc32c)


def _sweep_unlisted(staged: Path, manifest: Manifest) -> None:
    """Removes files that the manifest does not name, and the directories that they leave empty."""
    listed = manifest.listed_files
    # From the bottom, so that a directory is met after the ones in it.
    for name, _, file_names in os.walk(staged, topdown=False):
        directory = Path(name)
        paths_here = [directory / file_name for file_name in file_names]
        unlisted = [
            path for path in paths_here if path.relative_to(staged).as_posix() not in listed
        ]
        for path in unlisted:
            path.unlink()
        if unlisted and directory != staged and not any(directory.iterdir()):
            directory.rmdir()


def _end_attempts(staged: Path) -> None:
    """Removes the unfinished files of workers."""
    # Renamed first: a worker that still writes finds no path there, and adds nothing while the
    # directory is removed.
    for directory in staged.glob(f"{_ATTEMPTS}*"):
        gone = staged / f"{_ATTEMPTS}{secrets.token_hex(8)}"
        directory.rename(gone)
        shutil.rmtree(gone)


def _lock(path: Path, what: str) -> int:
    """Locks a file, which is created if it does not exist; returns its descriptor.

    Args:
      path: The lock file.
      what: What the lock protects, for the error message.

    Raises:
      VersionBusy: Another process holds the lock.
      OSError: The file cannot be written, or its file system has no locks.
    """
    # Its last holder may remove the file between the open and the lock here: the locked file must
    # be the one that has the name.
    while True:
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as problem:
            os.close(descriptor)
            raise VersionBusy(
                f"{what} is being written by another run; wait for it or choose another version"
            ) from problem
        except OSError:
            os.close(descriptor)
            raise
        if path.exists() and path.stat().st_ino == os.fstat(descriptor).st_ino:
            return descriptor
        os.close(descriptor)
