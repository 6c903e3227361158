"""A part of a tower at a few adjacent positions of its sequences alone: a window, which begins at a
position that is an input.

What is computed position by position needs the window of what it reads. What a position reads of
all others, such as the keys and values of attention, is stored of an earlier computation, with the
window's own values in their places. What has no rule is computed as a whole, and the window is
taken of it: never wrong, only dearer.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from export.graphs.internals import copy_operation
from export.graphs.loading import tf
from export.towers.positions import elementwise, reductions
from export.towers.positions.grids import Shape
from export.towers.positions.probing import Probe
from export.towers.positions.products import PRODUCTS, labels_of


@dataclass(frozen=True, eq=False)
class Stored:
    """A tensor of an earlier computation.

    Attributes:
      tensor: Its values.
      axis: The axis of its positions.
      offset: The position that belongs to the first one of the sequences.
    """

    tensor: Any
    axis: int
    offset: int


class Windows:
    """Computes tensors of the graph of one example in a window of positions.

    Attributes:
      positions: The number of positions of the sequences.
      events: The number of positions of the window.
    """

    def __init__(
        self,
        found: Probe,
        begin: Any,
        positions: int,
        events: int,
        sequences: Collection[Any],
        stored: Mapping[str, Stored],
    ) -> None:
        """Takes a graph.

        Args:
          found: The shapes and constants of its tensors.
          begin: [1] int32: the position of the sequences at which the window begins.
          positions: The number of positions of the sequences.
          events: The number of positions of the window.
          sequences: The inputs that are sequences.
          stored: What was computed before, by the names of tensors.
        """
        self.positions = positions
        self.events = events
        self._found = found
        self._begin = begin
        self._stored = stored
        self._windows: dict[tuple[str, int, int], Any] = {}
        self._wholes: dict[str, Any] = {}
        operations = begin.graph.get_operations()
        self._of_sequences = _downstream(operations, {tensor.name for tensor in sequences})
        self._of_stored = _downstream(operations, set(stored))

    def of(self, tensor: Any, axis: int, offset: int) -> Any:
        """Returns the window of a tensor.

        Args:
          tensor: The tensor.
          axis: The axis of its positions.
          offset: The position that belongs to the first one of the sequences.
        """
        key = tensor.name, axis, offset
        if key not in self._windows:
            rule = None
            if tensor.name in self._of_sequences:
                rule = _RULES.get(tensor.op.type)
            window = rule and rule(self, tensor, axis, offset)
            if window is None:
                window = self._gathered(self._computed(tensor), axis, offset)
            self._windows[key] = window
        return self._windows[key]

    def whole(self, tensor: Any) -> Any:
        """Returns all positions of a tensor."""
        name = tensor.name
        if name not in self._of_stored:
            return tensor
        if name not in self._wholes:
            stored = self._stored.get(name)
            if stored is not None:
                self._wholes[name] = self._updated(tensor, stored)
            else:
                self._wholes[name] = self._computed(tensor)
        return self._wholes[name]

    def shape(self, tensor: Any) -> Shape:
        """Returns the shape of a tensor of one example."""
        shape = self._found.shapes.get(tensor.name)
        if shape is None:
            shape = tuple(tensor.shape.as_list())
        return tuple(abs(size) for size in shape)

    def integers(self, tensor: Any) -> list[int] | None:
        """Returns the values of a tensor that names axes; None: they are not constant."""
        constant = self._found.constant(tensor)
        if constant is None:
            return None
        return [int(value) for value in constant.reshape(-1)]

    def _computed(self, tensor: Any) -> Any:
        """Returns all positions of a tensor, computed of all positions of what it reads."""
        if tensor.name not in self._of_stored:
            return tensor
        arguments = [self.whole(read) for read in tensor.op.inputs]
        return copy_operation(tensor.op, arguments)[tensor.value_index]

    def _gathered(self, tensor: Any, axis: int, offset: int) -> Any:
        positions = self._begin + tf.range(offset, offset + self.events)
        return tf.gather(tensor, positions, axis=axis)

    def _updated(self, tensor: Any, stored: Stored) -> Any:
        """Returns a stored tensor with the window in its place."""
        axis = stored.axis
        size = self.shape(tensor)[axis]
        window = self.of(tensor, axis, stored.offset)
        places = tf.range(size) - stored.offset - self._begin
        is_new = (places >= 0) & (places < self.events)
        # LiteRT copies rows fast, and chooses between numbers slowly.
        sources = tf.where(is_new, places + size, tf.range(size))
        return tf.gather(tf.concat([stored.tensor, window], axis), sources, axis=axis)


def _downstream(operations: Sequence[Any], names: set[str]) -> set[str]:
    """Returns the names of tensors and of all that are computed of them."""
    reached = set(names)
    for operation in operations:
        if any(tensor.name in reached for tensor in operation.inputs):
            reached.update(tensor.name for tensor in operation.outputs)
    return reached


Rule = Callable[[Windows, Any, int, int], Any]
"""Returns the window of a tensor, along an axis, at an offset; None: it has no rule for it."""


def _elementwise(windows: Windows, tensor: Any, axis: int, offset: int) -> Any:
    rank = len(windows.shape(tensor))
    arguments = []
    for read in tensor.op.inputs:
        sizes = windows.shape(read)
        own_axis = axis - (rank - len(sizes))
        # What has one value for all positions is broadcast.
        if own_axis < 0 or sizes[own_axis] == 1:
            arguments.append(windows.whole(read))
        else:
            arguments.append(windows.of(read, own_axis, offset))
    return copy_operation(tensor.op, arguments)[tensor.value_index]


def _transposed(windows: Windows, tensor: Any, axis: int, offset: int) -> Any:
    read, order = tensor.op.inputs
    axes = windows.integers(order)
    if axes is None:
        return None
    return tf.transpose(windows.of(read, axes[axis], offset), axes)


def _reshaped(windows: Windows, tensor: Any, axis: int, offset: int) -> Any:
    """Reshape, ExpandDims and Squeeze."""
    read = tensor.op.inputs[0]
    old = windows.shape(read)
    new = list(windows.shape(tensor))
    before = math.prod(new[:axis])
    for place, size in enumerate(old):
        if size == new[axis] and math.prod(old[:place]) == before:
            new[axis] = windows.events
            return tf.reshape(windows.of(read, place, offset), new)
    return None


def _product(windows: Windows, tensor: Any, axis: int, offset: int) -> Any:
    factors = list(tensor.op.inputs)
    shapes = [windows.shape(factor) for factor in factors]
    labels = labels_of(tensor.op, *[len(shape) for shape in shapes])
    if labels is None:
        return None
    label = labels.product[axis]
    arguments = []
    for factor, shape, own in zip(factors, shapes, (labels.first, labels.second), strict=True):
        if label in own and shape[own.index(label)] > 1:
            arguments.append(windows.of(factor, own.index(label), offset))
        else:
            arguments.append(windows.whole(factor))
    return copy_operation(tensor.op, arguments)[0]


def _softmax(windows: Windows, tensor: Any, axis: int, offset: int) -> Any:
    (read,) = tensor.op.inputs
    if axis == len(windows.shape(read)) - 1:
        return None
    return copy_operation(tensor.op, [windows.of(read, axis, offset)])[0]


def _reduction(windows: Windows, tensor: Any, axis: int, offset: int) -> Any:
    read, axes_tensor = tensor.op.inputs
    axes = windows.integers(axes_tensor)
    if axes is None:
        return None
    rank = len(windows.shape(read))
    gone = {number % rank for number in axes}
    own_axis = axis
    if not tensor.op.get_attr("keep_dims"):
        own_axis = [number for number in range(rank) if number not in gone][axis]
    if own_axis in gone:
        return None
    return copy_operation(tensor.op, [windows.of(read, own_axis, offset), axes_tensor])[0]


def _concatenated(windows: Windows, tensor: Any, axis: int, offset: int) -> Any:
    *pieces, place_tensor = tensor.op.inputs
    places = windows.integers(place_tensor)
    if places is None:
        return None
    place = places[0] % len(windows.shape(tensor))
    if place != axis:
        return tf.concat([windows.of(piece, axis, offset) for piece in pieces], place)
    # All positions of the sequences lie in one of the pieces.
    begin = 0
    for piece in pieces:
        size = windows.shape(piece)[axis]
        if begin <= offset and offset + windows.positions <= begin + size:
            return windows.of(piece, axis, offset - begin)
        begin += size
    return None


def _divided(windows: Windows, tensor: Any, axis: int, offset: int) -> Any:
    """Split, SplitV and Unpack beside the axis of positions."""
    operation = tensor.op
    arguments = list(operation.inputs)
    number = int(operation.type == "Split")
    read = arguments[number]
    rank = len(windows.shape(read))
    if operation.type == "Unpack":
        place = operation.get_attr("axis") % rank
        own_axis = axis + (axis >= place)
    else:
        places = windows.integers(arguments[0 if number else 2])
        if places is None:
            return None
        place = places[0] % rank
        own_axis = axis
    if place == own_axis:
        return None
    arguments[number] = windows.of(read, own_axis, offset)
    return copy_operation(operation, arguments)[tensor.value_index]


def _sliced(windows: Windows, tensor: Any, axis: int, offset: int) -> Any:
    """StridedSlice that takes all positions."""
    operation = tensor.op
    read = operation.inputs[0]
    old = windows.shape(read)
    bounds = [windows.integers(bound) for bound in operation.inputs[1:]]
    adds_axes = operation.get_attr("ellipsis_mask") or operation.get_attr("new_axis_mask")
    if adds_axes or any(bound is None for bound in bounds):
        return None
    index: list[Any] = []
    for place, (begin, end, step) in enumerate(zip(*bounds, strict=True)):
        if operation.get_attr("shrink_axis_mask") >> place & 1:
            index.append(begin)
        else:
            has_begin, has_end = (
                not operation.get_attr(mask) >> place & 1 for mask in ("begin_mask", "end_mask")
            )
            index.append(slice(begin if has_begin else None, end if has_end else None, step))
    # Bounds name the first axes; the others are taken whole.
    index += [slice(None)] * (len(old) - len(index))
    own_axis = [place for place, entry in enumerate(index) if isinstance(entry, slice)][axis]
    if index[own_axis].indices(old[own_axis]) != (0, old[own_axis], 1):
        return None
    index[own_axis] = slice(None)
    return windows.of(read, own_axis, offset)[tuple(index)]


def _looked_up(windows: Windows, tensor: Any, axis: int, offset: int) -> Any:
    """GatherV2: rows of a table inside the tower."""
    table, rows, place_tensor = tensor.op.inputs
    places = windows.integers(place_tensor)
    if places is None or tensor.op.get_attr("batch_dims"):
        return None
    place = places[0] % len(windows.shape(table))
    if not place <= axis < place + len(windows.shape(rows)):
        return None
    return tf.gather(windows.whole(table), windows.of(rows, axis - place, offset), axis=place)


def _broadcast(windows: Windows, tensor: Any, axis: int, offset: int) -> Any:
    read = tensor.op.inputs[0]
    sizes = windows.shape(read)
    shape = list(windows.shape(tensor))
    own_axis = axis - (len(shape) - len(sizes))
    shape[axis] = windows.events
    if own_axis < 0 or sizes[own_axis] == 1:
        return tf.broadcast_to(windows.whole(read), shape)
    return tf.broadcast_to(windows.of(read, own_axis, offset), shape)


_RULES: Mapping[str, Rule] = {
    **dict.fromkeys([*elementwise.RULES, "IdentityN"], _elementwise),
    **dict.fromkeys(PRODUCTS, _product),
    **dict.fromkeys(reductions.RULES, _reduction),
    "BroadcastTo": _broadcast,
    "ConcatV2": _concatenated,
    "ExpandDims": _reshaped,
    "GatherV2": _looked_up,
    "Reshape": _reshaped,
    "Softmax": _softmax,
    "Split": _divided,
    "SplitV": _divided,
    "Squeeze": _reshaped,
    "StridedSlice": _sliced,
    "Transpose": _transposed,
    "Unpack": _divided,
}
