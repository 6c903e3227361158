from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from export.front_end.interface import TracedTower
from export.graphs.loading import load_tensorflow, tf
from export.towers.division import split_tower
from export.towers.packing import FEATURES_MAX, pack
from tests.units.export.ranking_parts import AGE, FEATURES, random_inputs, run, run_parts, traced
from tests.units.export.tensorflow_models.graph.traced_calls import ids, numbers, tower_of, trace
from tests.units.export.traced_models import IDS

load_tensorflow()

NAMES = [f"c{number}" for number in range(90)]


@pytest.fixture(scope="module")
def wide() -> TracedTower:
    return traced("build_wide", ["score"], {**dict.fromkeys(NAMES, IDS), "item": IDS, "age": AGE})


def test_pack_of_many_features_takes_one_tensor_in_the_order_that_joins_them(
    wide: TracedTower,
) -> None:
    packed = pack(wide)
    (only,) = packed.spec.inputs
    assert (only.name, only.shape) == ("packed_float32", (None, 183))
    assert only.features[:91] == (*reversed(NAMES), "age")
    joins = [
        operation
        for operation in packed.function.graph.get_operations()
        if operation.type == "ConcatV2"
    ]
    # The user's vector is joined with the item's; the long join is gone.
    assert [len(join.inputs) for join in joins] == [3]
    values = random_inputs(wide, 7)
    np.testing.assert_allclose(
        run(packed, values, 7)["score"], run(wide, values, 7)["score"], rtol=1e-6, atol=1e-6
    )


def test_pack_of_a_part_of_many_features_computes_the_part(wide: TracedTower) -> None:
    roles = {name: "candidate" if name == "item" else "context" for name in [*NAMES, "item", "age"]}
    parts = [pack(part) for part in split_tower(wide, roles).parts]  # type: ignore[arg-type]
    assert [[tensor.name for tensor in part.spec.inputs] for part in parts] == [
        ["packed_float32"],
        ["item", "context_0"],
    ]
    values = random_inputs(wide, 8)
    for name in [*NAMES, "age"]:
        values[name] = values[name][::4].repeat(4, axis=0)
    expected = run(wide, values, 8)["score"]
    np.testing.assert_allclose(
        run_parts(parts, values, 8, 4)["score"], expected, rtol=1e-5, atol=1e-5
    )


def test_pack_of_vectors_above_each_other_takes_them_as_one() -> None:
    names = [f"s{number}" for number in range(12)]
    tower = traced("build_stack", ["score"], {**dict.fromkeys(names, IDS), "age": AGE})
    packed = pack(tower)
    assert {*packed.spec.inputs[0].features} == {*names, "age"}
    values = random_inputs(tower, 7)
    np.testing.assert_allclose(
        run(packed, values, 7)["score"], run(tower, values, 7)["score"], rtol=1e-5, atol=1e-5
    )


def test_pack_of_few_features_leaves_them_separate() -> None:
    tower = traced("build_together", ["click", "like"], FEATURES)
    assert pack(tower).spec == tower.spec


MANY = [f"c{number}" for number in range(FEATURES_MAX + 1)]
WIDTHS = {name: 1 + position % 3 for position, name in enumerate(MANY)}
"""Nine features of one to three columns, 18 together."""
Call = Callable[[Mapping[str, Any]], Any]


def small(call: Call, **more_inputs: Any) -> TracedTower:
    """Returns a tower over the nine features and others, whose output is what `call` returns."""
    inputs = {name: numbers(width) for name, width in WIDTHS.items()}
    return tower_of(trace(lambda inputs: {"score": call(inputs)}, **inputs, **more_inputs))


def assert_same(packed: TracedTower, tower: TracedTower) -> None:
    values = random_inputs(tower, 7)
    result = run(packed, values, 7)["score"]
    np.testing.assert_allclose(result, run(tower, values, 7)["score"], rtol=1e-6, atol=1e-6)


def joins_of(tower: TracedTower) -> list[int]:
    """Returns the number of tensors that each concatenation joins."""
    operations = tower.function.graph.get_operations()
    return [len(operation.inputs) - 1 for operation in operations if operation.type == "ConcatV2"]


def in_order(names: list[str]) -> Call:
    return lambda inputs: tf.concat([inputs[name] for name in names], 1)


