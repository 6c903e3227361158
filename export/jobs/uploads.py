"""Sends the files of a version to a store while others are still written.

A segment of a table is removed here once the store holds it, so that the local disk holds a few
segments of a table, however large the table is.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import TypeAdapter

from bundle.format import manifest, paths
from bundle.format.manifest import File, Manifest, dump
from bundle.format.objects import ObjectMap, StoredFile, pool_path
from bundle.storage.signatures import Signer
from bundle.storage.staging import Staging
from bundle.tables.reader import TableReader
from export.errors import DestinationError
from export.jobs.store_versions import StoreVersion
from export.tables.older_versions import ReusedSegments
from export.tables.plan import UPLOADS
from object_store.remote_path import RemotePath
from object_store.streamed_rows import StreamedTable

_OBJECTS = "objects"
"""The name under which a step's payload in the journal lists the objects that were sent."""

_STORED_FILES = TypeAdapter(dict[str, StoredFile])


@dataclass(frozen=True)
class FinishedStep:
    """A step of the journal whose files are to be sent.

    Attributes:
      name, key: The name and the key of the step.
      payload: The payload of the step in the journal, without its objects.
      files: The files that it wrote.
      keep: Whether its files stay on the local disk.
    """

    name: str
    key: str
    payload: dict[str, Any]
    files: tuple[File, ...]
    keep: bool

    @property
    def bytes(self) -> int:
        """The size of its files in bytes."""
        return sum(file.bytes for file in self.files)


