"""Finds where a graph takes single columns out of a wide input: slices, splits and gathers by constant positions."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from export.frameworks import load_tensorflow
from export.model.origins import Source, Sources, origin

PARTS = frozenset({"StridedSlice", "Slice", "Split", "SplitV", "Unpack", "GatherV2"})
"""Operations that take some columns of a tensor."""

_EXAMPLES = 2
"""What is tried: columns are those that are the same of each."""


def with_places(inputs: Mapping[str, Any], sources: Sources) -> Sources:
    """Returns the sources of a call, and each tensor that is one column of a dense input of several ids.

    Args:
      inputs: of the call, in its graph.
      sources: its sources so far.
    """
    tf = load_tensorflow()
    found = dict(sources)
    for name, tensor in inputs.items():
        shape = tensor.shape.as_list() if isinstance(tensor, tf.Tensor) and tensor.shape.rank == 2 else [None]
        if shape[-1] is not None and shape[-1] > 1 and (tensor.dtype.is_integer or tensor.dtype == tf.string):
            numbers = np.arange(_EXAMPLES * shape[-1]).reshape(_EXAMPLES, -1)
            _follow(tensor, numbers, shape[-1], Source(name, "dense"), found)
    return found


def _follow(tensor: Any, numbers: NDArray[np.int64], width: int, source: Source, found: dict[str, Source]) -> None:
    """Follows a tensor forward; `numbers` tells which values of the input it holds of each example that is tried."""
    for operation in tensor.consumers():
        if operation.type in PARTS:
            for output, part in zip(operation.outputs, _parts(operation, tensor, numbers), strict=False):
                columns = part.reshape(_EXAMPLES, -1) if part.size % _EXAMPLES == 0 else part[:0]
                if not columns.size or not np.array_equal(columns[1], columns[0] + width):
                    continue  # examples were taken out
                if columns.shape[1] == 1:
                    found[output.name] = Source(source.name, source.part, int(columns[0, 0]))
                _follow(output, part, width, source, found)
        elif operation.outputs and origin(operation.outputs[0], {tensor.name: source}) == source:
            values = operation.outputs[0]
            if values.shape.rank == numbers.ndim:  # another shape may order examples and columns otherwise
                _follow(values, numbers, width, source, found)


def _parts(operation: Any, tensor: Any, numbers: NDArray[np.int64]) -> list[NDArray[np.int64]]:
    """Returns what an operation gives of these numbers; [] where that depends on more than constants."""
    from tensorflow.python.framework import tensor_util

    tf = load_tensorflow()
    given: dict[str, Any] = {}
    for argument, value in zip(operation.op_def.input_arg, operation.inputs, strict=True):
        known = numbers if value is tensor else tensor_util.constant_value(value)
        if known is None:
            return []
        given["axis" if argument.name == "split_dim" else argument.name] = tf.constant(known)
    for attribute in operation.op_def.attr:
        if attribute.type != "type":
            given[attribute.name] = operation.get_attr(attribute.name)
    with tf.init_scope():
        result = getattr(tf.raw_ops, operation.type)(**given)
    return [part.numpy() for part in (result if isinstance(result, list) else [result])]
