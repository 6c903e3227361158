"""The lock file names the version of every package that the programs and their development need."""

from __future__ import annotations

import re
from importlib.metadata import PackageNotFoundError, distribution, version
from pathlib import Path

from packaging.requirements import Requirement

LOCK = Path(__file__).parents[3] / "deploy" / "constraints.txt"
EXTRAS = ("export", "serve", "examples", "dev")


def needed(name: str, extras: tuple[str, ...], actual: dict[str, str]) -> dict[str, str]:
    """Returns the installed version of a distribution and of all that it needs."""
    try:
        actual[name] = version(name)
    except PackageNotFoundError:
        return actual
    for text in distribution(name).requires or []:
        requirement = Requirement(text)
        marker = requirement.marker
        if marker is not None and not any(
            marker.evaluate({"extra": extra}) for extra in (*extras, "")
        ):
            continue
        other = re.sub(r"[-_.]+", "-", requirement.name).lower()
        if other not in actual or other == "rowcast":
            needed(other, tuple(requirement.extras), actual)
    return actual


def test_lock_file_has_the_installed_version_of_all_that_is_needed() -> None:
    lines = [line for line in LOCK.read_text().splitlines() if "==" in line]
    locked = {}
    for requirement in map(Requirement, lines):
        # Some versions depend on that of Python.
        if requirement.marker is None or requirement.marker.evaluate():
            name = re.sub(r"[-_.]+", "-", requirement.name).lower()
            locked[name] = str(requirement.specifier).removeprefix("==")
    installed = needed("rowcast", EXTRAS, {})
    wrong = {
        name: (each, locked.get(name))
        for name, each in installed.items()
        if name not in {"rowcast", "setuptools", "pip"} and locked.get(name) != each
    }
    assert len(installed) > 20
    assert wrong == {}, "run deploy/freeze"
