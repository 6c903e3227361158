"""Where bundles go: a root of this machine, or one in a store.

In a store there is no rename that publishes: files are sent as objects that are named by their
content, and one small file that is created last makes them a version (`store_versions.py`).
"""

from __future__ import annotations

import hashlib
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from bundle.arithmetic import ceil_div
from bundle.format.manifest import Manifest
from bundle.format.objects import OBJECT_BYTES, OBJECTS_MAX
from bundle.storage import catalog
from bundle.storage.signatures import Signature, Signer
from bundle.storage.signed_content import list_content
from bundle.storage.staging import Staging
from export.errors import DestinationError, NotConvertible, UsageError
from export.jobs.store_versions import StoreVersion
from export.jobs.uploads import Uploads
from export.locations import location_of
from export.tables.plan import ExportPlan
from object_store.locations import Location
from object_store.remote_path import RemotePath
from object_store.stored_content import is_committed


@dataclass(frozen=True)
class Destination:
    """Where bundles go.

    Attributes:
      root: A directory of this machine, where versions are staged and, without a store, published.
      store: The root in a store; None: `root` is the destination itself.
    """

    root: Path
    store: RemotePath | None

    def location(self, model: str, version: int) -> Location:
        """Returns where a version will lie."""
        return (self.store or self.root) / model / str(version)

    def staging(self, model: str, version: int) -> Path:
        """Returns where a version is staged."""
        return self.root / model / f".staging-{version}"

    def next_version(self, model: str) -> int:
        """Returns the number after the newest version of a model."""
        if self.store is None:
            return catalog.next_version(self.root, model)
        with _listing_errors(self.store):
            model_directory = self.store / model
            names = filter(catalog.VERSION.fullmatch, model_directory.listing())
            newest = 0
            for version in sorted(map(int, names), reverse=True):
                # The version of a run that did not end is not committed: the next run resumes it.
                if is_committed(model_directory / str(version)):
                    newest = version
                    break
            # A store may list a version some time after it was committed.
            next_version = newest + 1
            while is_committed(model_directory / str(next_version)):
                next_version += 1
            return next_version

    def reject_links(self, plan: ExportPlan) -> None:
        """Rejects hard links that cannot be made, or would be sent as the whole files that they
        lead to.

        Raises:
          UsageError: The plan has links and goes to a store.
          DestinationError: It goes to another file system than the checkpoint's.
        """
        if self.store is not None and plan.links:
            raise UsageError(
                f"tables cannot be linked into {self.store}, which is no disk of this machine; "
                'copy them (tables = "copy")'
            )
        root = self.root.absolute()
        # The root may not exist yet: the nearest directory above it shows its file system.
        existing = next(directory for directory in (root, *root.parents) if directory.exists())
        for source in plan.links:
            # Hard links cannot lead to another file system.
            if Path(source).stat().st_dev != existing.stat().st_dev:
                raise DestinationError(
                    f"data file {source} cannot be linked under {self.root}: they are on different "
                    'filesystems; copy the tables instead (tables = "copy")'
                )

    def reject_objects(self, plan: ExportPlan) -> None:
        """Rejects tables of more objects than readers of a version in a store take.

        Raises:
          NotConvertible: The plan goes to a store, and has more.
        """
        if self.store is None:
            return
        count = sum(ceil_div(task.staged_bytes, OBJECT_BYTES) for task in plan.tasks)
        if count > OBJECTS_MAX:
            raise NotConvertible(
                f"the tables need {count} objects of {OBJECT_BYTES} bytes, of which a version in "
                f"a store has at most {OBJECTS_MAX}; write smaller rows (dtype bfloat16 or int8), "
                "or divide the tables among several bundles"
            )

    @contextmanager
    def uploads(
        self, model: str, version: int, stage: Staging, *, reuse: bool
    ) -> Iterator[Uploads | None]:
        """Begins a version in the store; yields what sends its files, or None without a store.

        Args:
          model: The name of the model.
          version: The number of the version.
          stage: Where the files of the version lie.
          reuse: Whether objects that the store has are not sent again.

        Raises:
          DestinationExists: The version is there already.
          OSError: The store cannot be written.
        """
        if self.store is None:
            yield None
            return
        target = StoreVersion(self.store / model / str(version), reuse=reuse)
        # From now on, `clean` removes no object that the newest version names.
        target.begin()
        with Uploads(target, stage) as uploads:
            yield uploads

    def publish(
        self,
        stage: Staging,
        manifest: Manifest,
        uploads: Uploads | None,
        moved: Callable[[int], None],
        signer: Signer | None = None,
        check: Callable[[Path], object] = lambda _staged: None,
    ) -> Location:
        """Publishes a staged version; nothing of it is left on this machine but the bundle itself.

        Args:
          stage: Where its files lie.
          manifest: The manifest of the bundle.
          uploads: What `uploads` yielded.
          moved: Takes the bytes that were sent since its last call.
          signer: Signs the bundle; None: it is not signed.
          check: Called with the directory of the bundle that is complete, but for rows that a
            store has already, before it is published; may raise.

        Raises:
          KeyRejected: The key cannot sign any more.
          BundleError: A staged file is not what the manifest says, or the version appeared.
          DestinationError: The store does not hold what was sent.
          OSError: The store or the disk cannot be written; the next run does not send again what
            was sent.
        """
        if uploads is None:
            # On a disk, one rename publishes the staged directory itself.
            def sign(staged: Path) -> Signature | None:
                check(staged)
                if signer is None:
                    return None
                return signer.sign(list_content(staged, manifest))

            return stage.commit(manifest, sign=sign)
        directory = uploads.publish(manifest, moved, signer, check)
        stage.discard()
        return directory


def open_destination(text: str, base: Path, scratch: Path) -> Destination:
    """Returns the destination that a recipe or a command line names.

    Args:
      text: A path, relative to `base`, or a URL.
      base: The recipe's folder.
      scratch: Where versions for a store are staged, each store in a directory of its own.

    Raises:
      UsageError: The URL holds credentials, or is of an unknown store; or the path is not a
        directory.
    """
    location = location_of(text, base)
    if isinstance(location, Path):
        if location.exists() and not location.is_dir():
            raise UsageError(f"destination {location} is not a directory; name one, or a new path")
        return Destination(Path(os.path.normpath(location)), None)
    if scratch.exists() and not scratch.is_dir():
        raise UsageError(f"scratch {scratch} is not a directory; name one, or a new path")
    # The digest distinguishes stores whose readable names are the same.
    readable = re.sub(r"[^A-Za-z0-9]+", "-", location.url)[:40].strip("-")
    digest = hashlib.sha256(location.url.encode()).hexdigest()[:8]
    return Destination(scratch.absolute() / f"{readable}-{digest}", location)


@contextmanager
def _listing_errors(store: RemotePath) -> Iterator[None]:
    """Raises DestinationError for an OSError of the block."""
    try:
        yield
    except OSError as problem:
        raise DestinationError(
            f"destination {store} cannot be listed: {problem.strerror}"
        ) from problem
