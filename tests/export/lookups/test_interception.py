from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from bundle.features.columns import Column
from bundle.format.manifest import EmbeddedFeature
from export.errors import NotConvertible, UsageError
from export.frameworks.loading import load_tensorflow
from export.model.manifest_features import describe_features
from export.model.tracing import trace_towers
from export.recipe.schema import ExportJob, FeaturePart
from export.verify.examples import Examples
from tests.export.lookups.gathering import HERE, hold, make, recipe


def asked(function: str, inputs: dict[str, Any], **code: Any) -> ExportJob:
    return recipe(function, inputs, code={"factory": f"interception_models.py:{function}"} | code)


def test_rows_one_by_one_are_scaled_to_max_norm_in_the_tower(tmp_path: Path) -> None:
    tf = load_tensorflow()
    inputs: dict[str, Any] = {
        "one": {"dtype": "int64"},
        "recent": {"dtype": "int64", "shape": [3]},
        "column": {"dtype": "int64"},
    }
    given = {"one": [1], "recent": [[1, 2, 3]], "column": [2]}
    job = asked("build_scaled", inputs)
    made = make(job, {name: tf.constant(value, tf.int64) for name, value in given.items()}, tmp_path)
    assert {name: getattr(spec, "kind", "") for name, spec in made.traced.spec.features.items()} == {
        "one": "single",
        "recent": "sequence",
        "column": "single",
    }
    hold(made, tmp_path)


def test_bags_are_scaled_to_max_norm_and_filled_by_the_service(tmp_path: Path) -> None:
    tf = load_tensorflow()
    inputs: dict[str, Any] = {
        "bag": {"dtype": "int64", "kind": "ragged"},
        "sparse": {"dtype": "int64", "kind": "sparse"},
        "filled": {"dtype": "int64", "kind": "sparse"},
        "column": {"dtype": "int64", "shape": [2]},
    }
    sparse = tf.SparseTensor([[0, 0]], tf.constant([1], tf.int64), [1, 1])
    given = {"bag": tf.ragged.constant([[1, 2]], tf.int64), "sparse": sparse, "filled": sparse}
    made = make(asked("build_scaled_bags", inputs), given | {"column": tf.constant([[3, -1]], tf.int64)}, tmp_path)
    told = {
        name: (page.kind, page.max_norm, page.empty_row)
        for name, page in made.pages.items()
        if isinstance(page, EmbeddedFeature)
    }
    assert told == {
        "bag": ("bag", 0.5, None),
        "sparse": ("bag", 0.5, None),
        "filled": ("bag", None, 3),
        "column": ("bag", 0.5, None),
    }
    hold(made, tmp_path)


def test_default_id_that_is_no_row_is_refused() -> None:
    job = asked("build_filled_beyond", {"filled": {"dtype": "int64", "kind": "sparse"}})
    with pytest.raises(NotConvertible, match=r"has default_id=20000, which is no row of its 20000"):
        trace_towers(job, HERE)


def test_indicators_of_dense_ids_are_counted_by_the_service_and_those_of_buckets_in_the_tower(tmp_path: Path) -> None:
    tf = load_tensorflow()
    columns = {
        "listed": np.array([[30, 5, 5], [-1, 7, 8], [-1, -1, -1]]),
        "listed_or_first": np.array([[30, -1], [5, 5], [99, -7]]),
        "buckets": np.array([[-1.0, 2.0], [0.5, 0.0], [1.5, -9.0]], np.float32),
    }
    inputs = {name: {"dtype": str(values.dtype), "shape": list(values.shape[1:])} for name, values in columns.items()}
    given = {name: tf.constant(values) for name, values in columns.items()}
    made = make(asked("build_indicators", inputs), given, tmp_path)
    assert {name: (page.kind, getattr(page, "indicator", 0)) for name, page in made.pages.items()} == {
        "listed": ("bag", 4),
        "listed_or_first": ("bag", 3),
        "buckets": ("dense", 0),
    }
    sent = {name: Column(values.reshape(-1), np.arange(4) * values.shape[1]) for name, values in columns.items()}
    hold(made, tmp_path, Examples(3, sent | {"buckets": Column(columns["buckets"].reshape(-1))}))


