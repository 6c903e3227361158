from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from export.front_end.interface import TracedTower
from export.graphs.loading import tf
from export.towers.bfloat16 import in_bfloat16
from export.towers.division import Split, split_tower
from tests.export.ranking_parts import (
    AGE,
    CONTEXT,
    FEATURES,
    TASKS,
    made_values,
    run,
    run_parts,
    traced,
)
from tests.export.tensorflow_models.graph.traced_calls import numbers, tower_of, trace
from tests.export.traced_models import IDS, RAGGED


def split(tower: TracedTower) -> Split:
    roles = {
        each.feature: "context" if each.feature in CONTEXT else "candidate"
        for each in tower.spec.inputs
    }
    return split_tower(tower, roles)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def experts() -> TracedTower:
    return traced("build_experts", TASKS, {**FEATURES, "age": AGE})


def assert_parts_compute_the_tower(tower: TracedTower, candidates: int) -> None:
    n = 12
    values = made_values(tower, 12)
    for name in set(values) & set(CONTEXT):
        values[name] = values[name][::candidates].repeat(candidates, axis=0)
    whole = run(tower, values, n)
    composed = run_parts(split(tower).parts, values, n, candidates)
    for name, expected in whole.items():
        np.testing.assert_allclose(composed[name], expected, rtol=1e-5, atol=1e-5)


def test_split_tower_of_several_heads_has_a_context_a_trunk_and_a_part_for_each(
    experts: TracedTower,
) -> None:
    parts = {part.spec.name: part.spec for part in split(experts).parts}
    assert list(parts) == ["context", "trunk", "head-click", "head-like", "head-share", "head-both"]
    assert {name: part.per for name, part in parts.items() if part.per == "context"} == {
        "context": "context"
    }
    assert {each.feature for each in parts["context"].inputs} == set(CONTEXT)
    assert [each.name for each in parts["context"].outputs] == ["loyal", "context_0"]
    assert [each.name for each in parts["head-share"].outputs] == ["share"]
    assert [each.tensor for each in parts["head-both"].inputs] == ["click", "like"]
    # The trunk hands over what several heads use, and computes nothing of a single one.
    assert [each.feature or each.tensor for each in parts["head-click"].inputs] == [
        "item",
        "shop",
        "context_0",
        "trunk_0",
        "trunk_1",
    ]


def test_split_tower_parts_read_no_more_variables_than_the_tower(experts: TracedTower) -> None:
    parts = split(experts).parts
    read = [variable.name for part in parts for variable in part.variables]
    assert sorted(read) == sorted(experts.spec.variables)


@pytest.mark.parametrize("candidates", [1, 4])
def test_split_tower_of_several_heads_computes_the_tower(
    experts: TracedTower, candidates: int
) -> None:
    assert_parts_compute_the_tower(experts, candidates)


def test_split_tower_that_shapes_by_the_other_sides_batch_computes_the_tower() -> None:
    tower = traced("build_crossed", ["score"])
    parts = split(tower).parts
    assert [part.spec.name for part in parts] == ["context", "candidate"]
    # No tensor that is made of the batch's size is sent between parts.
    assert [each.shape for each in parts[0].spec.outputs] == [(None, 16)]
    assert_parts_compute_the_tower(tower, 4)


def test_split_tower_with_a_loop_over_a_history_runs_it_once_for_a_context() -> None:
    tower = traced("build_recurrent", ["score"], {"history": RAGGED, "item": IDS})
    parts = split(tower).parts
    assert [part.spec.name for part in parts] == ["context", "candidate"]
    assert [each.shape for each in parts[0].spec.outputs] == [(None, 16)]
    assert_parts_compute_the_tower(tower, 4)


def test_split_tower_divides_layers_over_both_sides() -> None:
    candidates = 4
    names = [f"c{number}" for number in (*range(20), 30, 31)]
    tower = traced(
        "build_joined", ["score"], {f"c{number}": IDS for number in range(40)} | {"item": IDS}
    )
    found = split_tower(tower, dict.fromkeys(names, "context") | {"item": "candidate"})  # type: ignore[arg-type]
    context, candidate = found.parts
    # The outputs are as wide as the layers.
    assert [each.shape for each in context.spec.outputs] == [
        (None, 8),
        (None, 16),
    ]
    assert [each.feature or each.tensor for each in candidate.spec.inputs] == [
        "item",
        "context_0",
        "context_1",
    ]
    assert (context.cost, candidate.cost < 300) == (88 * (16 + 8), True)
    n = 12
    values = made_values(tower, 12)
    for name in names:
        values[name] = values[name][::candidates].repeat(candidates, axis=0)
    composed = run_parts(found.parts, values, n, candidates)
    np.testing.assert_allclose(
        composed["score"], run(tower, values, n)["score"], rtol=1e-5, atol=1e-5
    )


def matrix(rows: int, columns: int) -> Any:
    return tf.Variable(
        np.random.default_rng(rows).standard_normal((rows, columns)), dtype="float32"
    )


