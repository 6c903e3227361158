from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from export.front_end.interface import TracedTower
from export.graphs.loading import load_tensorflow, tf
from export.towers.bfloat16 import in_bfloat16
from export.towers.division import Split, split_tower
from tests.units.export.ranking_parts import (
    AGE,
    CONTEXT,
    FEATURES,
    TASKS,
    random_inputs,
    run,
    run_parts,
    traced,
)
from tests.units.export.tensorflow_models.graph.traced_calls import numbers, tower_of, trace
from tests.units.export.traced_models import IDS, RAGGED

load_tensorflow()


def split(tower: TracedTower) -> Split:
    roles = {
        tensor.feature: "context" if tensor.feature in CONTEXT else "candidate"
        for tensor in tower.spec.inputs
    }
    return split_tower(tower, roles)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def experts() -> TracedTower:
    return traced("build_experts", TASKS, {**FEATURES, "age": AGE})


def assert_parts_compute_the_tower(tower: TracedTower, candidates: int) -> None:
    n = 12
    values = random_inputs(tower, 12)
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
    assert {tensor.feature for tensor in parts["context"].inputs} == set(CONTEXT)
    assert [output.name for output in parts["context"].outputs] == ["loyal", "context_0"]
    assert [output.name for output in parts["head-share"].outputs] == ["share"]
    assert [tensor.tensor for tensor in parts["head-both"].inputs] == ["click", "like"]
    # The trunk hands over what several heads use, and computes nothing of a single one.
    assert [tensor.feature or tensor.tensor for tensor in parts["head-click"].inputs] == [
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
    assert [output.shape for output in parts[0].spec.outputs] == [(None, 16)]
    assert_parts_compute_the_tower(tower, 4)


def test_split_tower_with_a_loop_over_a_history_runs_it_once_for_a_context() -> None:
    tower = traced("build_recurrent", ["score"], {"history": RAGGED, "item": IDS})
    parts = split(tower).parts
    assert [part.spec.name for part in parts] == ["context", "candidate"]
    assert [output.shape for output in parts[0].spec.outputs] == [(None, 16)]
    assert_parts_compute_the_tower(tower, 4)


def test_split_tower_divides_layers_over_both_sides() -> None:
    candidates = 4
    names = [f"c{number}" for number in (*range(20), 30, 31)]
    tower = traced(
        "build_joined", ["score"], {f"c{number}": IDS for number in range(40)} | {"item": IDS}
    )
    split_result = split_tower(tower, dict.fromkeys(names, "context") | {"item": "candidate"})  # type: ignore[arg-type]
    context, candidate = split_result.parts
    # The outputs are as wide as the layers.
    assert [output.shape for output in context.spec.outputs] == [
        (None, 8),
        (None, 16),
    ]
    assert [tensor.feature or tensor.tensor for tensor in candidate.spec.inputs] == [
        "item",
        "context_0",
        "context_1",
    ]
    assert (context.cost, candidate.cost < 300) == (88 * (16 + 8), True)
    n = 12
    values = random_inputs(tower, 12)
    for name in names:
        values[name] = values[name][::candidates].repeat(candidates, axis=0)
    composed = run_parts(split_result.parts, values, n, candidates)
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
        hidden = tf.nn.relu(sides[0] + sides[1])
        return {"score": ((tf.transpose(hidden) if turned else hidden) @ head)[:, 0]}

    return tower_of(trace(call, user=numbers(user_size), item=numbers(8)))


def test_split_tower_hands_over_what_saves_256_multiply_adds_and_no_less() -> None:
    (context, candidate) = split(two_sided_tower(16, 16, turned=False)).parts
    assert (context.cost, candidate.cost) == (16 * 16, 8 * 16 + 16 + 16 + 16)
    assert [output.shape for output in context.spec.outputs] == [(None, 16)]

    less = split(two_sided_tower(15, 17, turned=False))
    assert less.parts == ()
    assert less.notes == (
        "tower 'tower' has no context part: only 255 multiply-adds depend on context features "
        "alone",
    )


def test_split_tower_hands_over_the_rows_in_front_of_a_tensor_that_has_none() -> None:
    tower = two_sided_tower(32, 16, turned=True)
    context, candidate = split(tower).parts
    assert [output.shape for output in context.spec.outputs] == [(None, 16)]
    assert [tensor.feature or tensor.tensor for tensor in candidate.spec.inputs] == [
        "item",
        "context_0",
    ]
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
    joined = joined_tower(**tower)
    split_result = split(joined)
    assert [part.spec.per for part in split_result.parts] == ["context", "candidate"] * divided
    if divided:
        context, candidate = split_result.parts
        assert [output.shape for output in context.spec.outputs] == [(None, 16)]
        assert (context.cost, candidate.cost) == (64 * 16, 8 * 16 + 16 + 16 + 16)
        assert_parts_compute_the_tower(joined, 4)


def test_in_bfloat16_products_are_near_and_the_rest_is_float32(experts: TracedTower) -> None:
    half = in_bfloat16(experts)
    values = random_inputs(experts, 9)
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
        operation
        for operation in half.function.graph.get_operations()
        if operation.type in ("MatMul", "BatchMatMulV2")
    ]
    assert {output.outputs[0].dtype.name for output in products} == {"bfloat16"}


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
    split_result = split(traced(function, ["click", "like"]))
    assert split_result.parts == ()
    assert note in split_result.notes[0]


