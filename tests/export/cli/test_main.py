"""The command line: results on stdout, progress and one line of error on stderr."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import pytest

from tests.export.commands import Command, refused
from tests.export.movies_job import Recipe, write_project
from tests.export.traced_models import TracedCheckpoint

PROGRAM = Path(sys.executable).with_name("rowcast-export")
NAMED = "genres=model/embedding/_tpu_embedding/genres.Sall"


def test_inspect_tells_tables_and_imports_no_tensorflow(movies: TracedCheckpoint) -> None:
    program = (
        "import sys, export.cli.main\n"
        f"sys.argv = ['rowcast-export', 'inspect', {str(movies.prefix)!r}, '--json']\n"
        "try: export.cli.main.main()\n"
        "finally: assert 'tensorflow' not in sys.modules\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True
    )
    page = json.loads(done.stdout)
    assert {name: (table["rows"], table["dim"]) for name, table in page["tables"].items()} == {
        "users": (50, 8),
        "movies": (40, 8),
        "hours": (24, 4),
        "genres/all": (9, 4),
    }
    assert done.stderr == ""


def test_plan_tells_all_and_touches_nothing(command: Command, project: Path) -> None:
    page = command("plan", project, "--json").json
    assert page["destination"] == str(project.parent / "bundles/movies/1")
    assert page["tables"].keys() == {"users", "movies", "hours", "genres_all"}
    assert page["towers"]["query"]["features"] == ["history", "hour", "user_id"]
    assert page["features"]["history"]["combiner"] == "mean"
    assert not (project.parent / "bundles").exists()
    shown = command("plan", project)
    assert shown.code == 0
    assert "genres_all" in shown.out.replace("…", "")
    assert not (project.parent / "bundles").exists()


def test_plan_tells_what_shards_and_fronts_would_hold(command: Command, project: Path) -> None:
    options = ("--shards", "3", "--shard-least-bytes", str(40 * 8 * 4))
    *shards, front = command("plan", project, *options, "--json").json["shards"]
    assert [each["shard"] for each in shards] == ["1/3", "2/3", "3/3"]
    users, movies = ((17, 17, 16), (14, 13, 13))
    expected = [(rows + others) * 8 * 4 for rows, others in zip(users, movies, strict=True)]
    assert [each["table_bytes"] for each in shards] == expected
    assert front["table_bytes"] == (24 + 9) * 4 * 4
    assert front["index_bytes"] > 0, "an index without partitions is on every front"
    assert "2/3" in command("plan", project, *options).out
    assert "for the plan of a bundle" in command("run", project, "--shards", "3").err


@pytest.mark.slow
def test_run_as_a_program_prints_json_alone_and_no_native_chatter(
    recipe: Recipe, tmp_path: Path
) -> None:
    project = write_project(tmp_path, recipe)
    model = project.parent / "tower_models.py"
    model.write_text(model.read_text() + '\nprint("model code says")\n')
    done = subprocess.run(
        [PROGRAM, "run", project, "--json"],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=tmp_path,
    )
    assert done.returncode == 0, done.stderr
    page = json.loads(done.stdout)
    assert page["bundle"] == str(tmp_path / "bundles/movies/1")
    assert page["recall"]["movies"]["value"] == 1.0
    assert page["max_abs_error"]["ranking"]["litert f32"]["score"] < 1e-4
    assert [note for note in page["notes"] if "recall on invented queries" not in note] == []
    lines = done.stderr.splitlines()
    steps = [line for line in lines if re.search(r"^  \w.* [0-9.]+ s( |$)", line)]
    assert {line for line in lines if line not in steps} == {"model code says"}
    assert [line.split("  ")[1] for line in steps] == list(page["seconds"])


def test_run_shows_what_was_proved(undisturbed: Path) -> None:
    output = (undisturbed.parents[2] / "output").read_text()
    for shown in (
        "50 of 50 rows equal",
        "original model, 24",
        "largest difference",
        "recall@10 1.0000",
        "published",
    ):
        assert shown in " ".join(output.replace("│", " ").split()), shown


def test_verify_of_a_bundle_and_its_checkpoint_finds_all_in_order(
    command: Command, undisturbed: Path, movies: TracedCheckpoint
) -> None:
    page = command("verify", undisturbed, "--checkpoint", movies.prefix, "--full", "--json").json
    assert {"candidates movies, filter genres", "candidates movies, filter year"} <= set(
        page["opened"]
    )
    assert page["tables"]["users"] == {"rows_compared": 50, "rows": 50}
    assert "tower ranking, litert int8" in page["opened"]
    assert "index movies" in page["opened"]
    shown = command("verify", undisturbed, "--checkpoint", movies.prefix).out
    assert "rows of table users" in shown
    assert "is whole" in shown


def test_tables_without_model_code_then_verify(
    command: Command, movies: TracedCheckpoint, tmp_path: Path
) -> None:
    page = command("tables", movies.prefix, tmp_path, "--table", NAMED, "--json").json
    assert page["bundle"] == str(tmp_path / "tables/1")
    assert set(page["verification"]["tables"]) == {"users", "movies", "hours", "genres"}
    raw = (tmp_path / "tables/1/tables/genres/rows-00000-of-00001.bin").read_bytes()
    assert raw == movies.tables["genres_all"].tobytes()
    assert command("verify", page["bundle"], "--checkpoint", movies.prefix).code == 0
    again = command("tables", movies.prefix, tmp_path, "--table", NAMED, "--version", 1)
    assert again.code == 6
    assert "is there already" in again.message
    assert (
        command("tables", movies.prefix, tmp_path, "--table", NAMED, "--json").json["version"] == 2
    )


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["run"], ""),
        (["tables", "c", "o", "--budget-bytes", "5"], "--budget-bytes"),
        (["rum"], "rum"),
        (["verify", "/"], "has no manifest.json"),
        (["inspect", ""], "an empty path was given"),
        (["inspect", "somewhere", "--tabel", "a=b"], "`rowcast-export inspect --help`"),
    ],
)
def test_arguments_that_cannot_be_meant_exit_2(
    command: Command, arguments: list[str], told: str
) -> None:
    done = command(*arguments)
    assert (done.code, done.out) == (2, "")
    assert told in done.message


def test_no_arguments_show_the_commands_and_an_option_the_version(command: Command) -> None:
    done = command()
    assert (done.code, done.err) == (0, "")
    assert "inspect" in done.out
    assert command("--version").out == f"rowcast-export {version('rowcast')}\n"


def test_package_that_is_missing_is_named_with_the_command_that_installs_it() -> None:
    program = "import sys; sys.modules['pydantic_settings'] = None; from export.cli.main import main; main()"
    command = [sys.executable, "-c", program, "run", "recipe.toml"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "pydantic_settings is not installed: pip install 'rowcast[export]'" in " ".join(
        done.stderr.split()
    )


@pytest.mark.parametrize(
    ("name", "told"),
    [
        ("BUDGET_BYTES", "budget_bytes"),
        (
            "WORKRES",
            "sets ROWCAST_EXPORT_WORKRES, which is no setting; they are ROWCAST_EXPORT_BUDGET_BYTES, ",
        ),
    ],
)
def test_environment_that_sets_what_cannot_be_meant_exits_2(
    command: Command, project: Path, monkeypatch: pytest.MonkeyPatch, name: str, told: str
) -> None:
    monkeypatch.setenv(f"ROWCAST_EXPORT_{name}", "5")
    refused(command, project, 2, told)
