from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest

from tests.changes.plugin import changed_files, reaches
from tests.changes.references import REPOSITORY, References, references_of

EXPORT_TEST = References(frozenset({"tests/export/test_steps.py"}), frozenset({"tests", "export"}))
SERVICE_TEST = References(
    frozenset({"tests/service/test_config.py", "tests/service/running.py"}),
    frozenset({"tests", "service", "client"}),
)
PAGE_TEST = References(frozenset({"tests/docs/test_page_paths.py"}), frozenset({"tests", "docs"}))
PLAN_TEST = References(frozenset({"tests/plans/test_plans.py"}), frozenset({"tests", "export"}))
TESTS = {"export": EXPORT_TEST, "service": SERVICE_TEST, "page": PAGE_TEST, "plan": PLAN_TEST}
ALL = set(TESTS)
needs_git = pytest.mark.skipif(shutil.which("git") is None, reason="needs git")


@pytest.mark.parametrize(
    ("file", "reached"),
    [
        ("export/jobs/staged.py", {"export", "plan"}),
        ("service/codec/columns.py", {"service"}),
        ("client/rowcast_client/client.py", {"service"}),
        ("docs/reference/models.md", {"page"}),
        ("CHANGELOG.md", {"page"}),
        ("examples/dlrm/README.md", {"page"}),
        ("tests/export/test_steps.py", {"export"}),
        ("tests/service/running.py", {"service"}),
        ("tests/plans/snapshots/dlrm.txt", {"plan"}),
        ("tests/costs/costs.json", set()),
        ("bundle/tables/reader.py", ALL),
        ("runtime/scann.py", ALL),
        ("object_store/locations.py", ALL),
        ("proto/rowcast/v1/embedding_service.proto", ALL),
        ("tests/models/ids.py", ALL),
        ("pyproject.toml", ALL),
        ("tests/golden/torch.tar.xz", ALL),
        ("a_new_folder/file.py", ALL),
    ],
)
def test_change_of_a_file_reaches_the_tests_that_refer_to_it(file: str, reached: set[str]) -> None:
    assert {name for name, references in TESTS.items() if reaches(file, references)} == reached


@pytest.mark.parametrize(
    ("test", "folders"),
    [
        ("tests/service/http/test_admission.py", {"service"}),  # imports
        (
            "tests/e2e/test_processes.py",
            {"service"},
        ),  # starts rowcast-serve, in a module it imports
        ("tests/e2e/test_main_path.py", {"export", "service", "client"}),
        ("tests/examples/test_dlrm.py", {"examples", "export", "service"}),  # through examples/
        ("tests/docs/test_page_paths.py", {"docs"}),
        ("tests/golden/test_lookups.py", {"bundle"}),
        ("tests/bundle/tables/test_reader.py", {"bundle"}),
    ],
)
def test_test_file_refers_to_what_it_imports_and_to_programs_that_it_starts(
    test: str, folders: set[str]
) -> None:
    assert folders <= references_of(REPOSITORY / test).folders


@pytest.mark.parametrize("folder", ["tests/service/http", "tests/client", "tests/runtime"])
def test_no_test_of_the_service_refers_to_the_exporter(folder: str) -> None:
    tests = sorted((REPOSITORY / folder).rglob("test_*.py"))
    assert tests
    assert [test for test in tests if "export" in references_of(test).folders] == []


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository of one commit."""
    git(tmp_path, "init", "--quiet")
    for name in ("changed.py", "deleted.py", "renamed.py", "unchanged.py"):
        (tmp_path / name).write_text(f"{name}\n")
    (tmp_path / ".gitignore").write_text("build/\n")
    git(tmp_path, "add", ".")
    identity = ("-c", "user.name=Test", "-c", "user.email=test@example.com")
    git(tmp_path, *identity, "commit", "--quiet", "--message", "first")
    return tmp_path


def git(repository: Path, *arguments: str) -> None:
    subprocess.run(["git", *arguments], cwd=repository, check=True)


@needs_git
def test_files_that_are_not_committed_are_changed_and_renamed_ones_by_both_names(
    repository: Path,
) -> None:
    (repository / "changed.py").write_text("other\n")
    (repository / "deleted.py").unlink()
    git(repository, "mv", "renamed.py", "name.py")
    (repository / "new.py").touch()
    (repository / "build").mkdir()
    (repository / "build" / "ignored.py").touch()
    assert sorted(changed_files("HEAD", repository)) == [
        "changed.py",
        "deleted.py",
        "name.py",
        "new.py",
        "renamed.py",
    ]


@needs_git
def test_commit_that_git_does_not_know_is_an_error(repository: Path) -> None:
    with pytest.raises(pytest.UsageError, match="--changed-since 0123abc: git: "):
        changed_files("0123abc", repository)