def test_pack_begins_with_the_ninth_feature_of_a_dtype() -> None:
    eight = tower_of(
        trace(
            lambda inputs: {"score": tf.concat(list(inputs.values()), 1)},
            **{name: numbers(2) for name in MANY[:FEATURES_MAX]},
        )
    )
    assert pack(eight) is eight
    nine = small(in_order(MANY))
    packed = pack(nine)
    (only,) = packed.spec.inputs
    assert (only.name, only.dtype, only.shape) == ("packed_float32", "float32", (None, 18))
    assert only.features == tuple(MANY)
    assert joins_of(packed) == []
    assert_same(packed, nine)


def test_pack_counts_each_dtype_by_itself() -> None:
    integers = {f"i{number}": ids() for number in range(2)}
    tower = small(
        lambda inputs: in_order(MANY)(inputs) + tf.cast(inputs["i1"], "float32")[:, None],
        **integers,
    )
    packed = pack(tower)
    assert [tensor.name for tensor in packed.spec.inputs] == ["packed_float32", "i0", "i1"]
    assert_same(packed, tower)


def test_pack_of_two_dtypes_makes_two_tensors() -> None:
    integers = {f"i{number}": ids(2) for number in range(9)}

    def call(inputs: Mapping[str, Any]) -> Any:
        return in_order(MANY)(inputs) * tf.cast(
            tf.add_n([inputs[name] for name in integers])[:, :1], "float32"
        )

    tower = small(call, **integers)
    packed = pack(tower)
    assert [(tensor.name, tensor.shape) for tensor in packed.spec.inputs] == [
        ("packed_float32", (None, 18)),
        ("packed_int64", (None, 18)),
    ]
    assert_same(packed, tower)


@pytest.mark.parametrize(
    "separate_input",
    [numbers(2, 3), tf.TensorSpec([None, None], tf.float32)],
    ids=["a sequence", "an open width"],
)
def test_pack_leaves_inputs_apart_that_are_no_rows_of_a_known_width(separate_input: Any) -> None:
    def call(inputs: Mapping[str, Any]) -> Any:
        flat = tf.reshape(inputs["other"], [tf.shape(inputs["other"])[0], -1])
        return in_order(MANY)(inputs) + tf.reduce_sum(flat, 1, keepdims=True)

    tower = small(call, other=separate_input)
    packed = pack(tower)
    assert [tensor.name for tensor in packed.spec.inputs] == ["packed_float32", "other"]
    assert packed.spec.inputs[1].feature == "other"


def test_pack_takes_no_name_that_an_input_has() -> None:
    sequence = numbers(2, 3)
    tower = small(
        lambda inputs: in_order(MANY)(inputs) + inputs["packed_float32"][:, 0, :1],
        packed_float32=sequence,
    )
    packed = pack(tower)
    assert [tensor.name for tensor in packed.spec.inputs] == ["packed_float32_", "packed_float32"]
    assert_same(packed, tower)


SWAPPED = [MANY[1], MANY[0], *MANY[2:]]
TURNED = MANY[::-1]


