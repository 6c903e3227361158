"""Rows that a tower looks up itself."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from bundle.format.manifest import Unknown
from export.front_end.outside_ids import OutsideIds
from export.graphs.loading import tf
from export.tensorflow_models.frameworks.placeholders import tables_unallocated
from export.tensorflow_models.lookups.records import TracedLookup, of_table
from export.tensorflow_models.model.inline_lookups import insert_lookups, look_up
from tests.id_graphs import computed_ids
from tests.units.export.tensorflow_models.graph.traced_calls import ids, trace

ROWS = [[1.0, 10.0], [2.0, 20.0], [3.0, 30.0], [4.0, 40.0]]
FIFTH = computed_ids(("FloorMod", 5))
EMPTY = [0.0, 0.0]


def table(rows: list[list[float]] = ROWS, **attributes: Any) -> Any:
    """Returns a variable that may stay inside a tower, with values."""
    with tables_unallocated():
        variable = tf.Variable(tf.zeros([len(rows), 2]))
    variable.assign(rows)
    for name, value in attributes.items():
        setattr(variable, name, value)
    return variable


def activations(ids: Any, variable: Any = None, **fields: Any) -> Any:
    """Returns what a lookup of these ids gives."""
    result = look_up(of_table(table() if variable is None else variable, ids, **fields))
    assert result.dtype == tf.float32
    return result.numpy().tolist()


@pytest.mark.parametrize("dtype", [tf.int32, tf.int64])
@pytest.mark.parametrize(
    ("fields", "ids", "rows"),
    [
        pytest.param({}, [3, 0], [ROWS[3], ROWS[0]], id="plain"),
        pytest.param(
            {}, [[3, 0], [1, 1]], [[ROWS[3], ROWS[0]], [ROWS[1], ROWS[1]]], id="several ids"
        ),
        pytest.param({"padding": 2}, [2, 3, -1, 0], [EMPTY, ROWS[3], EMPTY, ROWS[0]], id="padding"),
        pytest.param(
            {"unknown": Unknown(rule="row", row=1)},
            [4, 3, -1, 0],
            [ROWS[1], ROWS[3], ROWS[1], ROWS[0]],
            id="row of unknown ids",
        ),
        pytest.param({"unknown": Unknown()}, [3, -1, 0], [ROWS[3], EMPTY, ROWS[0]], id="zeros"),
        pytest.param({"rule": FIFTH}, [8, 5], [ROWS[3], ROWS[0]], id="rule"),
        pytest.param(
            {"rule": FIFTH, "padding": 7}, [8, 7], [ROWS[3], EMPTY], id="padding before a rule"
        ),
    ],
)
def test_dense_ids_read_a_row_each(dtype: Any, fields: dict[str, Any], ids: Any, rows: Any) -> None:
    assert activations(tf.constant(ids, dtype), **fields) == rows


def test_negative_ids_are_rows_from_the_end_where_the_layer_takes_them_so() -> None:
    ids = tf.constant([-1, 0, 1, -4])
    assert activations(ids, table(outside=OutsideIds(from_end=True))) == [
        ROWS[3],
        ROWS[0],
        ROWS[1],
        ROWS[0],
    ]


def test_rows_of_half_precision_become_float32() -> None:
    with tables_unallocated():
        variable = tf.Variable(tf.zeros([2, 2], tf.bfloat16))
    variable.assign(tf.constant([[1.0, 2.0], [3.0, 4.0]], tf.bfloat16))
    assert activations(tf.constant([1]), variable) == [[3.0, 4.0]]


def test_ragged_sequence_is_cut_or_filled_with_zeros() -> None:
    ids = tf.ragged.constant([[0, 1, 2], [3], []], dtype=tf.int64)
    rows = activations(ids, kind="sequence", encoding="ragged", length=2)
    assert rows == [[ROWS[0], ROWS[1]], [ROWS[3], EMPTY], [EMPTY, EMPTY]]


BAGS = tf.ragged.constant([[0, 1], [], [2], []], dtype=tf.int64)
WEIGHTS = BAGS.with_values(tf.constant([2.0, 1.0, 4.0]))


def bag(ids: Any = BAGS, variable: Any = None, **fields: Any) -> Any:
    return activations(ids, variable, **{"kind": "bag", "encoding": "ragged", **fields})


@pytest.mark.parametrize(
    ("combiner", "weights", "first", "third"),
    [
        ("sum", None, 3.0, 3.0),
        ("mean", None, 1.5, 3.0),
        ("sqrtn", None, 3.0 / math.sqrt(2), 3.0),
        ("sum", WEIGHTS, 4.0, 12.0),
        ("mean", WEIGHTS, 4.0 / 3, 3.0),
        ("sqrtn", WEIGHTS, 4.0 / math.sqrt(5), 3.0),
        # The ragged lookup prunes nothing: three times row 0 less row 1.
        ("mean", BAGS.with_values(tf.constant([3.0, -1.0, 4.0])), 0.5, 3.0),
    ],
)
@pytest.mark.parametrize("sparse", [False, True])
def test_bag_is_combined_for_every_example(
    combiner: Any, weights: Any, first: float, third: float, sparse: bool
) -> None:
    ids = BAGS.to_sparse() if sparse else BAGS
    weights = weights.to_sparse() if sparse and weights is not None else weights
    rows = bag(ids, combiner=combiner, weights=weights)
    expected = [[first, 10 * first], EMPTY, [third, 10 * third], EMPTY]
    np.testing.assert_allclose(rows, expected, rtol=1e-6)


@pytest.mark.parametrize(
    ("fields", "rows"),
    [
        pytest.param({"combiner": "sum"}, [[5.0, 50.0], EMPTY], id="negative ids"),
        pytest.param(
            {"combiner": "sum", "padding": 1}, [[3.0, 30.0], EMPTY], id="negative ids and padding"
        ),
        pytest.param(
            {"combiner": "sum", "empty_row": 3}, [[5.0, 50.0], ROWS[3]], id="row of empty bags"
        ),
        pytest.param(
            {"combiner": "mean", "weights": [3.0, 1.0, -1.0]}, [ROWS[1], EMPTY], id="mean"
        ),
        pytest.param(
            {"combiner": "sum", "weights": [3.0, 1.0, -1.0]}, [[-1.0, -10.0], EMPTY], id="sum"
        ),
        pytest.param(
            {"combiner": "mean", "weights": [3.0, 0.0, -1.0], "empty_row": 3},
            [ROWS[3], ROWS[3]],
            id="no weight",
        ),
        pytest.param(
            {"combiner": "sum", "weights": [3.0, 0.0, 0.0], "empty_row": 3},
            [EMPTY, ROWS[3]],
            id="weights of zero in a sum",
        ),
    ],
)
@pytest.mark.parametrize("encoding", ["dense", "sparse"])
def test_bag_that_is_not_ragged_leaves_ids_out(
    fields: dict[str, Any], rows: Any, encoding: str
) -> None:
    ids = tf.constant([[-1, 1, 2], [-1, -1, -1]], tf.int64)
    if "weights" in fields:
        weights = tf.constant([fields["weights"], [9.0, 9.0, 9.0]])
        fields = {**fields, "weights": tf.reshape(weights, [-1])}
    if encoding == "sparse":
        indices = tf.constant([[0, 0], [0, 1], [0, 2], [1, 0], [1, 1], [1, 2]], tf.int64)
        ids = tf.SparseTensor(indices, tf.reshape(ids, [-1]), [2, 3])
    assert bag(ids, encoding=encoding, **fields) == rows


def test_empty_ragged_bag_reads_its_row() -> None:
    rows = bag(combiner="mean", empty_row=1)
    assert rows == [[1.5, 15.0], ROWS[1], ROWS[2], ROWS[1]]


def test_rows_of_a_bag_are_no_longer_than_its_norm() -> None:
    long_and_short = table([[3.0, 4.0], [0.3, 0.4]])
    ids = tf.ragged.constant([[0, 1], [1], []], dtype=tf.int64)
    rows = bag(ids, long_and_short, combiner="sum", max_norm=1.0, empty_row=0)
    np.testing.assert_allclose(rows, [[0.9, 1.2], [0.3, 0.4], [0.6, 0.8]], rtol=1e-6)


def test_lookups_replace_their_placeholders_in_a_graph() -> None:
    items = table()
    lookups: list[TracedLookup] = []

    def call(features: Any) -> dict[str, Any]:
        for name in ("one", "other"):
            activation = tf.compat.v1.placeholder(tf.float32, [None, 2])
            length = {"length": 1} if name == "one" else {}
            lookups.append(of_table(items, features[name], activation=activation, **length))
        first_activation, second_activation = (lookup.activation for lookup in lookups)
        return {"sum": first_activation + second_activation}

    traced = trace(call, one=ids(1), other=ids())
    graph = traced.function.graph
    insert_lookups(lookups, graph)
    assert [variable is items for variable in graph.variables] == [True]
    feeds = [traced.inputs["one"], traced.inputs["other"]]
    function = traced.function.prune(feeds, traced.results)
    (summed,) = function(tf.constant([[1], [0]], tf.int64), tf.constant([3, 0], tf.int64)).values()
    assert summed.numpy().tolist() == [[6.0, 60.0], [2.0, 20.0]]
