from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from export.graphs.loading import tf
from export.tensorflow_models.model.multi_valued_ids import flattened_from
from tests.export.tensorflow_models.graph.traced_calls import ids, trace


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
    ],
)
def test_flattened_ids_had_as_many_values_per_example_as_their_input(
    flattened: Callable[[Any], Any], size: int
) -> None:
    traced = trace(
        lambda features: {"ids": flattened(features)}, one=ids(), pair=ids(2), table=ids(2, 3)
    )
    assert flattened_from(traced.results["ids"]) == size