def two_sided_tower(user_size: int, hidden_size: int, turned: bool) -> TracedTower:
    """One product for the user, one for the item, and their sum; `turned` upside down."""
    user = matrix(user_size, hidden_size)
    item = matrix(8, hidden_size)
    head = matrix(hidden_size, 1)

    def call(features: Any) -> dict[str, Any]:
        sides = [features["user"] @ user, features["item"] @ item]
        if turned:
            sides = [tf.transpose(side) for side in sides]
        both = tf.nn.relu(sides[0] + sides[1])
        return {"score": ((tf.transpose(both) if turned else both) @ head)[:, 0]}

    return tower_of(trace(call, user=numbers(user_size), item=numbers(8)))


def test_split_tower_hands_over_what_saves_256_multiply_adds_and_no_less() -> None:
    (context, candidate) = split(two_sided_tower(16, 16, turned=False)).parts
    assert (context.cost, candidate.cost) == (16 * 16, 8 * 16 + 16 + 16 + 16)
    assert [each.shape for each in context.spec.outputs] == [(None, 16)]

    less = split(two_sided_tower(15, 17, turned=False))
    assert less.parts == ()
    assert less.notes == (
        "tower 'tower' has no context part: only 255 multiply-adds depend on context features "
        "alone",
    )


def test_split_tower_hands_over_the_rows_in_front_of_a_tensor_that_has_none() -> None:
    tower = two_sided_tower(32, 16, turned=True)
    context, candidate = split(tower).parts
    assert [each.shape for each in context.spec.outputs] == [(None, 16)]
    assert [each.feature or each.tensor for each in candidate.spec.inputs] == ["item", "context_0"]
    assert_parts_compute_the_tower(tower, 4)


def joined_tower(
    columns: int, *, axis: int = 1, transposed: bool = False, dtype: str = "float32"
) -> TracedTower:
    """One layer of 16 over `columns` of the context, on both sides of an item's 8."""
    kernel = matrix(16, columns + 8) if transposed else matrix(columns + 8, 16)
    head = matrix(16, 1)

    def call(features: Any) -> dict[str, Any]:
        joined = tf.concat([features["user"], features["item"], features["age"]], axis)
        layer = tf.cast(kernel, dtype)
        hidden = tf.matmul(tf.cast(joined, dtype), layer, transpose_b=transposed)
        return {"score": (tf.nn.relu(tf.cast(hidden, "float32")) @ head)[:, 0]}

    return tower_of(trace(call, user=numbers(columns - 4), item=numbers(8), age=numbers(4)))


@pytest.mark.parametrize(
    ("tower", "divided"),
    [
        pytest.param({"columns": 64}, True, id="as few columns as pay"),
        pytest.param({"columns": 63}, False, id="fewer columns"),
        pytest.param({"columns": 64, "axis": -1}, True, id="the last axis"),
        pytest.param({"columns": 64, "transposed": True}, True, id="a transposed kernel"),
        pytest.param({"columns": 64, "dtype": "float64"}, False, id="another dtype"),
    ],
)
def test_split_tower_divides_a_layer_however_it_is_written(
    tower: dict[str, Any], divided: bool
) -> None:
    made = joined_tower(**tower)
    found = split(made)
    assert [each.spec.per for each in found.parts] == ["context", "candidate"] * divided
    if divided:
        context, candidate = found.parts
        assert [each.shape for each in context.spec.outputs] == [(None, 16)]
        assert (context.cost, candidate.cost) == (64 * 16, 8 * 16 + 16 + 16 + 16)
        assert_parts_compute_the_tower(made, 4)


def test_in_bfloat16_products_are_near_and_the_rest_is_float32(experts: TracedTower) -> None:
    half = in_bfloat16(experts)
    values = made_values(experts, 9)
    whole = run(experts, values, 9)
    near = run(half, values, 9)
    assert {name: array.dtype for name, array in near.items()} == {
        name: array.dtype for name, array in whole.items()
    }
    for name, expected in whole.items():
        assert 0 < np.abs(near[name] - expected).max() < 0.02 * np.abs(expected).max()
    alone = run(half, {name: array[:1] for name, array in values.items()}, 1)
    for (
        name,
        expected,
    ) in near.items():  # what a score may differ by in another batch: docs/explanation/towers.md
        assert np.abs(alone[name] - expected[:1]).max() <= 2.0**-7 * max(
            1.0, np.abs(expected).max()
        )
    products = [
        each
        for each in half.function.graph.get_operations()
        if each.type in ("MatMul", "BatchMatMulV2")
    ]
    assert {each.outputs[0].dtype.name for each in products} == {"bfloat16"}


@pytest.mark.parametrize(
    ("function", "note"),
    [
        (
            "build_together",
            "has no context part: only 0 multiply-adds depend on context features alone",
        ),
        ("build_mixed", "(Mean) does not compute a separate row for each context"),
    ],
)
def test_split_tower_with_nothing_to_split_stays_whole_and_notes_why(
    function: str, note: str
) -> None:
    found = split(traced(function, ["click", "like"]))
    assert found.parts == ()
    assert note in found.notes[0]
