"""Makes Normalization layers compute with the mean and the variance of the checkpoint.

Such a layer computes with copies of its variables, made when it was built or adapted. A restore
changes the variables but not the copies: without `adapt()` in the factory they would be a mean of 0
and a variance of 1.
Source: tf-keras 2.20 and Keras 3.15, layers/preprocessing/normalization.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from export.graphs.loading import tf
from export.tensorflow_models.frameworks.hook_points import NORMALIZATIONS
from export.tensorflow_models.frameworks.hooks import Hooks


def restore_normalizations(hooks: Hooks, *, kept: bool) -> None:
    """Makes layers read their variables in every call.

    Args:
      hooks: replace the layers' calls.
      kept: whether the copies of a layer that the factory adapted stay: id rules need constants.
        The reference model does without them, so that parity checks find where the checkpoint holds
        other values.
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


def _adapted(layer: Any) -> bool:
    """Returns whether a layer's variables differ from their initial values."""
    with tf.init_scope():
        mean, variance = (np.asarray(each) for each in (layer.adapt_mean, layer.adapt_variance))
    return bool((mean != 0).any() or (variance != 1).any())
