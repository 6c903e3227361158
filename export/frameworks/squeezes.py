"""Keeps the batch where a model squeezes without saying which axes: a batch of one would lose its axis.

Source: TensorFlow 2.20, python/ops/array_ops.py (`squeeze`, in which `tf.squeeze` and Keras' own end).
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from export.frameworks.hooks import hooked
from export.frameworks.loading import load_tensorflow


@contextlib.contextmanager
def batches_unsqueezed() -> Iterator[None]:
    """Lets `tf.squeeze` take away axes of one value alone, within the `with`, where the first of all is open."""
    tf = load_tensorflow()
    from tensorflow.python.ops import array_ops

    def squeeze(original: Any, input: Any, axis: Any, name: Any, squeeze_dims: Any) -> Any:  # noqa: A002 - its name
        tensor = tf.convert_to_tensor(input)
        sizes = tensor.shape.as_list() if tensor.shape.rank else [1]
        if axis is not None or squeeze_dims is not None or sizes[0] is not None or None in sizes[1:]:
            return original(input, axis, name, squeeze_dims)
        ones = [place for place, size in enumerate(sizes) if size == 1]
        return original(tensor, ones, name) if ones else tf.identity(tensor, name)

    with hooked(array_ops.squeeze, squeeze):
        yield
