"""Runs the tests that a change can reach.

  --changed-since COMMIT  leaves out test files that refer to nothing that differs from the commit

The two programs never import each other, which the import contracts prove. So a change of
`export/` reaches no test of the service alone, and the other way round. Whatever is not known to
belong to one side reaches every test: the packages that both sides import, test data, settings of
the build.
"""

from __future__ import annotations

import functools
import subprocess
from pathlib import Path, PurePosixPath

import pytest

from tests.changes.references import REPOSITORY, References, references_of

SIDES = ("export", "service", "client", "docs")
"""Top folders whose changes reach only the tests that refer to them."""
COSTS = "tests/costs/costs.json"
"""No test reads it."""
MODELS = "tests/models/"
"""The exporter loads them by their paths, so no import statement refers to them."""
SNAPSHOTS = "tests/plans/"
"""Data that the tests beside it read alone."""


def changed_files(commit: str, repository: Path = REPOSITORY) -> list[str]:
    """Returns the files that differ from a commit, those that are not committed yet included.

    A renamed file counts by both names.

    Raises:
      pytest.UsageError: the commit is not in this repository.
    """
    changed: list[str] = []
    for command in (
        ["git", "diff", "--name-only", "--no-renames", commit, "--"],
        ["git", "ls-files", "--others", "--exclude-standard"],
    ):
        listed = subprocess.run(
            command, cwd=repository, capture_output=True, text=True, check=False
        )
        if listed.returncode != 0:
            message = listed.stderr.strip()
            raise pytest.UsageError(f"--changed-since {commit}: git: {message}")
        changed += listed.stdout.splitlines()
    return changed


def reaches(file: str, references: References) -> bool:
    """Returns whether a change of a file can change the result of a test file."""
    path = PurePosixPath(file)
    if file == COSTS:
        return False
    if path.parts[0] in SIDES:
        return path.parts[0] in references.folders
    if path.suffix == ".md":
        return "docs" in references.folders
    if path.parts[0] == "tests" and path.suffix == ".py" and not file.startswith(MODELS):
        return file in references.files
    if file.startswith(SNAPSHOTS):
        return any(test.startswith(SNAPSHOTS) for test in references.files)
    return True


class ReachedTests:
    """Leaves out test files that a change cannot reach."""

    def __init__(self, commit: str) -> None:
        self._commit = commit
        self._changed = changed_files(commit)
        self._left_out: set[Path] = set()

    @functools.cached_property
    def _reaching_all(self) -> bool:
        nothing = References(frozenset(), frozenset())
        return any(reaches(file, nothing) for file in self._changed)

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        if not collection_path.name.startswith("test_") or collection_path.is_dir():
            return None
        references = references_of(collection_path)
        if self._reaching_all or any(reaches(file, references) for file in self._changed):
            return None
        self._left_out.add(collection_path)
        return True

    def pytest_report_header(self) -> str:
        return f"changed since {self._commit}: {len(self._changed)} files"

    def pytest_report_collectionfinish(self) -> str:
        return f"not reached by the change: {len(self._left_out)} test files"


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption(
        "--changed-since",
        metavar="COMMIT",
        help="run the test files that a change since COMMIT can reach",
    )


def pytest_configure(config: pytest.Config) -> None:
    commit = config.getoption("--changed-since")
    if commit:
        config.pluginmanager.register(ReachedTests(commit), "reached-tests")
