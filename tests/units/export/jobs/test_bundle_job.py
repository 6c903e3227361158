"""A whole job of the movies: what its bundle holds, and what its report vouches for by examples,
recorded outputs, stated layouts and converted tables.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bundle.features.reader import Column, open_features
from bundle.format.manifest import Manifest
from bundle.storage import catalog
from runtime.tower_inputs import tower_inputs
from runtime.towers import open_tower
from tests.units.export.commands import Command, rejected
from tests.units.export.movies_job import (
    Recipe,
    changed,
    example_requests,
    write_examples,
    write_project,
)
from tests.units.export.traced_models import TracedCheckpoint

pytestmark = pytest.mark.slow


def with_keys(recipe: Recipe, **values: Any) -> Recipe:
    """Returns the recipe with other values of keys, in which `__` stands for a dot."""
    for key, value in values.items():
        recipe = changed(recipe, key.replace("__", "."), value)
    return recipe


def published(command: Command, directory: Path, recipe: Recipe) -> Manifest:
    """Runs the job to its end."""
    page = command("run", write_project(directory, recipe), "--json").json
    return catalog.read_manifest(Path(page["bundle"]))


def test_manifest_records_what_was_verified_and_what_was_not(undisturbed: Path) -> None:
    page = catalog.read_manifest(undisturbed)
    checks = page.verification
    assert checks.examples == 24
    assert all(check.rows_compared == check.rows for check in checks.tables.values())
    ids, recall_of_users = checks.unverified
    assert "(history, hour, user_id, genres, movie_id)" in ids
    assert "verify.expected" in ids
    assert "verify.examples" in recall_of_users
    recall = page.indexes["movies"].recall
    assert (recall.value, recall.k, recall.queries) == (1.0, 10, 24)
    assert recall.representative is False
    assert page.towers["ranking"].scores is None
    assert page.provenance.model_code == "two_towers.py:build_movies"
    errors = {
        (name, form.kind, form.precision): max(form.max_abs_error.values())
        for name, tower in page.towers.items()
        for form in tower.forms
    }
    assert len(errors) == 7
    assert 1e-5 < errors.pop(("ranking", "litert", "int8")) < 1.0
    assert max(errors.values()) < 1e-5


def packed(values: list[Any]) -> Column:
    if not isinstance(values[0], list):
        return Column(np.array(values))
    ends = np.cumsum([0, *(len(part) for part in values)])
    return Column(np.array([value for part in values for value in part], np.int64), ends)


def recorded_examples(bundle: Path, count: int) -> list[dict[str, Any]]:
    """Returns examples with the scores that the trained model gave, as `seen`."""
    page = catalog.read_manifest(bundle)
    examples = example_requests(count)
    features = open_features(bundle, page)
    tower = page.towers["ranking"]
    columns = {name: packed([example[name] for example in examples]) for name in examples[0]}
    activations = features.activations(list(page.features), columns, count)
    features.close()
    values = {name: activation.values for name, activation in activations.items()}
    scores = open_tower(bundle, tower, "f32").run(tower_inputs(tower.inputs, values, count))
    pairs = zip(examples, np.ravel(scores[tower.result]), strict=True)
    return [example | {"seen": float(score)} for example, score in pairs]


def test_recorded_outputs_prove_ids_layouts_recall_and_scores(
    command: Command, recipe: Recipe, movies: TracedCheckpoint, undisturbed: Path, tmp_path: Path
) -> None:
    examples = recorded_examples(undisturbed, 120)
    write_examples(tmp_path, examples)
    rows, dim = movies.tables["users"].shape
    stated = f'[tables.users]\nkey = "{movies.keys["users"]}"\nkind = "sparse_core"\n'
    for name, cores in (("right", 1), ("wrong", 2)):
        layout = f"{stated}rows = {rows}\ndim = {dim}\ncores = {cores}\n"
        (tmp_path / f"{name}.toml").write_text(layout)
    right = with_keys(
        recipe,
        verify__examples="examples.jsonl",
        verify__count=len(examples),
        verify__expected={"ranking.score": "seen"},
        checkpoint__layout="right.toml",
        indexes__movies__recall={"value": 0.9, "of_cold_users": 0.01},
    )
    for wrong, words in (
        ({"checkpoint__layout": "wrong.toml"}, ("verify.expected",)),
        # Outputs of towers that do not read the table prove nothing of its layout.
        ({"verify__expected": {"candidate.vector": "seen"}}, ("'users'", "verify.expected")),
    ):
        rejected(command, write_project(tmp_path, with_keys(right, **wrong)), 5, *words)

    page = published(command, tmp_path, right)
    assert page.tables["users"].source.stated is True
    assert page.verification.tables["users"].stated_layout == "expected"
    assert not any(line.startswith("how ids become rows") for line in page.verification.unverified)
    index = page.indexes["movies"]
    assert index.recall.representative is True
    assert index.recall_of_cold_users is not None
    scores = page.towers["ranking"].scores
    assert scores is not None
    assert scores.examples == len(examples)
    bins = np.searchsorted(scores.edges, [example["seen"] for example in examples], side="right")
    assert np.bincount(bins) / len(examples) == pytest.approx(scores.shares)
    bundle = tmp_path / "bundles/movies/1"
    report = command("verify", bundle, "--checkpoint", movies.prefix, "--json").json
    assert report["tables"]["users"]["stated_layout"] == "expected"


@pytest.fixture
def converting(small_recipe: Recipe) -> Recipe:
    """A recipe whose movies become int8 and whose users become bfloat16."""
    return with_keys(small_recipe, tables__movies__dtype="int8", tables__users__dtype="bfloat16")


def test_converted_tables_are_published_with_their_errors_and_effects(
    command: Command, converting: Recipe, tmp_path: Path
) -> None:
    page = with_keys(converting, tables__users__unavailable="unknown")
    for tower in page["towers"]:
        # The candidate tower multiplies rows by years.
        page = changed(page, f"towers.{tower}.max_abs_error.f32", 50)
    manifest = published(command, tmp_path, page)
    errors = {name: table.error for name, table in manifest.tables.items() if table.error}
    assert sorted(errors) == ["movies", "users"]
    assert all(0 < error.rms < error.max_abs for error in errors.values() if error)
    assert manifest.tables["users"].unavailable == "unknown"
    for name, tower in manifest.towers.items():
        saved = next(form for form in tower.forms if form.kind == "saved_model")
        effect = manifest.verification.table_effect[name]
        assert effect == pytest.approx(saved.max_abs_error, abs=2e-5)
        assert 1e-4 < max(saved.max_abs_error.values()) < 0.5
    index = manifest.indexes["movies"]
    assert index.recall_of_tables is not None
    assert 0.5 < index.recall_of_tables.value <= 1
    assert index.recall_of_tables.queries == index.recall.queries


@pytest.mark.parametrize(
    ("changes", "code", "words"),
    [
        ({}, 5, ("users, movies", "lower precision", ".max_abs_error.f32")),
        ({"tables__movies__max_abs_error": 1e-6}, 5, ("table 'movies'", "max_abs_error")),
        (
            {"tables": {}, "towers__query__max_abs_error__f32": 0.5},
            2,
            ("towers.query.max_abs_error.f32",),
        ),
    ],
)
def test_limits_that_converted_tables_break_publish_nothing(
    command: Command,
    converting: Recipe,
    tmp_path: Path,
    changes: dict[str, Any],
    code: int,
    words: tuple[str, ...],
) -> None:
    rejected(command, write_project(tmp_path, with_keys(converting, **changes)), code, *words)
