"""`tf.squeeze` without axes: a model is traced with an open batch, and called with one of 1."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from export.graphs.loading import tf
from export.tensorflow_models.frameworks.hooks import Hooks
from export.tensorflow_models.frameworks.squeezes import keep_batches


@pytest.mark.parametrize(
    ("declared", "shape", "arguments", "squeezed"),
    [
        pytest.param([None, 1], [1, 1], {}, [1], id="an axis behind the batch"),
        pytest.param([None, 1, 3, 1], [1, 1, 3, 1], {}, [1, 3], id="several axes"),
        pytest.param([None, 3], [1, 3], {}, [1, 3], id="no axis of one"),
        pytest.param([None], [1], {}, [1], id="the batch alone"),
        pytest.param([None, None], [1, 1], {}, [], id="another open axis"),
        pytest.param([1, 3], [1, 3], {}, [3], id="a fixed batch"),
        pytest.param([], [], {}, [], id="a scalar"),
        pytest.param(None, [1, 3], {}, [3], id="any number of axes"),
        pytest.param([None, 1, 1], [1, 1, 1], {"axis": [1]}, [1, 1], id="a stated axis"),
    ],
)
def test_squeeze_without_axes_keeps_an_open_batch_of_one(
    declared: list[int | None] | None,
    shape: list[int],
    arguments: dict[str, Any],
    squeezed: list[int],
) -> None:
    values = np.arange(np.prod(shape, dtype=int), dtype=np.float32).reshape(shape)
    with Hooks() as hooks:
        keep_batches(hooks)
        function = tf.compat.v1.wrap_function(
            lambda x: tf.squeeze(x, **arguments), [tf.TensorSpec(declared, tf.float32)]
        )
    result = function(tf.constant(values)).numpy()
    np.testing.assert_array_equal(result, values.reshape(squeezed), strict=True)
