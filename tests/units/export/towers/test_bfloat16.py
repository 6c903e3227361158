"""Which products of a tower are computed in bfloat16."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
import pytest

from export.front_end.interface import TracedTower
from export.graphs.loading import load_tensorflow, tf
from export.towers.bfloat16 import in_bfloat16
from tests.units.export.ranking_parts import random_inputs, run
from tests.units.export.tensorflow_models.graph.traced_calls import numbers, tower_of, trace

load_tensorflow()
KERNEL = np.random.default_rng(3).standard_normal((3, 3)).astype(np.float32)
"""Square, so that turning it around is no error of shapes."""
Call = Callable[[Mapping[str, Any]], Any]


def small(call: Call) -> TracedTower:
    traced = trace(lambda inputs: {"score": call(inputs)}, user=numbers(3), rows=numbers(3, 3))
    return tower_of(traced)


def products(tower: TracedTower) -> list[str]:
    """Returns the dtypes of the products of a tower."""
    operations = tower.function.graph.get_operations()
    return [
        operation.outputs[0].dtype.name for operation in operations if "MatMul" in operation.type
    ]


@pytest.mark.parametrize(
    "call",
    [
        pytest.param(lambda inputs: inputs["user"] @ KERNEL, id="product"),
        pytest.param(
            lambda inputs: tf.matmul(inputs["user"], KERNEL, transpose_b=True), id="turned weights"
        ),
        pytest.param(
            lambda inputs: tf.matmul(inputs["rows"][0], KERNEL, transpose_a=True),
            id="turned values",
        ),
        pytest.param(lambda inputs: inputs["rows"] @ inputs["rows"], id="products of batches"),
        pytest.param(
            lambda inputs: tf.matmul(inputs["rows"], inputs["rows"], transpose_a=True),
            id="turned batches on the left",
        ),
        pytest.param(
            lambda inputs: tf.matmul(inputs["rows"], inputs["rows"], transpose_b=True),
            id="turned batches on the right",
        ),
    ],
)
def test_products_of_float32_are_near_in_bfloat16(call: Call) -> None:
    tower = small(call)
    half = in_bfloat16(tower)
    assert products(half) == ["bfloat16"]
    values = random_inputs(tower, 4)
    whole = run(tower, values, 4)["score"]
    near = run(half, values, 4)["score"]
    assert near.dtype == np.float32
    assert 0 < np.abs(near - whole).max() < 0.05 * np.abs(whole).max()


def test_products_of_other_dtypes_stay_as_they_are() -> None:
    def call(inputs: Mapping[str, Any]) -> Any:
        double = tf.cast(inputs["user"], "float64") @ tf.constant(KERNEL, tf.float64)
        return tf.cast(double, "float32") + tf.nn.relu(inputs["user"] @ KERNEL)

    tower = small(call)
    assert sorted(products(in_bfloat16(tower))) == ["bfloat16", "float64"]
