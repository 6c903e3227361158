"""A version while a job makes it: where it is staged, and how it is published and reported."""

from __future__ import annotations

import errno
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from importlib.metadata import version as installed_version
from pathlib import Path
from typing import Any, Concatenate

from bundle.errors import BundleError, DestinationExists, FeatureError, VersionBusy
from bundle.format.manifest import Manifest, Provenance, Table
from bundle.storage import staging
from bundle.storage.signatures import KeyRejected, Signer
from bundle.tables.reader import TableReader
from export.checkpoint.inventory.specs import Inventory
from export.errors import DestinationError, ExportError, UsageError, VerificationFailed
from export.jobs.destinations import Destination
from export.jobs.load_trial import try_loading
from export.jobs.progress import Progress
from export.jobs.uploads import Uploads
from export.steps import LIBRARIES, Arguments, Result, Step, versions
from export.tables.older_versions import NOTHING_REUSED, ReusedSegments
from object_store.locations import Location

_REMEDIES = {
    **dict.fromkeys(
        (errno.ENOSPC, errno.EDQUOT, errno.EFBIG), "; free some space, then run again: it resumes"
    ),
    **dict.fromkeys(
        (errno.EROFS, errno.EACCES, errno.EPERM), "; choose a root that can be written"
    ),
    **dict.fromkeys(
        (errno.ENOTDIR, errno.EEXIST), "; choose a root that is a directory, or is not there yet"
    ),
    errno.EBUSY: "; run the export again when the store is available: it resumes",
}


@dataclass(frozen=True)
class Published:
    """A committed bundle.

    Attributes:
      directory: The directory of the bundle.
      manifest: The manifest of the bundle.
      notes: What the user should know, such as towers that LiteRT cannot run, and why.
      reused: The segments that it takes from older versions.
    """

    directory: Location
    manifest: Manifest
    notes: tuple[str, ...]
    reused: ReusedSegments = NOTHING_REUSED


@dataclass(frozen=True)
class StagedVersion:
    """A version that is being made.

    Attributes:
      stage: The staging directory with its journal.
      destination: Where the version goes.
      uploads: Sends its files to a store; None: it goes to a disk.
      signer: Signs the version; None: it is not signed.
      loads: Whether a service must load the version before it is published.
      steps: The names of the steps that write its files.
    """

    stage: staging.Staging
    destination: Destination
    uploads: Uploads | None
    signer: Signer | None = None
    loads: bool = False
    steps: list[str] = field(default_factory=list)

    def run(
        self,
        step: Step,
        function: Callable[Concatenate[Path, Arguments], Result],
        /,
        *inputs: Arguments.args,
        **reporting: Arguments.kwargs,
    ) -> Result:
        """Runs a step that writes files of the bundle; see `Step.run`."""
        self.steps.append(step.name)
        return step.run(self.stage, function, *inputs, **reporting)

    def open_table(self, table: Table) -> TableReader:
        """Opens a table that was written, wherever its rows are now.

        Raises:
          BundleError: A file is missing or cut short.
        """
        if self.uploads is None:
            return TableReader(self.stage.directory, table)
        return self.uploads.open_table(table)

    def start_time(self, job: Any, fingerprint: str) -> str:
        """Returns the time when a job began. A resumed run gets the time of the first one, so that
        it writes the same manifest.

        Args:
          job: All that the user requested.
          fingerprint: Identifies the content of the checkpoint.
        """
        return Step("created").run(self.stage, _time_of_first_run, job, fingerprint)

    def reused(self, manifest: Manifest, copied: ReusedSegments) -> ReusedSegments:
        """Returns what the version takes from older ones, once it is published.

        Args:
          manifest: The manifest of the version.
          copied: What its tables took from older versions on the disk.
        """
        if self.uploads is None:
            return copied
        return replace(self.uploads.reused(manifest), changed_rows=copied.changed_rows)

    def publish(self, manifest: Manifest, progress: Progress) -> tuple[Location, list[str]]:
        """Publishes the version; raises the errors of `Destination.publish`.

        Returns:
          The directory of the bundle, and notes.

        Raises:
          VerificationFailed: No service loads it.
        """
        notes = []

        def load(staged: Path) -> None:
            if not self.loads:
                return
            if reason := try_loading(staged, manifest, self.uploads):
                notes.append(f"not verified: that a service loads the bundle, since {reason}")

        kinds = {step.partition("/")[0] for step in self.stage.resumed if "/" in step}
        if kinds:
            progress.note("resumed", f"{', '.join(sorted(kinds))} of an earlier run")
        if self.uploads is None:
            name = "commit"
            if self.signer is not None:
                # The files are read again to sign them, which takes most of the time.
                name = "sign and commit"
            step = progress.step(name)
        else:
            step = progress.step("upload", sum(file.bytes for file in manifest.files))
        with step as moved:
            directory = self.destination.publish(
                self.stage, manifest, self.uploads, moved, self.signer, load
            )
        return directory, notes


def _time_of_first_run(_base: Path, _job: Any, _fingerprint: str) -> str:
    return datetime.now(UTC).isoformat(timespec="seconds")


@contextmanager
def open_staged(
    destination: Destination,
    model: str,
    version: int,
    *,
    reuse: bool = True,
    signer: Signer | None = None,
    loads: bool = False,
) -> Iterator[StagedVersion]:
    """Opens the staging directory of a version. Whatever fails, the finished files stay there for
    the next run.

    Args:
      destination: Where the version goes.
      model: The name of the model.
      version: The number of the version.
      reuse: Whether objects that a store has are not sent again.
      signer: Signs the version; None: it is not signed.
      loads: Whether a service must load the version before it is published.
    """
    try:
        # The staging directory is locked, so that no two runs write one version.
        with (
            staging.Staging(destination.root, model, version) as stage,
            destination.uploads(model, version, stage, reuse=reuse) as uploads,
        ):
            try:
                yield StagedVersion(stage, destination, uploads, signer, loads)
            except VerificationFailed as problem:
                # The next run writes again what a check found wrong, and keeps all else.
                for step in problem.steps:
                    stage.forget(step)
                remedy = (
                    f"{stage.directory} keeps what is finished, and the next run redoes the rest"
                )
                raise VerificationFailed(f"{problem}; nothing is published; {remedy}") from problem
    except (DestinationExists, VersionBusy) as problem:
        raise DestinationError(str(problem)) from problem
    except KeyRejected as problem:
        raise UsageError(f"--sign-key: {problem}; run the export again: it resumes") from problem
    # Before BundleError, which a FeatureError is, too: the values are the user's own.
    except FeatureError as problem:
        raise UsageError(
            f"a value of verify.examples, or of a corpus, does not fit the model: {problem}; "
            "correct it in its file"
        ) from problem
    except BundleError as problem:
        raise ExportError(str(problem)) from problem
    except OSError as problem:
        message = f"{problem.filename or 'the destination'}: {problem.strerror or problem}"
        raise DestinationError(f"{message}{_REMEDIES.get(problem.errno or 0, '')}") from problem


def provenance(inventory: Inventory, model_code: str) -> Provenance:
    """Returns the provenance of a bundle: its checkpoint, its model code, and the exporter."""
    return Provenance(
        checkpoint=inventory.checkpoint,
        step=inventory.step,
        fingerprint=inventory.fingerprint,
        model_code=model_code,
        exporter=f"rowcast {installed_version('rowcast')}",
        libraries=versions(LIBRARIES),
    )
