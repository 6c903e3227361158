from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from export.front_end.specs import TableFacts
from export.graphs.loading import tf
from export.tensorflow_models.lookups.records import TracedLookup
from export.tensorflow_models.model.multi_valued_ids import by_example, columns_of, flattened_from
from tests.units.export.tensorflow_models.graph.traced_calls import ids, trace


@pytest.mark.parametrize(
    ("flattened", "size"),
    [
        pytest.param(lambda features: tf.reshape(features["pair"], [-1]), 2, id="two"),
        pytest.param(lambda features: tf.reshape(features["pair"] % 9, [-1]) + 1, 2, id="computed"),
        pytest.param(
            lambda features: tf.reshape(tf.reshape(features["pair"], [-1]) % 9, [-1]), 2, id="twice"
        ),
        pytest.param(lambda features: tf.reshape(features["table"], [-1]), 6, id="a matrix"),
        pytest.param(lambda features: tf.reshape(features["one"], [-1]), 1, id="one"),
        pytest.param(lambda features: features["pair"][:, 0], 1, id="without a reshape"),
        pytest.param(lambda features: tf.reshape(features["open"], [-1]), 1, id="of any length"),
    ],
)
def test_flattened_ids_had_as_many_values_per_example_as_their_input(
    flattened: Callable[[Any], Any], size: int
) -> None:
    traced = trace(
        lambda features: {"ids": flattened(features)},
        one=ids(),
        pair=ids(2),
        table=ids(2, 3),
        open=tf.TensorSpec([None, None], tf.int64),
    )
    assert flattened_from(traced.results["ids"]) == size


Change = Callable[[TracedLookup], list[TracedLookup]]


def changed(
    change: Change, shape: list[int | None], rows: list[Any]
) -> tuple[list[TracedLookup], Any]:
    """Returns what lookups replace one with an activation of a shape, and what it then gives.

    Args:
      change: Replaces a lookup.
      shape: Of its activation.
      rows: What each of the new lookups gives.
    """
    changed_lookups: list[TracedLookup] = []

    def call(features: Any) -> dict[str, Any]:
        activation = tf.compat.v1.placeholder(tf.float32, shape)
        table = TableFacts("items", "items", 9, 2)
        changed_lookups.append(
            TracedLookup("looked", table, None, (features["pair"],), activation=activation)
        )
        return {"rows": activation * 1.0}

    traced = trace(call, pair=ids(2))
    lookups = change(changed_lookups[0])
    function = traced.function.prune([lookup.activation for lookup in lookups], traced.results)
    (rows_of_batch,) = function(*map(tf.constant, rows)).values()
    return lookups, rows_of_batch.numpy().tolist()


A = [1.0, 10.0]
B = [2.0, 20.0]
C = [3.0, 30.0]
D = [4.0, 40.0]


def test_lookup_of_flattened_ids_becomes_a_sequence_of_each_example() -> None:
    (lookup,), result = changed(
        lambda lookup_of_batch: [by_example(lookup_of_batch, 2)], [None, 2], [[[A, B], [C, D]]]
    )
    assert result == [A, B, C, D]
    assert (lookup.kind, lookup.length) == ("sequence", 2)
    assert lookup.activation.shape.as_list() == [None, 2, 2]


@pytest.mark.parametrize(
    ("shape", "rows"),
    [([None, 2, 2], [[A, B], [C, D]]), ([None, 2], [A, B, C, D])],
    ids=["a sequence", "flattened"],
)
def test_lookup_of_several_ids_becomes_one_of_each_position(
    shape: list[int | None], rows: Any
) -> None:
    lookups, result = changed(
        lambda lookup_of_batch: columns_of(lookup_of_batch, 2), shape, [[A, C], [B, D]]
    )
    assert result == rows
    assert [(lookup.kind, lookup.length) for lookup in lookups] == [("single", None)] * 2
