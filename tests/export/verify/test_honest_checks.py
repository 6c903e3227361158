"""What a report says of recall and of ids: only what was measured on real examples stops or vouches for anything."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from bundle.features.reader import Column, open_features
from bundle.storage import staging
from runtime.tower_inputs import tower_inputs
from runtime.towers import open_tower
from tests.export.commands import Command
from tests.export.movies_job import (
    MOVIE_IDS,
    Recipe,
    changed,
    example_requests,
    write_examples,
    write_project,
)


def with_examples(recipe: Recipe) -> Recipe:
    return changed(recipe, "verify.examples", "examples.jsonl")


def test_recall_on_invented_queries_is_told_and_stops_nothing(
    command: Command, recipe: Recipe, tmp_path: Path
) -> None:
    parameters = {"num_leaves": 20, "leaves_to_search": 1}
    tree = recipe["indexes"]["movies"] | {"kind": "tree_ah", "parameters": parameters}
    done = command("run", write_project(tmp_path, changed(recipe, "indexes.movies", tree)))
    assert done.code == 0, done.err
    (bundle,) = tmp_path.glob("bundles/movies/*")
    assert staging.read_manifest(bundle).indexes["movies"].recall.representative is False
    assert "invented queries: not representative" in done.out
    assert "name real ones as verify.examples" in " ".join(done.out.split())


def packed(values: list[Any]) -> Column:
    if not isinstance(values[0], list):
        return Column(np.array(values))
    ends = np.cumsum([0, *(len(each) for each in values)])
    return Column(np.array([one for each in values for one in each], np.int64), ends)


def recorded(bundle: Path) -> list[dict[str, Any]]:
    """Examples with the scores that the trained model gave, computed from the bundle of the right recipe."""
    page, examples = staging.read_manifest(bundle), example_requests()
    features, tower = open_features(bundle, page), page.towers["ranking"]
    columns = {name: packed([each[name] for each in examples]) for name in examples[0]}
    found = features.activations(list(page.features), columns, len(examples))
    features.close()
    inputs = tower_inputs(
        tower.inputs, {name: each.values for name, each in found.items()}, len(examples)
    )
    scores = open_tower(bundle, tower, "f32").run(inputs)[tower.result]
    return [
        each | {"seen": float(score)}
        for each, score in zip(examples, np.ravel(scores), strict=True)
    ]


def test_outputs_that_training_recorded_find_ids_of_other_rows_and_recall_is_of_real_queries(
    command: Command, recipe: Recipe, undisturbed: Path, tmp_path: Path
) -> None:
    write_examples(tmp_path, recorded(undisturbed))
    right = changed(with_examples(recipe), "verify.expected", {"ranking.score": "seen"})
    limited = changed(right, "indexes.movies.recall", {"value": 0.9})
    page = command("run", write_project(tmp_path, limited), "--json").json
    assert page["recall"]["movies"]["representative"] is True
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


def test_features_of_one_vocabulary_that_begin_at_other_rows_are_pointed_out(
    command: Command, recipe: Recipe, tmp_path: Path
) -> None:
    shorter = changed(recipe, "vocabularies.movies.file", "fewer.txt")
    (tmp_path / "fewer.txt").write_text("".join(f"{movie}\n" for movie in MOVIE_IDS[:-1]))
    shifted = changed(shorter, "features.history.ids.first_row", 1)
    done = command("plan", write_project(tmp_path, shifted))
    assert done.code == 0, done.err
    assert "(first_row): one is likely wrong" in " ".join(done.out.split())