Call = Callable[[Mapping[str, Any]], dict[str, Any]]


def tower_from(call: Call, **inputs: int) -> TracedTower:
    """Returns a tower over inputs of these widths; `user` and `age` are the context's."""
    return tower_of(trace(call, **{name: numbers(width) for name, width in inputs.items()}))


def described(split_result: Split) -> list[tuple[str, str, list[str], list[str]]]:
    """Returns name, side, and the names of what is taken and given, of each part."""
    return [
        (
            part.spec.name,
            part.spec.per,
            [tensor.feature or tensor.tensor for tensor in part.spec.inputs],
            [output.name for output in part.spec.outputs],
        )
        for part in split_result.parts
    ]


def recurrent(inputs: Mapping[str, Any], state: Any) -> dict[str, Any]:
    """Returns the score of an item beside what a small network makes of the user and a state."""
    for _ in range(2):
        state = tf.tanh(inputs["user"] @ matrix(16, 16) + state @ matrix(16, 16))
    return {"score": tf.reduce_sum(state, 1) + tf.reduce_sum(inputs["item"] @ matrix(8, 16), 1)}


@pytest.mark.parametrize(
    "batch",
    [
        pytest.param(lambda inputs: tf.shape(inputs["item"])[0], id="an input"),
        pytest.param(lambda inputs: tf.shape(inputs["item"], tf.int64)[0], id="int64"),
        pytest.param(
            lambda inputs: tf.shape(tf.cast(inputs["item"][:, 0], tf.int32))[0], id="inner"
        ),
    ],
)
def test_split_tower_whose_context_takes_the_batch_size_of_an_item_runs_once_for_each_context(
    batch: Callable[[Mapping[str, Any]], Any],
) -> None:
    def call(inputs: Mapping[str, Any]) -> dict[str, Any]:
        rows = tf.fill(tf.stack([batch(inputs), 16]), 0.5)
        score = recurrent(inputs, rows)["score"]
        return {"score": score + inputs["age"][:, 0]}

    tower = tower_from(call, item=8, user=16, age=1)
    assert described(split(tower)) == [
        ("context", "context", ["user", "age"], ["context_0"]),
        ("candidate", "candidate", ["item", "age", "context_0"], ["score"]),
    ]
    assert_parts_compute_the_tower(tower, 4)


