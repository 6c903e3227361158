"""What all steps of a bundle share."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from bundle.storage.staging import Staging
from export.corpora.changes import ServedChanges
from export.jobs.preparation import Prepared
from export.jobs.staged import StagedVersion
from export.recipe.schema import ExportJob
from export.recipe.settings import ExportSettings


@dataclass(frozen=True)
class BundleContext:
    """A bundle while it is made.

    Attributes:
      prepared: The job, which is known to be possible.
      settings: How the job runs.
      staged: The staged version that the steps write.
      notes: What the user should know of the bundle. Steps append to it.
      changes: The changes of the service that the bundle contains; None: it contains none.
    """

    prepared: Prepared
    settings: ExportSettings
    staged: StagedVersion
    notes: list[str]
    changes: ServedChanges | None

    @property
    def job(self) -> ExportJob:
        """The recipe."""
        return self.prepared.job

    @property
    def stage(self) -> Staging:
        """The staging directory with its journal."""
        return self.staged.stage

    @property
    def directory(self) -> Path:
        """The path of the staging directory."""
        return self.staged.stage.directory
