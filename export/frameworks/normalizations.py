"""Lets Normalization layers compute with the mean and the variance that the checkpoint holds.

A layer that `adapt()` filled computes with copies of its variables, made when it was built or adapted. A restore
reaches the variables and not the copies: a factory that does not adapt would hand on a mean of 0 and a variance of 1.
Source: tf-keras 2.20 and Keras 3.15, layers/preprocessing/normalization.py.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from export.frameworks.hooks import Hooks
from export.frameworks.loading import tf
from export.frameworks.points import NORMALIZATIONS


def restore_normalizations(hooks: Hooks, *, kept: bool) -> None:
    """Lets layers read their variables whenever they are called.

    Args:
      hooks: replace the layers' calls.
      kept: whether copies of values that the factory itself found by `adapt()` stay. They are constants, which ids may
        be computed with; a reference model without them notices where the checkpoint holds others.
    """

    def read_first(call: Callable[..., Any], layer: Any, inputs: Any) -> Any:
        if layer.input_mean is not None or (kept and _adapted(layer)):
            return call(layer, inputs)
        copies = layer.mean, layer.variance
        layer.finalize_state()
        try:
            return call(layer, inputs)
        finally:
            layer.mean, layer.variance = copies  # what was read belongs to this graph

    for point in NORMALIZATIONS:
        hooks.replace(point, read_first)


def _adapted(layer: Any) -> bool:
    """Returns whether a layer's variables hold anything but what they begin with."""
    with tf.init_scope():
        mean, variance = (np.asarray(each) for each in (layer.adapt_mean, layer.adapt_variance))
    return bool((mean != 0).any() or (variance != 1).any())
