"""Where bundles go: a root of this machine, or one in a store, which is staged here and sent file by file.

In a store there is no rename that publishes: every file is sent and checked, then the manifest is written, the one
thing that makes a version. A file that the store holds already, of a run that was killed, is not sent again.
"""

from __future__ import annotations

import hashlib
import os
import re
import uuid
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor, as_completed
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path

from bundle.errors import DestinationExists
from bundle.format import paths
from bundle.format.checksums import BLOCK_BYTES, Digest, digest
from bundle.format.manifest import Manifest, dump
from bundle.storage import staging
from bundle.storage.staging import Staging
from export.errors import DestinationError, UsageError
from export.jobs.leases import Lease
from export.places import place_of
from export.tables.plan import ExportPlan
from runtime.object_store import Place, RemotePath

UPLOADS = 4
"""Files sent at a time."""


@dataclass(frozen=True)
class Destination:
    """Where bundles go.

    Attributes:
      root: of this machine: where versions are staged and, without a store, published.
      store: the root in a store; None: `root` is the destination itself.
    """

    root: Path
    store: RemotePath | None

    def place(self, model: str, version: int) -> Place:
        """Returns where a version will lie."""
        return (self.store or self.root) / model / str(version)

    def staging(self, model: str, version: int) -> Path:
        """Returns where a version is staged."""
        return self.root / model / f".staging-{version}"

    def next_version(self, model: str) -> int:
        """Returns the number after the newest version of a model."""
        if self.store is None:
            return staging.next_version(self.root, model)
        with _told(self.store):
            versions = self.store / model
            numbers = sorted(
                map(int, filter(staging.VERSION.fullmatch, versions.listing())), reverse=True
            )
            # One without a manifest is of a run that did not end: it is gone on with.
            return 1 + next(
                (each for each in numbers if (versions / str(each) / paths.MANIFEST).is_file()), 0
            )

    def refuse_links(self, plan: ExportPlan) -> None:
        """Refuses hard links that cannot be made, or would be sent as the whole files that they lead to.

        Raises:
          UsageError: the plan has some and goes to a store.
          DestinationError: it goes to another filesystem than the checkpoint's.
        """
        if self.store is not None and plan.links:
            raise UsageError(
                f"tables cannot be linked into {self.store}, which is no disk of this machine; copy them "
                '(tables = "copy")'
            )
        existing = next(
            place
            for place in (self.root.absolute(), *self.root.absolute().parents)
            if place.exists()
        )
        for source in plan.links:
            if Path(source).stat().st_dev != existing.stat().st_dev:
                raise DestinationError(
                    f"data file {source} cannot be linked under {self.root}: they are on different filesystems; copy "
                    'the tables instead (tables = "copy")'
                )

    @contextmanager
    def held(self, model: str, version: int) -> Iterator[Lease | None]:
        """Keeps other exporters from a version in a store.

        Raises:
          VersionBusy: another run is writing it.
          DestinationExists: it is there already.
        """
        if self.store is None:
            yield None
            return
        target = self.store / model / str(version)
        if (target / paths.MANIFEST).is_file():
            raise DestinationExists(
                f"{target} is there already; committed bundles are never overwritten"
            )
        lease = Lease(self.store / model, version, self._owner())
        with lease.hold():
            yield lease

    def publish(
        self, stage: Staging, manifest: Manifest, lease: Lease | None, moved: Callable[[int], None]
    ) -> Place:
        """Publishes a staged version: by one rename, or by sending it with the manifest last.

        Args:
          stage: where its files lie; nothing of it is left.
          manifest: of the bundle.
          lease: what `held` gave.
          moved: takes the bytes that were sent since its last call.
        Raises:
          BundleError: a staged file is not what the manifest says, the lease was lost, or the version appeared.
          DestinationError: the store does not hold what was sent.
          OSError: the store or the disk refuses; what was sent is not sent again by the next run.
        """
        if self.store is None or lease is None:
            return stage.commit(manifest)
        staging.check_files(stage.directory, manifest, tables="full")
        target = self.store / manifest.model / str(manifest.version)
        with ThreadPoolExecutor(UPLOADS, thread_name_prefix="rowcast-upload") as pool:
            try:
                sent = [
                    pool.submit(_send, stage.directory / path, target / path, lease)
                    for path in _files(manifest)
                ]
                for done in as_completed(sent):
                    moved(done.result())
            except BaseException:
                pool.shutdown(cancel_futures=True)
                raise
        lease.check()
        data, place = dump(manifest), target / paths.MANIFEST
        try:
            place.write(data, new=True)
        except FileExistsError as problem:
            raise DestinationExists(
                f"{target} appeared meanwhile; choose another version"
            ) from problem
        if place.read(0, len(data) + 1) != data:
            raise DestinationError(
                f"{place} does not hold what was sent; remove it and run the export again"
            )
        stage.discard()
        return target

    def _owner(self) -> str:
        """Returns who writes from this scratch directory: the same after a crash."""
        path = self.root / "owner"
        self.root.mkdir(parents=True, exist_ok=True)
        try:
            with path.open("x") as file:
                file.write(uuid.uuid4().hex)
        except FileExistsError:
            pass
        return path.read_text()


