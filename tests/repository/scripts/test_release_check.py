"""`scripts/release_check` stops at what makes a commit no release, before it builds anything."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[3] / "scripts" / "release_check"
CHANGELOG = "# Changelog\n\n## [Unreleased]\n\n## [1.2.0] - 2030-01-31\n"
OVERLAY = 'images: [{ name: rowcast-serve, newTag: "1.2.0" }]\n'


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A committed repository of the files that the first step reads, without a tag."""
    (tmp_path / "scripts").mkdir()
    shutil.copy(SCRIPT, tmp_path / "scripts")
    (tmp_path / "deploy").mkdir()
    (tmp_path / "deploy" / "README.md").write_text(OVERLAY)
    (tmp_path / "docs").mkdir()
    (tmp_path / "docs" / "page.md").write_text(OVERLAY)
    (tmp_path / "CHANGELOG.md").write_text(CHANGELOG)
    git(tmp_path, "init", "--quiet")
    git(tmp_path, "add", ".")
    git(tmp_path, "commit", "--quiet", "--message", "Prepare 1.2.0")
    return tmp_path


def git(repository: Path, *arguments: str) -> None:
    author = ("-c", "user.name=A", "-c", "user.email=a@example.org")
    subprocess.run(["git", *author, *arguments], cwd=repository, check=True)


def problem_of(repository: Path) -> str:
    """Returns what the script prints on stderr when it stops."""
    script = repository / "scripts" / "release_check"
    variables = {**os.environ, "BIN": "/no/such/environment"}
    done = subprocess.run([script], capture_output=True, text=True, env=variables, check=False)
    assert done.returncode != 0
    return done.stderr


def test_release_check_without_a_tag_on_the_commit_stops(repository: Path) -> None:
    assert "no annotated tag" in problem_of(repository)
    git(repository, "tag", "--annotate", "v1.2.0", "--message", "1.2.0")
    git(repository, "commit", "--quiet", "--allow-empty", "--message", "Fix")
    assert "no annotated tag" in problem_of(repository)


def test_release_check_with_a_file_that_is_not_committed_stops(repository: Path) -> None:
    git(repository, "tag", "--annotate", "v1.2.0", "--message", "1.2.0")
    (repository / "new.py").touch()
    assert "the tree is not clean" in problem_of(repository)


@pytest.mark.parametrize(
    ("file", "text", "problem"),
    [
        ("CHANGELOG.md", "## [Unreleased]\n", "no section ## [1.2.0] - YYYY-MM-DD"),
        ("docs/page.md", OVERLAY.replace("1.2.0", "1.1.0"), 'newTag: "1.1.0"'),
    ],
)
def test_release_check_with_another_version_in_a_file_stops(
    repository: Path, file: str, text: str, problem: str
) -> None:
    (repository / file).write_text(text)
    git(repository, "commit", "--quiet", "--all", "--message", "Change")
    git(repository, "tag", "--annotate", "v1.2.0", "--message", "1.2.0")
    assert problem in problem_of(repository)


def test_release_check_of_a_release_goes_on_to_the_recorded_api(repository: Path) -> None:
    git(repository, "tag", "--annotate", "v1.2.0", "--message", "1.2.0")
    assert "update_released_api" in problem_of(repository)
