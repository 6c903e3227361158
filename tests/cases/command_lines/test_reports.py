"""What commands print of what they found and wrote: JSON with every fact, and text that holds the
facts that people act on.
"""

from __future__ import annotations

import io
import json
import re
import subprocess
import sys
from collections.abc import Callable, Sequence
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from rich.console import Console

from bundle.format.manifest import IDENTITY, DenseFeature, EmbeddedFeature, Feature, KeyedIds
from bundle.storage.catalog import read_manifest
from bundle.storage.staging import Staging
from export.cli import documents
from export.cli.report import render
from export.jobs.staged import Published
from export.recipe.settings import ExportSettings
from export.tables.plan import ExportPlan
from tests.e2e.forked_programs import run_forked
from tests.id_graphs import bucket_ids, computed_ids, crossed_ids, hash_ids, vocabulary_ids
from tests.units.export.checkpoint.tensor_bundles import (
    GRAPH,
    SUFFIX,
    node,
    object_graph,
    write_bundle,
)
from tests.units.export.commands import Command
from tests.units.export.movies_job import Recipe, write_project
from tests.units.export.traced_models import TracedCheckpoint

pytestmark = pytest.mark.slow

PAGE = Path(__file__).parents[3].joinpath("docs/reference/export.md").read_text()
PROGRAM = Path(sys.executable).with_name("rowcast-export")
TABLE = np.random.default_rng(0).standard_normal((30, 7)).astype(np.float32)


def user(ids: Any = IDENTITY, **more: Any) -> EmbeddedFeature:
    """Returns a feature of the table of 50 users that rejects unknown ids."""
    entry = {"kind": "single", "table": "users", "role": "context", "ids": ids}
    return EmbeddedFeature.model_validate(entry | {"unknown": {"rule": "refuse"}} | more)


def words_of(output: str) -> str:
    """Returns the text of a report without the frames of its tables."""
    return " ".join(output.replace("│", " ").split())


@pytest.fixture
def checkpoint(tmp_path: Path) -> Path:
    """Tables, one of them on cores and one in float64; slots, and variables that may be tables."""
    graph = object_graph(
        node({"e": 1, "dense": 6}),
        node({"_variables": 2}),
        node({"items[1]": 3}),
        node({"parameters": 4, "accumulators": 5}),
        *(node(key=name + SUFFIX) for name in ("e/t", "e/t.Sa", "dense")),
    )
    variables: dict[str, Any] = {name + SUFFIX: TABLE for name in ("e/t", "e/t.Sa", "dense")}
    variables |= {"stack" + SUFFIX: np.zeros((160, 8), np.float32), GRAPH: graph}
    variables |= {"wide/embeddings" + SUFFIX: TABLE.astype("f8")}
    boxes: Any = {"stack" + SUFFIX: [[(0, 80), (0, 8)], [(80, 80), (0, 8)]]}
    write_bundle(tmp_path / "c/ckpt-7", variables, boxes=boxes)
    stack = {"kind": "sparse_core", "rows": 100, "dim": 6, "cores": 4, "offset": 8, "rotation": 2}
    layout = {"tables": {"users": {"key": "stack" + SUFFIX, **stack}}}
    (tmp_path / "layout.json").write_text(json.dumps(layout))
    return tmp_path / "c"


def test_inspect_lists_every_variable_once(command: Command, checkpoint: Path) -> None:
    line = ["inspect", checkpoint, "--layout", checkpoint.with_name("layout.json")]
    page = command(*line, "--json").json
    listed = [part["key"] for part in (*page["tables"].values(), *page["slots"], *page["dense"])]
    names = ("e/t", "e/t.Sa", "dense", "stack", "wide/embeddings")
    assert sorted(listed) == sorted(name + SUFFIX for name in names)
    users = page["tables"]["users"]
    assert (users["rows"], users["dim"], users["slices"], users["stated"]) == (100, 6, 2, True)
    assert users["layout"] == {
        "kind": "sparse_core",
        "cores": 4,
        "core_rows": 40,
        "offset": 8,
        "rotation": 2,
    }
    items = page["tables"]["items[1]"]
    assert (items["slots"], items["layout"], items["bytes"]) == (
        ["accumulators"],
        {"kind": "plain"},
        TABLE.nbytes,
    )
    candidates = ["dense" + SUFFIX, "wide/embeddings" + SUFFIX]
    assert (page["candidates"], page["slot_bytes"]) == (candidates, TABLE.nbytes)
    text = words_of(command(*line).out)
    facts = ["items[1] 30 7 float32", "4 x 40, offset 8, rotation 2", "1 optimizer variable"]
    for fact in (*facts, "--table NAME=KEY", "dense"):
        assert fact in text