def test_indicators_of_all_other_ids_are_counted_by_the_service(tmp_path: Path) -> None:
    tf = load_tensorflow()
    inputs: dict[str, Any] = {
        "hashed": {"dtype": "int64", "kind": "sparse"},
        "beyond": {"dtype": "int64"},
        "word": {"dtype": "string", "shape": [2]},
        "rows": {"dtype": "int64", "kind": "sparse"},
        "first": {"dtype": "string"},
    }
    columns = {
        "hashed": Column(np.array([7, 7, 1 << 40, -1]), np.array([0, 2, 2, 4])),
        "beyond": Column(np.array([4, 99, -1])),
        "word": Column(np.array(["b", "a", "?", "", "b", "b"], object), np.array([0, 2, 4, 6])),
        "rows": Column(np.array([8, 0, 8]), np.array([0, 0, 1, 3])),
        "first": Column(np.array(["z", "", "unheard of"], object)),
    }
    sparse = tf.SparseTensor([[0, 0]], tf.constant([1], tf.int64), [1, 1])
    given = {"hashed": sparse, "rows": sparse, "beyond": tf.constant([4], tf.int64)}
    given |= {"word": tf.constant([["b", ""]]), "first": tf.constant(["x"])}
    made = make(asked("build_counted", inputs), given, tmp_path)
    assert not made.traced.spec.tables
    assert {name: (page.kind, getattr(page, "indicator", 0)) for name, page in made.pages.items()} == {
        "hashed@indicator": ("bag", 5),
        "beyond": ("single", 4),
        "word@indicator": ("bag", 2),
        "rows": ("bag", 9),
        "first@indicator": ("single", 3),
        "word*first*hashed": ("bag", 40),
    }
    assert set(made.vocabularies) == {"beyond", "word", "first"}
    hold(made, tmp_path)
    hold(made, tmp_path, Examples(3, columns))


def test_wide_deep_model_of_keras_over_indicators_equals_the_original(tmp_path: Path) -> None:
    tf = load_tensorflow()
    inputs: dict[str, Any] = {
        "city": {"dtype": "string", "shape": [1]},
        "kind": {"dtype": "string"},
        "price": {"dtype": "float32"},
    }
    given = {"city": tf.constant([["Oslo"]]), "kind": tf.constant(["a"]), "price": tf.constant([1.0])}
    made = make(asked("build_wide_deep", inputs), given, tmp_path)
    told = {(page.inputs, getattr(page, "table", ""), getattr(page, "indicator", None)) for page in made.pages.values()}
    assert told == {
        (("kind", "city"), "", 50),
        (("city",), "", 30),
        (("city",), "deep.city_embedding", None),
        ((), "", None),
    }
    hold(made, tmp_path)


@pytest.mark.parametrize("way", ["sliced", "unstacked", "split", "kept", "gathered"])
def test_ids_at_places_of_a_wide_input_are_features(way: str, tmp_path: Path) -> None:
    tf = load_tensorflow()
    job = asked(f"build_{way}", {"wide": {"dtype": "int64", "shape": [3]}}, table_threshold=10)
    made = make(job, {"wide": tf.constant([[1, 2, 3]], tf.int64)}, tmp_path)
    assert not made.traced.notes
    told = {
        (page.table, page.kind, page.place, page.places, page.ids.kind)
        for page in made.pages.values()
        if isinstance(page, EmbeddedFeature)
    }
    hashed = "identity" if way == "kept" else "hash"
    assert told == {
        ("tables.0", "single", 0, 3, "identity"),
        ("tables.1", "single", 1, 3, "identity"),
        ("tables.2", "single", 2, 3, hashed),
    }
    assert {page.inputs for page in made.pages.values()} == {("wide",)}
    hold(made, tmp_path, Examples(2, {"wide": Column(np.array([19_999, 20, 3, 7, 699, 9]))}))
    hold(made, tmp_path)


def test_rule_of_the_recipe_for_an_input_whose_places_are_read_is_refused() -> None:
    job = asked("build_sliced", {"wide": {"dtype": "int64", "shape": [3]}}, table_threshold=10)
    job = job.model_copy(update={"features": {"wide": FeaturePart.model_validate({"ids": {"kind": "hash"}})}})
    with pytest.raises(UsageError, match=r"features.wide.ids: the model takes ids out of this input by their places"):
        describe_features(trace_towers(job, HERE).spec, job)


def test_computed_ids_of_a_wide_input_stay_inside_within_the_limit(tmp_path: Path) -> None:
    tf = load_tensorflow()
    job = asked("build_computed", {"wide": {"dtype": "int64", "shape": [3]}})
    made = make(job, {"wide": tf.constant([[1, 2, 3]], tf.int64)}, tmp_path)
    (note,) = made.traced.notes
    assert "stays inside the towers: its ids are computed by operation" in note
    small = asked("build_computed", {"wide": {"dtype": "int64", "shape": [3]}}, inline_bytes_max=1000)
    with pytest.raises(NotConvertible, match=r"its ids are computed by operation '.*' \(Mul\) \(interception_models"):
        trace_towers(small, HERE)
