"""The command line: results on stdout, progress and one line of error on stderr, exit codes; whatever it is given."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from export.main import main
from tests.export.cutting import Cut
from tests.export.exporting import Recipe, aside, changed, visible, write_corpus, write_project
from tests.export.forked_runs import ForkedRuns

PROGRAM = Path(sys.executable).with_name("rowcast-export")
NAMED = "genres=model/embedding/_tpu_embedding/genres.Sall"
DATA, INDEX = "ckpt-3.data-00000-of-00001", "ckpt-3.index"


@dataclass(frozen=True)
class Done:
    code: Any
    out: str
    err: str

    @property
    def told(self) -> str:
        """The one line that is no progress."""
        lines = [line for line in self.err.splitlines() if not line.startswith("  ")]
        assert len(lines) == 1, self.err
        assert lines[0].startswith("rowcast-export: ")
        assert "Traceback" not in self.err
        return lines[0]

    @property
    def page(self) -> dict[str, Any]:
        assert self.code == 0, self.err
        page: dict[str, Any] = json.loads(self.out)
        return page


Command = Callable[..., Done]


@pytest.fixture
def command(monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Command:
    """Runs the command line in this process."""

    def run(*arguments: object) -> Done:
        monkeypatch.setattr(sys, "argv", ["rowcast-export", *map(str, arguments)])
        capfd.readouterr()
        with pytest.raises(SystemExit) as finished:
            main()
        return Done(finished.value.code, *capfd.readouterr())

    return run


# What works.


def test_inspect_tells_tables_and_imports_no_tensorflow(movies: Cut) -> None:
    program = (
        "import sys, export.main\n"
        f"sys.argv = ['rowcast-export', 'inspect', {str(movies.prefix)!r}, '--json']\n"
        "try: export.main.main()\n"
        "finally: assert 'tensorflow' not in sys.modules\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=True)
    page = json.loads(done.stdout)
    assert {name: (table["rows"], table["dim"]) for name, table in page["tables"].items()} == {
        "users": (50, 8),
        "movies": (40, 8),
        "hours": (24, 4),
        "genres/all": (9, 4),
    }
    assert done.stderr == ""


def test_plan_tells_all_and_touches_nothing(command: Command, project: Path) -> None:
    page = command("plan", project, "--json").page
    assert page["destination"] == str(project.parent / "bundles/movies/1")
    assert page["towers"]["query"]["features"] == ["history", "hour", "user_id"]
    assert page["features"]["history"]["combiner"] == "mean"
    assert not (project.parent / "bundles").exists()
    shown = command("plan", project)
    assert shown.code == 0
    assert "genres_all" in shown.out.replace("…", "")
    assert not (project.parent / "bundles").exists()


def test_run_as_a_program_prints_json_alone_and_no_native_chatter(recipe: Recipe, tmp_path: Path) -> None:
    project = write_project(tmp_path, recipe)
    model = project.parent / "tower_models.py"
    model.write_text(model.read_text() + '\nprint("model code says")\n')
    done = subprocess.run(
        [PROGRAM, "run", project, "--json"], capture_output=True, text=True, timeout=120, check=False, cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    page = json.loads(done.stdout)
    assert page["bundle"] == str(tmp_path / "bundles/movies/1")
    assert page["recall"]["movies"]["value"] == 1.0
    assert page["max_abs_error"]["ranking"]["litert f32"]["score"] < 1e-4
    assert page["notes"] == []
    lines = done.stderr.splitlines()
    steps = [line for line in lines if line.startswith("  ") and line.endswith(" s")]
    assert {line for line in lines if line not in steps} == {"model code says"}
    assert [line.split("  ")[1] for line in steps] == list(page["seconds"])


def test_run_shows_what_was_proved(undisturbed: Path) -> None:
    output = (undisturbed.parents[2] / "output").read_text()
    for shown in ("50 of 50 rows equal", "original model, 24", "largest difference", "recall@10 1.0000", "published"):
        assert shown in " ".join(output.replace("│", " ").split()), shown


def test_verify_of_a_bundle_and_its_checkpoint_finds_all_in_order(
    command: Command, undisturbed: Path, movies: Cut
) -> None:
    page = command("verify", undisturbed, "--checkpoint", movies.prefix, "--full", "--json").page
    assert page["tables"]["users"] == {"rows_compared": 50, "rows": 50}
    assert "tower ranking, litert int8" in page["opened"]
    assert "index movies" in page["opened"]
    shown = command("verify", undisturbed, "--checkpoint", movies.prefix).out
    assert "rows of table users" in shown
    assert "is whole" in shown


def test_tables_without_model_code_then_verify(command: Command, movies: Cut, tmp_path: Path) -> None:
    page = command("tables", movies.prefix, tmp_path, "--table", NAMED, "--json").page
    assert page["bundle"] == str(tmp_path / "tables/1")
    assert set(page["verification"]["tables"]) == {"users", "movies", "hours", "genres"}
    raw = (tmp_path / "tables/1/tables/genres/rows-00000-of-00001.bin").read_bytes()
    assert raw == movies.tables["genres_all"].tobytes()
    assert command("verify", page["bundle"], "--checkpoint", movies.prefix).code == 0
    again = command("tables", movies.prefix, tmp_path, "--table", NAMED, "--version", 1)
    assert again.code == 6
    assert "is there already" in again.told
    assert command("tables", movies.prefix, tmp_path, "--table", NAMED, "--json").page["version"] == 2


# What cannot be meant: 2, and what cannot be converted: 4.


def refused(command: Command, project: Path, code: int, *told: str, subcommand: str = "run") -> None:
    done = command(subcommand, project)
    assert done.code == code, done.err
    for words in told:
        assert words in done.told
    assert done.out == ""
    assert visible(project.parent / "bundles") == []


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("towers.query.rolle", "query", "unknown key 'towers.query.rolle'; did you mean 'role'?"),
        ("indices", {}, "unknown key 'indices'; did you mean 'indexes'?"),
        ("candidates.movies.idd", "x", "unknown key 'candidates.movies.idd'; did you mean 'id'?"),
        ("verify.count", "many", "verify.count: Input should be a valid integer"),
        ("towers.query.precisions", ["f64"], "'f32' or 'int8' (got 'f64')"),
        ("code", None, "key 'code' is missing"),
        ("model", "../x", "'../x' is no name"),
        ("towers.query.inputs", ["userid"], "towers.query.inputs names 'userid'"),
        ("towers.query.outputs", {"vector": "queries"}, "towers.query.outputs names 'queries'"),
        ("features.usr", {"role": "context"}, "features.usr: no tower takes a feature of that name"),
        ("tables.userz", {"shard_rows": 5}, "tables.userz: no tower reads a table of that name; they read genres_all"),
        ("vocabularies.movies.file", "no.txt", "no.txt cannot be read"),
        ("candidates.movies.file", "no.csv", "no.csv does not exist"),
        ("candidates.movies.id", "id", "movies.csv has no column 'id'; it has movieId"),
        ("candidates.movies.attributes", ["titel"], "movies.csv has no column 'titel'"),
        ("indexes.movies.corpus", "moviez", "indexes.movies.corpus names 'moviez'; the recipe has movies"),
        ("indexes.movies.query_tower", "ranking", "towers with role = 'query': query"),
        ("indexes.movies.parameters", {"leafs": 3}, "unknown key 'leafs'"),
        ("towers.ranking.max_abs_error", {}, "towers.ranking.max_abs_error.int8"),
        ("verify.examples", "no.parquet", "no.parquet does not exist"),
        ("code.factory", "no.py:build", "no.py does not exist"),
        ("code.factory", "tower_models.py:build_movie", "has no function 'build_movie'"),
    ],
)
def test_recipe_that_cannot_be_meant_exits_2_and_names_the_key(
    command: Command, recipe: Recipe, tmp_path: Path, key: str, value: Any, told: str
) -> None:
    refused(command, write_project(tmp_path, changed(recipe, key, value)), 2, told)


@pytest.mark.parametrize("key", ["vocabularies.movies.file", "candidates.movies.file", "verify.examples"])
def test_missing_file_of_a_recipe_is_told_before_a_table_is_copied(
    command: Command, recipe: Recipe, tmp_path: Path, key: str
) -> None:
    refused(command, write_project(tmp_path, changed(recipe, key, "not_there.csv")), 2, "not_there.csv")
    assert list((tmp_path / "bundles/movies/.staging-1").glob("tables/*")) == []


@pytest.mark.parametrize("name", ["export", "service", "bundle", "runtime"])
def test_model_package_called_as_one_of_rowcast_exits_2_and_says_so(
    command: Command, recipe: Recipe, tmp_path: Path, name: str
) -> None:
    project = write_project(tmp_path, changed(recipe, "code.factory", f"{name}.model:build"))
    (tmp_path / name).mkdir()
    (tmp_path / name / "model.py").write_text("def build(): return None\n")
    refused(command, project, 2, f"{name!r} is a package of rowcast itself", "rename")


@pytest.mark.parametrize(
    ("body", "told"),
    [
        ("return 1 / 0", "calling it raised ZeroDivisionError: division by zero"),
        ("raise SystemExit(0)", "calling it raised SystemExit: 0"),
        ("return None", "returned None"),
    ],
)
def test_model_code_that_fails_exits_4_and_names_it(
    command: Command, recipe: Recipe, tmp_path: Path, body: str, told: str
) -> None:
    project = write_project(tmp_path, changed(recipe, "code.factory", "mine.py:build"))
    (tmp_path / "mine.py").write_text(f"def build():\n    {body}\n")
    refused(command, project, 4, "mine.py:build", told)


def test_recipe_that_is_missing_or_no_toml_exits_2(command: Command, tmp_path: Path) -> None:
    (tmp_path / "broken.toml").write_text("a = = 1")
    refused(command, tmp_path / "broken.toml", 2, "cannot be read", "line 1")
    refused(command, tmp_path / "nowhere.toml", 2, "does not exist")


@pytest.mark.parametrize(
    "arguments",
    [["run"], ["run", "r.toml", "--nope"], ["tables", "c", "o", "--budget-bytes", "5"], ["rum"], ["verify", "/"]],
)
def test_arguments_that_cannot_be_meant_exit_2(command: Command, arguments: list[str]) -> None:
    done = command(*arguments)
    assert done.code == 2
    assert "Traceback" not in done.err


def test_environment_setting_out_of_its_limits_exits_2(
    command: Command, project: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ROWCAST_EXPORT_BUDGET_BYTES", "5")
    refused(command, project, 2, "budget_bytes", "ROWCAST_EXPORT_")


@pytest.mark.parametrize(
    ("row", "told"),
    [
        ({"movieId": "100"}, "column 'movieId': id 100 stands in rows 1 and 6"),
        ({"movieId": ""}, "column 'movieId', row 6: '' is null"),
        ({"movieId": "abc"}, "column 'movieId', row 6: 'abc' is text"),
        ({"year": "old"}, "column 'year', row 6: 'old' is no finite number"),
        ({"year": ""}, "column 'year', row 6: '' is empty"),
        ({"genres": "1|x"}, "column 'genres', row 6: 'x' is no integer"),
    ],
)
def test_candidate_that_does_not_fit_exits_4_and_names_row_and_column(
    command: Command, project: Path, row: dict[str, str], told: str
) -> None:
    write_corpus(project.parent / "movies.csv", {5: row})
    refused(command, project, 4, "corpus 'movies'", told)


def test_table_that_is_not_in_the_checkpoint_exits_4_with_the_nearest(
    command: Command, recipe: Recipe, movies: Cut, tmp_path: Path
) -> None:
    key = "model/embedding/_tpu_embedding/user"
    refused(command, write_project(tmp_path, changed(recipe, "tables.users.key", key)), 4, repr(key), "did you mean")
    done = command("tables", movies.prefix, tmp_path, "--table", f"users={key}")
    assert done.code == 4
    assert "did you mean 'model/embedding/_tpu_embedding/users'?" in done.told


# A checkpoint that is damaged, or another model's: 3.


def cut_short(path: Path) -> None:
    os.truncate(path, path.stat().st_size // 2)


def flipped(path: Path, at: int) -> None:
    content = bytearray(path.read_bytes())
    content[at] ^= 0x10
    path.write_bytes(content)


@pytest.mark.parametrize(
    ("file", "damage", "told"),
    [
        (INDEX, Path.unlink, "has data files but no ckpt-3.index"),
        (INDEX, cut_short, "cut short"),
        (INDEX, lambda path: flipped(path, 40), "does not match its checksum"),
        (DATA, Path.unlink, "No such file"),
        (DATA, cut_short, "it was cut short; copy it anew"),
    ],
)
@pytest.mark.parametrize("subcommand", ["inspect", "tables", "run"])
def test_damaged_checkpoint_exits_3_and_names_the_file(
    command: Command,
    recipe: Recipe,
    movies: Cut,
    tmp_path: Path,
    subcommand: str,
    file: str,
    damage: Callable[[Path], None],
    told: str,
) -> None:
    for each in (INDEX, DATA):
        shutil.copy(movies.prefix.parent / each, tmp_path)
    damage(tmp_path / file)
    project = write_project(tmp_path, changed(recipe, "checkpoint.path", "ckpt-3"))
    arguments = {"inspect": [tmp_path / "ckpt-3"], "tables": [tmp_path / "ckpt-3", tmp_path / "bundles"]}
    done = command(subcommand, *arguments.get(subcommand, [project]))
    assert done.code == 3
    assert told in done.told
    assert "ckpt-3" in done.told
    assert visible(tmp_path / "bundles") == []


@pytest.mark.parametrize("variable", ["users", "kernel"])
def test_bit_flip_in_a_stored_variable_exits_3_and_names_it(
    command: Command, recipe: Recipe, movies: Cut, tmp_path: Path, variable: str
) -> None:
    for each in (INDEX, DATA):
        shutil.copy(movies.prefix.parent / each, tmp_path)
    tower = movies.model.root.query_tower.layers[0].kernel.numpy()
    held = movies.tables["users"].tobytes() if variable == "users" else None
    content = (tmp_path / DATA).read_bytes()
    at = content.index(held) if held is not None else _kernel_place(content, movies)
    assert tower.shape == (20, 64)
    flipped(tmp_path / DATA, at + 5)
    refused(command, write_project(tmp_path, changed(recipe, "checkpoint.path", "ckpt-3")), 3, variable, "copy it anew")


def _kernel_place(content: bytes, movies: Cut) -> int:
    from export.checkpoint.reader import open_checkpoint

    key = "model/query_tower/layer_with_weights-0/kernel/.ATTRIBUTES/VARIABLE_VALUE"
    return content.index(open_checkpoint(movies.prefix).read_all(key).tobytes())


def test_model_that_is_not_the_checkpoints_exits_3_and_names_its_variables(
    command: Command, recipe: Recipe, tmp_path: Path
) -> None:
    factory = "tower_models.py:build_movies_without_head"
    project = write_project(tmp_path, changed(recipe, "code.factory", factory))
    refused(command, project, 3, "head.kernel is float32 [24, 3] in the model and float32 [24, 1] there", "head.bias")
    project = write_project(tmp_path, changed(recipe, "checkpoint.object_path", "modle"))
    refused(command, project, 3, "there is no 'modle' among model, step")


# What is not what was trained: 5; nothing is published, nothing is left.


@pytest.mark.parametrize(
    ("key", "value", "told"),
    [
        ("towers.ranking.max_abs_error", {"int8": 1e-6}, "24 of 24 values break towers.ranking.max_abs_error.int8"),
        (
            "indexes.movies",
            {
                "corpus": "movies",
                "query_tower": "query",
                "candidate_tower": "candidate",
                "kind": "tree_ah",
                "parameters": {"num_leaves": 20, "leaves_to_search": 1},
                "recall": {"value": 1.0},
            },
            "the recipe asks for 1.0",
        ),
    ],
)
def test_limit_that_is_not_reached_exits_5_and_publishes_nothing(
    command: Command, recipe: Recipe, tmp_path: Path, key: str, value: Any, told: str
) -> None:
    project = write_project(tmp_path, changed(recipe, key, value))
    refused(command, project, 5, told)
    assert aside(project.parent / "bundles") == []


@pytest.mark.parametrize(
    ("after", "file", "told"),
    [
        ("towers/query/compiled-f32.tflite", "towers/query/compiled-f32.tflite", "tower 'query', LiteRT f32"),
        ("towers/query/compiled-f32.tflite", "tables/users/rows-00000-of-00001.bin", "tower 'query', SavedModel f32"),
        ("indexes/movies/scann", "tables/users/rows-00000-of-00001.bin", "table 'users'"),
    ],
)
def test_file_that_is_damaged_between_steps_exits_5_and_publishes_nothing(
    forked: ForkedRuns, project: Path, after: str, file: str, told: str
) -> None:
    output = project.parent / "output"
    assert forked.run(["run", str(project)], output, damages={"after": after, "file": file}) == 5
    assert told in Done(5, "", output.read_text()).told
    assert visible(project.parent / "bundles") == []
    assert aside(project.parent / "bundles") == []


def test_verify_of_a_damaged_bundle_exits_5_and_names_the_file(
    command: Command, undisturbed: Path, movies: Cut, tmp_path: Path
) -> None:
    for file in ("tables/users/rows-00000-of-00001.bin", "towers/query/compiled-f32.tflite"):
        bundle = tmp_path / Path(file).parts[0]
        shutil.copytree(undisturbed, bundle)
        flipped(bundle / file, 100)
        done = command("verify", bundle)
        assert done.code == 5
        assert f"file {file!r} differs from its checksum" in done.told


def test_verify_against_another_checkpoint_exits_5(
    command: Command, undisturbed: Path, movies: Cut, tmp_path: Path
) -> None:
    from tests.export.cutting import movies_recipe, save_checkpoint

    other, _ = save_checkpoint(movies_recipe(), tmp_path, seed=6)
    done = command("verify", undisturbed, "--checkpoint", other)
    assert done.code == 5
    assert "row" in done.told
    refused(command, tmp_path / "no_bundle", 2, "has no manifest.json", subcommand="verify")
