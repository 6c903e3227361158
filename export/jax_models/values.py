"""Values of a computation in JAX, as tensors of TensorFlow.

Repetitions are lazy. JAX repeats a bias or a mask to the shape of the array that it is added to;
TensorFlow's elementwise operations do that themselves. So a value keeps size 1 where it was only
repeated, and biases, scales and masks become the plain operations that LiteRT fuses.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from export.graphs.loading import tf

Size = Any
"""An int, or a symbolic size of JAX such as `2*b`, where b is the batch."""
Shape = tuple[Size, ...]


@dataclass(frozen=True)
class Computation:
    """The primitive that computed a value, and its arguments."""

    primitive: str
    arguments: tuple[Value, ...]


class Value:
    """A tensor with the shape that it has in JAX.

    Attributes:
      shape: The shape, whose sizes may be symbolic, and larger than 1 where the tensor has 1.
      constant: The array, if it depends on constants alone.
      computation: The computation with this result, if a lookup may need its arguments.
    """

    def __init__(
        self,
        shape: Sequence[Size],
        tensor: Any = None,
        constant: NDArray[Any] | None = None,
        computation: Computation | None = None,
    ) -> None:
        self.shape = tuple(shape)
        self.constant = constant
        self.computation = computation
        self._tensor = tensor

    @property
    def tensor(self) -> Any:
        """The tensor; a constant becomes a tensor of the graph that is being built."""
        if self.constant is None:
            return self._tensor
        return tf.constant(self.constant)

    def arguments_of(self, primitive: str) -> tuple[Value, ...]:
        """Returns the arguments of the primitive that computed this value; () if that was another
        primitive.
        """
        if self.computation is None or self.computation.primitive != primitive:
            return ()
        return self.computation.arguments


class Parameter(Value):
    """A parameter of the model, whose variable is read as a whole by all but lookups."""

    def __init__(self, variable: Any) -> None:
        super().__init__(variable.shape.as_list())
        self.variable = variable

    @property
    def tensor(self) -> Any:
        """The whole parameter."""
        return tf.convert_to_tensor(self.variable)


def constant(array: Any) -> Value:
    """Returns the value of a constant array."""
    values = np.asarray(array)
    return Value(values.shape, constant=values)


def is_static(size: Size) -> bool:
    """Returns whether a size does not depend on the batch."""
    return isinstance(size, int | np.integer)


def is_same_size(first: Size, second: Size) -> bool:
    """Returns whether two sizes are equal for every batch."""
    return is_static(first) == is_static(second) and bool(first == second)


class Sizes:
    """Sizes that depend on the batch, as tensors.

    Args:
      symbol_sizes: The scalar int32 tensor of each symbol.
    """

    def __init__(self, symbol_sizes: Mapping[str, Any]) -> None:
        self._symbol_sizes = symbol_sizes

    def size(self, size: Size) -> Any:
        """Returns a size as an int, or as a scalar tensor."""
        if is_static(size):
            return int(size)
        # Source: JAX 0.10, jax/_src/export/shape_poly.py, _DimExpr._evaluate.
        return size._evaluate(self._symbol_sizes)

    def vector(self, shape: Sequence[Size]) -> Any:
        """Returns a shape in the form that TensorFlow's operations read: a list, or a tensor."""
        sizes = [self.size(size) for size in shape]
        if not any(tf.is_tensor(size) for size in sizes):
            return sizes
        return tf.stack(sizes)

    def reshape(self, tensor: Any, shape: Sequence[Size]) -> Any:
        """Reshapes a tensor; one open size is left to TensorFlow to compute."""
        open_sizes = [size for size in shape if not is_static(size)]
        if len(open_sizes) != 1 or 0 in shape:
            return with_shape(tf.reshape(tensor, self.vector(shape)), shape)
        return tf.reshape(tensor, [int(size) if is_static(size) else -1 for size in shape])

    def full(self, value: Value) -> Any:
        """Returns the tensor of a value in its whole shape, with every repetition."""
        tensor = value.tensor
        if not _is_repeated(tensor.shape.as_list(), value.shape):
            return tensor
        return tf.broadcast_to(tensor, self.vector(value.shape))


def with_shape(tensor: Any, shape: Sequence[Size]) -> Any:
    """Returns a tensor with the static sizes of a shape."""
    return tf.ensure_shape(tensor, [int(size) if is_static(size) else None for size in shape])


def _is_repeated(tensor_sizes: list[int | None], shape: Shape) -> bool:
    """Returns whether a shape repeats a tensor of these sizes."""
    if len(tensor_sizes) != len(shape):
        return True
    for tensor_size, size in zip(tensor_sizes, shape, strict=True):
        # The batch may be 1; then nothing is repeated, which does no harm.
        is_one = is_static(size) and size == 1
        if tensor_size == 1 and not is_one:
            return True
    return False
