"""Keeps the batch axis where a model squeezes without naming axes: a batch of one would lose it.

Source: TensorFlow 2.20, python/ops/array_ops.py (`squeeze`, which `tf.squeeze` and Keras call).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from export.graphs.hooks import Hooks
from export.graphs.loading import tf
from export.tensorflow_models.frameworks.hook_points import SQUEEZE


def keep_batches(hooks: Hooks) -> None:
    """Makes `tf.squeeze` without axes remove only axes that are statically one, if the batch is
    open.
    """

    def squeeze(original: Callable[..., Any], **arguments: Any) -> Any:
        tensor = tf.convert_to_tensor(arguments["input"])
        sizes: list[int | None] = []
        if tensor.shape.rank:
            sizes = tensor.shape.as_list()
        only_batch_is_open = sizes[:1] == [None] and None not in sizes[1:]
        is_stated = arguments["axis"] is not None or arguments["squeeze_dims"] is not None
        if is_stated or not only_batch_is_open:
            return original(**arguments)
        axes = [axis for axis, size in enumerate(sizes) if size == 1]
        # TensorFlow takes an empty list of axes for all axes.
        if not axes:
            return tf.identity(tensor, arguments["name"])
        return original(tensor, axes, arguments["name"])

    hooks.replace(SQUEEZE, squeeze)