class Uploads:
    """The files of one version on their way to a store. Used as a context; not by several threads.

    Leaving the context waits for the files that are being sent.
    """

    def __init__(self, version: StoreVersion, stage: Staging) -> None:
        """Begins with nothing sent.

        Args:
          version: Where the files go.
          stage: Where they lie; its journal notes what was sent.
        """
        self.version = version
        self._stage = stage
        self._sent: dict[str, StoredFile] = {}
        self._running: dict[Future[dict[str, StoredFile]], FinishedStep] = {}
        self._pool = ThreadPoolExecutor(UPLOADS, thread_name_prefix="rowcast-upload")

    def __enter__(self) -> Uploads:
        return self

    def __exit__(self, *_: object) -> None:
        self._pool.shutdown(cancel_futures=True)

    def resume(self, payloads: Mapping[str, Any]) -> set[str]:
        """Takes over what an earlier run has sent.

        Args:
          payloads: The payloads of finished steps, by any names.

        Returns:
          The names of those whose objects the store still has.

        Raises:
          OSError: The store cannot be reached.
        """
        sent_before: dict[str, dict[str, StoredFile]] = {}
        for name, payload in payloads.items():
            if _OBJECTS in payload:
                sent_before[name] = _STORED_FILES.validate_python(payload[_OBJECTS])
        # `rowcast-export clean` may have removed objects since.
        missing = self.version.missing(
            stored for files in sent_before.values() for stored in files.values()
        )

        complete = set()
        for name, files in sent_before.items():
            if all(missing.isdisjoint(stored.objects) for stored in files.values()):
                complete.add(name)
                self._sent |= files
        return complete

    def send(self, step: FinishedStep) -> None:
        """Begins to send the files of a step; waits first while UPLOADS steps are being sent.

        Raises:
          DestinationError: A file of an earlier step has changed since it was written, or the store
            does not hold what was sent.
          OSError: The store cannot be written.
        """
        while len(self._running) >= UPLOADS:
            self._wait()
        self._running[self._pool.submit(self._send_files, step.files)] = step

    def finish(self) -> None:
        """Waits until everything is sent; raises as `send`."""
        while self._running:
            self._wait()

    def open_table(self, table: manifest.Table) -> TableReader:
        """Opens a table of the version, wherever its rows are now.

        Raises:
          BundleError: A local file is missing or cut short.
        """
        if self._is_local(table):
            return TableReader(self._stage.directory, table)
        return StreamedTable(
            table, lambda path: self.version.content(self._sent[path]), self._stage.attempts
        )

    def stored_rows(self, whole: Manifest) -> dict[str, Any]:
        """Returns where the tables are whose files are in the store alone, as JSON: `model`, the
        URL of the objects' directory, `files`, their objects by bundle path, and `scratch`, a
        directory on a disk for what is fetched.

        Args:
          whole: The manifest of the bundle.
        """
        files = {
            extent.file: self._sent[extent.file]
            for table in whole.tables.values()
            if not self._is_local(table)
            for extent, _ in table.extents()
        }
        return {
            "model": self.version.directory.parent.url,
            "files": _STORED_FILES.dump_python(files, mode="json"),
            "scratch": str(self._stage.attempts),
        }

    def reused(self, whole: Manifest) -> ReusedSegments:
        """Returns which segments, and how many of their bytes, an older version has, and how many
        bytes it lacks.

        Args:
          whole: The manifest of the bundle, all of whose segments are sent.
        """
        segments = 0
        reused_bytes = 0
        sent_bytes = 0
        for table in whole.tables.values():
            unshared_bytes: dict[str, int] = {}
            for extent, size in table.extents():
                blocks = self._sent[extent.file].blocks
                older_bytes = sum(block.bytes for block in blocks if self.version.is_older(block))
                reused_bytes += older_bytes
                sent_bytes += size - older_bytes
                unshared_bytes[extent.file] = size - older_bytes
            for segment in (*table.segments, *table.scales):
                names = [segment.file, *(delta.file for delta in segment.deltas)]
                segments += not any(unshared_bytes[name] for name in names)
        return ReusedSegments(segments, reused_bytes, written_bytes=sent_bytes)

    def publish(
        self,
        whole: Manifest,
        moved: Callable[[int], None],
        signer: Signer | None,
        check: Callable[[Path], object],
    ) -> RemotePath:
        """Sends what has not been sent, and makes the version visible.

        Args:
          whole: The manifest of the bundle.
          moved: Takes the bytes that were sent since its last call.
          signer: Signs the bundle; None: it is not signed.
          check: As in `Destination.publish`.

        Returns:
          The directory of the version.

        Raises:
          Exception: What `check` raises.
          DestinationExists: Another exporter published the version first.
          KeyRejected: The key cannot sign any more.
          DestinationError: As `send`, or the store has lost objects.
          OSError: As `send`.
        """
        (self._stage.directory / paths.MANIFEST).write_bytes(dump(whole))
        check(self._stage.directory)
        files = (*whole.files, *self._stage.digests(paths.MANIFEST))
        pending = [self._pool.submit(self._send_files, (file,)) for file in files]
        for file, future in zip(files, pending, strict=True):
            self._sent |= future.result()
            moved(file.bytes)

        # Segments were sent while the tables were copied; what names them is sent last.
        named = {file.path: self._sent[file.path] for file in files}
        for table in whole.tables.values():
            for segment, _ in table.extents():
                named[segment.file] = self._sent[segment.file]
        if signer is not None:
            # The names of objects are the digests that are signed: nothing is read again.
            signature = signer.sign(
                ObjectMap(model=whole.model, version=whole.version, files=dict(named))
            )
            self._stage.write_signature(signature)
            for path in paths.SIGNATURE_FILES:
                named |= self._send_files(self._stage.digests(path))
        # From now on, nothing is removed, however long ago the run began.
        self.version.mark()
        missing = self.version.missing(named.values())
        if missing:
            raise DestinationError(
                f"{self.version.directory.parent} has lost {len(missing)} objects that were sent "
                f"({pool_path(min(missing))}), as after `rowcast-export clean` with "
                "a short --older-than; run the export again: it sends them again"
            )
        self.version.commit(ObjectMap(model=whole.model, version=whole.version, files=named))
        return self.version.directory

    def _is_local(self, table: manifest.Table) -> bool:
        directory = self._stage.directory
        return all((directory / extent.file).exists() for extent, _ in table.extents())

    def _send_files(self, files: Iterable[File]) -> dict[str, StoredFile]:
        directory = self._stage.directory
        return {file.path: self.version.send(directory / file.path, file) for file in files}

    def _wait(self) -> None:
        """Waits until a step is sent, notes it, and removes its local files."""
        for future in wait(self._running, return_when=FIRST_COMPLETED).done:
            step = self._running.pop(future)
            stored_files = future.result()
            self._sent |= stored_files
            # Noted first: a crash between the two leaves a file too many, never one too few.
            payload = step.payload | {
                _OBJECTS: _STORED_FILES.dump_python(stored_files, mode="json")
            }
            if step.keep:
                self._stage.finish(step.name, step.key, payload, step.files)
                continue
            self._stage.finish(step.name, step.key, payload, ())
            for file in step.files:
                (self._stage.directory / file.path).unlink()


def without_objects(payload: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the payload of a step as it was before its files were sent."""
    return {name: value for name, value in payload.items() if name != _OBJECTS}
