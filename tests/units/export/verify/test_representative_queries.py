"""What a report says of recall and of ids: only what was measured on real examples stops or vouches
for anything.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bundle.features.reader import Column, open_features
from bundle.storage import catalog
from runtime.tower_inputs import tower_inputs
from runtime.towers import open_tower
from tests.units.export.commands import Command
from tests.units.export.movies_job import (
    MOVIE_IDS,
    Recipe,
    changed,
    example_requests,
    write_examples,
    write_project,
)
from tests.units.export.traced_models import TracedCheckpoint


def with_examples(recipe: Recipe) -> Recipe:
    return changed(recipe, "verify.examples", "examples.jsonl")


def test_recall_on_synthetic_queries_is_reported_and_not_limited(
    command: Command, recipe: Recipe, tmp_path: Path
) -> None:
    parameters = {"num_leaves": 20, "leaves_to_search": 1}
    tree = recipe["indexes"]["movies"] | {"kind": "tree_ah", "parameters": parameters}
    done = command("run", write_project(tmp_path, changed(recipe, "indexes.movies", tree)))
    assert done.code == 0, done.err
    (bundle,) = tmp_path.glob("bundles/movies/*")
    page = catalog.read_manifest(bundle)
    assert page.indexes["movies"].recall.representative is False
    assert page.towers["ranking"].scores is None
    assert "synthetic queries: not representative" in done.out
    assert "name real ones as verify.examples" in " ".join(done.out.split())


def packed(values: list[Any]) -> Column:
    if not isinstance(values[0], list):
        return Column(np.array(values))
    ends = np.cumsum([0, *(len(example_values) for example_values in values)])
    return Column(
        np.array([value for example_values in values for value in example_values], np.int64), ends
    )


def recorded(bundle: Path, count: int = 24) -> list[dict[str, Any]]:
    """Examples with the scores that the trained model gave, computed from the bundle of the right
    recipe.
    """
    page = catalog.read_manifest(bundle)
    examples = example_requests(count)
    features = open_features(bundle, page)
    tower = page.towers["ranking"]
    columns = {name: packed([example[name] for example in examples]) for name in examples[0]}
    activations = features.activations(list(page.features), columns, len(examples))
    features.close()
    inputs = tower_inputs(
        tower.inputs,
        {name: activation.values for name, activation in activations.items()},
        len(examples),
    )
    scores = open_tower(bundle, tower, "f32").run(inputs)[tower.result]
    return [
        example | {"seen": float(score)}
        for example, score in zip(examples, np.ravel(scores), strict=True)
    ]


def test_recorded_outputs_find_wrong_rows_and_make_recall_and_scores_representative(
    command: Command, recipe: Recipe, undisturbed: Path, tmp_path: Path
) -> None:
    examples = recorded(undisturbed, 120)
    write_examples(tmp_path, examples)
    right = changed(with_examples(recipe), "verify.expected", {"ranking.score": "seen"})
    limited = changed(right, "indexes.movies.recall", {"value": 0.9})
    limited = changed(limited, "verify.count", len(examples))
    page = command("run", write_project(tmp_path, limited), "--json").json
    assert page["recall"]["movies"]["representative"] is True
    (bundle,) = tmp_path.glob("bundles/movies/*")
    scores = catalog.read_manifest(bundle).towers["ranking"].scores
    assert scores is not None
    assert scores.examples == len(examples)
    seen = np.array([example["seen"] for example in examples])
    bins = np.searchsorted(scores.edges, seen, side="right")
    assert np.bincount(bins) / len(examples) == pytest.approx(scores.shares)
    (tmp_path / "shifted.txt").write_text(
        "".join(f"{movie}\n" for movie in [*MOVIE_IDS[1:], MOVIE_IDS[0]])
    )
    wrong = changed(
        changed(right, "verify.expected", {"score": "seen"}),
        "vocabularies.movies.file",
        "shifted.txt",
    )
    done = command("run", write_project(tmp_path, wrong))
    assert (done.code, "ids lead to other rows than in training" in done.message) == (5, True)


@pytest.mark.slow
def test_stated_layout_is_published_only_if_recorded_outputs_agree_or_the_recipe_accepts_it(
    command: Command,
    recipe: Recipe,
    movies: TracedCheckpoint,
    undisturbed: Path,
    tmp_path: Path,
) -> None:
    rows, dim = movies.tables["users"].shape
    stated = f'[tables.users]\nkey = "{movies.keys["users"]}"\nkind = "sparse_core"\n'
    stated += f"rows = {rows}\ndim = {dim}\ncores = "
    (tmp_path / "right.toml").write_text(stated + "1\n")
    (tmp_path / "wrong.toml").write_text(stated + "2\n")
    write_examples(tmp_path, recorded(undisturbed))
    stated_recipe = changed(with_examples(recipe), "checkpoint.layout", "right.toml")

    plan = command("plan", write_project(tmp_path, stated_recipe), "--json").json
    assert plan["tables"]["users"]["stated"] is True
    assert "its layout is stated" in plan["tables"]["users"]["note"]
    of_other_tables = changed(stated_recipe, "verify.expected", {"candidate.vector": "seen"})
    for rejected in (stated_recipe, of_other_tables):
        done = command("run", write_project(tmp_path, rejected))
        assert (done.code, "verify.expected" in done.message) == (5, True)
        assert "'users'" in done.message
    assert not list(tmp_path.glob("bundles/*/*"))

    agreed = changed(stated_recipe, "verify.expected", {"ranking.score": "seen"})
    wrong = changed(agreed, "checkpoint.layout", "wrong.toml")
    done = command("run", write_project(tmp_path, wrong))
    assert (done.code, "differs from verify.expected" in done.message) == (5, True)
    done = command("run", write_project(tmp_path, agreed))
    assert done.code == 0, done.err
    assert "which recorded outputs agree with" in " ".join(done.out.split())
    (bundle,) = tmp_path.glob("bundles/movies/*")
    published = catalog.read_manifest(bundle)
    assert {name for name, table in published.tables.items() if table.source.stated} == {"users"}
    judged = {name: check.stated_layout for name, check in published.verification.tables.items()}
    assert {name: judgement for name, judgement in judged.items() if judgement} == {
        "users": "expected"
    }
    report = command("verify", bundle, "--checkpoint", movies.prefix, "--json").json
    assert report["tables"]["users"]["stated_layout"] == "expected"

    accepted = changed(stated_recipe, "verify.stated_layouts", "accept")
    page = command("run", write_project(tmp_path, accepted), "--json").json
    assert page["verification"]["tables"]["users"]["stated_layout"] == "accepted"
    assert any("its layout is stated" in note for note in page["notes"])
