"""A version while a job makes it: staged, held against other exporters, and what is reported of it at the end."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from importlib.metadata import version as installed_version
from typing import Any

from bundle.errors import BundleError, DestinationExists, FeatureError, VersionBusy
from bundle.format.manifest import Manifest, Provenance
from bundle.storage import staging
from export.checkpoint.inventory.specs import Inventory
from export.errors import DestinationError, ExportError, UsageError, VerificationFailed
from export.jobs.destinations import Destination, published_bytes
from export.jobs.leases import Lease
from export.jobs.progress import Progress
from export.steps import Made, Step, versions
from runtime.object_store import Place

_CURES = {
    **dict.fromkeys(
        (errno.ENOSPC, errno.EDQUOT, errno.EFBIG), "; free some space, then run again: it resumes"
    ),
    **dict.fromkeys(
        (errno.EROFS, errno.EACCES, errno.EPERM), "; choose a root that can be written"
    ),
    **dict.fromkeys(
        (errno.ENOTDIR, errno.EEXIST), "; choose a root that is a directory, or is not there yet"
    ),
}


@dataclass(frozen=True)
class Published:
    """A committed bundle."""

    directory: Place
    manifest: Manifest
    notes: tuple[str, ...]
    """What the user should know: towers that LiteRT cannot run, and why."""


@dataclass(frozen=True)
class Draft:
    """A version that is being made: where it is staged and where it goes; `steps` are those that it is made of."""

    stage: staging.Staging
    destination: Destination
    lease: Lease | None
    steps: list[str] = field(default_factory=list)

    def do(self, step: Step[Made]) -> Made:
        """Does a step, unless an earlier run did."""
        self.steps.append(step.name)
        return step.run(self.stage)

    def begun(self, *inputs: Any) -> str:
        """Returns when the job of some inputs was begun: a resumed run writes the same manifest."""
        return Step(
            "created", inputs, str, lambda: datetime.now(UTC).isoformat(timespec="seconds")
        ).run(self.stage)

    def publish(self, manifest: Manifest, progress: Progress) -> Place:
        """Publishes it; errors as of `Destination.publish`."""
        sent = self.destination.store is not None
        with progress.step(
            *(("upload", published_bytes(manifest)) if sent else ("commit",))
        ) as moved:
            return self.destination.publish(self.stage, manifest, self.lease, moved)


@contextmanager
def staged(destination: Destination, model: str, version: int) -> Iterator[Draft]:
    """Opens the staging directory of a version. Whatever fails, what is finished stays there for the next run."""
    try:
        with (
            staging.Staging(destination.root, model, version) as stage,
            destination.held(model, version) as lease,
        ):
            try:
                yield Draft(stage, destination, lease)
            except VerificationFailed as problem:
                kept = f"{stage.directory} keeps what is finished, and the next run redoes the rest"
                raise VerificationFailed(f"{problem}; nothing is published; {kept}") from problem
    except (DestinationExists, VersionBusy) as problem:
        raise DestinationError(str(problem)) from problem
    except FeatureError as problem:
        raise UsageError(f"an example or candidate does not fit: {problem}") from problem
    except BundleError as problem:
        raise ExportError(str(problem)) from problem
    except OSError as problem:
        message = f"{problem.filename or 'the destination'}: {problem.strerror or problem}"
        raise DestinationError(f"{message}{_CURES.get(problem.errno or 0, '')}") from problem


def provenance(inventory: Inventory, model_code: str) -> Provenance:
    """Says what is exported, by what."""
    return Provenance(
        checkpoint=inventory.checkpoint,
        step=inventory.step,
        fingerprint=inventory.fingerprint,
        model_code=model_code,
        exporter=f"rowcast {installed_version('rowcast')}",
        libraries=versions(),
    )