def test_incomplete_checkpoint_is_listed_and_exits_3(command: Command, tmp_path: Path) -> None:
    write_bundle(tmp_path / "c", {"user/embeddings": TABLE, "other/embeddings": TABLE}, files=3)
    (tmp_path / "c.data-00000-of-00003").unlink()
    done = command("inspect", tmp_path / "c", "--json")
    page = json.loads(done.out)
    assert (done.code, page["complete"], set(page["tables"])) == (3, False, {"user", "other"})
    error = json.loads(done.err)["error"]
    assert (error["code"], error["exit_code"]) == ("CHECKPOINT", 3)
    assert "c.data-00000-of-00003" in error["message"]
    assert "incomplete" in command("inspect", tmp_path / "c").out


def test_tables_are_planned_written_in_their_dtypes_and_verified(
    command: Command, checkpoint: Path, tmp_path: Path
) -> None:
    line: list[object] = ["tables", checkpoint, tmp_path / "out", "--table", "wide=wide/embeddings"]
    page = command(*line, "--plan", "--json").json
    assert set(page["tables"]) == {"wide"}
    assert page["written_bytes"] == TABLE.nbytes
    assert any("dense" in note and "[30, 7]" in note for note in page["notes"])
    assert "not exported" in words_of(command(*line, "--plan").out)
    linked = command(
        *line, "--plan", "--tables", "link", "--table", "t=dense", "--only", "t", "--json"
    ).json
    assert (linked["written_bytes"], linked["linked_bytes"]) == (0, TABLE.nbytes)
    assert not (tmp_path / "out").exists()

    line += ["--table", "a=dense", "--dtype", "int8", "--dtype", "a=float32"]
    written = command(*line, "--full", "--json").json
    assert set(written["table_errors"]) == {"wide"}
    tables = read_manifest(Path(written["bundle"])).tables
    dtypes = {name: table.dtype for name, table in tables.items()}
    assert dtypes == {"a": "float32", "wide": "int8"}


def test_plan_lists_the_bundle_what_shards_hold_and_writes_nothing(
    command: Command, project: Path
) -> None:
    options = ("--shards", "3", "--shard-min-bytes", str(40 * 8 * 4))
    page = command("plan", project, *options, "--json").json
    assert page["destination"] == str(project.parent / "bundles/movies/1")
    assert page["tables"].keys() == {"users", "movies", "hours", "genres_all"}
    assert page["towers"]["query"]["features"] == ["history", "hour", "user_id"]
    assert page["features"]["history"]["combiner"] == "mean"
    *shards, router = page["shards"]
    row_bytes = 8 * 4
    rows = [17 + 14, 17 + 13, 16 + 13]  # of 50 users and 40 movies
    assert [shard["table_bytes"] for shard in shards] == [count * row_bytes for count in rows]
    assert router["table_bytes"] == (24 + 9) * 4 * 4
    assert router["index_bytes"] > 0, "an index without partitions is on every router"
    text = command("plan", project, *options).out
    assert "genres_all" in text.replace("…", "")
    assert "2/3" in text
    assert not (project.parent / "bundles").exists()


def test_plan_without_tables_has_a_report() -> None:
    output = io.StringIO()
    Console(file=output).print(render(ExportPlan("ckpt-1", (), (), 0, 1).to_json()))
    assert output.getvalue().startswith("0 B read, 0 B written, 0 files, 0 tasks on 1 worker")