def open_destination(text: str, base: Path, scratch: Path) -> Destination:
    """Returns the destination that a recipe or a command line names.

    Args:
      text: a path, relative to `base`, or a URL.
      base: the recipe's folder.
      scratch: where versions for a store are staged, each store in a directory of its own.
    Raises:
      UsageError: a URL that holds credentials, or of a store that is not known.
    """
    place = place_of(text, base)
    if isinstance(place, Path):
        return Destination(Path(os.path.normpath(place)), None)
    readable = re.sub(r"[^A-Za-z0-9]+", "-", place.url)[:40].strip("-")
    return Destination(
        scratch.absolute() / f"{readable}-{hashlib.sha256(place.url.encode()).hexdigest()[:8]}",
        place,
    )


def published_bytes(manifest: Manifest) -> int:
    """Returns the bytes of a bundle's files but the manifest."""
    shards = sum(size for table in manifest.tables.values() for _, size in table.extents())
    return sum(file.bytes for file in manifest.files) + shards


def _files(manifest: Manifest) -> list[str]:
    shards = [shard.file for table in manifest.tables.values() for shard, _ in table.extents()]
    return sorted({*(file.path for file in manifest.files), *shards})


def _send(source: Path, target: RemotePath, lease: Lease) -> int:
    """Sends one file unless the store holds it, and checks what it holds then; returns its bytes.

    Raises:
      VersionBusy: the lease was taken over meanwhile: the file is not sent.
    """
    lease.check()
    if not _holds(target, source):
        target.remove()  # and never written over: an exporter that was frozen while it sent this file may go on
        with suppress(FileExistsError):
            target.upload(source, new=True)
        if not _holds(target, source):
            raise DestinationError(f"{target} does not hold what was sent; run the export again")
    return source.stat().st_size


def _holds(target: RemotePath, source: Path) -> bool:
    """Returns whether a store holds a local file: by the store's checksum, else by reading it again."""
    try:
        same = target.stamp().bytes == source.stat().st_size
    except FileNotFoundError:
        return False
    return same and (target.vouched(source) or _read_again(target, source))


def _read_again(target: RemotePath, source: Path) -> bool:
    """Compares a file in a store with a local one by their crc32c: for stores that tell no checksum."""
    with source.open("rb") as file:
        expected = digest(file)
    found = Digest()
    while found.bytes < expected.bytes:
        data = target.read(found.bytes, 2 * BLOCK_BYTES)
        if not data:
            return False
        found.update(data)
    return (found.crc32c, found.bytes) == (expected.crc32c, expected.bytes)


@contextmanager
def _told(store: RemotePath) -> Iterator[None]:
    try:
        yield
    except OSError as problem:
        raise DestinationError(
            f"destination {store} cannot be listed: {problem.strerror}"
        ) from problem