def test_split_tower_leaves_a_size_that_is_not_the_batch_size() -> None:
    def call(inputs: Mapping[str, Any]) -> dict[str, Any]:
        numbers_of_items = tf.reshape(inputs["item"], [-1])
        rows = tf.zeros([tf.shape(numbers_of_items)[0] // 8, 16])
        return recurrent(inputs, rows)

    tower = tower_from(call, item=8, user=16)
    # The products of the user alone are the context's; the sums with a state are not.
    assert described(split(tower)) == [
        ("context", "context", ["user"], ["context_0", "context_1"]),
        ("candidate", "candidate", ["item", "context_0", "context_1"], ["score"]),
    ]
    assert_parts_compute_the_tower(tower, 4)


def test_split_tower_with_one_output_twice_stays_whole() -> None:
    def call(inputs: Mapping[str, Any]) -> dict[str, Any]:
        score = tf.reduce_sum(inputs["user"] @ matrix(16, 16), 1) + inputs["item"][:, 0]
        return {"click": score, "like": score}

    split_result = split(tower_from(call, user=16, item=8))
    assert split_result == Split(
        notes=("tower 'tower' is not split: two of its outputs are the same",)
    )


def test_split_tower_with_a_loop_of_tf1_stays_whole() -> None:
    def call(inputs: Mapping[str, Any]) -> dict[str, Any]:
        frame = tf.raw_ops.Enter(data=inputs["user"], frame_name="loop")
        return {"score": tf.ensure_shape(tf.raw_ops.Exit(data=frame), [None, 4])[:, 0]}

    split_result = split(tower_from(call, user=4, item=8))
    assert split_result == Split(
        notes=("tower 'tower' is not split: a loop of TF1 goes through it",)
    )


@pytest.mark.parametrize(
    ("description", "reason"),
    [
        ("too small", "assertion failed: [too small]"),
        ("s" * 300, f"assertion failed: [{'s' * 181}"),
    ],
)
def test_split_tower_that_cannot_run_on_synthetic_examples_stays_whole_and_notes_why(
    description: str, reason: str
) -> None:
    def call(inputs: Mapping[str, Any]) -> dict[str, Any]:
        large = tf.debugging.Assert(tf.reduce_all(inputs["user"] > 100.0), [description])
        with tf.control_dependencies([large]):
            return {"score": inputs["user"][:, 0] + inputs["item"][:, 0]}

    split_result = split(tower_from(call, user=4, item=8))
    assert split_result.parts == ()
    assert split_result.notes == (
        f"tower 'tower' is not split: it could not run on synthetic examples: {reason}",
    )


def test_split_tower_without_a_context_has_nothing_to_say_of_it() -> None:
    def call(inputs: Mapping[str, Any]) -> dict[str, Any]:
        return {"score": (tf.nn.relu(inputs["item"] @ matrix(8, 64)) @ matrix(64, 1))[:, 0]}

    assert split(tower_from(call, item=8)) == Split()


def test_split_tower_whose_layers_of_the_context_are_all_small_notes_that() -> None:
    def call(inputs: Mapping[str, Any]) -> dict[str, Any]:
        first = tf.nn.relu(inputs["user"] @ matrix(12, 12))
        second = tf.nn.relu(inputs["age"] @ matrix(12, 13))
        item = tf.reduce_sum(inputs["item"], 1, keepdims=True)
        return {"score": tf.reduce_sum(first * item, 1) + tf.reduce_sum(second * item, 1)}

    split_result = split(tower_from(call, user=12, age=12, item=8))
    assert split_result == Split(notes=("tower 'tower' has no context part: none is large",))


def test_split_tower_notes_no_cost_of_256_multiply_adds_as_too_small() -> None:
    def call(inputs: Mapping[str, Any]) -> dict[str, Any]:
        first = inputs["user"] @ matrix(8, 16)
        second = inputs["age"] @ matrix(8, 16)
        item = tf.reduce_sum(inputs["item"], 1, keepdims=True)
        return {"score": tf.reduce_sum(first * item, 1) + tf.reduce_sum(second * item, 1)}

    split_result = split(tower_from(call, user=8, age=8, item=8))
    assert split_result.notes == ("tower 'tower' has no context part: none is large",)


def test_split_tower_of_one_output_has_one_part_of_candidates() -> None:
    split_result = split(two_sided_tower(32, 64, turned=False))
    assert [part.spec.name for part in split_result.parts] == ["context", "candidate"]
    assert split_result.parts[1].cost == 8 * 64 + 64 + 64 + 64


def test_split_tower_computes_cheap_outputs_beside_the_expensive_one() -> None:
    def call(inputs: Mapping[str, Any]) -> dict[str, Any]:
        cheap = tf.reduce_sum(inputs["item"], 1)
        large = tf.nn.relu(inputs["item"] @ matrix(8, 64)) @ matrix(64, 1)
        return {"click": large[:, 0], "cheap": cheap, "twice": cheap * 2.0}

    tower = tower_from(call, item=8)
    assert described(split(tower)) == [
        ("trunk", "candidate", ["item"], ["cheap", "twice"]),
        ("head-click", "candidate", ["item"], ["click"]),
    ]
    assert_parts_compute_the_tower(tower, 1)


def test_split_tower_hands_the_last_layer_of_a_context_to_every_part() -> None:
    def call(inputs: Mapping[str, Any]) -> dict[str, Any]:
        user = tf.nn.relu(tf.nn.relu(inputs["user"] @ matrix(16, 24)) @ matrix(24, 32))
        hidden = tf.nn.relu(user + inputs["item"] @ matrix(8, 32))
        heads = {"a": matrix(32, 32), "b": tf.transpose(matrix(32, 32))}
        return {name: tf.reduce_max(hidden @ kernel + user, 1) for name, kernel in heads.items()}

    tower = tower_from(call, user=16, item=8)
    assert described(split(tower)) == [
        ("context", "context", ["user"], ["context_0"]),
        ("trunk", "candidate", ["item", "context_0"], ["trunk_0"]),
        ("head-a", "candidate", ["context_0", "trunk_0"], ["a"]),
        ("head-b", "candidate", ["context_0", "trunk_0"], ["b"]),
    ]
    assert_parts_compute_the_tower(tower, 4)


def heads_tower(first: int, second: int) -> TracedTower:
    """Two outputs over a large layer of the item, with `first` and `second` multiply-adds."""

    def call(inputs: Mapping[str, Any]) -> dict[str, Any]:
        shared = inputs["item"] @ matrix(8, 64)
        return {
            "click": tf.reduce_max(shared[:, : first // 4] @ matrix(first // 4, 4), 1),
            "like": tf.reduce_max(shared[:, : second // 4] @ matrix(second // 4, 4), 1),
        }

    return tower_from(call, item=8)


@pytest.mark.parametrize(
    ("sizes", "parts"),
    [
        # The maximum of four numbers costs four.
        pytest.param(
            (252, 252),
            [
                ("trunk", ["item"], ["trunk_0"]),
                ("head-click", ["trunk_0"], ["click"]),
                ("head-like", ["trunk_0"], ["like"]),
            ],
            id="both are as large as pays",
        ),
        pytest.param(
            (252, 248),
            [("trunk", ["item"], ["trunk_0", "like"]), ("head-click", ["trunk_0"], ["click"])],
            id="one is smaller",
        ),
        pytest.param((248, 248), [], id="both are smaller"),
    ],
)
def test_split_tower_gives_an_output_its_own_part_where_that_saves_256_multiply_adds(
    sizes: tuple[int, int], parts: list[Any]
) -> None:
    tower = heads_tower(*sizes)
    split_result = split(tower)
    assert described(split_result) == [
        (name, "candidate", takes, gives) for name, takes, gives in parts
    ]
    assert split_result.notes == ()
    if parts:
        assert_parts_compute_the_tower(tower, 1)


@pytest.mark.parametrize(
    ("columns", "parts"),
    [(15, ["head-a", "head-b", "head-c"]), (16, ["trunk", "head-c"])],
)
def test_split_tower_computes_what_others_almost_give_after_them(
    columns: int, parts: list[str]
) -> None:
    """The third output needs only the first ones, and a layer of 16 columns by `columns`."""

    def call(inputs: Mapping[str, Any]) -> dict[str, Any]:
        first = inputs["item"] @ matrix(8, 64)
        second = inputs["item"] @ matrix(8, 48)
        pair = tf.concat([first, second], 1)[:, :16]
        return {"a": first, "b": second, "c": pair @ matrix(16, columns)}

    tower = tower_from(call, item=8)
    split_result = split(tower)
    assert [part.spec.name for part in split_result.parts] == parts
    assert_parts_compute_the_tower(tower, 1)


def test_split_tower_hands_outputs_of_the_context_over_by_their_names() -> None:
    def call(inputs: Mapping[str, Any]) -> dict[str, Any]:
        user = tf.nn.relu(inputs["user"] @ matrix(16, 32))
        similarity = tf.reduce_sum(user * inputs["item"], 1)
        return {"context_0": similarity, "loyal": tf.reduce_sum(user, 1), "user": user}

    tower = tower_from(call, user=16, item=32)
    split_result = split(tower)
    assert described(split_result) == [
        ("context", "context", ["user"], ["loyal", "user"]),
        ("candidate", "candidate", ["item", "user"], ["context_0"]),
    ]
    assert_parts_compute_the_tower(tower, 4)


def test_split_tower_names_what_it_hands_over_apart_from_the_outputs() -> None:
    def call(inputs: Mapping[str, Any]) -> dict[str, Any]:
        first = tf.nn.relu(inputs["user"] @ matrix(16, 32))
        second = tf.nn.relu(inputs["user"] @ matrix(16, 16))
        similarity = tf.reduce_sum(first[:, :8] * inputs["item"] * second[:, :8], 1)
        return {"context_0": similarity, "context_2": similarity * 2.0}

    tower = tower_from(call, user=16, item=8)
    (context, candidate) = split(tower).parts
    assert [output.name for output in context.spec.outputs] == ["context_1", "context_3"]
    assert [output.name for output in candidate.spec.outputs] == ["context_0", "context_2"]
    assert {output.dtype for output in context.spec.outputs} == {"float32"}
    assert_parts_compute_the_tower(tower, 4)


def test_split_tower_keeps_outputs_together_that_would_repeat_what_they_share() -> None:
    """What they share lies sideways, so that no tensor of it holds a row for each candidate."""

    def call(inputs: Mapping[str, Any]) -> dict[str, Any]:
        sideways = tf.nn.relu(matrix(64, 8) @ tf.transpose(inputs["item"]))
        kernels = [matrix(8, 64), matrix(7, 64)]
        sums = [tf.reduce_sum(tf.transpose(kernel @ sideways), 1) for kernel in kernels]
        user = tf.reduce_sum(inputs["user"] @ matrix(16, 16), 1)
        return {"click": sums[0] + user, "like": sums[1] + user}

    tower = tower_from(call, user=16, item=8)
    split_result = split(tower)
    assert described(split_result) == [
        ("context", "context", ["user"], ["context_0"]),
        ("candidate", "candidate", ["item", "context_0"], ["click", "like"]),
    ]
    assert split_result.notes == (
        "the outputs of tower 'tower' stay together: apart they would repeat the "
        "operations that they share, since no tensor between them holds a row for each candidate",
    )
    assert_parts_compute_the_tower(tower, 4)


def test_split_tower_that_mixes_contexts_notes_where() -> None:
    def call(inputs: Mapping[str, Any]) -> dict[str, Any]:
        user = tf.nn.relu(inputs["user"])
        mixed = tf.subtract(user, tf.reduce_mean(user, 0, keepdims=True, name="mean"))
        return {"score": tf.reduce_sum(mixed @ matrix(16, 16) * inputs["item"], 1)}

    split_result = split(tower_from(call, user=16, item=16))
    assert split_result == Split(
        notes=(
            "tower 'tower' has no context part: operation 'mean' (Mean) does not compute a "
            "separate row for each context",
        )
    )


def divided(call: Call, **inputs: int) -> bool:
    """Returns whether layers over both sides are divided, by what parts hand over."""
    tower = tower_from(call, **inputs)
    split_result = split(tower)
    if split_result.parts:
        assert_parts_compute_the_tower(tower, 4)
    return any(part.spec.per == "context" for part in split_result.parts)


def layer(inputs: Mapping[str, Any], *names: str) -> Any:
    joined = tf.concat([inputs[name] for name in names], 1)
    return joined @ matrix(joined.shape[1], 16)


@pytest.mark.parametrize(
    ("hidden", "expected"),
    [
        pytest.param(lambda inputs: layer(inputs, "user", "item"), True, id="two inputs"),
        pytest.param(
            lambda inputs: (
                tf.identity(tf.identity(tf.concat([inputs["user"], inputs["item"]], 1)))
                @ matrix(72, 16)
            ),
            True,
            id="a join that only passes on",
        ),
        pytest.param(
            lambda inputs: layer(inputs, "item", "user", "item", "user"), True, id="several of each"
        ),
        pytest.param(
            lambda inputs: (
                tf.concat([inputs["user"], inputs["item"]], 1)
                @ (matrix(72, 16) * inputs["item"][0, 0])
            ),
            False,
            id="weights that depend on an input",
        ),
        pytest.param(
            lambda inputs: tf.transpose(
                tf.matmul(
                    tf.transpose(matrix(72, 16)),
                    tf.concat([inputs["user"], inputs["item"]], 1),
                    transpose_b=True,
                )
            ),
            False,
            id="a layer on the other side",
        ),
        pytest.param(
            lambda inputs: (
                tf.nn.relu(tf.concat([inputs["user"], inputs["item"]], 1)) @ matrix(72, 16)
            ),
            False,
            id="something between",
        ),
        pytest.param(
            lambda inputs: tf.matmul(
                tf.stack([inputs["user"][:, :8], inputs["item"]], 1)[:, 0], matrix(8, 16)
            ),
            False,
            id="no join",
        ),
    ],
)
def test_split_tower_divides_layers_that_join_both_sides(
    hidden: Callable[[Mapping[str, Any]], Any], expected: bool
) -> None:
    def call(inputs: Mapping[str, Any]) -> dict[str, Any]:
        return {"score": (tf.nn.relu(hidden(inputs)) @ matrix(16, 1))[:, 0]}

    assert divided(call, user=64, item=8) is expected


def test_split_tower_divides_no_layer_over_the_context_alone() -> None:
    def call(inputs: Mapping[str, Any]) -> dict[str, Any]:
        user = tf.nn.relu(layer(inputs, "user", "age"))
        return {"score": tf.reduce_sum(user[:, :8] * inputs["item"], 1)}

    tower = tower_from(call, user=64, age=2, item=8)
    (context, candidate) = split(tower).parts
    types = [operation.type for operation in context.function.graph.get_operations()]
    assert types.count("MatMul") == 1
    assert [tensor.name for tensor in candidate.spec.inputs] == ["item", "context_0"]
    assert_parts_compute_the_tower(tower, 4)
