"""Which encodings of ids a service computes, and which stay in the tower."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from export.graphs.loading import tf
from export.tensorflow_models.frameworks.hooks import Hooks
from export.tensorflow_models.lookups.encodings import intercept_encodings
from export.tensorflow_models.lookups.feature_columns import WIDTH_MAX
from export.tensorflow_models.lookups.records import Lookup
from tests.export.tensorflow_models.graph.traced_calls import ids, numbers, texts, trace

Call = Callable[[Any], Any]
COLORS = ["red", "blue"]


def computed_by_the_service(call: Call) -> list[Lookup]:
    """Returns the lookups that replace encodings in a function of inputs."""
    taken: list[Lookup] = []

    def answer(lookup: Lookup) -> Any:
        taken.append(lookup)
        return tf.compat.v1.placeholder(tf.float32, lookup.shape)

    inputs = {"item": ids(), "pair": ids(2), "city": texts(), "age": numbers()}
    with Hooks() as hooks:
        intercept_encodings(hooks, answer)
        trace(lambda features: {"encoded": call(features)}, **inputs)
    return taken


def one_hot(depth: int, **how: Any) -> Any:
    return tf.keras.layers.CategoryEncoding(depth, output_mode="one_hot", **how)


def multi_hot(depth: int) -> Any:
    return tf.keras.layers.CategoryEncoding(depth, output_mode="multi_hot")


def crossed(features: Any) -> Any:
    layer = tf.keras.layers.HashedCrossing(30, output_mode="one_hot")
    return layer((features["city"], features["item"]))


@pytest.mark.parametrize(
    ("call", "rows", "kind"),
    [
        pytest.param(crossed, 30, "single", id="cross"),
        pytest.param(lambda features: one_hot(9)(features["item"] % 9), 9, "single", id="rule"),
        pytest.param(
            lambda features: tf.keras.layers.StringLookup(vocabulary=COLORS, output_mode="one_hot")(
                features["city"]
            ),
            3,
            "single",
            id="strings",
        ),
        pytest.param(lambda features: multi_hot(7)(features["pair"]), 7, "bag", id="several"),
        pytest.param(
            lambda features: one_hot(9)(features["pair"][:, 1] % 9), 9, "single", id="one of two"
        ),
        pytest.param(
            lambda features: one_hot(WIDTH_MAX)(features["item"] % 9),
            WIDTH_MAX,
            "single",
            id="as wide as possible",
        ),
    ],
)
def test_encoding_of_ids_that_a_rule_describes_is_left_to_the_service(
    call: Call, rows: int, kind: str
) -> None:
    (lookup,) = computed_by_the_service(call)
    assert (lookup.table.rows, lookup.table.dim, lookup.kind) == (rows, rows, kind)


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(lambda features: one_hot(9)(features["item"] ** 2 % 9), id="no rule"),
        pytest.param(lambda features: multi_hot(9)(features["pair"] ** 2 % 9), id="no rule of two"),
        pytest.param(lambda features: one_hot(9)(features["item"]), id="one plain integer"),
        pytest.param(
            lambda features: one_hot(9, sparse=True)(features["item"] % 9), id="sparse result"
        ),
        pytest.param(lambda features: one_hot(WIDTH_MAX + 1)(features["item"] % 9), id="too wide"),
    ],
)
def test_encoding_that_no_rule_describes_or_a_tower_can_compute_stays(call: Call) -> None:
    assert computed_by_the_service(call) == []
