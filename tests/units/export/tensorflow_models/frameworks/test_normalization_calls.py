"""Calls of Normalization layers: with the values of their variables, or with adapted copies."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from export.graphs.loading import tf
from export.tensorflow_models.frameworks.hooks import Hooks
from export.tensorflow_models.frameworks.normalizations import restore_normalizations


def normalized(layer: Any, *, keep_adapted: bool) -> float:
    """Returns what a traced call of a layer makes of 10."""
    with Hooks() as hooks:
        restore_normalizations(hooks, keep_adapted=keep_adapted)
        function = tf.compat.v1.wrap_function(layer.call, [tf.TensorSpec([None, 1], tf.float32)])
    return float(function(tf.constant([[10.0]]))[0, 0])


def built(mean: float, variance: float) -> Any:
    """Returns a layer with these variables, and copies that were made before."""
    layer = tf.keras.layers.Normalization()
    layer.build([None, 1])
    layer.adapt_mean.assign([mean])
    layer.adapt_variance.assign([variance])
    return layer


@pytest.mark.parametrize(
    ("mean", "variance", "keep_adapted", "result"),
    [
        (2.0, 16.0, False, 2.0),
        # A factory that adapted the layer changed one of the variables.
        (2.0, 16.0, True, 10.0),
        (2.0, 1.0, True, 10.0),
        (0.0, 16.0, True, 10.0),
        (0.0, 1.0, True, 10.0),
    ],
)
def test_layer_computes_with_its_variables_unless_adapted_copies_are_kept(
    mean: float, variance: float, keep_adapted: bool, result: float
) -> None:
    layer = built(mean, variance)
    copies = layer.mean, layer.variance
    assert normalized(layer, keep_adapted=keep_adapted) == result
    assert (layer.mean, layer.variance) == copies


def test_layer_that_nobody_adapted_reads_its_variables_later() -> None:
    layer = built(0.0, 1.0)
    with Hooks() as hooks:
        restore_normalizations(hooks, keep_adapted=True)
        function = tf.compat.v1.wrap_function(layer.call, [tf.TensorSpec([None, 1], tf.float32)])
    layer.adapt_mean.assign([2.0])
    layer.adapt_variance.assign([16.0])
    assert float(function(tf.constant([[10.0]]))[0, 0]) == 2


@pytest.mark.parametrize("keep_adapted", [True, False])
def test_layer_of_stated_mean_and_variance_computes_with_them(keep_adapted: bool) -> None:
    layer = tf.keras.layers.Normalization(mean=4.0, variance=9.0)
    layer.build([None, 1])
    np.testing.assert_allclose(normalized(layer, keep_adapted=keep_adapted), 2, rtol=1e-6)
