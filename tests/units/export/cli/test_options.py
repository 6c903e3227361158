"""The job that options specify: settings, what they override of a recipe, tables."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from export.checkpoint.inventory.specs import StatedTable, Statements
from export.cli.options import (
    read_job,
    read_names,
    read_settings,
    read_statements,
    read_trained_ids,
)
from export.errors import UsageError

RECIPE = """
model = "movielens"
checkpoint = { path = "ckpt", object_path = "model" }
code = { factory = "model.py:build_model" }
output = { root = "bundles", tables = "link" }
inputs.user_id = { dtype = "int64" }
towers.query = { role = "query" }
"""


def test_settings_are_those_given_else_of_the_environment_else_the_default(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ROWCAST_EXPORT_WORKERS", "3")
    monkeypatch.setenv("ROWCAST_EXPORT_FULL", "true")
    settings = read_settings(workers=None, full=False, budget_bytes=16 << 20, executor=None)
    assert (settings.workers, settings.full, settings.budget_bytes) == (3, True, 16 << 20)
    assert (settings.executor, settings.scratch) == ("local", Path(".rowcast-scratch"))
    # A worker per core is what 0 means; it was given.
    settings = read_settings(workers=0, full=True)
    assert (settings.workers, settings.full) == (0, True)
    monkeypatch.setenv("rowcast_export_wrong", "3")  # another program's
    monkeypatch.setenv("ROWCAST_SERVE_PORT", "3")
    monkeypatch.setenv("ROWCAST_EXPORT_PORT", "tcp://10.0.0.1:80")  # of a Service in Kubernetes
    monkeypatch.setenv("ROWCAST_EXPORT_SERVICE_HOST", "10.0.0.1")
    assert read_settings().workers == 3


@pytest.mark.parametrize(
    ("variable", "values", "problem"),
    [
        (
            "ROWCAST_EXPORT_WORKRES",
            {},
            "the environment sets ROWCAST_EXPORT_WORKRES, which is not a setting; the settings are "
            "ROWCAST_EXPORT_BUDGET_BYTES, ROWCAST_EXPORT_WORKERS, ROWCAST_EXPORT_EXECUTOR, "
            "ROWCAST_EXPORT_SCRATCH, ROWCAST_EXPORT_REUSE, ROWCAST_EXPORT_WITH_CHANGES, "
            "ROWCAST_EXPORT_FULL, "
            "ROWCAST_EXPORT_UNPROVED",
        ),
        (
            "ROWCAST_EXPORT_WORKERS",
            {"workers": -1},
            "settings (options, or ROWCAST_EXPORT_ in the environment): workers: Input should be "
            "greater than or equal to 0 (got -1)",
        ),
        (
            "ROWCAST_EXPORT_WORKERS",
            {"executor": "cluster"},
            "settings (options, or ROWCAST_EXPORT_ in the environment): executor: expected local, "
            "ray-local, HOST:PORT or ray://HOST:PORT (got 'cluster')",
        ),
    ],
)
def test_setting_that_is_none_is_rejected(
    monkeypatch: pytest.MonkeyPatch, variable: str, values: dict[str, Any], problem: str
) -> None:
    monkeypatch.setenv(variable, "3")
    with pytest.raises(UsageError) as rejection:
        read_settings(**values)
    assert str(rejection.value) == problem


def test_options_override_a_recipe_with_paths_from_here(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "recipe.toml").write_text(RECIPE)
    recipe = tmp_path / "recipe.toml"
    monkeypatch.chdir(tmp_path)
    plain = read_job(recipe)
    assert (plain.checkpoint.path, plain.output.root, plain.output.tables) == (
        "ckpt",
        "bundles",
        "link",
    )
    job = read_job(recipe, "other", "root", "copy")
    assert (job.checkpoint.path, job.checkpoint.object_path) == (f"{tmp_path}/other", "model")
    assert (job.output.root, job.output.tables) == (f"{tmp_path}/root", "copy")
    job = read_job(recipe, root="s3://bucket/bundles")
    assert (job.checkpoint.path, job.output.root) == ("ckpt", "s3://bucket/bundles")
    assert job.output.tables == "link"
    assert read_job(recipe, table_mode="copy").output.root == "bundles"


def test_statements_are_of_names_mod_and_the_layout_file(tmp_path: Path) -> None:
    layout = tmp_path / "layout.json"
    table = {"key": "k", "kind": "plain"}
    layout.write_text(json.dumps({"tables": {"t": table}}))
    assert read_statements(None, None, None) == Statements()
    assert read_statements(["a=x", "b=y=z", "a=x"], ["a"], layout) == Statements(
        {"a": "x", "b": "y=z"}, ("a",), {"t": StatedTable(key="k", kind="plain")}
    )


def test_trained_ids_are_files_of_tables() -> None:
    assert read_trained_ids(None) == ()
    assert read_trained_ids(["a=x.txt", "a=y=z.csv"]) == (("a", "x.txt"), ("a", "y=z.csv"))
    with pytest.raises(UsageError) as rejection:
        read_trained_ids(["users.txt"])
    assert str(rejection.value) == "--trained-ids 'users.txt' was given; NAME=FILE was expected"


@pytest.mark.parametrize("text", ["a", "a=", "=x", "=", ""])
def test_table_without_a_name_or_a_key_is_rejected(text: str) -> None:
    with pytest.raises(UsageError) as rejection:
        read_statements([text], None, None)
    assert str(rejection.value) == f"--table {text!r} was given; NAME=KEY was expected"


def test_table_that_is_named_twice_is_rejected() -> None:
    with pytest.raises(UsageError) as rejection:
        read_statements(["a=x", "a=y"], None, None)
    assert str(rejection.value) == (
        "--table names 'a' twice, as 'x' and 'y'; one of them was expected"
    )


def test_names_of_tables_are_divided_by_commas() -> None:
    assert read_names([]) == ()
    assert read_names(["a, b", "c", "a"]) == ("a", "b", "c")
    for values in (["a,,b"], ["a", " "]):
        with pytest.raises(UsageError, match="table names with commas between them were expected"):
            read_names(values)
