"""Jobs whose recipes are in a test: a bundle is published, or the job is refused before that."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
from rich.console import Console

from export.errors import ExportError
from export.jobs import bundle_job
from export.jobs.preparation import Prepared
from export.jobs.progress import Progress
from export.jobs.staged import Published
from export.recipe.schema import ExportJob
from export.recipe.settings import ExportSettings

Page = Mapping[str, Any]


def prepare(page: Page, folder: Path) -> Prepared:
    """Returns the plan of a recipe, whose paths are relative to a folder."""
    return bundle_job.prepare(ExportJob.model_validate(page), folder, ExportSettings())


def publish(page: Page, folder: Path) -> Published:
    """Returns what a job published."""
    progress = Progress(Console(quiet=True))
    return bundle_job.run(prepare(page, folder), ExportSettings(load=False), progress)


def assert_refused(page: Page, folder: Path, *words: str) -> None:
    """Checks that a job is refused before it writes, and words of the message."""
    with pytest.raises(ExportError) as caught:
        prepare(page, folder)
    missing = [word for word in words if word not in str(caught.value)]
    assert not missing, f"{missing} are not in: {caught.value}"
