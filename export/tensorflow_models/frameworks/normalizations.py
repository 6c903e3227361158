"""Makes Normalization layers compute with the mean and the variance of the checkpoint.

Such a layer computes with copies of its variables, made when it was built or adapted. A restore
changes the variables but not the copies: without `adapt()` in the factory they would be a mean of 0
and a variance of 1, and with it those of the factory's data.
Source: tf-keras 2.20 and Keras 3.15, layers/preprocessing/normalization.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from export.graphs.hooks import Hooks
from export.graphs.loading import tf
from export.tensorflow_models.frameworks.hook_points import NORMALIZATIONS
from export.tensorflow_models.frameworks.trackables import walk


def restore_normalizations(hooks: Hooks, *, keep_adapted: bool) -> None:
    """Makes layers read their variables in every call.

    Args:
      hooks: Receives the replacements of the layers' calls.
      keep_adapted: Whether the copies of a layer that the factory adapted stay: id rules need
        constants. They are the checkpoint's after `give_normalization`. The reference model does
        without them, so that parity checks find where the checkpoint holds other values.
    """

    def call_with_variables(call: Callable[..., Any], layer: Any, inputs: Any) -> Any:
        # A layer with `mean` and `variance` as arguments has no variables.
        is_constant = layer.input_mean is not None
        if is_constant or (keep_adapted and _is_adapted(layer)):
            return call(layer, inputs)
        copies = layer.mean, layer.variance
        layer.finalize_state()
        try:
            return call(layer, inputs)
        finally:
            # The new tensors belong to this graph.
            layer.mean, layer.variance = copies

    for point in NORMALIZATIONS:
        hooks.replace(point, call_with_variables)


def adapted_normalizations(root: Any) -> list[Any]:
    """Returns the layers of a model, or of an object that holds layers, that a factory adapted."""
    modules = {point.module for point in NORMALIZATIONS}
    layers = {}
    for part in (model_object.value for model_object in walk(root)):
        is_normalization = any(kind.__module__ in modules for kind in type(part).__mro__)
        if is_normalization and part.built and part.input_mean is None and _is_adapted(part):
            layers[id(part)] = part
    return list(layers.values())


def give_normalization(layer: Any, mean: Any, variance: Any) -> None:
    """Makes an adapted layer compute with other values, of the shapes of its variables.

    Args:
      layer: The layer.
      mean, variance: The mean and the variance of each of its numbers.
    """
    layer.adapt_mean.assign(mean)
    layer.adapt_variance.assign(variance)
    layer.finalize_state()


def _is_adapted(layer: Any) -> bool:
    """Returns whether a layer's variables differ from their initial values."""
    with tf.init_scope():
        mean = np.asarray(layer.adapt_mean)
        variance = np.asarray(layer.adapt_variance)
    return bool((mean != 0).any() or (variance != 1).any())
