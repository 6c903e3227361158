"""Keeps the batch axis where a model squeezes without naming axes: a batch of one would lose it.

Source: TensorFlow 2.20, python/ops/array_ops.py (`squeeze`, which `tf.squeeze` and Keras call).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from export.graphs.loading import tf
from export.tensorflow_models.frameworks.hook_points import SQUEEZE
from export.tensorflow_models.frameworks.hooks import Hooks


def keep_batches(hooks: Hooks) -> None:
    """Makes `tf.squeeze` without axes remove only axes that are statically one, if the batch is
    open.
    """

    def squeeze(original: Callable[..., Any], **how: Any) -> Any:
        tensor = tf.convert_to_tensor(how["input"])
        sizes = tensor.shape.as_list() if tensor.shape.rank else []
        only_batch_is_open = sizes[:1] == [None] and None not in sizes[1:]
        stated = how["axis"] is not None or how["squeeze_dims"] is not None
        if stated or not only_batch_is_open:
            return original(**how)
        ones = [place for place, size in enumerate(sizes) if size == 1]
        return original(tensor, ones, how["name"]) if ones else tf.identity(tensor, how["name"])

    hooks.replace(SQUEEZE, squeeze)