def test_run_and_verify_tell_what_was_verified(
    command: Command, undisturbed: Path, movies: TracedCheckpoint
) -> None:
    text = words_of((undisturbed.parents[2] / "output").read_text())
    for fact in ("50 of 50 rows equal", "original model, 24", "recall@10 1.0000", "published"):
        assert fact in text
    assert "more tables" not in text
    line = ["verify", undisturbed, "--checkpoint", movies.prefix]
    page = command(*line, "--full", "--json").json
    assert page["tables"]["users"] == {"rows_compared": 50, "rows": 50}
    filters = {"corpus movies, filter genres", "corpus movies, filter year"}
    assert filters | {"tower ranking, litert int8", "index movies"} <= set(page["opened"])
    text = words_of(command(*line).out)
    assert "table users the checkpoint 50 of 50 rows equal" in text
    assert "is whole" in text
    (undisturbed / "extra").touch()
    try:
        assert "note: extra" in words_of(command("verify", undisturbed).out)
    finally:
        (undisturbed / "extra").unlink()


UNKNOWN_IDS: dict[str, tuple[Feature, str]] = {
    "rows": (user(), "features.f.unknown"),
    "a vocabulary": (user(vocabulary_ids("names")), "features.f.unknown"),
    "all keys that the model takes": (
        user(vocabulary_ids("names", is_complete=True)),
        "features.f.unknown",
    ),
    "more buckets than rows": (user(hash_ids(51)), "features.f.unknown"),
    "dynamic keys": (user(KeyedIds(keys="shops")), "features.f.unknown"),
    "a hash": (user(hash_ids(50)), ""),
    "buckets": (user(bucket_ids((0.5, 1.5))), ""),
    "a remainder": (user(computed_ids(("FloorMod", 50))), ""),
    "a cross": (
        user(
            crossed_ids(("int64", "string"), 40),
            inputs=("f", "g"),
            joint=({"role": "context"}, {"role": "context"}),
        ),
        "",
    ),
    "a table inside a tower": (
        DenseFeature(kind="dense", role="context", dtype="int32", below=9),
        "the model itself has no vector for it",
    ),
}
"""Features that reject unknown ids, and words of what a report says of them; "": nothing, since
every id has a row.
"""


@pytest.mark.parametrize("name", UNKNOWN_IDS)
def test_report_says_that_unknown_ids_fail_where_there_are_any(
    name: str, committed_bundle: Path
) -> None:
    feature, words = UNKNOWN_IDS[name]
    sample = read_manifest(committed_bundle)
    features = {"f": feature, "age": DenseFeature(kind="dense", role="context")}
    manifest = sample.model_copy(update={"features": features})
    document = documents.published(Published(committed_bundle, manifest, ()))
    output = io.StringIO()
    Console(file=output, width=200).print(render(document | {"seconds": {}}))
    assert document["rejects_unknown_ids"] == (["f"] if words else [])
    assert ("a request with an unknown id fails in f: " in output.getvalue()) == bool(words)
    assert words in output.getvalue()


def run_forked_program(*line: object, directory: Path) -> tuple[int | None, str, str]:
    return run_forked(line, directory, {})


def run_program(*line: object, directory: Path) -> tuple[int | None, str, str]:
    command = [str(PROGRAM), *map(str, line[1:])]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=directory)
    return done.returncode, done.stdout, done.stderr


@pytest.mark.parametrize(
    "run", [run_forked_program, pytest.param(run_program, marks=pytest.mark.nightly)]
)
def test_run_as_a_program_prints_json_alone_and_no_native_chatter(
    run: Callable[..., tuple[int | None, str, str]], small_recipe: Recipe, tmp_path: Path
) -> None:
    project = write_project(tmp_path, small_recipe)
    model = project.parent / "plain_module.py"
    model.write_text(model.read_text() + '\nprint("model code says")\n')
    code, out, err = run("rowcast-export", "run", project, "--json", directory=tmp_path)
    assert code == 0, err
    page = json.loads(out)
    assert page["bundle"] == str(tmp_path / "bundles/small/1")
    assert page["recall"]["movies"]["value"] == 1.0
    assert max(page["max_abs_error"]["query"]["litert f32"].values()) < 1e-4
    assert_documented("run", [page])
    lines = err.splitlines()
    steps = [line for line in lines if re.search(r"^  \w.* [0-9.]+ s( |$)", line)]
    assert {line for line in lines if line not in steps} == {"model code says"}
    assert [line.split("  ")[1] for line in steps] == list(page["seconds"])


