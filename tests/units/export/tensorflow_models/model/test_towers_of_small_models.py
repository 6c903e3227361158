"""Small models, partitioned into towers."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from export.errors import NotConvertible
from export.front_end.specs import DenseSpec, FeatureSpec, TableFacts
from export.graphs.loading import tf
from export.recipe.schema import ExportJob
from export.tensorflow_models.frameworks.named_graphs import load_named
from export.tensorflow_models.model.tracing import TracedModel, trace_towers
from tests.units.export.traced_features import dense, embedded
from tests.units.export.traced_models import recipe

THRESHOLD = 10
INPUTS = {
    "item": {"dtype": "int64"},
    "other": {"dtype": "int64"},
    "pair": {"dtype": "int64", "shape": [2]},
    "word": {"dtype": "string"},
    "bag": {"dtype": "float32", "kind": "ragged", "length_max": 5},
    "bag_weights": {"dtype": "float32", "kind": "ragged", "weights_for": "bag"},
}


def job_of(*inputs: str, **towers: Any) -> ExportJob:
    """Returns a recipe of towers, of which each takes some of the inputs."""
    sections = {name: INPUTS[name] for name in inputs}
    code = {"factory": "model.py:build", "table_threshold": THRESHOLD}
    listed = towers or {"tower": {"role": "query"}}
    return recipe("model.py:build", sections, listed, {"code": code})


class Model(tf.Module):  # type: ignore[misc]
    """Tables by their numbers of rows, and what a test computes by them."""

    def __init__(self, call: Callable[[Any, Any], Any], **rows: int) -> None:
        super().__init__()
        self.compute = call
        self.calls = 0
        for name, count in rows.items():
            setattr(self, name, tf.Variable(lambda count=count: tf.ones([count, 2])))

    def __call__(self, inputs: Any) -> Any:
        self.calls += 1
        return self.compute(self, inputs)

    def score(self, inputs: Any) -> Any:
        return self(inputs)


def traced(
    call: Callable[[Any, Any], Any], job: ExportJob, inside: bool = False, **rows: int
) -> TracedModel:
    return trace_towers(job, Path(), inside, build=lambda job, base: Model(call, **rows))


def gather(table: Any, ids: Any) -> Any:
    return tf.gather(table, ids)


def test_towers_of_one_call_share_its_trace() -> None:
    query = {"role": "query", "inputs": ["item"]}
    same_tower = {"role": "candidate", "inputs": ["item"]}
    other_tower = {"role": "candidate", "inputs": ["item", "other"]}
    method = {"role": "candidate", "inputs": ["item"], "call": "score"}

    def calls(**towers: Any) -> int:
        job = job_of("item", "other", **towers)
        model = traced(lambda model, inputs: gather(model.items, inputs["item"]), job, items=11)
        assert [tower.spec.name for tower in model.towers] == list(towers)
        return int(model.root.calls)

    assert calls(a=query) == 1
    assert calls(a=query, b=same_tower) == 1
    assert calls(a=query, b=other_tower) == 2
    assert calls(a=query, b=method) == 2


def test_tower_takes_all_inputs_or_those_that_the_recipe_names() -> None:
    job = job_of(
        "item",
        "other",
        a={"role": "query"},
        b={"role": "candidate", "inputs": ["other"]},
    )
    model = traced(lambda model, inputs: gather(model.items, inputs["other"]), job, items=11)
    assert [tower.spec.call.inputs for tower in model.towers] == [("item", "other"), ("other",)]


def test_model_has_the_tables_and_features_that_towers_need() -> None:
    def call(model: Any, inputs: Any) -> Any:
        gather(model.unused, inputs["other"])
        same = gather(model.items, inputs["item"]) * gather(model.items, inputs["item"])
        return same + gather(model.users, inputs["item"])

    model = traced(call, job_of("item", "other"), items=11, users=12, unused=13)
    assert model.spec.tables == {
        "items": TableFacts("items", "items", 11, 2),
        "users": TableFacts("users", "users", 12, 2),
    }
    assert model.spec.features == {
        "item@items": embedded("item@items", "items", inputs=("item",)),
        "item@users": embedded("item@users", "users", inputs=("item",)),
    }
    assert {
        name: variable is getattr(model.root, name) for name, variable in model.tables.items()
    } == {
        "items": True,
        "users": True,
    }
    (tower,) = model.towers
    arguments = {"item_items": [[3.0, 5.0]], "item_users": [[0.5, 0.5]]}
    values = [tf.constant(arguments[tensor.name]) for tensor in tower.spec.inputs]
    (result,) = tower.function(*values).values()
    assert result.numpy().tolist() == [[9.5, 25.5]]
    assert (model.notes, tower.variables) == ((), ())


def test_one_feature_of_several_calls_has_one_name() -> None:
    def call(model: Any, inputs: Any) -> Any:
        rows = gather(model.items, inputs["item"])
        return rows + gather(model.items, inputs["other"]) if "other" in inputs else rows

    job = job_of(
        "item",
        "other",
        a={"role": "query", "inputs": ["item"]},
        b={"role": "candidate", "inputs": ["item", "other"]},
    )
    model = traced(call, job, items=11)
    assert list(model.spec.features) == ["item", "other"]
    assert [[tensor.feature for tensor in tower.spec.inputs] for tower in model.towers] == [
        ["item"],
        ["item", "other"],
    ]


@pytest.mark.parametrize(
    "table",
    [
        tf.lookup.experimental.MutableHashTable(tf.int64, tf.int64, 0),
        tf.lookup.experimental.DenseHashTable(tf.int64, tf.int64, 0, -1, -2),
    ],
    ids=["mutable", "dense"],
)
@pytest.mark.parametrize("rows", [5, 11], ids=["table inside", "feature"])
@pytest.mark.parametrize("shape", [None, [-1]], ids=["unknown shape", "known shape"])
def test_hash_table_that_may_change_is_named_with_its_line(
    table: Any, rows: int, shape: list[int] | None
) -> None:
    table.insert(tf.constant([7, 8], tf.int64), tf.constant([0, 1], tf.int64))

    def call(model: Any, inputs: Any) -> Any:
        positions = table.lookup(inputs["item"])
        if shape is not None:
            positions = tf.reshape(positions, shape)
        return gather(model.items, positions)

    line = call.__code__.co_firstlineno + 1
    message = (
        r"reads a resource that is not a variable \(a mutable hash table\?\) "
        rf"\(test_towers_of_small_models\.py:{line}\); let the factory make a "
        r"tf\.lookup\.StaticHashTable"
    )
    with pytest.raises(NotConvertible, match=message):
        traced(call, job_of("item"), items=rows)


def limits(call: Callable[[Any, Any], Any], *inputs: str, **rows: Any) -> dict[str, int | None]:
    """Returns the limits of the ids that a tower reads itself."""
    features = traced(call, job_of(*inputs), **rows).spec.features
    return {
        name: spec.entry.below for name, spec in features.items() if isinstance(spec, DenseSpec)
    }


def test_ids_of_small_tables_inside_are_below_the_smallest() -> None:
    def call(model: Any, inputs: Any) -> Any:
        rows = gather(model.middle, inputs["item"]) + gather(model.small, inputs["item"])
        return rows + gather(model.large, inputs["item"]) + gather(model.large, inputs["other"])

    assert limits(call, "item", "other", middle=7, small=5, large=10) == {"item": 5, "other": 10}
    assert limits(call, "item", "other", middle=7, small=8, large=11) == {"item@values": 7}


def test_ids_of_which_a_tower_looks_one_up_have_no_limit() -> None:
    def call(model: Any, inputs: Any) -> Any:
        return gather(model.items, inputs["pair"][:, 0])

    features = traced(call, job_of("pair"), items=5).spec.features
    assert {name: type(spec) for name, spec in features.items()} == {"pair": FeatureSpec}


def test_numbers_beside_a_lookup_have_no_limit_if_the_table_leaves() -> None:
    def call(model: Any, inputs: Any) -> Any:
        numbers = tf.cast(inputs["item"], tf.float32)[:, tf.newaxis]
        return gather(model.items, inputs["item"]) * numbers

    assert limits(call, "item", items=11) == {"item@values": None}


def test_ragged_numbers_go_into_the_tower_with_a_note() -> None:
    def call(model: Any, inputs: Any) -> Any:
        return tf.reduce_sum(inputs["bag"] * inputs["bag_weights"], axis=1)

    model = traced(call, job_of("bag", "bag_weights"))
    weight_inputs = {"inputs": ("bag",)}
    assert model.spec.features == {
        "bag@padded": dense("bag@padded", "float32", (5,), take="padded", **weight_inputs),
        "bag@weights": DenseSpec(
            "bag@weights",
            dense("", "float32", (5,), take="weights", **weight_inputs).entry,
            "bag_weights",
        ),
        "bag@lengths": dense("bag@lengths", "int64", (), take="lengths", **weight_inputs),
    }
    assert model.notes == (
        "input 'bag' goes into the towers, at most 5 values per example (inputs.bag.length_max)",
    )


@pytest.mark.parametrize(("inside", "tables"), [(False, {"items": 20}), (True, {})])
def test_large_tables_of_plain_gathers_stay_inside_if_they_shall(
    inside: bool, tables: dict[str, int]
) -> None:
    model = traced(
        lambda model, inputs: gather(model.items, inputs["item"]), job_of("item"), inside, items=20
    )
    assert {name: table.rows for name, table in model.spec.tables.items()} == tables
    assert [tower.variables for tower in model.towers] == [(model.root.items,) if inside else ()]


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize(
    ("look_up", "values", "rows"),
    [
        pytest.param(
            lambda model, inputs: gather(model.small, inputs["item"]),
            {"item": [3, 0]},
            [[1.0, 1.0]] * 2,
            id="table inside",
        ),
        pytest.param(
            lambda model, inputs: gather(model.large, inputs["item"]),
            {"item": [[3.0, 4.0]]},
            [[3.0, 4.0]],
            id="feature",
        ),
        pytest.param(
            lambda model, inputs: gather(
                model.large, tf.stack([inputs["item"], inputs["other"]], 1)
            ),
            {"item": [[3.0, 4.0]], "other": [[5.0, 6.0]]},
            [[[3.0, 4.0], [5.0, 6.0]]],
            id="features of each position",
        ),
    ],
)
def test_lookup_may_be_the_result_itself(
    look_up: Any, values: dict[str, Any], rows: Any, named: bool
) -> None:
    def call(model: Any, inputs: Any) -> Any:
        return {"rows": look_up(model, inputs)} if named else look_up(model, inputs)

    outputs = {"outputs": {"rows": "rows"}} if named else {}
    job = job_of("item", "other", tower={"role": "query", **outputs})
    (tower,) = traced(call, job, small=5, large=11).towers
    arguments = [tf.constant(values[tensor.feature], tensor.dtype) for tensor in tower.spec.inputs]
    (result,) = tower.function(*arguments).values()
    assert result.numpy().tolist() == rows


def test_variables_of_towers_have_their_first_values() -> None:
    model = traced(
        lambda model, inputs: gather(model.items, inputs["item"]), job_of("item"), items=5
    )
    (variable,) = model.towers[0].variables
    assert variable.numpy().tolist() == [[1.0, 1.0]] * 5


def test_variables_of_a_graph_by_names_have_some_values() -> None:
    def score(inputs: Any) -> Any:
        kernel = tf.compat.v1.get_variable("kernel", [2, 3])
        bias = tf.compat.v1.get_variable("bias", [3])
        numbers = tf.cast(inputs["pair"], tf.float32)
        return tf.matmul(numbers, kernel) + bias

    model = trace_towers(
        job_of("pair"), Path(), build=lambda job, base: load_named("model.py:build", lambda: score)
    )
    variables = {variable.name: variable.numpy() for variable in model.towers[0].variables}
    assert {name: values.shape for name, values in variables.items()} == {
        "kernel:0": (2, 3),
        "bias:0": (3,),
    }
    assert np.count_nonzero(variables["bias:0"]) == 3


def test_numbers_of_words_beside_a_lookup_are_a_feature_of_their_own() -> None:
    def call(model: Any, inputs: Any) -> Any:
        ids = tf.strings.to_hash_bucket_fast(inputs["word"], 20)
        return gather(model.items, ids) * tf.cast(ids > 3, tf.float32)[:, tf.newaxis]

    features = traced(call, job_of("word"), items=20).spec.features
    assert list(features) == ["word@items", "word@indicator"]
    number = features["word@indicator"]
    assert isinstance(number, FeatureSpec)
    assert (number.entry.indicator, number.entry.ordinal, number.entry.table) == (20, True, "")