@pytest.mark.parametrize(
    ("call", "features", "joins"),
    [
        pytest.param(in_order(TURNED), TURNED, [], id="the whole join"),
        pytest.param(
            lambda inputs: in_order(TURNED)({**inputs, "c4": -inputs["c4"]}),
            [*TURNED[:4], *MANY[:5]],
            [6],
            id="the first of two runs of one length",
        ),
        pytest.param(
            lambda inputs: in_order(TURNED)({**inputs, "c6": -inputs["c6"]}),
            [*TURNED[3:], "c6", "c7", "c8"],
            [4],
            id="the longer run at the end",
        ),
        pytest.param(
            lambda inputs: in_order(TURNED)({**inputs, "c0": -inputs["c0"]}),
            TURNED,
            [2],
            id="all but the last",
        ),
        pytest.param(
            lambda inputs: in_order(TURNED)({**inputs, "c1": -inputs["c1"]}),
            [*TURNED[:7], "c0", "c1"],
            [3],
            id="the longer run at the start",
        ),
        pytest.param(
            lambda inputs: tf.concat(
                [
                    in_order(MANY[:2])(inputs),
                    in_order(TURNED[:5])(inputs),
                    inputs["c2"],
                    inputs["c3"],
                ],
                1,
            ),
            [*TURNED[:5], *MANY[:4]],
            [2, 4],
            id="the longer of two joins",
        ),
        pytest.param(
            lambda inputs: (
                tf.concat([inputs["c1"], inputs["c0"], inputs["c1"]], 1)
                + tf.add_n([inputs[name][:, :1] for name in MANY])
            ),
            MANY,
            [3],
            id="a run with one feature twice",
        ),
        pytest.param(
            lambda inputs: (
                tf.concat([inputs["c4"], inputs["c1"]], -1)
                + tf.add_n([inputs[name][:, :1] for name in MANY])
            ),
            ["c4", "c1", "c0", "c2", "c3", *MANY[5:]],
            [],
            id="a join of the last axis",
        ),
        pytest.param(
            lambda inputs: (
                tf.concat([inputs["c4"], inputs["c1"]], 0)[: tf.shape(inputs["c1"])[0]]
                + tf.add_n([inputs[name][:, :1] for name in MANY])
            ),
            MANY,
            [2],
            id="a join of batches",
        ),
        pytest.param(
            lambda inputs: (
                tf.concat([inputs["c4"][:, :, None], inputs["c1"][:, :, None]], 1)[:, :, 0]
                + tf.add_n([inputs[name][:, :1] for name in MANY])
            ),
            MANY,
            [2],
            id="a join of three axes",
        ),
        pytest.param(
            lambda inputs: in_order(TURNED)(inputs)[:, :1] + inputs["c3"],
            TURNED,
            [],
            id="a feature that is also read alone",
        ),
    ],
)
def test_pack_orders_features_as_the_longest_run_joins_them(
    call: Call, features: list[str], joins: list[int]
) -> None:
    tower = small(call)
    packed = pack(tower)
    (only,) = packed.spec.inputs
    assert list(only.features) == features
    assert joins_of(packed) == joins
    assert_same(packed, tower)


@pytest.mark.parametrize(
    ("column", "is_slice"),
    [
        pytest.param(lambda age: age[:, tf.newaxis], True, id="a new axis by a slice"),
        pytest.param(lambda age: tf.expand_dims(age, 1), True, id="a new axis"),
        pytest.param(lambda age: tf.reshape(age, [-1, 1]), True, id="another shape"),
        pytest.param(lambda age: tf.expand_dims(age, 1) * 2.0, False, id="a product"),
        pytest.param(lambda age: tf.expand_dims(age[::2], 1), False, id="every second one"),
        pytest.param(lambda age: age[::-1, tf.newaxis], False, id="the other way round"),
        pytest.param(lambda age: age[:4, tf.newaxis], False, id="the first ones"),
        pytest.param(lambda age: age[1:, tf.newaxis], False, id="all but the first"),
        pytest.param(
            lambda age: tf.cast(tf.cast(age, "float16"), "float32")[:, None], False, id="rounded"
        ),
    ],
)
def test_pack_sees_numbers_as_columns_where_they_only_got_an_axis(
    column: Callable[[Any], Any], is_slice: bool
) -> None:
    names = [f"n{number}" for number in range(9)]

    def call(inputs: Mapping[str, Any]) -> Any:
        joined = tf.concat([column(inputs[name]) for name in names[::-1]], 1)
        return tf.reduce_sum(joined * tf.range(9.0), 1)

    traced_call = trace(lambda inputs: {"score": call(inputs)}, **dict.fromkeys(names, numbers()))
    tower = tower_of(traced_call)
    packed = pack(tower)
    (only,) = packed.spec.inputs
    assert only.shape == (None, 9)
    assert list(only.features) == (names[::-1] if is_slice else names)
    assert joins_of(packed) == ([] if is_slice else [9])
    values = random_inputs(tower, 8)
    result = run(packed, values, 8)["score"]
    np.testing.assert_allclose(result, run(tower, values, 8)["score"], rtol=1e-6, atol=1e-6)


def test_pack_leaves_values_apart_that_are_read_with_other_sizes() -> None:
    """Two columns of one example are one column of two."""

    def call(inputs: Mapping[str, Any]) -> Any:
        turned = tf.reshape(inputs["c1"], [-1, 1])
        return tf.concat([turned, tf.reshape(inputs["c4"], [-1, 1])], 1)[
            : tf.shape(inputs["c0"])[0]
        ] + tf.add_n([inputs[name][:, :1] for name in MANY])

    tower = small(call)
    packed = pack(tower)
    assert list(packed.spec.inputs[0].features) == MANY
    assert_same(packed, tower)