def assert_documented(name: str, parts: Sequence[dict[str, Any]]) -> None:
    section = re.search(rf"^\*\*`{name}`.*?(?=\n\n|\Z)", PAGE, re.MULTILINE | re.DOTALL)
    assert section
    assert {field for part in parts for field in part} <= set(re.findall(r"`(\w+)`", section[0]))


@pytest.mark.parametrize("name", ["inspect", "plan", "verify"])
def test_page_names_the_fields_of_each_command(
    command: Command, undisturbed: Path, movies: TracedCheckpoint, name: str
) -> None:
    subjects = {"inspect": movies.prefix, "plan": undisturbed.parents[2] / "recipe.toml"}
    page = command(name, subjects.get(name, undisturbed), "--json").json
    parts = [page]
    if name != "verify":
        parts += page["tables"].values()
    if name == "plan":
        parts += page["towers"].values()
    if name == "inspect":
        parts += [*page["slots"], *page["dense"]]
    assert_documented(name, parts)


def test_page_names_every_setting() -> None:
    names = {f"ROWCAST_EXPORT_{name.upper()}" for name in ExportSettings.model_fields}
    assert names <= set(re.findall(r"`(\w+)`", PAGE))


def test_clean_removes_staged_files_of_the_age_that_is_given(
    command: Command, tmp_path: Path
) -> None:
    with Staging(tmp_path, "m", 1) as stage:
        (stage.directory / "begun").write_text("x")
        page = command("clean", tmp_path, "--json").json
        assert page == {"removed": [], "busy": [str(stage.directory)]}
        assert "a run is writing it" in words_of(command("clean", tmp_path).out)
    assert command("clean", tmp_path, "--older-than", 1).out == "nothing is staged\n"
    removed = command("clean", tmp_path, "--json").json["removed"]
    assert removed == [str(tmp_path / "m/.staging-1")]
    assert command("clean", tmp_path, "--json").json == {"removed": [], "busy": []}


def test_program_lists_its_commands_and_its_version(command: Command) -> None:
    done = command()
    assert (done.code, done.err) == (0, "")
    assert "inspect" in done.out
    assert command("--version").out == f"rowcast-export {version('rowcast')}\n"


def test_progress_that_cannot_be_written_does_not_end_an_export(
    checkpoint: Path, tmp_path: Path
) -> None:
    line = ["tables", checkpoint, tmp_path / "out", "--table", "t=dense", "--only", "t"]
    with open("/dev/full", "w") as full:
        done = subprocess.run(
            [sys.executable, "-m", "export.cli.main", *map(str, line)],
            stdout=subprocess.PIPE,
            stderr=full,
            check=False,
        )
    assert done.returncode == 0
    assert read_manifest(tmp_path / "out/tables/1").tables.keys() == {"t"}


def test_inspect_imports_no_tensorflow(movies: TracedCheckpoint) -> None:
    program = (
        "import sys, export.cli.main\n"
        f"sys.argv = ['rowcast-export', 'inspect', {str(movies.prefix)!r}, '--json']\n"
        "try: export.cli.main.main()\n"
        "finally: assert 'tensorflow' not in sys.modules\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True
    )
    assert (json.loads(done.stdout)["tables"]["users"]["rows"], done.stderr) == (50, "")


def test_missing_package_is_named_with_the_command_that_installs_it() -> None:
    program = (
        "import sys; sys.modules['ml_dtypes'] = None; from export.cli.main import main; main()"
    )
    command = [sys.executable, "-c", program, "run", "recipe.toml"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "pip install 'rowcast[export]'" in words_of(done.stderr)
