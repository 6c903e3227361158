"""The lock file names the version of every package that the programs and their development need."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path

from packaging.requirements import Requirement

LOCK = Path(__file__).parents[2] / "deploy" / "constraints.txt"
EXTRAS = ("export", "serve", "examples", "dev")


def needed(name: str, extras: tuple[str, ...], found: set[str]) -> set[str]:
    """Returns the installed packages that a distribution needs, with those that they need."""
    for text in distribution(name).requires or []:
        requirement = Requirement(text)
        marker = requirement.marker
        if marker is not None and not any(marker.evaluate({"extra": extra}) for extra in (*extras, "")):
            continue
        other = re.sub(r"[-_.]+", "-", requirement.name).lower()
        if other not in found:
            found.add(other)
            needed(other, tuple(requirement.extras), found)
    return found


def test_lock_file_has_the_installed_version_of_all_that_is_needed() -> None:
    lines = [line.split("==") for line in LOCK.read_text().splitlines() if "==" in line]
    locked = {re.sub(r"[-_.]+", "-", name).lower(): pinned for name, pinned in lines}
    wrong = {}
    for name in needed("rowcast", EXTRAS, set()) - {"rowcast", "setuptools", "pip"}:
        try:
            installed = version(name)
        except PackageNotFoundError:
            continue
        if locked.get(name) != installed:
            wrong[name] = (installed, locked.get(name))
    assert wrong == {}, "run deploy/freeze"
