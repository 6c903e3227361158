"""The examples of a recipe: those of its file, else synthetic ones."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

from export.front_end.manifest_features import describe_features
from export.front_end.specs import FeatureSpec, ModelSpec, TableFacts
from export.verify.examples import Examples
from export.verify.recipe_examples import examples_of, keys_of
from tests.id_graphs import vocabulary_ids
from tests.units.export.checkpoint.dump_files import sok_dump
from tests.units.export.traced_features import embedded
from tests.units.export.verify.small_reference import ROWS, job_of


def model_of(spec: FeatureSpec) -> ModelSpec:
    return ModelSpec({"users": TableFacts("users", "users", ROWS, 2)}, {"user": spec}, {})


def examples(folder: Path, spec: FeatureSpec, **sections: Any) -> Examples:
    job = job_of(**sections)
    model = model_of(spec)
    return examples_of(job, folder, model, describe_features(model, job))


def test_examples_of_a_file_are_its_first_with_labels_and_recorded_outputs(
    tmp_path: Path,
) -> None:
    lines = [{"user": row, "click": row % 2, "score": row / 2} for row in range(5)]
    (tmp_path / "e.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    read_examples = examples(
        tmp_path,
        embedded("user", "users"),
        verify={
            "examples": "e.jsonl",
            "count": 3,
            "labels": {"result": "click"},
            "expected": {"first.result": "score"},
        },
    )
    assert read_examples.n == 3
    assert read_examples.columns["user"].values.tolist() == [0, 1, 2]
    assert read_examples.labels["result"].tolist() == [0, 1, 0]
    assert read_examples.recorded["first.result"].tolist() == [0, 0.5, 1]


def test_synthetic_examples_are_as_many_as_the_recipe_counts_and_of_its_vocabulary(
    tmp_path: Path,
) -> None:
    (tmp_path / "names.txt").write_text("70\n50\n90\n")
    stated = {
        "vocabularies": {"names": {"file": "names.txt", "dtype": "int64"}},
        "features": {"user": {"ids": {"kind": "vocabulary", "vocabulary": "names"}}},
        "verify": {"count": 40},
    }
    synthetic = examples(tmp_path, embedded("user", "users"), **stated)
    assert (synthetic.n, synthetic.labels, synthetic.recorded) == (40, {}, {})
    assert synthetic.with_known_ids is not None
    assert set(synthetic.with_known_ids.columns["user"].values.tolist()) == {70, 50, 90}
    assert set(synthetic.columns["user"].values.tolist()) == {70, 50, 90, 91, 1090}


def test_synthetic_examples_of_a_dumped_table_are_its_keys(tmp_path: Path) -> None:
    keys = np.array([70, 30, 90, 1 << 40], np.int64)
    sok_dump(tmp_path / "dump", "users", keys, np.zeros((4, 2), np.float32))
    synthetic = examples(
        tmp_path,
        embedded("user", "users"),
        tables={"users": {"dump": "dump"}},
        features={"user": {"ids": {"kind": "keyed"}}},
    )
    assert synthetic.with_known_ids is not None
    assert set(synthetic.with_known_ids.columns["user"].values.tolist()) == set(keys.tolist())
    unknown = {(1 << 40) + 1, (1 << 40) + 1000}
    assert set(synthetic.columns["user"].values.tolist()) == {*keys.tolist(), *unknown}


def test_keys_are_those_of_the_recipe_and_of_the_model(tmp_path: Path) -> None:
    (tmp_path / "names.txt").write_text("b\na\n")
    rule = vocabulary_ids("own")
    spec = embedded("user", "users", ids=rule, keys=((9, 8, 7),))
    job = job_of(vocabularies={"names": {"file": "names.txt"}})
    read_keys = keys_of(job, tmp_path, model_of(spec))
    assert {name: keys.tolist() for name, keys in read_keys.items()} == {
        "names": ["b", "a"],
        "own": [9, 8, 7],
    }
    assert [keys.dtype.kind for keys in read_keys.values()] == ["O", "i"]
