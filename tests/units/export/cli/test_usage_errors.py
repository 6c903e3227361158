"""Arguments and settings that cannot be meant, and a recipe that cannot be read."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.units.export.commands import Command, rejected
from tests.units.export.traced_models import TracedCheckpoint


def test_file_that_is_no_recipe_exits_2_and_names_it(command: Command, tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text("a = = 1")
    rejected(command, tmp_path / "recipe.toml", 2, "recipe.toml cannot be read", "line 1")
    rejected(command, tmp_path / "nowhere.toml", 2, "does not exist")


def test_run_has_no_option_that_it_always_rejects(command: Command, project: Path) -> None:
    assert "--shards" in command("plan", "--help").out
    assert "--shard" not in command("run", "--help").out
    done = command("run", project, "--shards", "3")
    assert (done.code, "--shards" in done.message) == (2, True)


@pytest.mark.parametrize(
    ("arguments", "expected_text"),
    [
        (["run"], ""),
        (["tables", "c", "o", "--only", "a,,b"], "--only 'a,,b'"),
        (["tables", "c", "o", "--tables", "inline"], "--tables"),
        (["explain", "recipe.toml", "--tables", "inline"], "--tables"),
        (["tables", "c", "o", "--budget-bytes", "5"], "--budget-bytes"),
        (["init", "m.py:f", "c", "--out", "/"], "--out: / is a directory"),
        (["init", "m.py:f", "c", "--out", __file__], "exists; a recipe is not overwritten"),
        (["init", "m.py:f", "c", "--out", "/recipe.toml"], "run the command there"),
        (["rum"], "rum"),
        (["verify", "/"], "has no manifest.json"),
        (["inspect", ""], "an empty path was given"),
        (["inspect", "somewhere", "--tabel", "a=b"], "`rowcast-export inspect --help`"),
    ],
)
def test_invalid_arguments_exit_2(
    command: Command, arguments: list[str], expected_text: str
) -> None:
    done = command(*arguments)
    assert (done.code, done.out) == (2, "")
    assert expected_text in done.message


@pytest.mark.parametrize(
    ("name", "expected_text"),
    [
        ("BUDGET_BYTES", "budget_bytes"),
        (
            "WORKRES",
            "sets ROWCAST_EXPORT_WORKRES, which is not a setting; the settings are "
            "ROWCAST_EXPORT_BUDGET_BYTES, ",
        ),
    ],
)
def test_invalid_environment_variables_exit_2(
    command: Command, project: Path, monkeypatch: pytest.MonkeyPatch, name: str, expected_text: str
) -> None:
    monkeypatch.setenv(f"ROWCAST_EXPORT_{name}", "5")
    rejected(command, project, 2, expected_text)


def test_table_that_is_not_in_the_checkpoint_exits_4_with_the_nearest_name(
    command: Command, movies: TracedCheckpoint, tmp_path: Path
) -> None:
    key = "model/embedding/_tpu_embedding/user"
    done = command("tables", movies.prefix, tmp_path, "--table", f"users={key}")
    assert done.code == 4
    assert "did you mean 'model/embedding/_tpu_embedding/users'?" in done.message
