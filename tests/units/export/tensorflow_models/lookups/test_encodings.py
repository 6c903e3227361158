"""Which encodings of ids a service computes, and which stay in the tower."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from export.graphs.loading import tf
from export.tensorflow_models.lookups.feature_columns import WIDTH_MAX
from export.tensorflow_models.lookups.interception import lookups_intercepted
from export.tensorflow_models.lookups.records import TracedLookup
from tests.units.export.tensorflow_models.graph.traced_calls import ids, numbers, texts
from tests.units.export.tensorflow_models.lookups.interceptions import Intercepted, intercept

Call = Callable[[Any], Any]
COLORS = ["red", "blue"]


INPUTS = {
    "item": ids(),
    "one": ids(1),
    "nested": ids(1, 1),
    "pair": ids(2),
    "city": texts(),
    "age": numbers(),
    "tags": tf.RaggedTensorSpec([None, None], tf.string, ragged_rank=1),
    "words": tf.SparseTensorSpec([None, None], tf.string),
}


def encoded(call: Call) -> Intercepted:
    """Intercepts the encodings in a function of inputs."""
    return intercept(lambda _, features: call(features), **INPUTS)


def computed_by_the_service(call: Call) -> list[TracedLookup]:
    """Returns the lookups that replace encodings in a function of inputs."""
    return encoded(call).combined


def one_hot(depth: int, **options: Any) -> Any:
    return tf.keras.layers.CategoryEncoding(depth, output_mode="one_hot", **options)


def multi_hot(depth: int) -> Any:
    return tf.keras.layers.CategoryEncoding(depth, output_mode="multi_hot")


def count(depth: int) -> Any:
    return tf.keras.layers.CategoryEncoding(depth, output_mode="count")


def colors(mode: str) -> Any:
    return tf.keras.layers.StringLookup(vocabulary=COLORS, output_mode=mode)


def inside_a_function(call: Call) -> Call:
    return tf.function(call, autograph=False)  # type: ignore[no-any-return]


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
        pytest.param(lambda features: count(7)(features["pair"]), 7, "bag", id="counted"),
        pytest.param(
            lambda features: count(9)(features["one"] % 9), 9, "single", id="counted alone"
        ),
        pytest.param(
            lambda features: one_hot(9)(tf.cast(features["item"] % 9, tf.float32)),
            9,
            "single",
            id="rule as floats",
        ),
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
        pytest.param(lambda features: multi_hot(9)(features["item"] % 9), id="batch as one bag"),
        pytest.param(lambda features: one_hot(9)(features["age"]), id="floats"),
        pytest.param(
            lambda features: one_hot(9)(tf.cast(features["age"], tf.float64)), id="other floats"
        ),
        pytest.param(lambda features: colors("multi_hot")(features["tags"]), id="ragged strings"),
        pytest.param(lambda features: colors("multi_hot")(features["words"]), id="sparse strings"),
        pytest.param(
            inside_a_function(lambda features: one_hot(9)(features["item"] % 9)),
            id="inside a function of TensorFlow",
        ),
    ],
)
def test_encoding_that_no_rule_describes_or_a_tower_can_compute_stays(call: Call) -> None:
    assert computed_by_the_service(call) == []


def test_words_of_texts_are_counted_by_the_service() -> None:
    layer = tf.keras.layers.TextVectorization(vocabulary=COLORS, output_mode="count")
    (lookup,) = computed_by_the_service(lambda features: layer(features["city"]))
    assert (lookup.table.rows, lookup.kind, lookup.encoding) == (3, "bag", "ragged")
    assert lookup.combiner == "sum"
    assert isinstance(lookup.ids[0], tf.RaggedTensor)


@pytest.mark.parametrize(
    ("call", "counts", "result"),
    [
        pytest.param(
            lambda features: multi_hot(3)(features["pair"]), [0, 2, 1], [0, 1, 1], id="multi_hot"
        ),
        pytest.param(lambda features: count(3)(features["pair"]), [0, 2, 1], [0, 2, 1], id="count"),
    ],
)
def test_tower_makes_the_encoding_of_the_counts_of_ids(
    call: Call, counts: list[float], result: list[float]
) -> None:
    np.testing.assert_array_equal(encoded(call).run([counts]), [result])


def test_tower_weighs_the_counts_of_words() -> None:
    layer = tf.keras.layers.TextVectorization(
        vocabulary=COLORS, idf_weights=[0.5, 2.0], output_mode="tf_idf"
    )
    intercepted = encoded(lambda features: layer(features["city"]))
    # A word that is not in the vocabulary has the mean weight, 1.25.
    np.testing.assert_array_equal(intercepted.run([[2, 1, 3]]), [[2.5, 0.5, 6]])


@pytest.mark.parametrize("call", [one_hot, multi_hot])
def test_encoding_of_one_id_is_what_the_service_returns(call: Any) -> None:
    intercepted = encoded(lambda features: call(9)(features["one"] % 9))
    assert "Minimum" not in intercepted.operations
    assert intercepted.run([[0, 0, 1, 0, 0, 0, 0, 0, 0]]).tolist() == [[0, 0, 1, 0, 0, 0, 0, 0, 0]]


def test_encoding_has_the_type_of_its_layer() -> None:
    intercepted = encoded(lambda features: one_hot(9, dtype="float16")(features["item"] % 9))
    assert intercepted.result.dtype == tf.float16


@pytest.mark.parametrize("name", ["pair", "nested"])
def test_encoding_that_keras_rejects_is_rejected(name: str) -> None:
    with pytest.raises(ValueError, match="maximum supported output rank is 2"):
        encoded(lambda features: one_hot(9)(features[name] % 9))


def test_encoding_of_a_model_that_is_called_while_it_is_built_is_that_of_keras() -> None:
    with lookups_intercepted(lambda _: None, lambda _: None, lambda _: None):
        intercepted = multi_hot(3)(tf.constant([[1, 1], [0, 2]]))
    np.testing.assert_array_equal(intercepted, [[0, 1, 0], [1, 0, 1]])
