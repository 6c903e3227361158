"""Skips tests that need a package which has no release for the Python that runs them.

Such a test imports the package, or calls code of ours that does; a test whose programs do so has
the marker `needs`. Where a package has a release, a missing one fails the tests.
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path

import pytest

WITHOUT_RELEASE: frozenset[str] = frozenset()
"""The modules of the packages that markers in `pyproject.toml` leave out for this Python."""
if sys.version_info >= (3, 14):
    WITHOUT_RELEASE = frozenset(
        {"scann", "tensorflow", "tensorflow_recommenders", "tensorflow_serving", "tf_keras"}
    )


def missing_package(problem: BaseException | None) -> str | None:
    """Returns the package without a release whose import an exception comes from, if one does."""
    while problem is not None:
        if isinstance(problem, ImportError):
            package = (problem.name or "").partition(".")[0]
            if package in WITHOUT_RELEASE:
                return package
        problem = problem.__cause__
    return None


def skip_marked(item: pytest.Item) -> None:
    """Skips a test whose marker `needs` names a package without a release."""
    for marker in item.iter_markers("needs"):
        package = marker.args[0]
        if package in WITHOUT_RELEASE and importlib.util.find_spec(package) is None:
            item.add_marker(pytest.mark.skip(reason=_reason(package)))


def skip_where_missing(
    report: pytest.CollectReport | pytest.TestReport,
    problem: BaseException | None,
    file: Path,
    line: int,
) -> None:
    """Turns the report of a failure into one of a skipped test, if a package has no release.

    Args:
      report: What pytest has made of a module or of a step of a test.
      problem: What the module or the step raised.
      file: The file of the module or the test.
      line: The line of the test, from 1.
    """
    package = missing_package(problem)
    if report.outcome == "failed" and package is not None:
        report.outcome = "skipped"
        report.longrepr = (str(file), line, _reason(package))


def _reason(package: str) -> str:
    return f"{package} has no release for this Python"
