"""Lets Normalization layers compute with the mean and the variance that the checkpoint holds.

A layer that `adapt()` filled computes with copies of its variables, made when it was built or adapted. A restore
reaches the variables and not the copies: a factory that does not adapt would hand on a mean of 0 and a variance of 1.
Source: tf-keras 2.20 and Keras 3.15, layers/preprocessing/normalization.py.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import numpy as np

from export.frameworks.hooks import calls_replaced
from export.frameworks.loading import load_tensorflow

_KERAS_3 = "keras.src.layers.preprocessing.normalization"


@contextlib.contextmanager
def normalizations_restored(*, kept: bool) -> Iterator[None]:
    """Lets layers read their variables whenever they are called, within the `with`.

    Args:
      kept: whether copies of values that the factory itself found by `adapt()` stay. They are constants, which ids may
        be computed with; a replay without them notices where the checkpoint holds others.
    """
    with calls_replaced("Normalization", _KERAS_3, lambda call: _reading(call, kept)):
        yield


def _reading(call: Any, kept: bool) -> Any:
    tf = load_tensorflow()

    def read_first(self: Any, inputs: Any) -> Any:
        if self.input_mean is not None or (kept and _adapted(self)):
            return call(self, inputs)
        copies = self.mean, self.variance
        self.finalize_state()
        try:
            return call(self, inputs)
        finally:
            self.mean, self.variance = copies  # what was read belongs to this graph

    apart = tf.autograph.experimental.do_not_convert(read_first)

    def called(self: Any, inputs: Any) -> Any:  # Keras asks for its signature
        return apart(self, inputs)

    return called


def _adapted(layer: Any) -> bool:
    """Tells whether a layer's variables hold anything but what they begin with."""
    with load_tensorflow().init_scope():
        mean, variance = (np.asarray(each) for each in (layer.adapt_mean, layer.adapt_variance))
    return bool((mean != 0).any() or (variance != 1).any())
