"""Values of a computation in JAX, as TensorFlow holds them.

Repetitions are lazy. JAX repeats a bias or a mask to the shape of what it is added to; TensorFlow's
elementwise operations do that themselves. So a value keeps size 1 where it was only repeated, and
biases, scales and masks become the plain operations that LiteRT fuses.
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
class MadeBy:
    """The primitive that computed a value, and the values that it took."""

    primitive: str
    arguments: tuple[Value, ...]


class Value:
    """A tensor with the shape that it has in JAX.

    Attributes:
      shape: sizes may be symbolic, and larger than 1 where the tensor has 1.
      known: the value, where it depends on constants alone.
      made_by: what computed it, where that may matter.
    """

    def __init__(
        self,
        shape: Sequence[Size],
        tensor: Any = None,
        known: NDArray[Any] | None = None,
        made_by: MadeBy | None = None,
    ) -> None:
        self.shape = tuple(shape)
        self.known = known
        self.made_by = made_by
        self._tensor = tensor

    @property
    def tensor(self) -> Any:
        """The tensor; a constant is made in whichever graph is being built."""
        return self._tensor if self.known is None else tf.constant(self.known)

    def arguments_of(self, primitive: str) -> tuple[Value, ...]:
        """Returns what a primitive computed this from; nothing if it was another primitive."""
        made_by = self.made_by
        return () if made_by is None or made_by.primitive != primitive else made_by.arguments


class Parameter(Value):
    """A parameter of the model, whose variable is read as a whole where something but a lookup
    takes it.
    """

    def __init__(self, variable: Any) -> None:
        super().__init__(variable.shape.as_list())
        self.variable = variable

    @property
    def tensor(self) -> Any:
        """The whole parameter."""
        return tf.convert_to_tensor(self.variable)


def constant(array: Any) -> Value:
    """Returns a value that is known."""
    known = np.asarray(array)
    return Value(known.shape, known=known)


def is_static(size: Size) -> bool:
    """Returns whether a size does not depend on the batch."""
    return isinstance(size, int | np.integer)


class Sizes:
    """Sizes that depend on the batch, as tensors."""

    def __init__(self, of_symbols: Mapping[str, Any]) -> None:
        """Takes the scalar int32 tensor of each symbol."""
        self._of_symbols = of_symbols

    def size(self, size: Size) -> Any:
        """Returns a size as an int, or as a scalar tensor."""
        if is_static(size):
            return int(size)
        # Source: JAX 0.10, jax/_src/export/shape_poly.py, _DimExpr._evaluate.
        return size._evaluate(self._of_symbols)

    def vector(self, shape: Sequence[Size]) -> Any:
        """Returns a shape as TensorFlow's operations take it."""
        sizes = [self.size(size) for size in shape]
        return tf.stack(sizes) if any(tf.is_tensor(size) for size in sizes) else sizes

    def reshape(self, tensor: Any, shape: Sequence[Size]) -> Any:
        """Reshapes a tensor; one open size is left to TensorFlow to compute."""
        open_sizes = [size for size in shape if not is_static(size)]
        if len(open_sizes) != 1 or 0 in shape:
            return with_shape(tf.reshape(tensor, self.vector(shape)), shape)
        return tf.reshape(tensor, [int(size) if is_static(size) else -1 for size in shape])

    def full(self, value: Value) -> Any:
        """Returns the tensor of a value in its whole shape, with every repetition made."""
        tensor = value.tensor
        if not _is_repeated(tensor.shape.as_list(), value.shape):
            return tensor
        return tf.broadcast_to(tensor, self.vector(value.shape))


def with_shape(tensor: Any, shape: Sequence[Size]) -> Any:
    """Returns a tensor with the sizes that are known before it runs."""
    return tf.ensure_shape(tensor, [int(size) if is_static(size) else None for size in shape])


def _is_repeated(held: list[int | None], shape: Shape) -> bool:
    if len(held) != len(shape):
        return True
    pairs = zip(held, shape, strict=True)
    return any(have == 1 and not (is_static(want) and want == 1) for have, want in pairs)
