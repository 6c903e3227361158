from __future__ import annotations

import json
import os
from pathlib import Path

import numpy as np
import pytest

from bundle.storage.staging import Staging
from tests.units.export.checkpoint.tensor_bundles import write_bundle
from tests.units.export.commands import Command
from tests.units.export.traced_models import TracedCheckpoint

GOLDEN = Path(__file__).parents[3] / "differential/bundle/root/movies/1"
RECIPE = """
model = "movielens"
checkpoint = { path = "ckpt" }
code = { factory = "model.py:build_model" }
output = { root = "bundles", tables = "TABLES" }
inputs.user_id = { dtype = "int64" }
towers.query = { role = "query" }
"""

NAMED = "genres=model/embedding/_tpu_embedding/genres.Sall"


def test_verify_of_a_bundle_with_its_checkpoint_passes(
    command: Command, undisturbed: Path, movies: TracedCheckpoint
) -> None:
    page = command("verify", undisturbed, "--checkpoint", movies.prefix, "--full", "--json").json
    assert {"corpus movies, filter genres", "corpus movies, filter year"} <= set(page["opened"])
    assert page["tables"]["users"] == {"rows_compared": 50, "rows": 50}
    assert "tower ranking, litert int8" in page["opened"]
    assert "index movies" in page["opened"]
    output = command("verify", undisturbed, "--checkpoint", movies.prefix).out
    assert "rows of table users" in output
    assert "is whole" in output


def test_tables_needs_no_model_code_and_verifies(
    command: Command, movies: TracedCheckpoint, tmp_path: Path
) -> None:
    page = command("tables", movies.prefix, tmp_path, "--table", NAMED, "--json").json
    assert page["bundle"] == str(tmp_path / "tables/1")
    assert set(page["verification"]["tables"]) == {"users", "movies", "hours", "genres"}
    raw = (tmp_path / "tables/1/tables/genres/rows-00000-of-00001.bin").read_bytes()
    assert raw == movies.tables["genres_all"].tobytes()
    assert command("verify", page["bundle"], "--checkpoint", movies.prefix).code == 0
    second_run = command("tables", movies.prefix, tmp_path, "--table", NAMED, "--version", 1)
    assert second_run.code == 6
    assert "is there already" in second_run.message
    assert (
        command("tables", movies.prefix, tmp_path, "--table", NAMED, "--json").json["version"] == 2
    )


def test_clean_removes_staged_files_of_the_age_that_is_given(
    command: Command, tmp_path: Path
) -> None:
    assert command("clean", tmp_path).out == "nothing is staged\n"
    with Staging(tmp_path, "m", 1) as stage:
        (stage.directory / "begun").write_text("x")
        page = command("clean", tmp_path, "--json").json
        assert page == {"removed": [], "busy": [str(stage.directory)]}
        output = command("clean", tmp_path).out
        assert " ".join(output.split()) == f"kept {stage.directory}: a run is writing it"
    assert command("clean", tmp_path, "--older-than", 1).out == "nothing is staged\n"
    page = command("clean", tmp_path, "--json").json
    assert page == {"removed": [str(tmp_path / "m" / ".staging-1")], "busy": []}
    assert command("clean", tmp_path, "--json").json == {"removed": [], "busy": []}

    done = command("clean", tmp_path / "nowhere")
    assert done.code == 2
    assert done.message == f"rowcast-export: {tmp_path / 'nowhere'} is not a directory"


def test_verify_of_a_url_tells_how_to_get_the_bundle(command: Command) -> None:
    done = command("verify", "s3://bucket/bundles/m/1")
    assert done.code == 2
    assert done.message == (
        "rowcast-export: s3://bucket/bundles/m/1 is a URL; download the bundle with `rowcast-serve "
        "pull s3://bucket/bundles/m/1 ROOT`, then verify it"
    )


@pytest.mark.parametrize(
    ("tables", "arguments", "expected_text"),
    [
        (
            "copy",
            ["run", "--unproved"],
            "--unproved is for a self-contained SavedModel; a bundle is always compared with the "
            "original model",
        ),
        (
            "inline-link",
            ["plan", "--shards", 3],
            "--shards was given, and tables are written inline-link; shards serve bundles",
        ),
        (
            "inline",
            ["explain"],
            "tables are written inline, into a SavedModel; explain shows the parts of a bundle: "
            "add --tables copy",
        ),
    ],
)
def test_option_that_does_not_fit_how_tables_are_written_is_rejected(
    command: Command, tmp_path: Path, tables: str, arguments: list[object], expected_text: str
) -> None:
    (tmp_path / "recipe.toml").write_text(RECIPE.replace("TABLES", tables))
    name, *options = arguments
    done = command(name, tmp_path / "recipe.toml", *options)
    assert (done.code, done.message) == (2, f"rowcast-export: {expected_text}")


def test_explain_of_a_bundle_writes_the_drawings_that_are_asked_for(
    command: Command, tmp_path: Path
) -> None:
    plain = command("explain", GOLDEN)
    assert plain.code == 0, plain.err
    assert "as a page" not in plain.out
    assert "as an image" not in plain.out
    page = tmp_path / "page.html"
    image = tmp_path / "image.svg"
    output = " ".join(command("explain", GOLDEN, "--html", page, "--svg", image).out.split())
    assert output.endswith(f"and as a page: {page} and as an image: {image}")
    assert page.read_text().startswith("<!")
    assert "<svg" in image.read_text()
    assert command("explain", GOLDEN, "--json").json["tables"]


@pytest.mark.parametrize("option", ["--html", "--svg"])
def test_explain_rejects_outputs_that_are_not_files_and_follows_links(
    command: Command, tmp_path: Path, option: str
) -> None:
    os.mkfifo(tmp_path / "pipe")
    for name, kind in ((tmp_path, "a directory"), (tmp_path / "pipe", "a pipe")):
        done = command("explain", tmp_path / "no-recipe.toml", option, name)
        assert (done.code, done.message) == (
            2,
            f"rowcast-export: {option}: {name} is {kind}, which a rename would replace; name a "
            "file",
        )
    link = tmp_path / "latest"
    link.symlink_to("dated")
    assert command("explain", GOLDEN, option, link).code == 0
    assert link.is_symlink()
    assert (tmp_path / "dated").read_text().rstrip().endswith(">")


def test_tables_plan_tells_what_would_be_written_and_writes_nothing(
    command: Command, tmp_path: Path
) -> None:
    values = {"user/embeddings": np.zeros((5, 2), np.float32), "other": np.zeros((9, 2), "f4")}
    write_bundle(tmp_path / "ckpt", values)
    plan = ["tables", tmp_path / "ckpt", tmp_path / "out", "--plan"]
    page = command(*plan, "--json").json
    assert (page["written_bytes"], page["linked_bytes"]) == (40, 0)
    assert len(page["notes"]) == 1
    assert "other [9, 2]" in page["notes"][0]
    assert "note: not exported" in " ".join(command(*plan).out.split())
    page = command(*plan, "--tables", "link", "--dtype", "user=float32", "--json").json
    assert (page["written_bytes"], page["linked_bytes"]) == (0, 40)
    assert not (tmp_path / "out").exists()


def test_inspect_prints_json_alone(command: Command, tmp_path: Path) -> None:
    write_bundle(tmp_path / "ckpt", {"user/embeddings": np.zeros((5, 2), np.float32)})
    done = command("inspect", tmp_path / "ckpt", "--json")
    assert json.loads(done.out)["tables"]["user"]["rows"] == 5
    assert done.err == ""
