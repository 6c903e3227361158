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

from export.graphs.internals import is_keras_3_layer
from export.graphs.loading import tf
from export.tensorflow_models.frameworks.hook_points import NORMALIZATIONS
from export.tensorflow_models.frameworks.hooks import Hooks
from export.tensorflow_models.frameworks.keras_saving import all_layers
from export.tensorflow_models.frameworks.trackables import descendants_of


def restore_normalizations(hooks: Hooks, *, kept: bool) -> None:
    """Makes layers read their variables in every call.

    Args:
      hooks: replace the layers' calls.
      kept: whether the copies of a layer that the factory adapted stay: id rules need constants.
        They are the checkpoint's after `give_normalization`. The reference model
        does without them, so that parity checks find where the checkpoint holds other values.
    """

    def read_first(call: Callable[..., Any], layer: Any, inputs: Any) -> Any:
        if layer.input_mean is not None or (kept and _adapted(layer)):
            return call(layer, inputs)
        copies = layer.mean, layer.variance
        layer.finalize_state()
        try:
            return call(layer, inputs)
        finally:
            layer.mean, layer.variance = copies  # the tensors belong to this graph

    for point in NORMALIZATIONS:
        hooks.replace(point, read_first)


def adapted_normalizations(root: Any) -> list[Any]:
    """Returns the layers of a model, or of an object that holds layers, that a factory adapted."""
    if not hasattr(root, "_trackable_children"):
        return []
    objects = descendants_of(root)
    # Keras 3 tracks layers in lists and dicts by itself.
    models = [part for part in objects if is_keras_3_layer(part)]
    objects += [layer for model in models for layer in all_layers(model)]
    modules = {point.module for point in NORMALIZATIONS}
    found = {
        id(part): part
        for part in objects
        if any(kind.__module__ in modules for kind in type(part).__mro__)
        and part.built
        and part.input_mean is None
        and _adapted(part)
    }
    return list(found.values())


def give_normalization(layer: Any, mean: Any, variance: Any) -> None:
    """Makes an adapted layer compute with other values, of the shapes of its variables.

    Args:
      layer: the layer.
      mean, variance: for each of its numbers.
    """
    layer.adapt_mean.assign(mean)
    layer.adapt_variance.assign(variance)
    layer.finalize_state()


def _adapted(layer: Any) -> bool:
    """Returns whether a layer's variables differ from their initial values."""
    with tf.init_scope():
        mean, variance = (np.asarray(each) for each in (layer.adapt_mean, layer.adapt_variance))
    return bool((mean != 0).any() or (variance != 1).any())
